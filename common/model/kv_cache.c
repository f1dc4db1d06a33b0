#include "common/model/kv_rows.h"

#include "common/base/min.h"
#include <assert.h>
#include <stdbool.h>
#include <string.h>

typedef enum { STAGE_NONE, STAGE_RESERVED, STAGE_WRITTEN } stage_state;

#define STAGE_TILES (KV_STAGE_MAX / OPS_TILE)
#define NO_TILE     (-1)

typedef struct sequence {
  bool used;
  int32_t length;
  int32_t block_count;           /* that hold its rows */
  stage_state state;             /* of the rows that were reserved last */
  int32_t stage_count;           /* staged rows, those included */
  int32_t parents[KV_STAGE_MAX]; /* by slot: another slot, -1 or KV_SLOT_FREE; where nothing is staged:
                                    anything */
  int32_t reserved[KV_STAGE_MAX], reserved_count; /* slots of the rows that were reserved last */
  int32_t tiles[STAGE_TILES]; /* of the pool, which the slots [16 i, 16 i + 16) have; or NO_TILE */
  int32_t *blocks;            /* [block_count] which they are; NULL: static, or a view */
} sequence;

struct kv_cache {
  ops_kv_shape shape;
  int32_t context; /* as asked for; the shape's is rounded up to a tile */
  int32_t views;   /* the last ones of the shape's sequences */
  int32_t *tables; /* the sequences' blocks, or NULL */
  int32_t *shown;  /* [context / KV_BLOCK] room for what kv_view tells the device; NULL: there are no views */
  mem *mem;
  device *device;
  device_kv *rows;
  sequence *sequences;
  int32_t *free_tiles, free_count; /* of the pool, the next one last */
  bool is_virtual;
  kv_counters counters;
};

/* Keys and values of one row in all layers. */
static size_t row_bytes(const ops_kv_shape *s) {
  size_t element = s->type == OPS_KV_F16 ? 2 : 4;
  return 2 * (size_t)s->layers * (size_t)s->kv_heads * (size_t)s->head_dim * element;
}

static sequence *sequence_of(const kv_cache *k, int32_t seq) {
  assert(seq >= 0 && seq < k->shape.sequences && k->sequences[seq].used);
  return &k->sequences[seq];
}

_Static_assert(KV_BLOCK == OPS_TILE, "a block's keys are packed side by side");

/* --- opening --- */

static int32_t tiles_of(int32_t rows) {
  return rows / OPS_TILE + (rows % OPS_TILE != 0);
}

static ops_kv_shape shape_of(const model_config *c, const kv_options *o) {
  int32_t each = tiles_of(o->context);
  return (ops_kv_shape){
      .type = o->type == KV_F16 ? OPS_KV_F16 : OPS_KV_F32,
      .layers = c->layers,
      .kv_heads = c->kv_heads,
      .head_dim = c->head_dim,
      .blocks = o->blocks ? o->blocks : o->sequences * each,
      .sequences = o->sequences + o->views,
      .context = each * OPS_TILE,
      .stage = (o->stage ? tiles_of(o->stage) : o->sequences * STAGE_TILES) * OPS_TILE,
  };
}

memory_needs kv_needs(const model_config *c, const kv_options *o) {
  ops_kv_shape s = shape_of(c, o);
  return (memory_needs){.rows = (size_t)s.blocks * OPS_TILE * row_bytes(&s),
                        .stage = (size_t)s.stage * row_bytes(&s),
                        .sessions = o->sequences,
                        .context = o->context,
                        .blocks = o->blocks};
}

