#include "target_worker/session_store.h"

#include "common/base/least.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int32_t blocks_of(int32_t rows) {
  return (rows + KV_BLOCK - 1) / KV_BLOCK;
}

static bool place_init(const session_store *s, session *p, int32_t slot) {
  p->slot = slot;
  if (s->is_virtual && !(p->blocks = calloc((size_t)blocks_of(s->context), sizeof *p->blocks))) return false;
  return prefix_init(&p->committed, s->context, 0) == ERR_OK;
}

int session_store_init(session_store *s, int32_t count, int32_t context, int32_t blocks, err *e) {
  *s = (session_store){.count = count, .context = context, .is_virtual = blocks > 0};
  s->places = calloc((size_t)count, sizeof *s->places);
  if (!s->places) return err_set(e, ERR_NOMEM, "no memory for %d sessions: lower --sessions", count);
  int rc = blocks > 0 ? kv_blocks_init(&s->blocks, blocks, e) : ERR_OK;
  for (int32_t i = 0; i < count && rc == ERR_OK; i++)
    if (!place_init(s, &s->places[i], i))
      rc = err_set(e, ERR_NOMEM, "no memory for %d sessions of %d tokens: lower --sessions or --ctx", count,
                   context);
  if (rc != ERR_OK) session_store_fini(s);
  return rc;
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
    free(s->places[i].blocks);
  }
  free(s->places);
  kv_blocks_fini(&s->blocks);
  *s = (session_store){0};
}

session *session_store_get(session_store *s, uint64_t id) {
  for (int32_t i = 0; i < s->count; i++)
    if (s->places[i].state != SESSION_FREE && s->places[i].id == id) return &s->places[i];
  return NULL;
}

/* A place is given up whole, but for its slot and what was taken once: the memory of its prefix, of its
 * blocks' numbers, and of what its penalties look at, which the engine may still be reading. Of C and the
 * cache the first `keep` tokens stay. */
static void place_clear(session *s, int32_t keep) {
  drafts_fini(s);
  session old = *s;
  assert(old.block_count == 0);
  memset(s, 0, sizeof *s);
  s->committed = old.committed;
  s->slot = old.slot;
  s->penalised = old.penalised;
  s->blocks = old.blocks;
  s->kv_rows = keep;
  s->kv_valid = INT32_MAX;
  if (keep)
    prefix_truncate(&s->committed, keep);
  else
    prefix_reset(&s->committed, 0);
}

/* Rows of the cache that are surely those of C, also when a job that was under way at its end has changed
 * others. */
static int32_t rows_of(const session *p) {
  int32_t rows = p->job ? least_i32(p->kv_rows, p->kv_valid) : p->kv_rows;
  return least_i32(rows, p->committed.length);
}

/* Rows of a free place that serve a prompt of these tokens: 0 unless they are half of it, or of what would be
 * lost. */
static int32_t reusable(const session *p, const int32_t *tokens, int32_t count) {
  int32_t rows = rows_of(p), same = 0;
  while (same < least_i32(rows, count) && p->committed.tokens[same] == tokens[same]) same++;
  return 2 * same >= least_i32(rows, count) ? same : 0;
}

static session *place_find(session_store *s, const int32_t *tokens, int32_t count, int32_t *keep) {
  session *free_one = NULL, *idle = NULL;
  *keep = 0;
  for (int32_t i = 0; i < s->count; i++) {
    session *p = &s->places[i];
    if (p->state == SESSION_FINISHED && (!idle || p->used_us < idle->used_us)) idle = p;
    if (p->state != SESSION_FREE) continue;
    int32_t same = reusable(p, tokens, count);
    if (free_one && (same < *keep || (same == *keep && p->used_us >= free_one->used_us))) continue;
    free_one = p;
    *keep = same;
  }
  return free_one ? free_one : idle;
}

session *session_store_take(session_store *s, uint64_t id, uint64_t now_us, const int32_t *tokens,
                            int32_t count, bool *fresh) {
  session *p = session_store_get(s, id);
  int32_t keep;
  *fresh = !p;
  if (p) return p;
  p = place_find(s, tokens, count, &keep);
  if (!p) return NULL;
  session_store_give_back(s, p);
  place_clear(p, keep);
  p->id = id;
  p->state = SESSION_RUNNING;
  p->used_us = now_us;
  return p;
}

