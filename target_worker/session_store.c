#include "target_worker/session_store.h"

#include "common/base/min.h"
#include "target_worker/session_grammar.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int32_t blocks_of(int32_t rows) {
  return (rows + KV_BLOCK - 1) / KV_BLOCK;
}

static bool slot_init(const session_store *store, session *s, int32_t slot) {
  s->slot = slot;
  if (store->is_virtual &&
      !(s->cache.blocks = calloc((size_t)blocks_of(store->context), sizeof *s->cache.blocks)))
    return false;
  return prefix_init(&s->committed, store->context, 0) == ERR_OK;
}

int session_store_init(session_store *store, int32_t count, int32_t context, int32_t blocks, err *e) {
  *store = (session_store){.count = count, .context = context, .is_virtual = blocks > 0};
  store->slots = calloc((size_t)count, sizeof *store->slots);
  if (!store->slots) return err_set(e, ERR_NOMEM, "no memory for %d sessions: lower --sessions", count);
  int rc = blocks > 0 ? block_pool_init(&store->blocks, blocks, e) : ERR_OK;
  for (int32_t i = 0; i < count && rc == ERR_OK; i++)
    if (!slot_init(store, &store->slots[i], i))
      rc = err_set(e, ERR_NOMEM, "no memory for %d sessions of %d tokens: lower --sessions or --ctx", count,
                   context);
  if (rc != ERR_OK) session_store_fini(store);
  return rc;
}

void session_store_fini(session_store *store) {
  for (int32_t i = 0; store->slots && i < store->count; i++) {
    session_drafts_fini(&store->slots[i]);
    session_grammar_fini(&store->slots[i]);
    prefix_fini(&store->slots[i].committed);
    free(store->slots[i].job.history);
    free(store->slots[i].job.bias);
    free(store->slots[i].stream.accepted);
    free(store->slots[i].stream.logprobs);
    free(store->slots[i].cache.blocks);
  }
  free(store->slots);
  block_pool_fini(&store->blocks);
  *store = (session_store){0};
}

session *session_store_get(session_store *store, uint64_t id) {
  for (int32_t i = 0; i < store->count; i++)
    if (store->slots[i].state != SESSION_FREE && store->slots[i].id == id) return &store->slots[i];
  return NULL;
}

/* Resets a session. What stays is the slot's number, the memory that is taken only once (prefix, block table,
 * and what the job's sampling looks at, which the engine may still be reading), and the first `keep` tokens
 * of C with their rows. */
/* A session that is opened again goes on above the generations that it had, wherever its new place is. */
static void slot_clear(session_store *store, session *s, int32_t keep) {
  if (s->drafts.generation > store->generations) store->generations = s->drafts.generation;
  session_drafts_fini(s);
  session_grammar_drop(s);
  free(s->stream.accepted);
  free(s->stream.logprobs);
  session old = *s;
  assert(old.cache.block_count == 0);
  memset(s, 0, sizeof *s);
  s->committed = old.committed;
  s->slot = old.slot;
  s->job.history = old.job.history;
  s->job.bias = old.job.bias;
  s->job.grammar = old.job.grammar;
  s->cache.blocks = old.cache.blocks;
  s->cache.rows = keep;
  s->job.valid_rows = INT32_MAX;
  s->drafts.generation = store->generations;
  if (keep)
    prefix_truncate(&s->committed, keep);
  else
    prefix_reset(&s->committed, 0);
}

/* Rows of the cache that surely hold C, even if the session ended while a job was changing others. */
static int32_t rows_of(const session *s) {
  int32_t rows = s->job.serial ? min_i32(s->cache.rows, s->job.valid_rows) : s->cache.rows;
  return min_i32(rows, s->committed.length);
}

/* Rows of a free slot that serve a prompt of these tokens; 0 unless they are at least half of the prompt, or
 * of the rows that would be lost. */
static int32_t reusable(const session *s, const int32_t *tokens, int32_t count) {
  int32_t rows = rows_of(s), same = 0;
  while (same < min_i32(rows, count) && s->committed.tokens[same] == tokens[same]) same++;
  return 2 * same >= min_i32(rows, count) ? same : 0;
}