void kv_fit(const model_config *c, kv_options *o, size_t bytes) {
  ops_kv_shape s = shape_of(c, o);
  size_t stage = (size_t)s.stage * row_bytes(&s), rows = bytes > stage ? bytes - stage : 0;
  size_t blocks = rows / (OPS_TILE * row_bytes(&s));
  if (blocks > KV_BLOCKS_MAX) blocks = KV_BLOCKS_MAX;
  size_t each = blocks / (size_t)o->sequences;
  if (o->blocks)
    o->blocks = blocks ? (int32_t)blocks : 1;
  else if (each * OPS_TILE < (size_t)o->context)
    o->context = each ? (int32_t)each * OPS_TILE : min_i32(o->context, OPS_TILE);
}

/* How many are no views. */
static int32_t sequences_of(const kv_cache *k) {
  return k->shape.sequences - k->views;
}

static bool is_view(const kv_cache *k, const sequence *s) {
  return s - k->sequences >= sequences_of(k);
}

/* In the static layout: the sequence's own blocks, side by side. */
static void map_all(kv_cache *k, int32_t *blocks) {
  const int32_t each = k->shape.context / OPS_TILE;
  for (int32_t seq = 0; seq < sequences_of(k); seq++) {
    for (int32_t i = 0; i < each; i++) blocks[i] = seq * each + i;
    k->device->table->kv_map(k->device, k->rows, seq, blocks, each);
    k->sequences[seq].block_count = each;
  }
}

static void free_all_tiles(kv_cache *k) {
  for (int32_t i = 0; i < k->shape.sequences; i++)
    for (int32_t t = 0; t < STAGE_TILES; t++) k->sequences[i].tiles[t] = NO_TILE;
  for (int32_t tile = k->shape.stage / OPS_TILE; tile > 0;) k->free_tiles[k->free_count++] = --tile;
}

/* Of what views show, and of the blocks that sequences have been given. */
static bool take_tables(kv_cache *k) {
  const size_t each = (size_t)k->shape.context / OPS_TILE;
  if (k->views > 0) k->shown = mem_alloc(k->mem, MEM_GENERAL, each * sizeof *k->shown);
  if (k->views > 0 && !k->shown) return false;
  if (!k->is_virtual) return true;
  k->tables = mem_alloc(k->mem, MEM_GENERAL, (size_t)sequences_of(k) * each * sizeof *k->tables);
  for (int32_t i = 0; k->tables && i < sequences_of(k); i++) k->sequences[i].blocks = k->tables + i * each;
  return k->tables != NULL;
}

/* Takes the memory of all blocks, and of who has which. */
static bool take_memory(kv_cache *k) {
  size_t each = (size_t)k->shape.context / OPS_TILE, tiles = (size_t)k->shape.stage / OPS_TILE;
  k->sequences = mem_alloc(k->mem, MEM_GENERAL, (size_t)k->shape.sequences * sizeof *k->sequences);
  k->free_tiles = mem_alloc(k->mem, MEM_GENERAL, tiles * sizeof *k->free_tiles);
  int32_t *blocks = mem_alloc(k->mem, MEM_GENERAL, each * sizeof *blocks);
  if (k->sequences && k->free_tiles && blocks && take_tables(k))
    k->rows = k->device->table->kv_open(k->device, &k->shape);
  if (k->rows) free_all_tiles(k);
  if (k->rows && !k->is_virtual) map_all(k, blocks);
  mem_free(blocks);
  return k->rows != NULL;
}

/* Looks first: a system may promise memory that it does not have. */
static int take_rows(kv_cache *k, const memory_needs *needs, err *e) {
  const device_table *table = k->device->table;
  size_t left = table->left(k->device);
  int rc = memory_needs_check(needs, left, table->name, e);
  if (rc != ERR_OK || take_memory(k)) return rc;
  if (needs->in_host) return memory_needs_refuse_in_host(needs, e);
  return memory_needs_refuse(needs, left, table->name, e);
}

