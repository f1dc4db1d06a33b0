/* kv_cache.h - keys and values of every sequence of one model.
 *
 * Rows lie in blocks of KV_BLOCK, taken from one pool; a sequence's block table says which block holds its
 * rows [16 i, 16 i + 16). In the static layout every sequence has its own blocks, side by side, from open to
 * close. In the virtual layout kv_map sets the block table, and several sequences may share a block, whose
 * rows they then only read (block_pool.h manages the blocks).
 *
 * A sequence is its committed rows [0, length). n tokens have n - 1 rows: the last token's row does not exist
 * until it is the root of a forward. Rows come in by `append` (plain decode and prefill write them straight
 * behind the sequence's last row) or by `stage` and `commit` (tree rows). Only commit and rollback change how
 * many rows are committed. One thread owns a cache.
 *
 * A cache knows which rows are whose; the rows themselves are on a device, which moves them. What is queued
 * there first is done first, so a commit may be followed at once by whatever uses its rows, the staged rows'
 * place or the blocks. The device takes the memory of committed rows at open, and that of staged rows at the
 * first stage (MEM_SPECULATION), so that without a draft or a warm-up there is none. Staged rows come from
 * one pool: a sequence gets whole tiles of it while it needs them, and its callers see slots of its own, [0,
 * KV_STAGE_MAX).
 *
 * A key of logical position p is in tile slot p mod OPS_TILE, whether committed or staged.
 *
 * A view is a sequence that shows some blocks of another one, closer together than there: what a forward over
 * partial KV attends to. Nothing is copied. Rows may be staged on top of a view, and are never committed
 * there. */
#pragma once

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/file/model_config.h"
#include "common/model/memory_needs.h"
#include "kernels/device.h"
#include <stdbool.h>

#define KV_BLOCK          16 /* rows */
#define KV_BLOCKS_MAX     (INT32_MAX / KV_BLOCK)
#define KV_STAGE_MAX      256       /* tree rows of one sequence */
#define KV_STAGE_ROWS_MAX (1 << 20) /* of all sequences together */

typedef enum { KV_F32, KV_F16 } kv_type;

typedef struct kv_options {
  int32_t sequences; /* >= 1 */
  int32_t context;   /* rows of one sequence */
  kv_type type;
  int32_t blocks; /* 0: static; else virtual, with so many blocks in all */
  int32_t stage;  /* tree rows of all sequences together; 0: KV_STAGE_MAX for each */
  int32_t views;  /* beside the sequences */
} kv_options;

/* Why a stage or a commit changed nothing: ERR_ARG, ERR_STATE, ERR_LIMIT, ERR_NOMEM. */
typedef enum {
  KV_REFUSED_ARGUMENT,
  KV_REFUSED_STATE,
  KV_REFUSED_LIMIT,
  KV_REFUSED_MEMORY,
  KV_REFUSALS
} kv_refusal;

typedef struct kv_counters {
  uint64_t stage_operations, staged_rows; /* two figures */
  uint64_t appended_rows, committed_rows, rejected_rows, rewound_rows;
  uint64_t bytes_written; /* by append, stage and commit, keys and values, all layers */
  /* As many as the rejected rows have: views aside. And stages and commits that changed nothing, growth of
   * views aside. */
  uint64_t bytes_spared, refusals[KV_REFUSALS];
} kv_counters;

typedef struct kv_cache kv_cache;

/* What it will take of the device's memory; rows and stage are set. in_host is not: that is the device's. */
memory_needs kv_needs(const model_config *c, const kv_options *o);
/* Makes it as large as so many bytes allow: gives a virtual cache that many blocks; makes the context of a
 * static one shorter, if it must be. At least a block stays, for which they may be too few. */
void kv_fit(const model_config *c, kv_options *o, size_t bytes);
/* The device must stay open until close. ERR_ARG, ERR_NOMEM (whose text has the numbers). */
int kv_open(kv_cache **out, device *d, const model_config *c, const kv_options *o, mem *m, err *e);
void kv_close(kv_cache *k);
bool kv_is_virtual(const kv_cache *k);

