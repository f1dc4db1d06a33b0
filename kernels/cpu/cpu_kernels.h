/* cpu_kernels.h - what one instruction set supplies: kernels for one row or one group of outputs, without
 * threads, and the forms in which the CPU keeps its data. The device (kernels/cpu/device_cpu.h)
 * cuts the ops into these. The plain C kernels define the bits (ops.h). */
#pragma once

#include "common/base/ranking.h"
#include "kernels/cpu/cpu_math.h"
#include "kernels/cpu/pack_weights.h"
#include "kernels/ops.h"

#include <math.h>

/* --- data, as the kernels see it --- */

/* Sums of a block's q8: of all inputs, and of its first and its last OPS_BLOCK / 2. */
typedef struct cpu_total {
  int32_t all;
  int16_t first, last;
} cpu_total;

/* Activations: f32 [rows][columns] and, where they are not NULL, their int8 form by blocks of OPS_BLOCK and
 * their bf16 form. The op that writes them fills all. */
typedef struct device_act {
  int32_t columns;
  float *f32;       /* [rows][columns] */
  int8_t *q8;       /* [rows][columns], in [-127, 127]; NULL: f32 math */
  float *scale;     /* [rows][columns / OPS_BLOCK]: x is about q8 * scale */
  float *sum;       /* [rows][columns / OPS_BLOCK]: scale * total.all */
  cpu_total *total; /* [rows][columns / OPS_BLOCK] */
  int32_t rows;     /* that there is room for */
  uint16_t *bf16;   /* [rows][columns] the same rounded to bf16; NULL: not of class bf16-t25 */
} cpu_act;

/* Where OPS_TILE rows of a sequence lie. */
typedef struct cpu_kv_block {
  int32_t at;  /* the block's index in [0, blocks) of the shape */
  int32_t run; /* >= 1: so many of the sequence's blocks, from this one on, lie at at, at + 1, ... */
} cpu_kv_block;

/* The block table of one sequence: its rows [16 i, 16 i + 16) lie in block map[i]. */
typedef struct cpu_kv {
  cpu_kv_block *map; /* [map_count] */
  int32_t map_count;
} cpu_kv;

/* A row of a forward. Its keys are the committed rows [0, length), then the staged rows path[0..path_count),
 * with the root first and its own last. An appended row has no path: its own key is committed row length - 1.
 * Staged rows count from stage_at, a multiple of OPS_TILE, which the rows of one sequence share. shared: as
 * ops_row has it. */
typedef struct cpu_row {
  const cpu_kv *kv;
  int32_t token, position, rope_shift, shared;
  int32_t length, path_count;
  const int32_t *path;
  int32_t stage_at;
} cpu_row;

/* --- kernels --- */

#define CPU_ROWS_MAX 16 /* rows that a linear kernel may take at once: a weight is unpacked once for them */

#define CPU_PARTS 4 /* that the sums of a parted weight are made of */

/* In how many parts the sums of a weight are made, which the whole weight decides (ops.h): 1 or CPU_PARTS. */
static inline int32_t cpu_parts(const cpu_weight *w) {
  return w->rows <= OPS_PARTED_OUTPUTS && w->columns >= OPS_PARTED_INPUTS ? CPU_PARTS : 1;
}

/* The input at which part i of a sum begins, i < parts; with i = parts, where the sum ends. */
static inline size_t cpu_part_at(int32_t columns, int32_t parts, int32_t i) {
  size_t blocks = ((size_t)columns + OPS_BLOCK - 1) / OPS_BLOCK;
  size_t at = (parts == 1 ? blocks * (size_t)i : blocks * (size_t)i / CPU_PARTS) * OPS_BLOCK;
  return at < (size_t)columns ? at : (size_t)columns;
}

/* out [rows][OPS_GROUP] = one packed group of 16 outputs times rows [row, row + rows) of x; parts: cpu_parts
 * of the weight. */
typedef void cpu_linear(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,
                        float *out);

/* Queries of a chunk of work, whose keys and values are read from memory once: of several rows, or of one row
 * that has more heads than this. */
#define CPU_QUERIES_MAX 48
#define CPU_BATCH_MAX   24 /* queries that a kernel holds in registers */
/* From a query's scores to those of the next: a constant, so that they need no registers to be found, and of
 * which no multiple is a page. */
#define CPU_SCORES (OPS_SPLIT + OPS_TILE)

/* Some splits of what the query heads of some rows, which share a key-value head, attend to. The rows are of
 * one sequence, or of several that have all rows of these splits in common. A query is a row and a head:
 * query i is head i % heads of row i / heads. Pointers stand at that layer and key-value head; those of
 * committed rows at block 0 of all (the sequence's own blocks are in row->kv->map), those of staged rows at
 * row->stage_at. */
