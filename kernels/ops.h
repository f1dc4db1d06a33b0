/* ops.h - what a device supplies: one table of coarse operations, and the shapes on which they work.
 *
 * The model's graph is written once, over this table; a device supplies the functions. These get raw
 * pointers, and include no other header of tandem. Ops return nothing and may be queued; the device keeps its
 * first error until `sync`. One thread calls the ops of an instance.
 *
 * Bits. An output is one sum in one order, fixed by the weight's shape and the row's logical position; never
 * by the number of rows, the other rows, or threads. Every implementation of one numerics class ("int8",
 * "f32") computes, bit for bit, numerics version OPS_NUMERICS_VERSION:
 * - linear: the inputs come in B blocks of OPS_BLOCK (the last one may be short, in f32 math alone). A weight
 *   of at most OPS_PARTED_OUTPUTS rows and at least OPS_PARTED_INPUTS columns sums them in four parts: part i
 *   is blocks [i B / 4, (i + 1) B / 4), rounded down, a chain that starts at zero; then (p0 + p1) + (p2 +
 *   p3). Any other weight sums one chain. A chain's blocks are ascending:
 * - quantised weight and activations (int8):
 *   acc = fma(D * dx, (float)isum, acc), isum an exact integer, then with minima a second step. S is the
 *   block's sum of q * q8, Sa and Sb those of its first and last 16, Ha and Hb these halves' sums of q8:
 *   Q4_0 Q5_0 Q8_0 IQ4_NL: D = d, isum = S; q = nibble - 8, five bits - 16, int8, the table's number
 *   Q4_1 Q5_1: D = d, isum = S; then acc = fma(m, sum_dx, acc)
 *   Q4_K Q5_K: D = d * scale, isum = S; then acc = fma(-(dmin * minimum), sum_dx, acc)
 *   Q3_K Q6_K: D = d, isum = scale_a * Sa + scale_b * Sb; q = three bits - 4, six bits - 32
 *   Q2_K: D = d, isum as Q3_K's, q = two bits; then acc = fma(-(dmin * dx), (float)msum, acc), where
 *     msum = minimum_a * Ha + minimum_b * Hb
 * - otherwise: acc = fma(w[k], x[k], acc), k ascending, w dequantised in f32: D * q, with
 *   D = d * scale where there are sub-scales, and with minima fma(D, q, m) or fma(D, q, -(dmin * minimum));
 *   the products are exact
 * - a bias is one addition, after the sum and what it is added to
 * - sums of one vector (norm, softmax): 8 lanes, element i in lane i mod 8, ascending; then the tree
 *   ((0+4)+(2+6))+((1+5)+(3+7))
 * - attention, in splits of OPS_SPLIT logical positions, [0, 512), [512, 1024), ...: in a split that has keys
 *   for the row, score = (sum over d ascending of fma(q, k)) * scale; M = the split's largest score;
 *   e = exp(score - M); L = their sum, in lanes by logical position; V[d] = chain of fma(e, v, V) by logical
 *   position ascending, from zero. Splits are combined ascending, from the first that has keys:
 *   with m = max(M_before, M): a = exp(M_before - m), b = exp(M - m); L = fma(L, b, L_before * a);
 *   V = fma(V, b, V_before * a). One split alone is not rescaled. At last V * (1 / L). Positions that the row
 *   does not see are left out, not moved.
 *
 * Rounding to nearest, subnormals kept (no FTZ, no DAZ) in every thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPS_GROUP        16  /* output rows of a weight that are packed side by side: one SIMD lane each */
#define OPS_BLOCK        32  /* inputs that share a scale */
#define OPS_UNIT         256 /* inputs that share scales of scales in the types named _K */
#define OPS_TILE         16  /* committed keys packed side by side: position p in slot p mod OPS_TILE */
#define OPS_HEAD_DIM_MAX 512
#define OPS_THREADS_MAX  64

#define OPS_NUMERICS_VERSION "2" /* grows with every change of the bits above */
#define OPS_PARTED_OUTPUTS   16384
#define OPS_PARTED_INPUTS    1024
#define OPS_SPLIT            512 /* logical positions that share a maximum; a multiple of OPS_TILE */

typedef enum {
  OPS_F32,
  OPS_F16,
  OPS_BF16,
  OPS_Q4_0,
  OPS_Q4_1,
  OPS_Q8_0,
  OPS_Q5_0,
  OPS_Q5_1,
  OPS_IQ4_NL,
  OPS_Q2_K,
  OPS_Q3_K,
  OPS_Q4_K,
  OPS_Q5_K,
  OPS_Q6_K,
  OPS_TYPE_COUNT
} ops_type;

