#include "common/model/kv_rows.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

typedef enum { STAGE_NONE, STAGE_RESERVED, STAGE_WRITTEN } stage_state;

typedef struct sequence {
  bool used;
  int32_t length;
  ops_kv rows;
  ops_block *map;                /* what rows.map points to: [context / OPS_TILE] */
  void *stage;                   /* memory of the staging area, or NULL */
  stage_state state;             /* of the rows that were reserved last */
  int32_t stage_count;           /* staged rows, those included */
  int32_t parents[KV_STAGE_MAX]; /* by slot: another slot, -1 or KV_SLOT_FREE; where nothing is staged:
                                    anything */
  int32_t reserved[KV_STAGE_MAX], reserved_count; /* slots of the rows that were reserved last */
  int32_t late_path[KV_STAGE_MAX];
} sequence;

struct kv_cache {
  ops_kv_shape shape;
  int32_t sequence_count, context; /* context as asked for; the shape's is rounded up to a tile */
  mem *mem;
  ops *device;
  sequence *sequences;
  ops_block *maps; /* of all sequences */
  void *rows;
  bool is_virtual;
  kv_counters counters;
};

static size_t element_bytes(const kv_cache *k) {
  return k->shape.type == OPS_KV_F16 ? 2 : 4;
}

/* Keys (or values) of one row in all layers. */
static size_t half_row_bytes(const kv_cache *k) {
  return (size_t)k->shape.layers * (size_t)k->shape.kv_heads * (size_t)k->shape.head_dim * element_bytes(k);
}

static sequence *sequence_of(const kv_cache *k, int32_t seq) {
  assert(seq >= 0 && seq < k->sequence_count && k->sequences[seq].used);
  return &k->sequences[seq];
}

_Static_assert(KV_BLOCK == OPS_TILE, "a block's keys are packed side by side");

static ops_kv_shape shape_of(const model_config *c, const kv_options *o) {
  int32_t each = (o->context + OPS_TILE - 1) / OPS_TILE;
  return (ops_kv_shape){
      .type = o->type == KV_F16 ? OPS_KV_F16 : OPS_KV_F32,
      .layers = c->layers,
      .kv_heads = c->kv_heads,
      .head_dim = c->head_dim,
      .blocks = o->blocks ? o->blocks : o->sequences * each,
      .context = each * OPS_TILE,
      .stage = KV_STAGE_MAX,
  };
}

static void set_map(sequence *s, int32_t count, const int32_t *blocks, int32_t first) {
  for (int32_t i = count - 1; i >= 0; i--) {
    int32_t at = blocks ? blocks[i] : first + i;
    bool goes_on = i + 1 < count && s->map[i + 1].at == at + 1;
    s->map[i] = (ops_block){at, goes_on ? s->map[i + 1].run + 1 : 1};
  }
  s->rows.map_count = count;
}

/* Takes the memory of all blocks, and of who has which. */
static bool take_rows(kv_cache *k) {
  const int32_t each = k->shape.context / OPS_TILE;
  size_t half;
  if (__builtin_mul_overflow(half_row_bytes(k) * OPS_TILE, (size_t)k->shape.blocks, &half) ||
      half > SIZE_MAX / 2)
    return false;
  k->sequences = mem_alloc(k->mem, MEM_GENERAL, (size_t)k->sequence_count * sizeof *k->sequences);
  k->maps = mem_alloc(k->mem, MEM_GENERAL, (size_t)k->sequence_count * (size_t)each * sizeof *k->maps);
  k->rows = mem_alloc(k->mem, MEM_KV, 2 * half);
  if (!k->sequences || !k->maps || !k->rows) return false;
  for (int32_t i = 0; i < k->sequence_count; i++) {
    sequence *s = &k->sequences[i];
    s->map = k->maps + (size_t)i * (size_t)each;
    s->rows = (ops_kv){.keys = k->rows, .values = (uint8_t *)k->rows + half, .map = s->map};
    if (!k->is_virtual) set_map(s, each, NULL, i * each);
  }
  return true;
}

