#include "target_worker/session_store.h"

#include <stdlib.h>
#include <string.h>

int session_store_init(session_store *s, int32_t count, int32_t context, err *e) {
  *s = (session_store){.count = count, .context = context};
  s->places = calloc((size_t)count, sizeof *s->places);
  if (!s->places) return err_set(e, ERR_NOMEM, "no memory for %d sessions: lower --sessions", count);
  for (int32_t i = 0; i < count; i++) {
    s->places[i].slot = i;
    if (prefix_init(&s->places[i].committed, context, 0) == ERR_OK) continue;
    session_store_fini(s);
    return err_set(e, ERR_NOMEM, "no memory for %d sessions of %d tokens: lower --sessions or --ctx", count, context);
  }
  return ERR_OK;
}

static void drafts_fini(session *s) {
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) tree_ids_fini(&s->drafts[i].ids);
  if (s->has_tree) tree_fini(&s->live);
  s->has_tree = false;
}

void session_store_fini(session_store *s) {
  for (int32_t i = 0; s->places && i < s->count; i++) {
    drafts_fini(&s->places[i]);
    prefix_fini(&s->places[i].committed);
    free(s->places[i].penalised);
  }
  free(s->places);
  *s = (session_store){0};
}

session *session_store_get(session_store *s, uint64_t id) {
  for (int32_t i = 0; i < s->count; i++)
    if (s->places[i].state != SESSION_FREE && s->places[i].id == id) return &s->places[i];
  return NULL;
}

/* A place is given up whole, but for what was taken once: its slot and the memory of its prefix, and of what its penalties look at,
 * which the engine may still be reading. */
static void place_clear(session *s) {
  drafts_fini(s);
  prefix keep = s->committed;
  int32_t slot = s->slot, *penalised = s->penalised;
  memset(s, 0, sizeof *s);
  s->committed = keep;
  s->slot = slot;
  s->penalised = penalised;
  s->kv_valid = INT32_MAX;
  prefix_reset(&s->committed, 0);
}

static session *place_find(session_store *s) {
  session *idle = NULL;
  for (int32_t i = 0; i < s->count; i++) {
    session *p = &s->places[i];
    if (p->state == SESSION_FREE) return p;
    if (p->state == SESSION_FINISHED && (!idle || p->used_us < idle->used_us)) idle = p;
  }
  return idle;
}

session *session_store_take(session_store *s, uint64_t id, uint64_t now_us, bool *fresh) {
  session *p = session_store_get(s, id);
  *fresh = !p;
  if (p) return p;
  p = place_find(s);
  if (!p) return NULL;
  place_clear(p);
  p->id = id;
  p->state = SESSION_RUNNING;
  p->used_us = now_us;
  return p;
}

bool session_store_penalised(const session_store *s, session *p) {
  if (!p->penalised) p->penalised = calloc((size_t)s->context, sizeof *p->penalised);
  return p->penalised != NULL;
}

bool session_store_usable(session_store *s, uint64_t id, uint32_t epoch, int32_t length, hash16 hash) {
  session *p = session_store_get(s, id);
  return p && p->epoch == epoch && prefix_has(&p->committed, length, hash);
}

bool session_store_end(session_store *s, uint64_t id) {
  session *p = session_store_get(s, id);
  if (!p) return false;
  place_clear(p);
  return true;
}

int32_t session_store_active(const session_store *s) {
  int32_t n = 0;
  for (int32_t i = 0; i < s->count; i++)
    n += s->places[i].state == SESSION_RUNNING || s->places[i].state == SESSION_DESYNCED;
  return n;
}

session_draft *session_draft_of(session *s, peer_id peer) {
  for (int i = 0; peer && i < SESSION_DRAFTS_MAX; i++)
    if (s->drafts[i].peer == peer) return &s->drafts[i];
  return NULL;
}

session_draft *session_draft_take(session *s, peer_id peer) {
  session_draft *d = session_draft_of(s, peer);
  for (int i = 0; !d && i < SESSION_DRAFTS_MAX; i++)
    if (!s->drafts[i].peer) d = &s->drafts[i];
  if (!d) return NULL;
  if (!s->has_tree) {
    if (tree_init(&s->live, TREE_NODE_MAX) != ERR_OK) return NULL;
    s->has_tree = true;
  }
  tree_ids ids = d->ids;
  if (!ids.ring && tree_ids_init(&ids) != ERR_OK) return NULL;
  *d = (session_draft){.peer = peer, .ids = ids, .base_named = 1};
  tree_ids_reset(&d->ids, ++s->generation);
  return d;
}

void session_draft_drop(session *s, peer_id peer) {
  session_draft *d = session_draft_of(s, peer);
  if (d) d->peer = 0;
}

int32_t session_draft_count(const session *s) {
  int32_t n = 0;
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) n += s->drafts[i].peer != 0;
  return n;
}

void session_draft_restart(session *s) {
  if (s->has_tree) tree_reset(&s->live);
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) {
    session_draft *d = &s->drafts[i];
    if (!d->peer) continue;
    tree_ids_reset(&d->ids, ++s->generation);
    d->base_named = 1;
    d->done_base = 0;
  }
}

int32_t session_draft_maps(session *s, tree_ids **maps) {
  int32_t n = 0;
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    if (s->drafts[i].peer) maps[n++] = &s->drafts[i].ids;
  return n;
}