/* Nobody asks it for a token any more: its orchestrator has kept all of them. */
static bool is_kept(const session *s) {
  return s->state == SESSION_FINISHED && s->stream.acked == s->committed.length;
}

/* The slot for a new session, NULL: there is none. *keep: rows in it that serve the new one. */
static session *slot_find(session_store *store, const int32_t *tokens, int32_t count, int32_t *keep) {
  session *free_one = NULL, *idle = NULL;
  *keep = 0;
  for (int32_t i = 0; i < store->count; i++) {
    session *s = &store->slots[i];
    if (is_kept(s) && (!idle || s->used_us < idle->used_us)) idle = s;
    if (s->state != SESSION_FREE) continue;
    int32_t same = reusable(s, tokens, count);
    if (free_one && (same < *keep || (same == *keep && s->used_us >= free_one->used_us))) continue;
    free_one = s;
    *keep = same;
  }
  return free_one ? free_one : idle;
}

session *session_store_take(session_store *store, uint64_t id, uint64_t now_us, const int32_t *tokens,
                            int32_t count, bool *fresh) {
  session *s = session_store_get(store, id);
  int32_t keep;
  *fresh = !s;
  if (s) return s;
  s = slot_find(store, tokens, count, &keep);
  if (!s) return NULL;
  session_store_give_back(store, s);
  slot_clear(store, s, keep);
  s->id = id;
  s->state = SESSION_RUNNING;
  s->used_us = now_us;
  return s;
}

/* --- the blocks of a virtual cache --- */

static void drop_blocks(session_store *store, session *s, int32_t keep) {
  block_pool_release(&store->blocks, s->cache.blocks + keep, s->cache.block_count - keep);
  s->cache.block_count = keep;
  s->cache.published = min_i32(s->cache.published, keep);
  s->cache.rows = min_i32(s->cache.rows, keep * KV_BLOCK);
  if (s->job.serial) s->job.valid_rows = min_i32(s->job.valid_rows, keep * KV_BLOCK);
}

void session_store_give_back(session_store *store, session *s) {
  if (store->is_virtual) drop_blocks(store, s, 0);
}

/* Blocks that others may read are never written. When C has changed inside such a block, the session leaves
 * that block, and computes the rows before the change (at most KV_BLOCK - 1) again in a block of its own. */
static void leave_shared(session_store *store, session *s) {
  if (s->cache.rows < s->cache.published * KV_BLOCK) drop_blocks(store, s, s->cache.rows / KV_BLOCK);
}

/* A session without rows of its own begins with those that others have computed; the root's row is always
 * computed anew. */
static void find_shared(session_store *store, session *s) {
  if (s->cache.rows > 0) return;
  drop_blocks(store, s, 0);
  s->cache.block_count = s->cache.published =
      block_pool_find(&store->blocks, s->committed.tokens, s->committed.length - 1, s->cache.blocks);
  s->cache.rows = s->cache.published * KV_BLOCK;
  s->cache.rows_given = true;
}

int session_store_admit(session_store *store, session *s, int32_t tokens, err *e) {
  int32_t wanted = blocks_of(min_i32(tokens, store->context) - 1);
  if (!store->is_virtual) return ERR_OK;
  leave_shared(store, s);
  find_shared(store, s);
  s->cache.remap = true;
  int32_t more = wanted - s->cache.block_count;
  if (more <= 0) return ERR_OK;
  if (block_pool_take(&store->blocks, more, s->cache.blocks + s->cache.block_count)) {
    s->cache.block_count = wanted;
    return ERR_OK;
  }
  int32_t available = block_pool_available(&store->blocks);
  session_store_give_back(store, s);
  if (wanted > store->blocks.count)
    return err_set(e, ERR_LIMIT,
                   "prompt and max_tokens need %d cache blocks of %d tokens, this target has %d: ask for "
                   "fewer tokens or "
                   "start it with more --kv-blocks",
                   wanted, KV_BLOCK, store->blocks.count);
  return err_set(e, ERR_FULL,
                 "prompt and max_tokens need %d more cache blocks of %d tokens, %d are free: try again "
                 "later, ask for fewer "
                 "tokens or start the target with more --kv-blocks",
                 more, KV_BLOCK, available);
}