int kv_open(kv_cache **out, const model_config *c, const kv_options *o, mem *m, err *e) {
  *out = NULL;
  if (o->sequences < 1)
    return err_set(e, ERR_ARG, "a cache needs at least one sequence, not %d", o->sequences);
  if (o->context < 1 || o->context > MODEL_CONTEXT_MAX) {
    return err_set(e, ERR_ARG, "a context of %d is not possible: give 1 to %d (--ctx)", o->context,
                   MODEL_CONTEXT_MAX);
  }
  int64_t blocks = o->blocks ? o->blocks : ((int64_t)o->context + OPS_TILE - 1) / OPS_TILE * o->sequences;
  if (blocks < 1 || blocks > KV_BLOCKS_MAX) {
    return err_set(
        e, ERR_ARG,
        "a cache of %lld blocks of %d tokens is not possible: give 1 to %d (--kv-blocks, --sessions, --ctx)",
        (long long)blocks, OPS_TILE, KV_BLOCKS_MAX);
  }
  kv_cache *k = mem_alloc(m, MEM_GENERAL, sizeof *k);
  if (!k) return err_set(e, ERR_NOMEM, "no memory for the cache");
  *k = (kv_cache){.shape = shape_of(c, o),
                  .sequence_count = o->sequences,
                  .context = o->context,
                  .is_virtual = o->blocks != 0,
                  .mem = m};
  if (!take_rows(k)) {
    kv_close(k);
    return err_set(e, ERR_NOMEM, "no memory for the cache of %lld blocks of %d tokens: give a smaller %s",
                   (long long)blocks, OPS_TILE, o->blocks ? "--kv-blocks" : "--ctx or fewer --sessions");
  }
  *out = k;
  return ERR_OK;
}

void kv_close(kv_cache *k) {
  if (!k) return;
  for (int32_t i = 0; k->sequences && i < k->sequence_count; i++) mem_free(k->sequences[i].stage);
  mem_free(k->sequences);
  mem_free(k->maps);
  mem_free(k->rows);
  mem_free(k);
}

bool kv_is_virtual(const kv_cache *k) {
  return k->is_virtual;
}

int32_t kv_acquire(kv_cache *k) {
  for (int32_t i = 0; i < k->sequence_count; i++) {
    if (k->sequences[i].used) continue;
    k->sequences[i].used = true;
    return i;
  }
  return ERR_FULL;
}

static void drop_stage(kv_cache *k, sequence *s, int32_t kept) {
  if (s->state == STAGE_NONE) return;
  k->counters.rejected_rows += (uint64_t)(s->stage_count - kept);
  s->state = STAGE_NONE;
  s->stage_count = 0;
}

void kv_release(kv_cache *k, int32_t seq) {
  sequence *s = sequence_of(k, seq);
  drop_stage(k, s, 0);
  s->rows.late = 0;
  s->length = 0;
  s->used = false;
  if (k->is_virtual) s->rows.map_count = 0;
}

int32_t kv_length(const kv_cache *k, int32_t seq) {
  return sequence_of(k, seq)->length;
}

int32_t kv_late(const kv_cache *k, int32_t seq) {
  return sequence_of(k, seq)->rows.late;
}

void kv_map(kv_cache *k, int32_t seq, const int32_t *blocks, int32_t count, int32_t rows) {
  sequence *s = sequence_of(k, seq);
  assert(k->is_virtual && count >= 0 && count <= k->shape.context / OPS_TILE);
  for (int32_t i = 0; i < count; i++) assert(blocks[i] >= 0 && blocks[i] < k->shape.blocks);
  drop_stage(k, s, 0);
  set_map(s, count, blocks, 0);
  if (rows >= 0) {
    s->length = rows;
    s->rows.late = 0;
  }
  assert(s->length <= count * OPS_TILE);
}

/* Rows that may still be appended. */
static int32_t room_of(const kv_cache *k, const sequence *s) {
  int32_t mapped = s->rows.map_count * OPS_TILE;
  return (mapped < k->context ? mapped : k->context) - s->length;
}

/* Depth of the tree, its root row counting 1; 0 when the parents do not make a tree with the root row 0. */
static int32_t tree_depth(const int32_t *parents, int32_t count) {
  int32_t depth[KV_STAGE_MAX] = {1}, deepest = 1;
  if (parents[0] != -1) return 0;
  for (int32_t i = 1; i < count; i++) {
    if (parents[i] < 0 || parents[i] >= i) return 0;
    depth[i] = depth[parents[i]] + 1;
    if (depth[i] > deepest) deepest = depth[i];
  }
  return deepest;
}

/* Of a staged row, a root row counting 1. */
static int32_t depth_of(const sequence *s, int32_t slot) {
  int32_t depth = 0;
  for (; slot >= 0; slot = s->parents[slot]) depth++;
  return depth;
}

static bool take_stage(kv_cache *k, sequence *s) {
  if (s->stage) return true;
  size_t half = half_row_bytes(k) * KV_STAGE_MAX;
  s->stage = mem_alloc(k->mem, MEM_SPECULATION, 2 * half);
  if (!s->stage) return false;
  s->rows.stage_keys = s->stage;
  s->rows.stage_values = (uint8_t *)s->stage + half;
  return true;
}