/* A matrix as the device keeps it (`pack`). columns is a multiple of OPS_BLOCK for the quantised types, of
 * OPS_UNIT for those named _K. */
typedef struct ops_weight {
  ops_type type;
  int32_t rows, columns; /* outputs, inputs */
  const void *data;
} ops_weight;

/* Sums of a block's q8: of all inputs, and of its first and its last OPS_BLOCK / 2. */
typedef struct ops_total {
  int32_t all;
  int16_t first, last;
} ops_total;

/* Activations: f32 [rows][columns] and, where q8 is not NULL, their int8 form by blocks of OPS_BLOCK. The op
 * that writes an ops_act fills both. */
typedef struct ops_act {
  int32_t columns;
  float *f32;       /* [rows][columns] */
  int8_t *q8;       /* [rows][columns], in [-127, 127]; NULL: f32 math */
  float *scale;     /* [rows][columns / OPS_BLOCK]: x is about q8 * scale */
  float *sum;       /* [rows][columns / OPS_BLOCK]: scale * total.all */
  ops_total *total; /* [rows][columns / OPS_BLOCK] */
} ops_act;

typedef struct ops_linear {
  const ops_weight *w;
  float *y;          /* [rows][w->rows] */
  bool add;          /* y += instead of y = */
  const float *bias; /* [w->rows], added to y at last; or NULL */
} ops_linear;

/* How queries and keys are transformed before they are used or stored. A head is normed (as by `norm`) over
 * its components where q_norm, k_norm [head_dim] are not NULL, and then its first `dim` components are
 * rotated, pairs (2i, 2i + 1). */
typedef struct ops_rotary {
  const float *table; /* [rows][2][dim]: cosines, each twice; then sines as (-s, s) */
  int32_t dim;
  const float *q_norm, *k_norm;
  float eps;
} ops_rotary;

/* How a row's token follows from its logits z. It is the id with the largest z * scale + noise; if scale is
 * 0, it is the id with the largest z. The lowest id wins ties. A NaN or -infinity is never chosen; if nothing
 * else is left, the token is 0. The noise of (seed, choice, position, id) is defined in common/base/noise.h.
 */
typedef struct ops_sampling {
  float scale; /* 1 / temperature, or 0: no noise */
  uint64_t seed;
  uint32_t choice, position; /* position: of the token being chosen */
} ops_sampling;

typedef enum { OPS_KV_F32, OPS_KV_F16 } ops_kv_type;

/* Logical positions [first, end) of a sequence. */
typedef struct ops_span {
  int32_t first, end;
} ops_span;

typedef struct ops_kv_shape {
  ops_kv_type type;
  int32_t layers, kv_heads, head_dim;
  int32_t blocks;  /* of OPS_TILE rows each, of all sequences together */
  int32_t context; /* rows of one sequence at most, a multiple of OPS_TILE */
  int32_t stage;   /* rows of its staging area, a multiple of OPS_TILE */
} ops_kv_shape;

/* Where OPS_TILE rows of a sequence lie. */
typedef struct ops_block {
  int32_t at;  /* the block's index in [0, blocks) of the shape */
  int32_t run; /* >= 1: so many of the sequence's blocks, from this one on, lie at at, at + 1, ... */
} ops_block;

/* One sequence. Elements are of the shape's type. All sequences share the memory of keys and values; the
 * sequence's rows [16 i, 16 i + 16) lie in block map[i].
 * - keys [layers][kv_heads][blocks][head_dim][OPS_TILE]
 * - values [layers][kv_heads][blocks][OPS_TILE][head_dim]
 * - stage_keys [layers][kv_heads][stage / OPS_TILE][head_dim][OPS_TILE], NULL before the first stage
 * - stage_values [layers][kv_heads][stage][head_dim], NULL before the first stage */
typedef struct ops_kv {
  void *keys, *values, *stage_keys, *stage_values;
  const ops_block *map; /* [map_count] */
  int32_t map_count;
  /* A late commit, which the sequence's next forward carries out: staging slots late_path[0..late) become the
   * committed rows from late_at on. `rope_store` copies those of its layer before it writes a row, because
   * attention needs the same cache lines anyhow. */
  const int32_t *late_path;
  int32_t late, late_at;
} ops_kv;

/* A row of a forward. Its keys are the committed rows [0, length), then the staging slots
 * path[0..path_count), with the root first and its own last. An appended row has no path: its own key is
 * committed row length - 1. */
typedef struct ops_row {
  const ops_kv *kv;
  int32_t token, position;
  int32_t length, path_count;
  const int32_t *path;
} ops_row;

