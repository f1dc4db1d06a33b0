#include "target_worker/session.h"

#include "common/base/min.h"

int32_t session_room(const session *s) {
  int32_t output = s->request.options.max_tokens - (s->committed.length - s->request.prompt_length);
  int32_t context = s->request.options.context - s->committed.length;
  int32_t room = min_i32(output, context);
  return room > 0 ? room : 0;
}

bool session_has_begun(const session *s) {
  return s->committed.length > s->request.prompt_length + 1;
}

bool session_has_nodes(const session *s) {
  return s->drafts.has_tree && s->drafts.tree.live_count > 0;
}

void session_lockstep_begin(session *s, uint64_t now) {
  s->drafts.lockstep_until_us = now + SESSION_LOCKSTEP_US;
}

session_draft *session_draft_of(session *s, peer_id peer) {
  for (int i = 0; peer && i < SESSION_DRAFTS_MAX; i++)
    if (s->drafts.of[i].peer == peer) return &s->drafts.of[i];
  return NULL;
}

/* Without a draft that reads features, there is nothing of them. */
static void settle_features(session *s) {
  session_features *f = &s->drafts.features;
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    if (s->drafts.of[i].peer && s->drafts.of[i].features.granted) return;
  feature_ring_fini(&f->ring);
  feature_ring_fini(&f->fusion.states);
  f->taps = (taps_set){0};
  f->repeats = false;
  f->fusion.serial = 0;
}

session_draft *session_draft_take(session *s, peer_id peer) {
  session_draft *d = session_draft_of(s, peer);
  for (int i = 0; !d && i < SESSION_DRAFTS_MAX; i++)
    if (!s->drafts.of[i].peer) d = &s->drafts.of[i];
  if (!d) return NULL;
  if (!s->drafts.has_tree) {
    if (tree_init(&s->drafts.tree, TREE_NODE_MAX) != ERR_OK) return NULL;
    s->drafts.has_tree = true;
  }
  tree_ids ids = d->ids;
  if (!ids.ring && tree_ids_init(&ids) != ERR_OK) return NULL;
  /* Of whoever was here before: to leave and come again asks for no more. */
  *d = (session_draft){.peer = peer,
                       .ids = ids,
                       .base_named = 1,
                       .resent_us = d->resent_us,
                       .resent_end = d->resent_end,
                       .resent_part = d->resent_part};
  tree_ids_reset(&d->ids, ++s->drafts.generation);
  settle_features(s);
  return d;
}

void session_draft_drop(session *s, session_draft *d) {
  tree_ids *maps[SESSION_DRAFTS_MAX];
  d->peer = 0;
  settle_features(s);
  int32_t left = session_draft_maps(s, maps);
  if (left > 0)
    tree_keep_named(&s->drafts.tree, maps, left);
  else
    tree_reset(&s->drafts.tree);
}

int32_t session_draft_count(const session *s) {
  int32_t n = 0;
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) n += s->drafts.of[i].peer != 0;
  return n;
}

void session_draft_restart(session *s) {
  if (s->drafts.has_tree) tree_reset(&s->drafts.tree);
  feature_ring_clear(&s->drafts.features.fusion.states);
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) {
    session_draft *d = &s->drafts.of[i];
    if (!d->peer) continue;
    tree_ids_reset(&d->ids, ++s->drafts.generation);
    d->base_named = 1;
    d->done_base = 0;
  }
  settle_features(s);
}

int32_t session_draft_maps(session *s, tree_ids **maps) {
  int32_t n = 0;
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    if (s->drafts.of[i].peer) maps[n++] = &s->drafts.of[i].ids;
  return n;
}

int32_t session_draft_done_count(const session *s) {
  int32_t done = 0;
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    done += s->drafts.of[i].peer && s->drafts.of[i].done_base == s->committed.length;
  return done;
}

bool session_drafts_done(const session *s) {
  int32_t done = session_draft_done_count(s);
  return done > 0 && done == session_draft_count(s);
}

void session_drafts_fini(session *s) {
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) tree_ids_fini(&s->drafts.of[i].ids);
  if (s->drafts.has_tree) tree_fini(&s->drafts.tree);
  feature_ring_fini(&s->drafts.features.ring);
  feature_ring_fini(&s->drafts.features.fusion.states);
  s->drafts.has_tree = false;
}