static int check_options(const kv_options *o, int64_t blocks, err *e) {
  if (o->sequences < 1)
    return err_set(e, ERR_ARG, "a cache needs at least one sequence, not %d", o->sequences);
  if (o->context < 1 || o->context > MODEL_CONTEXT_MAX) {
    return err_set(e, ERR_ARG, "a context of %d is not possible: give 1 to %d (--ctx)", o->context,
                   MODEL_CONTEXT_MAX);
  }
  if (blocks < 1 || blocks > KV_BLOCKS_MAX) {
    return err_set(
        e, ERR_ARG,
        "a cache of %lld blocks of %d tokens is not possible: give 1 to %d (--kv-blocks, --sessions, --ctx)",
        (long long)blocks, OPS_TILE, KV_BLOCKS_MAX);
  }
  int64_t stage = o->stage ? o->stage : (int64_t)o->sequences * KV_STAGE_MAX;
  if (stage < 1 || stage > KV_STAGE_ROWS_MAX)
    return err_set(e, ERR_ARG, "a cache cannot stage %lld rows: give 1 to %d", (long long)stage,
                   KV_STAGE_ROWS_MAX);
  return ERR_OK;
}

int kv_open(kv_cache **out, device *d, const model_config *c, const kv_options *o, mem *m, err *e) {
  *out = NULL;
  int64_t blocks = o->blocks ? o->blocks : ((int64_t)o->context + OPS_TILE - 1) / OPS_TILE * o->sequences;
  int rc = check_options(o, blocks, e);
  if (rc != ERR_OK) return rc;
  memory_needs needs = kv_needs(c, o);
  needs.in_host = d->kv_in_host;
  kv_cache *k = mem_alloc(m, MEM_GENERAL, sizeof *k);
  if (!k) return err_set(e, ERR_NOMEM, "no memory for the cache");
  *k = (kv_cache){.shape = shape_of(c, o),
                  .context = o->context,
                  .views = o->views,
                  .is_virtual = o->blocks != 0,
                  .device = d,
                  .mem = m};
  rc = take_rows(k, &needs, e);
  if (rc != ERR_OK)
    kv_close(k);
  else
    *out = k;
  return rc;
}

void kv_close(kv_cache *k) {
  if (!k) return;
  if (k->rows) k->device->table->kv_close(k->device, k->rows);
  mem_free(k->sequences);
  mem_free(k->tables);
  mem_free(k->shown);
  mem_free(k->free_tiles);
  mem_free(k);
}

bool kv_is_virtual(const kv_cache *k) {
  return k->is_virtual;
}

/* A free one in [first, end). */
static int32_t acquire(kv_cache *k, int32_t first, int32_t end) {
  for (int32_t i = first; i < end; i++) {
    if (k->sequences[i].used) continue;
    k->sequences[i].used = true;
    return i;
  }
  return ERR_FULL;
}

int32_t kv_acquire(kv_cache *k) {
  return acquire(k, 0, sequences_of(k));
}

int32_t kv_acquire_view(kv_cache *k) {
  return acquire(k, sequences_of(k), k->shape.sequences);
}

/* --- tiles of the staging pool --- */

static int32_t row_of(const sequence *s, int32_t slot) {
  return s->tiles[slot / OPS_TILE] * OPS_TILE + slot % OPS_TILE;
}

static bool lacks_tile(const sequence *s, const int32_t *slots, int32_t i) {
  bool first = i == 0 || slots[i - 1] / OPS_TILE != slots[i] / OPS_TILE;
  return first && s->tiles[slots[i] / OPS_TILE] == NO_TILE;
}

/* Of slots[0..count), which ascend: the pool has no tiles left for them (ERR_LIMIT), or there is no memory
 * for the pool; then nothing changes. */
static int take_tiles(kv_cache *k, sequence *s, const int32_t *slots, int32_t count) {
  int32_t lacking = 0;
  for (int32_t i = 0; i < count; i++) lacking += lacks_tile(s, slots, i);
  if (lacking > k->free_count) return ERR_LIMIT;
  if (!k->device->table->kv_stage(k->device, k->rows)) return ERR_NOMEM;
  for (int32_t i = 0; i < count; i++)
    if (lacks_tile(s, slots, i)) s->tiles[slots[i] / OPS_TILE] = k->free_tiles[--k->free_count];
  return ERR_OK;
}