/* --- the blocks of a virtual cache --- */

static void drop_blocks(session_store *s, session *p, int32_t keep) {
  kv_blocks_release(&s->blocks, p->blocks + keep, p->block_count - keep);
  p->block_count = keep;
  p->published = least_i32(p->published, keep);
  p->kv_rows = least_i32(p->kv_rows, keep * KV_BLOCK);
  if (p->job) p->kv_valid = least_i32(p->kv_valid, keep * KV_BLOCK);
}

void session_store_give_back(session_store *s, session *p) {
  if (s->is_virtual) drop_blocks(s, p, 0);
}

/* Blocks that others may read are not written: of one that C has left, the rows that are still right are
 * computed again, which is at most a block less one, in a block of its own. */
static void leave_shared(session_store *s, session *p) {
  if (p->kv_rows < p->published * KV_BLOCK) drop_blocks(s, p, p->kv_rows / KV_BLOCK);
}

/* Without rows of its own it begins with what others have computed; the root's row is always made anew. */
static void find_shared(session_store *s, session *p) {
  if (p->kv_rows > 0) return;
  drop_blocks(s, p, 0);
  p->block_count = p->published =
      kv_blocks_find(&s->blocks, p->committed.tokens, p->committed.length - 1, p->blocks);
  p->kv_rows = p->published * KV_BLOCK;
  p->rows_given = true;
}

int session_store_admit(session_store *s, session *p, int32_t tokens, err *e) {
  int32_t wanted = blocks_of(least_i32(tokens, s->context) - 1);
  if (!s->is_virtual) return ERR_OK;
  leave_shared(s, p);
  find_shared(s, p);
  p->remap = true;
  int32_t more = wanted - p->block_count;
  if (more <= 0) return ERR_OK;
  if (kv_blocks_take(&s->blocks, more, p->blocks + p->block_count)) {
    p->block_count = wanted;
    return ERR_OK;
  }
  int32_t available = kv_blocks_available(&s->blocks);
  session_store_give_back(s, p);
  if (wanted > s->blocks.count)
    return err_set(e, ERR_LIMIT,
                   "prompt and max_tokens need %d cache blocks of %d tokens, this target has %d: ask for "
                   "fewer tokens or "
                   "start it with more --kv-blocks",
                   wanted, KV_BLOCK, s->blocks.count);
  return err_set(e, ERR_FULL,
                 "prompt and max_tokens need %d more cache blocks of %d tokens, %d are free: try again "
                 "later, ask for fewer "
                 "tokens or start the target with more --kv-blocks",
                 more, KV_BLOCK, available);
}

void session_store_publish(session_store *s, session *p, int32_t settled) {
  if (!s->is_virtual) return;
  int32_t rows = least_i32(least_i32(settled, p->kv_rows), p->committed.length);
  for (; (p->published + 1) * KV_BLOCK <= rows; p->published++) {
    int32_t *block = &p->blocks[p->published], *above = p->published ? block - 1 : NULL;
    int32_t same = kv_blocks_publish(&s->blocks, above ? *above : KV_NO_BLOCK,
                                     p->committed.tokens + p->published * KV_BLOCK, *block);
    if (same != *block) p->remap = true; /* equal rows: who comes second reads the first one's */
    *block = same;
  }
}

bool session_store_penalised(const session_store *s, session *p) {
  if (!p->penalised) p->penalised = calloc((size_t)s->context, sizeof *p->penalised);
  return p->penalised != NULL;
}

bool session_store_end(session_store *s, uint64_t id) {
  session *p = session_store_get(s, id);
  if (!p) return false;
  uint64_t used_us = p->used_us;
  session_store_give_back(s, p);
  place_clear(p, rows_of(p));
  p->used_us = used_us;
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
  uint64_t resent_us = d->peer == peer ? d->resent_us : 0;
  *d = (session_draft){.peer = peer, .ids = ids, .base_named = 1, .resent_us = resent_us};
  tree_ids_reset(&d->ids, ++s->generation);
  return d;
}

void session_draft_drop(session *s, session_draft *d) {
  tree_ids *maps[SESSION_DRAFTS_MAX];
  d->peer = 0;
  int32_t left = session_draft_maps(s, maps);
  if (left > 0)
    tree_keep_named(&s->live, maps, left);
  else
    tree_reset(&s->live);
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