typedef struct cpu_attention {
  ops_kv_type type;
  int32_t head_dim, heads, rows;     /* rows * heads <= CPU_QUERIES_MAX, or rows is 1 */
  const cpu_row *row;                /* [rows] */
  const void *keys, *stage_keys;     /* [..][head_dim][OPS_TILE] */
  const void *values, *stage_values; /* [..][head_dim] */
  /* What this thread will probably attend to next, for prefetching: tiles of the sequence `next`, from
   * next_tile on. NULL: the splits that follow, or nothing. */
  const cpu_kv *next;
  const void *next_keys, *next_values;
  int32_t next_tile;
  const float *q; /* [rows][row_floats], its first [heads][head_dim] */
  float *y;       /* likewise */
  size_t row_floats;
  float scale;
  /* What the rows see: row i the logical positions of spans[first_span[i]] to spans[first_span[i + 1] - 1],
   * which ascend, do not overlap, and end with the row's own position. */
  const ops_span *spans;
  const int32_t *first_span; /* [rows + 1] */
  int32_t split, split_end;  /* the splits [split, split_end) of OPS_SPLIT logical positions each */
  /* Where other threads attend to other splits: what each split comes to, for attention_join. A query's
   * splits count from first_left. NULL: there are no other splits, and y is complete afterwards. */
  cpu_softmax *split_sums; /* [rows * heads][splits_left]; sum < 0: the query sees nothing of the split */
  float *split_values;     /* [rows * heads][splits_left][head_dim], weighted by exp(score - largest) */
  int32_t first_left, splits_left;
  /* Scratch. The scores of a split stand at their positions in it, those of the staging area's tiles after
   * the scores of all queries. */
  float *scores; /* [CPU_BATCH_MAX][CPU_SCORES], then [CPU_BATCH_MAX][stage]: cpu_score_floats() */
  int32_t stage;
  float *queries;    /* [head_dim][rows * heads], batch by batch */
  cpu_softmax *sums; /* [rows * heads]: of the splits so far */
} cpu_attention;

/* What some splits of an attention of one row, all of whose keys are committed, come to for op `mass`. */
typedef struct cpu_mass {
  int32_t splits;    /* of the row */
  cpu_softmax *sums; /* [heads][splits] a split's largest score, and the sum of its tiles */
  float *tiles;      /* [heads][splits * CPU_SPLIT_TILES] their sums of exp(score - largest) */
} cpu_mass;

#define CPU_SPLIT_TILES (OPS_SPLIT / OPS_TILE)

#define CPU_SEES_NOTHING ((cpu_softmax){-INFINITY, -1.0f})

/* Which of a->split_sums is that of a query and a split. */
static inline size_t cpu_split_at(const cpu_attention *a, int32_t query, int32_t split) {
  return (size_t)query * (size_t)a->splits_left + (size_t)(split - a->first_left);
}

/* Where a query begins in q, and its result in y. */
static inline size_t cpu_query_at(const cpu_attention *a, int32_t query) {
  return (size_t)(query / a->heads) * a->row_floats + (size_t)(query % a->heads) * (size_t)a->head_dim;
}

/* The first logical position that row i sees, and the one after its last, which is its own. */
static inline int32_t cpu_keys_begin(const cpu_attention *a, int32_t i) {
  return a->spans[a->first_span[i]].first;
}

static inline int32_t cpu_keys_end(const cpu_attention *a, int32_t i) {
  return a->spans[a->first_span[i + 1] - 1].end;
}

/* The first stretch of the logical positions [from, to) that row i sees; if there is none, {to, to}. */
static inline ops_span cpu_seen(const cpu_attention *a, int32_t i, int32_t from, int32_t to) {
  const ops_span *s = a->spans + a->first_span[i], *end = a->spans + a->first_span[i + 1];
  while (s < end && s->end <= from) s++;
  if (s == end || s->first >= to) return (ops_span){to, to};
  return (ops_span){s->first > from ? s->first : from, s->end < to ? s->end : to};
}

_Static_assert(OPS_SPLIT <= 32 * OPS_TILE, "a split's tiles are the bits of a word");

/* The tiles of the split from position `from` on in which row i sees committed keys. */
static inline uint32_t cpu_tiles_seen(const cpu_attention *a, int32_t i, int32_t from) {
  int32_t to = a->row[i].length < from + OPS_SPLIT ? a->row[i].length : from + OPS_SPLIT;
  uint32_t tiles = 0;
  for (int32_t p = from; p < to;) {
    ops_span s = cpu_seen(a, i, p, to);
    p = s.end;
    if (s.first == s.end) break;
    uint32_t first = (uint32_t)(s.first - from) / OPS_TILE, last = (uint32_t)(s.end - 1 - from) / OPS_TILE;
    tiles |= UINT32_MAX << first & UINT32_MAX >> (31 - last);
  }
  return tiles;
}