static void free_tile(kv_cache *k, sequence *s, int32_t i) {
  if (s->tiles[i] == NO_TILE) return;
  k->free_tiles[k->free_count++] = s->tiles[i];
  s->tiles[i] = NO_TILE;
}

static void reject(kv_cache *k, const sequence *s, int32_t rows) {
  k->counters.rejected_rows += (uint64_t)rows;
  if (!is_view(k, s)) k->counters.bytes_spared += row_bytes(&k->shape) * (uint64_t)rows;
}

/* Others may write into the tiles at once: what reads them was queued before. */
static void drop_stage(kv_cache *k, sequence *s, int32_t kept) {
  if (s->state == STAGE_NONE) return;
  reject(k, s, s->stage_count - kept);
  s->state = STAGE_NONE;
  s->stage_count = 0;
  for (int32_t i = STAGE_TILES; i > 0;) free_tile(k, s, --i); /* the next stage gets the same ones */
}

/* --- sequences --- */

void kv_release(kv_cache *k, int32_t seq) {
  sequence *s = sequence_of(k, seq);
  drop_stage(k, s, 0);
  s->length = 0;
  s->used = false;
  if (k->is_virtual || is_view(k, s)) s->block_count = 0;
}

int32_t kv_length(const kv_cache *k, int32_t seq) {
  return sequence_of(k, seq)->length;
}

void kv_map(kv_cache *k, int32_t seq, const int32_t *blocks, int32_t count, int32_t rows) {
  sequence *s = sequence_of(k, seq);
  assert(k->is_virtual && !is_view(k, s) && count >= 0 && count <= k->shape.context / OPS_TILE);
  for (int32_t i = 0; i < count; i++) assert(blocks[i] >= 0 && blocks[i] < k->shape.blocks);
  drop_stage(k, s, 0);
  k->device->table->kv_map(k->device, k->rows, seq, blocks, count);
  if (s->blocks && count > 0) memcpy(s->blocks, blocks, (size_t)count * sizeof *blocks);
  s->block_count = count;
  if (rows >= 0) s->length = rows;
  assert(s->length <= count * OPS_TILE);
}

int32_t kv_shared(const kv_cache *k, int32_t seq, int32_t other, int32_t most) {
  const sequence *a = sequence_of(k, seq), *b = sequence_of(k, other);
  const int32_t blocks = min_i32(min_i32(a->length, b->length) / OPS_TILE, tiles_of(most));
  int32_t count = 0;
  while (a->blocks && b->blocks && count < blocks && a->blocks[count] == b->blocks[count]) count++;
  return count * OPS_TILE;
}

void kv_view(kv_cache *k, int32_t view, int32_t seq, const int32_t *blocks, int32_t count) {
  sequence *to = sequence_of(k, view);
  const sequence *from = sequence_of(k, seq);
  const int32_t each = k->shape.context / OPS_TILE, last = (from->length - 1) / OPS_TILE;
  assert(is_view(k, to) && !is_view(k, from) && count >= 1 && from->length > 0 && blocks[count - 1] == last);
  for (int32_t i = 0; i < count; i++) {
    assert(blocks[i] >= 0 && (i == 0 || blocks[i] > blocks[i - 1]));
    k->shown[i] = from->blocks ? from->blocks[blocks[i]] : seq * each + blocks[i];
  }
  drop_stage(k, to, 0);
  k->device->table->kv_map(k->device, k->rows, view, k->shown, count);
  to->block_count = count;
  to->length = from->length - (last + 1 - count) * OPS_TILE;
}