static int check_stage(const kv_cache *k, const sequence *s, const int32_t *parents, int32_t count) {
  if (s->state != STAGE_NONE) return ERR_STATE;
  if (count < 1) return ERR_ARG;
  if (count > KV_STAGE_MAX) return ERR_LIMIT;
  int32_t depth = tree_depth(parents, count);
  if (depth == 0) return ERR_ARG;
  return depth > room_of(k, s) ? ERR_LIMIT : ERR_OK;
}

static int refuse(kv_cache *k, int rc) {
  if (rc != ERR_OK) k->counters.refusals++;
  return rc;
}

/* Row i of `count` new ones goes to slots[i]. */
static void reserve(kv_cache *k, sequence *s, const int32_t *slots, const int32_t *parents, int32_t count) {
  for (int32_t i = 0; i < KV_STAGE_MAX && s->state == STAGE_NONE; i++) s->parents[i] = KV_SLOT_FREE;
  for (int32_t i = 0; i < count; i++) s->parents[slots[i]] = parents[i];
  memcpy(s->reserved, slots, (size_t)count * sizeof *slots);
  s->reserved_count = count;
  s->stage_count += count;
  s->state = STAGE_RESERVED;
  k->counters.stage_operations++;
  k->counters.staged_rows += (uint64_t)count;
}

int kv_stage(kv_cache *k, int32_t seq, const int32_t *parents, int32_t count) {
  sequence *s = sequence_of(k, seq);
  int32_t slots[KV_STAGE_MAX];
  int rc = check_stage(k, s, parents, count);
  if (rc == ERR_OK && !take_stage(k, s)) rc = ERR_NOMEM;
  if (rc != ERR_OK) return refuse(k, rc);
  for (int32_t i = 0; i < count; i++) slots[i] = i;
  reserve(k, s, slots, parents, count);
  return ERR_OK;
}

static bool is_staged(const sequence *s, int32_t slot) {
  return s->state != STAGE_NONE && slot >= 0 && slot < KV_STAGE_MAX && s->parents[slot] != KV_SLOT_FREE;
}

static int check_growth(const kv_cache *k, const sequence *s, const int32_t *parents, int32_t count) {
  if (s->state == STAGE_RESERVED) return ERR_STATE;
  if (count < 1) return ERR_ARG;
  if (count > KV_STAGE_MAX - s->stage_count) return ERR_LIMIT;
  for (int32_t i = 0; i < count; i++) {
    if (parents[i] != -1 && !is_staged(s, parents[i])) return ERR_ARG;
    if (depth_of(s, parents[i]) >= k->context - s->length) return ERR_LIMIT;
  }
  return ERR_OK;
}

int kv_grow(kv_cache *k, int32_t seq, const int32_t *parents, int32_t count, int32_t *slots) {
  sequence *s = sequence_of(k, seq);
  int rc = check_growth(k, s, parents, count);
  if (rc == ERR_OK && !take_stage(k, s)) rc = ERR_NOMEM;
  if (rc != ERR_OK) return refuse(k, rc);
  for (int32_t i = 0, slot = 0; i < count; i++, slot++) {
    while (is_staged(s, slot)) slot++;
    slots[i] = slot;
  }
  reserve(k, s, slots, parents, count);
  return ERR_OK;
}

int32_t kv_parent(const kv_cache *k, int32_t seq, int32_t slot) {
  const sequence *s = sequence_of(k, seq);
  return is_staged(s, slot) ? s->parents[slot] : KV_SLOT_FREE;
}

static bool is_chain(const sequence *s, const int32_t *path, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    if (!is_staged(s, path[i])) return false;
    if (s->parents[path[i]] != (i == 0 ? -1 : path[i - 1])) return false;
  }
  return true;
}

void kv_settle(kv_cache *k, int32_t seq) {
  ops_kv *r = &sequence_of(k, seq)->rows;
  if (r->late) k->device->table->commit(k->device, &k->shape, r, r->late_path, r->late, r->late_at);
  r->late = 0;
}

int kv_commit(kv_cache *k, int32_t seq, const int32_t *path, int32_t count) {
  int rc = kv_commit_late(k, seq, path, count);
  if (rc == ERR_OK) kv_settle(k, seq);
  return rc;
}

static int check_commit(const sequence *s, const int32_t *path, int32_t count) {
  if (s->state == STAGE_NONE || (count != 0 && s->state != STAGE_WRITTEN)) return ERR_STATE;
  return count < 0 || !is_chain(s, path, count) ? ERR_ARG : ERR_OK;
}

/* The rows count from now on; the next forward copies them. */
static void append_path(kv_cache *k, sequence *s, const int32_t *path, int32_t count) {
  assert(count == 0 || s->rows.late == 0); /* the forward of this stage has copied what was late before */
  if (count > 0) {
    memcpy(s->late_path, path, (size_t)count * sizeof *path);
    s->rows.late_path = s->late_path;
    s->rows.late_at = s->length;
    s->rows.late = count;
  }
  s->length += count;
  k->counters.committed_rows += (uint64_t)count;
  k->counters.bytes_written += 2 * half_row_bytes(k) * (uint64_t)count;
}