bool session_store_rewind(session_store *store, session *s, int32_t rows) {
  int32_t held = s->cache.block_count, before = s->cache.rows;
  assert(!s->job.serial);
  if (store->is_virtual && rows < s->cache.published * KV_BLOCK) {
    if (block_pool_available(&store->blocks) < held - rows / KV_BLOCK) return false;
    s->cache.rows = rows;
    leave_shared(store, s);
    int32_t left = s->cache.block_count;
    bool taken = block_pool_take(&store->blocks, held - left, s->cache.blocks + left);
    assert(taken);
    s->cache.block_count = held;
    s->cache.remap = true;
  }
  s->cache.rows = min_i32(s->cache.rows, rows);
  store->repeated_rows += (uint64_t)(before - s->cache.rows);
  return true;
}

void session_store_publish(session_store *store, session *s, int32_t committed) {
  if (!store->is_virtual) return;
  int32_t rows = min_i32(min_i32(committed, s->cache.rows), s->committed.length);
  for (; (s->cache.published + 1) * KV_BLOCK <= rows; s->cache.published++) {
    int32_t *block = &s->cache.blocks[s->cache.published], *above = s->cache.published ? block - 1 : NULL;
    int32_t same = block_pool_publish(&store->blocks, above ? *above : KV_NO_BLOCK,
                                      s->committed.tokens + s->cache.published * KV_BLOCK, *block);
    if (same != *block)
      s->cache.remap = true; /* another session has published equal rows: this one reads those */
    *block = same;
  }
}

bool session_store_sampling(const session_store *store, session *s, const msg_options *o) {
  sampler_options sampling = msg_sampling(o);
  bool history = sampler_penalises(&sampling) || o->grammar_size > 0, bias = o->bias_count > 0;
  if (history && !s->job.history) s->job.history = calloc((size_t)store->context, sizeof *s->job.history);
  if (bias && !s->job.bias) s->job.bias = calloc(1, sizeof *s->job.bias);
  return (!history || s->job.history) && (!bias || s->job.bias);
}

bool session_store_accepted(const session_store *store, session *s) {
  if (!s->stream.accepted) s->stream.accepted = calloc((size_t)store->context, sizeof *s->stream.accepted);
  return s->stream.accepted != NULL;
}

bool session_store_logprobs(session *s, int32_t each) {
  free(s->stream.logprobs);
  s->stream.logprobs = NULL;
  if (each == 0) return true;
  s->stream.logprobs = malloc((size_t)SESSION_LOGPROBS * (size_t)each * sizeof *s->stream.logprobs);
  for (int32_t i = 0; s->stream.logprobs && i < SESSION_LOGPROBS * each; i++)
    s->stream.logprobs[i] = (ranking_token){.token = -1};
  return s->stream.logprobs != NULL;
}

bool session_store_end(session_store *store, uint64_t id) {
  session *s = session_store_get(store, id);
  if (!s) return false;
  uint64_t used_us = s->used_us;
  session_grammar_drop(s);
  session_store_give_back(store, s);
  slot_clear(store, s, rows_of(s));
  s->used_us = used_us;
  return true;
}

/* --- leases --- */

void session_store_renew(session *s, uint64_t now_us) {
  s->lease_until_us = now_us + SESSION_STORE_LEASE_US;
}

bool session_store_purge(session_store *store, uint64_t now_us, uint64_t *id) {
  for (int32_t i = 0; i < store->count; i++) {
    const session *s = &store->slots[i];
    if (s->state == SESSION_FREE || now_us < s->lease_until_us) continue;
    *id = s->id;
    return session_store_end(store, s->id);
  }
  return false;
}

uint64_t session_store_deadline(const session_store *store) {
  uint64_t at = UINT64_MAX;
  for (int32_t i = 0; i < store->count; i++)
    if (store->slots[i].state != SESSION_FREE) at = min_u64(at, store->slots[i].lease_until_us);
  return at;
}

/* --- counts --- */

bool session_store_empty(const session_store *store) {
  for (int32_t i = 0; i < store->count; i++)
    if (store->slots[i].state != SESSION_FREE) return false;
  return true;
}

int32_t session_store_active(const session_store *store) {
  int32_t n = 0;
  for (int32_t i = 0; i < store->count; i++)
    n += store->slots[i].state != SESSION_FREE && store->slots[i].state != SESSION_FINISHED;
  return n;
}