/* Pads the scores of [from, to), part of one split, to whole chunks: scores[p - from] becomes -infinity where
 * row i does not see p, which then adds exactly zero. Returns the chunks that it sees, as positions in the
 * split. */
static inline ops_span cpu_hide_unseen(const cpu_attention *a, int32_t i, int32_t from, int32_t to,
                                       float *scores) {
  int32_t begin = (cpu_seen(a, i, from, to).first - from) / OPS_CHUNK * OPS_CHUNK, at = begin;
  for (int32_t p = from; p < to;) {
    ops_span s = cpu_seen(a, i, p, to);
    if (s.first == s.end) break;
    for (; at < s.first - from; at++) scores[at] = -INFINITY;
    at = s.end - from;
    p = s.end;
  }
  for (; at % OPS_CHUNK; at++) scores[at] = -INFINITY;
  return (ops_span){begin, at};
}

/* Where committed row p of a sequence lies among the rows of all blocks. */
static inline size_t cpu_row_at(const cpu_kv *kv, int32_t p) {
  return (size_t)kv->map[p / OPS_TILE].at * OPS_TILE + (size_t)(p % OPS_TILE);
}

/* The position, at most `end`, up to which the rows from p on lie side by side. */
static inline int32_t cpu_run_end(const cpu_kv *kv, int32_t p, int32_t end) {
  int64_t to = ((int64_t)(p / OPS_TILE) + kv->map[p / OPS_TILE].run) * OPS_TILE;
  return to < end ? (int32_t)to : end;
}

/* Tiles of the staging area that a row's path reaches into. */
static inline int32_t cpu_stage_tiles(const cpu_row *r) {
  int32_t tiles = 0;
  for (int32_t i = 0; i < r->path_count; i++)
    if (r->path[i] / OPS_TILE >= tiles) tiles = r->path[i] / OPS_TILE + 1;
  return tiles;
}

static inline size_t cpu_score_floats(const ops_kv_shape *s) {
  return CPU_BATCH_MAX * (CPU_SCORES + (size_t)s->stage);
}

/* The best of a row's outputs so far (ops_sampling). */
typedef struct cpu_winner {
  float value;
  int32_t id;
} cpu_winner;

#define CPU_NOBODY ((cpu_winner){-INFINITY, INT32_MAX})
#define CPU_NO_NUMBERS                                                                                       \
  ((cpu_winner){INFINITY, -1}) /* an output was a NaN or +infinity: nobody wins against this */

/* Compares *w with the outputs [first, first + n), whose values are `logits`, and updates it. first is a
 * multiple of OPS_GROUP; groups of OPS_GROUP logits lie `stride` floats apart. */
typedef void cpu_sample(const float *logits, int32_t stride, int32_t first, int32_t n,
                        const ops_sampling *choice, cpu_winner *w);

/* Enters outputs into a list of the best, by their values (ops_sampling). tokens [n]: their tokens, negative
 * where an output is none; NULL: output i is token first + i. False: a token's logit is a NaN or +infinity,
 * and the list is of no use. */
typedef bool cpu_rank_outputs(const float *logits, const int32_t *tokens, int32_t first, int32_t n,
                              const ops_sampling *choice, ranking_list *best);

typedef struct cpu_kernels {
  const char *name;
  int32_t rows_max;                        /* of a linear kernel, <= CPU_ROWS_MAX */
  cpu_linear *linear_int8[OPS_TYPE_COUNT]; /* NULL: the type is not quantised, use linear_f32 */
  cpu_linear *linear_f32[OPS_TYPE_COUNT];
  cpu_linear *linear_step; /* of BF16 weights and activations in bf16 */
  void (*norm)(float *y, const float *x, const float *w, int32_t n, float eps);
  /* One row of n inputs, a multiple of OPS_BLOCK. */
  void (*quantize)(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x, int32_t n);
  /* One head: y[i] = fma(x[i ^ 1], sine[i], x[i] * cosine[i]), i < n; n is even. y may be x. */
  void (*rope)(float *y, const float *x, const float *cosine, const float *sine, int32_t n);
  /* n floats to elements that lie `stride` apart. */
  void (*store)(ops_kv_type type, void *to, int32_t stride, const float *x, int32_t n);
  void (*attention)(const cpu_attention *a);
  void (*attention_join)(const cpu_attention *a); /* y from the parts of a's splits; no scratch is used */
  void (*mass)(const cpu_attention *a, const cpu_mass *m);
  void (*swiglu)(float *y, const float *gate, const float *up, int32_t n);
  cpu_sample *sample;
  cpu_rank_outputs *rank;
} cpu_kernels;

extern const cpu_kernels cpu_kernels_c;
#if defined(__x86_64__)
/* To be called only if cpu_isa_has allows it. */
extern const cpu_kernels cpu_kernels_avx2, cpu_kernels_avx_vnni, cpu_kernels_avx512;
#endif