/* Rows that may still be appended, or staged on a view. */
static int32_t room_of(const kv_cache *k, const sequence *s) {
  int32_t mapped = is_view(k, s) ? k->context : s->block_count * OPS_TILE;
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

static int check_stage(const kv_cache *k, const sequence *s, const int32_t *parents, int32_t count) {
  if (s->state != STAGE_NONE) return ERR_STATE;
  if (count < 1) return ERR_ARG;
  if (count > KV_STAGE_MAX) return ERR_LIMIT;
  int32_t depth = tree_depth(parents, count);
  if (depth == 0) return ERR_ARG;
  return depth > room_of(k, s) ? ERR_LIMIT : ERR_OK;
}

static int refuse(kv_cache *k, int rc) {
  static const int codes[KV_REFUSALS] = {[KV_REFUSED_ARGUMENT] = ERR_ARG,
                                         [KV_REFUSED_STATE] = ERR_STATE,
                                         [KV_REFUSED_LIMIT] = ERR_LIMIT,
                                         [KV_REFUSED_MEMORY] = ERR_NOMEM};
  for (int i = 0; i < KV_REFUSALS; i++) k->counters.refusals[i] += codes[i] == rc;
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
  for (int32_t i = 0; i < count && rc == ERR_OK; i++) slots[i] = i;
  if (rc == ERR_OK) rc = take_tiles(k, s, slots, count);
  if (rc != ERR_OK) return refuse(k, rc);
  reserve(k, s, slots, parents, count);
  return ERR_OK;
}

static bool is_staged(const sequence *s, int32_t slot) {
  return s->state != STAGE_NONE && slot >= 0 && slot < KV_STAGE_MAX && s->parents[slot] != KV_SLOT_FREE;
}

/* From each of `roots` rows a tree of so many rows and levels. */
static int check_growth(const kv_cache *k, const sequence *s, const int32_t *parents, int32_t roots,
                        int32_t rows, int32_t levels) {
  if (s->state == STAGE_RESERVED) return ERR_STATE;
  if (roots < 1 || rows < 1 || levels < 1) return ERR_ARG;
  if (rows > KV_STAGE_MAX - s->stage_count) return ERR_LIMIT;
  for (int32_t i = 0; i < roots; i++) {
    if (parents[i] != -1 && !is_staged(s, parents[i])) return ERR_ARG;
    if (depth_of(s, parents[i]) + levels > k->context - s->length) return ERR_LIMIT;
  }
  return ERR_OK;
}

/* The lowest free slots, and tiles for them. */
static int take_slots(kv_cache *k, sequence *s, int32_t count, int32_t *slots) {
  for (int32_t i = 0, slot = 0; i < count; i++, slot++) {
    while (is_staged(s, slot)) slot++;
    slots[i] = slot;
  }
  return take_tiles(k, s, slots, count);
}

int kv_grow(kv_cache *k, int32_t seq, const int32_t *parents, int32_t count, int32_t *slots) {
  sequence *s = sequence_of(k, seq);
  int rc = check_growth(k, s, parents, count, count, 1);
  if (rc == ERR_OK) rc = take_slots(k, s, count, slots);
  if (rc != ERR_OK) return is_view(k, s) ? rc : refuse(k, rc);
  reserve(k, s, slots, parents, count);
  return ERR_OK;
}

int kv_grow_tree(kv_cache *k, int32_t seq, int32_t parent, const int32_t *parents, int32_t count,
                 int32_t *slots) {
  sequence *s = sequence_of(k, seq);
  int32_t from[KV_STAGE_MAX] = {-1};
  const bool fits = count >= 1 && count <= KV_STAGE_MAX;
  for (int32_t i = 1; i < count && fits; i++) from[i] = parents[i];
  int rc = check_growth(k, s, &parent, 1, count, fits ? tree_depth(from, count) : 1);
  if (rc == ERR_OK) rc = take_slots(k, s, count, slots);
  if (rc != ERR_OK) return is_view(k, s) ? rc : refuse(k, rc);
  from[0] = parent;
  for (int32_t i = 1; i < count; i++) from[i] = slots[parents[i]];
  reserve(k, s, slots, from, count);
  return ERR_OK;
}

int32_t kv_stage_share(const kv_cache *k, int32_t sequences) {
  const int32_t rows = k->free_count / sequences * OPS_TILE;
  return rows < KV_STAGE_MAX ? rows : KV_STAGE_MAX;
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

static int check_commit(const kv_cache *k, const sequence *s, const int32_t *path, int32_t count) {
  if (s->state == STAGE_NONE || (count != 0 && s->state != STAGE_WRITTEN)) return ERR_STATE;
  assert(count == 0 || !is_view(k, s));
  return count < 0 || !is_chain(s, path, count) ? ERR_ARG : ERR_OK;
}

static void append_path(kv_cache *k, int32_t seq, const int32_t *path, int32_t count) {
  sequence *s = sequence_of(k, seq);
  int32_t rows[KV_STAGE_MAX];
  for (int32_t i = 0; i < count; i++) rows[i] = row_of(s, path[i]);
  if (count > 0) k->device->table->kv_commit(k->device, k->rows, seq, rows, count, s->length);
  s->length += count;
  k->counters.committed_rows += (uint64_t)count;
  k->counters.bytes_written += row_bytes(&k->shape) * (uint64_t)count;
}

int kv_commit(kv_cache *k, int32_t seq, const int32_t *path, int32_t count) {
  sequence *s = sequence_of(k, seq);
  int rc = check_commit(k, s, path, count);
  if (rc != ERR_OK) return refuse(k, rc);
  append_path(k, seq, path, count);
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
  for (int32_t i = STAGE_TILES; i-- > 0;)
    if (!memchr(keep + i * OPS_TILE, true, OPS_TILE)) free_tile(k, s, i);
  reject(k, s, s->stage_count - count - kept);
  s->stage_count = kept;
  if (kept == 0) s->state = STAGE_NONE;
}

int kv_commit_keep(kv_cache *k, int32_t seq, const int32_t *path, int32_t count) {
  sequence *s = sequence_of(k, seq);
  if (count == 0) return ERR_OK;
  int rc = check_commit(k, s, path, count);
  if (rc != ERR_OK) return refuse(k, rc);
  append_path(k, seq, path, count);
  prune(k, s, path, count);
  return ERR_OK;
}

int kv_rollback(kv_cache *k, int32_t seq, int32_t length) {
  sequence *s = sequence_of(k, seq);
  if (length < 0 || length > s->length) return ERR_ARG;
  drop_stage(k, s, 0);
  k->counters.rewound_rows += (uint64_t)(s->length - length);
  s->length = length;
  return ERR_OK;
}

kv_counters kv_count(const kv_cache *k) {
  return k->counters;
}

const ops_kv_shape *kv_shape(const kv_cache *k) {
  return &k->shape;
}

device *kv_device(const kv_cache *k) {
  return k->device;
}

device_kv *kv_rows(const kv_cache *k) {
  return k->rows;
}

int kv_check_append(const kv_cache *k, int32_t seq, int32_t count) {
  const sequence *s = sequence_of(k, seq);
  if (s->state != STAGE_NONE || is_view(k, s)) return ERR_STATE;
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
  for (int32_t i = depth; i > 0; slot = s->parents[slot]) path[--i] = row_of(s, slot);
  return depth;
}

void kv_appended(kv_cache *k, int32_t seq, int32_t count) {
  sequence_of(k, seq)->length += count;
  k->counters.appended_rows += (uint64_t)count;
  k->counters.bytes_written += row_bytes(&k->shape) * (uint64_t)count;
}

void kv_staged(kv_cache *k, int32_t seq) {
  sequence *s = sequence_of(k, seq);
  assert(s->state == STAGE_RESERVED);
  s->state = STAGE_WRITTEN;
  k->counters.bytes_written += row_bytes(&k->shape) * (uint64_t)s->reserved_count;
}