int kv_commit_late(kv_cache *k, int32_t seq, const int32_t *path, int32_t count) {
  sequence *s = sequence_of(k, seq);
  int rc = check_commit(s, path, count);
  if (rc != ERR_OK) return refuse(k, rc);
  append_path(k, s, path, count);
  drop_stage(k, s, count);
  return ERR_OK;
}

static bool hangs_from(const sequence *s, int32_t slot, int32_t above) {
  do slot = s->parents[slot];
  while (slot >= 0 && slot != above);
  return slot == above;
}

/* Of the rows beside the path, those below its last one stay. */
static void prune(kv_cache *k, sequence *s, const int32_t *path, int32_t count) {
  int32_t last = path[count - 1], kept = 0;
  bool keep[KV_STAGE_MAX];
  for (int32_t i = 0; i < KV_STAGE_MAX; i++) kept += keep[i] = is_staged(s, i) && hangs_from(s, i, last);
  for (int32_t i = 0; i < KV_STAGE_MAX; i++) {
    if (!keep[i])
      s->parents[i] = KV_SLOT_FREE;
    else if (s->parents[i] == last)
      s->parents[i] = -1;
  }
  k->counters.rejected_rows += (uint64_t)(s->stage_count - count - kept);
  s->stage_count = kept;
  if (kept == 0) s->state = STAGE_NONE;
}

int kv_commit_keep(kv_cache *k, int32_t seq, const int32_t *path, int32_t count) {
  sequence *s = sequence_of(k, seq);
  if (count == 0) return ERR_OK;
  int rc = check_commit(s, path, count);
  if (rc != ERR_OK) return refuse(k, rc);
  append_path(k, s, path, count);
  kv_settle(k, seq); /* slots may be written anew before the sequence's next forward has run its course */
  prune(k, s, path, count);
  return ERR_OK;
}

int kv_rollback(kv_cache *k, int32_t seq, int32_t length) {
  sequence *s = sequence_of(k, seq);
  if (length < 0 || length > s->length) return ERR_ARG;
  drop_stage(k, s, 0);
  k->counters.rewound_rows += (uint64_t)(s->length - length);
  s->length = length;
  if (s->rows.late > length - s->rows.late_at)
    s->rows.late = length > s->rows.late_at ? length - s->rows.late_at : 0;
  return ERR_OK;
}

kv_counters kv_count(const kv_cache *k) {
  return k->counters;
}

const ops_kv_shape *kv_shape(const kv_cache *k) {
  return &k->shape;
}

const ops_kv *kv_pointers(const kv_cache *k, int32_t seq) {
  return &sequence_of(k, seq)->rows;
}

void kv_bind(kv_cache *k, ops *device) {
  k->device = device;
}

int kv_check_append(const kv_cache *k, int32_t seq, int32_t count) {
  const sequence *s = sequence_of(k, seq);
  if (s->state != STAGE_NONE) return ERR_STATE;
  return count > room_of(k, s) ? ERR_LIMIT : ERR_OK;
}

int kv_check_tree(const kv_cache *k, int32_t seq, const int32_t *parents, int32_t count) {
  const sequence *s = sequence_of(k, seq);
  if (s->state != STAGE_RESERVED) return ERR_STATE;
  if (count != s->reserved_count) return ERR_ARG;
  for (int32_t i = 0; i < count; i++)
    if (parents[i] != s->parents[s->reserved[i]]) return ERR_ARG;
  return ERR_OK;
}

int32_t kv_path(const kv_cache *k, int32_t seq, int32_t row, int32_t *path) {
  const sequence *s = sequence_of(k, seq);
  int32_t slot = s->reserved[row], depth = depth_of(s, slot);
  for (int32_t i = depth; i > 0; slot = s->parents[slot]) path[--i] = slot;
  return depth;
}

void kv_appended(kv_cache *k, int32_t seq, int32_t count) {
  sequence_of(k, seq)->length += count;
  sequence_of(k, seq)->rows.late = 0; /* copied by the forward */
  k->counters.appended_rows += (uint64_t)count;
  k->counters.bytes_written += 2 * half_row_bytes(k) * (uint64_t)count;
}

void kv_staged(kv_cache *k, int32_t seq) {
  sequence *s = sequence_of(k, seq);
  assert(s->state == STAGE_RESERVED);
  s->state = STAGE_WRITTEN;
  s->rows.late = 0; /* copied by the forward */
  k->counters.bytes_written += 2 * half_row_bytes(k) * (uint64_t)s->reserved_count;
}