typedef struct ops_counters {
  uint64_t forwards, rows; /* counted by `embed`, which begins a forward */
  uint64_t staged_writes;  /* rows written to staging, once a layer */
  uint64_t commit_copies;  /* rows moved from staging to the committed cache, once a layer */
} ops_counters;

typedef struct ops ops;

typedef struct ops_table {
  const char *name;   /* "c", "avx2", "avx-vnni", "avx512" */
  const char *layout; /* the name of the packed form, e.g. "cpu1"; it changes whenever that form changes */

  /* Bytes of a packed matrix, a multiple of 64; 0 when they do not fit size_t. */
  size_t (*packed_bytes)(ops_type type, int32_t rows, int32_t columns);
  /* Packs groups [first, last) of OPS_GROUP rows from the file's row-major form; out is the beginning of the
   * whole matrix. Lanes past the last row are zero. May be called by several threads for different groups. */
  void (*pack)(ops_type type, int32_t rows, int32_t columns, const void *file, void *out, int32_t first,
               int32_t last);

  /* Begins a forward. x[i] = row rows[i].token of w, in f32. */
  void (*embed)(ops *o, const ops_row *rows, int32_t count, const ops_weight *w, float *x);
  /* y->f32[i] = x[index[i]] / sqrt(mean of squares + eps) * w; index NULL: i. */
  void (*norm)(ops *o, const float *x, const int32_t *index, int32_t count, const float *w, float eps,
               ops_act *y);
  /* Several matrices over the same `count` rows of x. */
  void (*linear)(ops *o, const ops_linear *jobs, int32_t job_count, const ops_act *x, int32_t count);
  /* y->f32 = silu(gate * x) * (up * x), elementwise, of `count` rows. */
  void (*linear_swiglu)(ops *o, const ops_weight *gate, const ops_weight *up, const ops_act *x, int32_t count,
                        ops_act *y);
  /* ids[i] = the token that choices[i] takes from the logits w * (row i of x), which are not kept. */
  void (*sample)(ops *o, const ops_weight *w, const ops_act *x, int32_t count, const ops_sampling *choices,
                 int32_t *ids);
  /* Norms and rotates q [count][heads][head_dim] in place and k [count][kv_heads][head_dim] on its way, and
   * writes k and v to the cache: to staging slot path[path_count - 1], or to committed row `position` where
   * path_count is 0. */
  void (*rope_store)(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                     int32_t heads, const ops_rotary *rotary, float *q, const float *k, const float *v);
  /* y->f32 [count][heads][head_dim]. A row at position p sees its keys of the logical positions (p - window,
   * p], all of them where window is 0. scratch: attention_floats() floats. */
  void (*attention)(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                    int32_t heads, int32_t window, const float *q, ops_act *y, float *scratch);
  size_t (*attention_floats)(const ops *o, const ops_kv_shape *s, int32_t heads);
  /* Copies staging slots path[0..count) to committed rows length.., in all layers. */
  void (*commit)(ops *o, const ops_kv_shape *s, const ops_kv *kv, const int32_t *path, int32_t count,
                 int32_t length);

  /* Host work on the instance's threads: body(context, i) for every i in [0, count). */
  void (*parallel)(ops *o, int32_t count, void (*body)(void *context, int32_t i), void *context);
  /* The kernels that `linear` uses for so many rows; a static string. */
  const char *(*variant)(const ops *o, int32_t rows);
  /* Waits for what was queued; 0, or the device's first error since the last sync. */
  int (*sync)(ops *o);
  void (*close)(ops *o);
} ops_table;

struct ops {
  const ops_table *table;
  ops_counters counters;
  int32_t threads; /* >= 1, the caller's included */
};

/* Instruction sets, the better ones last. AVX_VNNI: AVX2 with its dot products of bytes; AVX512: F, BW, DQ,
 * VL and VNNI. */
typedef enum { OPS_CPU_C, OPS_CPU_AVX2, OPS_CPU_AVX_VNNI, OPS_CPU_AVX512, OPS_CPU_ISA_COUNT } ops_cpu_isa;

bool ops_cpu_has(ops_cpu_isa isa); /* can this processor run it */
/* The first feature that this processor lacks for it, as /proc/cpuinfo spells it, or NULL. */
const char *ops_cpu_lacks(ops_cpu_isa isa);
/* threads in [1, OPS_THREADS_MAX]. NULL: out of memory or threads, or the processor lacks the isa. */
ops *ops_cpu_open(ops_cpu_isa isa, int32_t threads);
/* Binds the threads of an instance of ops_cpu_open. The calling thread, which must be the one that calls its
 * ops, runs only on processor cpus[0] from now on, and thread i on cpus[i % count]. False: the system refuses
 * one of them. */
bool ops_cpu_pin(ops *o, const int32_t *cpus, int32_t count);