int32_t kv_acquire(kv_cache *k);                   /* an empty sequence in [0, sequences), or ERR_FULL */
int32_t kv_acquire_view(kv_cache *k);              /* a view that shows nothing, or ERR_FULL */
void kv_release(kv_cache *k, int32_t seq);         /* drops all its rows */
int32_t kv_length(const kv_cache *k, int32_t seq); /* committed rows */

/* For the virtual layout: sets the block table of a sequence. Its rows are in blocks[0..count) from now on,
 * and its context ends with them at the latest. With rows >= 0, the blocks hold that many rows already, which
 * become its committed rows, and its former rows are dropped. With rows < 0 it keeps its rows, and the blocks
 * hold them at the same positions. `blocks` is copied. */
void kv_map(kv_cache *k, int32_t seq, const int32_t *blocks, int32_t count, int32_t rows);

/* The rows that two sequences have in common, from their first ones on: whole blocks. At most `most`,
 * rounded up to a block, are looked at. 0 for views, and in the static layout. */
int32_t kv_shared(const kv_cache *k, int32_t seq, int32_t other, int32_t most);

/* The view shows these blocks of a sequence from now on, and what was staged on it is dropped. Block i stands
 * for the sequence's committed rows [16 i, 16 i + 16); they ascend, and the last of them is the block of its
 * last row, so that the view's length and the sequence's are alike mod KV_BLOCK. A view whose sequence has
 * been rolled back, mapped anew or released has to be set again before it is used. */
void kv_view(kv_cache *k, int32_t view, int32_t seq, const int32_t *blocks, int32_t count);

/* Reserves staging for a tree of `count` rows whose parents[i] < i, or -1 for the last committed row. Row 0
 * is the only root row. ERR_STATE when a stage is open, ERR_LIMIT (the tree, or the pool of tiles), ERR_ARG,
 * ERR_NOMEM: nothing changes. */
int kv_stage(kv_cache *k, int32_t seq, const int32_t *parents, int32_t count);
/* Reserves rows for a stage that grows, the first ones or more. parents[i] is the slot of a row whose forward
 * has run, or -1 for the last committed row, which may have several children, since there is no root row
 * here. slots[i] becomes the slot of row i until it is committed or dropped. ERR_STATE when rows are reserved
 * whose forward has not run, ERR_LIMIT, ERR_ARG, ERR_NOMEM: nothing changes. */
int kv_grow(kv_cache *k, int32_t seq, const int32_t *parents, int32_t count, int32_t *slots);
/* The same for a tree of new rows: row 0 hangs from `parent`, and each other one from row parents[i] < i of
 * these; parents[0] is not looked at. */
int kv_grow_tree(kv_cache *k, int32_t seq, int32_t parent, const int32_t *parents, int32_t count,
                 int32_t *slots);
/* Rows that each of `sequences`, which have none staged, may surely stage now, however many the others do. */
int32_t kv_stage_share(const kv_cache *k, int32_t sequences);
#define KV_SLOT_FREE (-2)
/* The parent of the row in this slot: a slot, -1 or KV_SLOT_FREE. Slots are [0, KV_STAGE_MAX). */
int32_t kv_parent(const kv_cache *k, int32_t seq, int32_t slot);
/* Appends staged rows path[0..count), a chain from the root row downwards, in all layers. Drops the other
 * staged rows and closes the stage; with count 0 it drops all of them. ERR_ARG (not a chain), ERR_STATE (no
 * stage, or its forward has not run): nothing changes. */
int kv_commit(kv_cache *k, int32_t seq, const int32_t *path, int32_t count);
/* The same as kv_commit, but the rows below the last row of the path stay staged in their slots; with count 0
 * all rows do. */
int kv_commit_keep(kv_cache *k, int32_t seq, const int32_t *path, int32_t count);
/* Keeps the first `length` committed rows and drops an open stage. O(1). ERR_ARG if fewer rows are committed.
 */
int kv_rollback(kv_cache *k, int32_t seq, int32_t length);

kv_counters kv_count(const kv_cache *k);
