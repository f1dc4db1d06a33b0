/* ops.h - what the ops of a device compute, to the bit, and the plain numbers that they work on. device.h has
 * the ops themselves.
 *
 * Bits. An output is one sum in one order, fixed by the weight's shape and the row's logical position; never
 * by the number of rows, the other rows, threads or processors. Every device of one numerics class ("f32",
 * "int8", "bf16-t25") computes, bit for bit, numerics version OPS_NUMERICS_VERSION:
 * - linear: the inputs come in B blocks of OPS_BLOCK (the last one may be short, in f32 math alone). A weight
 *   of at most OPS_PARTED_OUTPUTS rows and at least OPS_PARTED_INPUTS columns sums them in four parts: part i
 *   is blocks [i B / 4, (i + 1) B / 4), rounded down, a chain that starts at zero; then (p0 + p1) + (p2 +
 *   p3). Any other weight sums one chain. A chain's blocks are ascending:
 * - quantised weight and activations (int8, bf16-t25):
 *   acc = fma(D * dx, (float)isum, acc), isum an exact integer, then with minima a second step. S is the
 *   block's sum of q * q8, Sa and Sb those of its first and last 16, Ha and Hb these halves' sums of q8:
 *   Q4_0 Q5_0 Q8_0 IQ4_NL: D = d, isum = S; q = nibble - 8, five bits - 16, int8, the table's number
 *   Q4_1 Q5_1: D = d, isum = S; then acc = fma(m, sum_dx, acc)
 *   Q4_K Q5_K: D = d * scale, isum = S; then acc = fma(-(dmin * minimum), sum_dx, acc)
 *   Q3_K Q6_K: D = d, isum = scale_a * Sa + scale_b * Sb; q = three bits - 4, six bits - 32
 *   Q2_K: D = d, isum as Q3_K's, q = two bits; then acc = fma(-(dmin * dx), (float)msum, acc), where
 *     msum = minimum_a * Ha + minimum_b * Hb
 *   An input that is no number or infinite makes dx so, and thereby every output of its row
 * - BF16 weight of whole blocks (bf16-t25): the inputs are rounded to bf16, and TENSOR_STEP of them at a time
 *   are added as a tensor core does it (kernels/cpu/tensor_step.h)
 * - otherwise: acc = fma(w[k], x[k], acc), k ascending, w dequantised in f32: D * q, with
 *   D = d * scale where there are sub-scales, and with minima fma(D, q, m) or fma(D, q, -(dmin * minimum));
 *   the products are exact
 * - a bias is one addition, after the sum and what it is added to
 * - norm: the squares of eight neighbours are summed as ((0+1)+(2+3))+((4+5)+(6+7)), each a product that is
 *   rounded. 32 such sums, a chunk of OPS_NORM_CHUNK inputs, are added in halves: i + 16 to i, then i + 8, 4,
 *   2, 1; inputs beyond the last one are zeros. Chunks are added ascending. NaNs if the sum is not finite
 * - attention, in splits of OPS_SPLIT logical positions, [0, 256), [256, 512), ...: in a split that has keys
 *   for the row, score = (sum over d ascending of fma(q, k)) * scale; M = the split's largest score;
 *   e = exp(score - M), 0 where the row does not see the position. The split's chunks of OPS_CHUNK positions
 *   each give a sum of weights in 8 lanes, lane i of ((e[i] + e[i + 16]) + (e[i + 8] + e[i + 24])), and for
 *   each d a chain of fma(e, v, chain) by position ascending, from zero, in which positions that the row does
 *   not see are left out. From zero, L and V[d] add the chunks ascending, L lane by lane; at last its lanes
 *   are added as ((0+4)+(2+6))+((1+5)+(3+7)). Splits are combined ascending, from the first that has keys:
 *   with m = max(M_before, M): a = exp(M_before - m), b = exp(M - m); L = fma(L, b, L_before * a);
 *   V = fma(V, b, V_before * a). One split alone is not rescaled. At last V * (1 / L)
 * - mass: what the committed keys of a row, [0, length), weigh in its attention, tile by tile. M and e of a
 *   split are attention's, of all its committed keys. A tile's sum t is that of its 16 e, zeros beyond the
 *   last key, added in halves: i + 8 to i, then 4, 2, 1. S of a split adds its t, ascending from zero. A
 *   head's T has 32 lanes, lane i a chain from zero of fma(S, exp(M - largest M), lane) over the splits i, i
 *   + 32, ..., which are added in halves: i + 16 to i, then 8, 4, 2, 1. Then, head by head, y[tile] = fma(t,
 *   exp(M - largest M) * (1 / T), y[tile])
 * - bound: SpecPV's score of a tile (arXiv 2512.02337), which is near what its committed keys score at most,
 *   but no bound where q has both signs. The largest and the smallest of each component among the keys make
 *   two, high and low, from -infinity and infinity on. A head has the larger of q . high and q . low, chains
 *   as scores are, times the same scale. Added to y[tile], or to zero, is the largest of all heads', or their
 *   mean: head h of a group belongs to lane h mod 32, each lane adds its heads' ascending from zero, the
 *   lanes are added in halves: i + 16 to i, then 8, 4, 2, 1; and the sum times 1 / heads. A NaN is never the
 *   larger or smaller one
 *
 * Rounding to nearest, subnormals kept (no FTZ, no DAZ) in every thread. */
#pragma once

#include "common/base/sampler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPS_GROUP        16  /* output rows of a weight that are packed side by side: one SIMD lane each */
#define OPS_BLOCK        32  /* inputs that share a scale */
#define OPS_UNIT         256 /* inputs that share scales of scales in the types named _K */
#define OPS_TILE         16  /* committed keys packed side by side: position p in slot p mod OPS_TILE */
#define OPS_HEAD_DIM_MAX 512
#define OPS_THREADS_MAX  64

#define OPS_NUMERICS_VERSION "4" /* grows with every change of the bits above */
#define OPS_PARTED_OUTPUTS   16384
#define OPS_PARTED_INPUTS    1024
#define OPS_NORM_CHUNK       256 /* inputs of a norm that are summed side by side */
#define OPS_SPLIT            256 /* positions that share a maximum in attention; whole chunks */
#define OPS_CHUNK            32  /* positions whose values are one chain; whole tiles */

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

typedef enum { OPS_MATH_F32, OPS_MATH_INT8, OPS_MATH_BF16, OPS_MATH_COUNT } ops_math;

/* What a forward says at its end. */
typedef enum {
  OPS_OK,
  OPS_FAILED, /* this forward has no result; the next one may be tried */
  OPS_LOST    /* the device is gone, and everything in its memory: nothing more will succeed */
} ops_code;

typedef enum { OPS_KV_F32, OPS_KV_F16 } ops_kv_type;

/* How tiles are weighed: by mass, or by bound, of which the heads' largest or their mean counts. */
typedef enum { OPS_WEIGH_MASS, OPS_WEIGH_BOUND_MAX, OPS_WEIGH_BOUND_MEAN } ops_weighing;

typedef struct ops_kv_shape {
  ops_kv_type type;
  int32_t layers, kv_heads, head_dim;
  int32_t blocks;    /* of OPS_TILE committed rows each, of all sequences together */
  int32_t sequences; /* block tables */
  int32_t context;   /* rows of one sequence at most, a multiple of OPS_TILE */
  int32_t stage;     /* staged rows, of all sequences together, a multiple of OPS_TILE */
} ops_kv_shape;

/* Logical positions [first, end) of a sequence. */
typedef struct ops_span {
  int32_t first, end;
} ops_span;

/* A row of a forward: a token of a sequence at a logical position. Its own key is at its position, and is
 * rotated, as its query is, by the angles of position + rope_shift: a sequence may hold some of another one's
 * keys, closer together than there. Keys of positions below `length` are committed rows, those from there on
 * are the staged rows path[path_at ... path_at + path_count), root first and its own last. An appended row
 * has no path, its length is position + 1, and it writes committed row `position`. Where the row before it is
 * of another sequence, the first `shared` committed rows of both, whole tiles, are the same ones of the
 * cache: a device may read them once for both. */
typedef struct ops_row {
  int32_t token, position, sequence, length;
  int32_t path_at, path_count;
  int32_t rope_shift;
  int32_t shared; /* 0: none, or it is not known */
} ops_row;

/* Which keys the rows see, for layers that agree on it: row i sees the logical positions of spans[first[i]]
 * to spans[first[i + 1] - 1], which ascend, do not overlap, and end with the row's own position. */
typedef struct ops_view {
  const int32_t *first;  /* [rows + 1] */
  const ops_span *spans; /* [first[rows]] */
} ops_view;

/* How a row's token follows from its logits z. It is the id with the largest z * scale + noise; if scale is
 * 0, it is the id with the largest z. The lowest id wins ties, and -infinity is never chosen. The token is -1
 * where nothing else is left, or where a logit is a NaN or +infinity. The noise of (seed, choice, position,
 * id) is defined in common/base/noise.h.
 */
typedef struct ops_sampling {
  float scale; /* 1 / temperature, or 0: no noise */
  uint64_t seed;
  uint32_t choice, position; /* position: of the token being chosen */
} ops_sampling;

/* Entries [first, first + count) of a list. */
typedef struct ops_slice {
  int32_t first, count;
} ops_slice;

/* How a row's best tokens follow from its logits: they are those that sampler_rank lists
 * (common/base/sampler.h), to the bit; a token without an output has a logit of -infinity. */
typedef struct ops_ranking {
  sampler_options options; /* as sampler_check allows them */
  int32_t position;        /* of the token being chosen */
  int32_t count;           /* tokens wanted, in [1, SAMPLER_RANKED_MAX] */
  ops_slice history[2];    /* of the batch's tokens, one after the other: what a penalty looks at */
  int32_t prompt_count;    /* so many of the first of these are the prompt's */
  ops_slice bias;          /* of the batch's biases: what is added to the logits of tokens */
  ops_slice own; /* outputs from device_ids.common on, which this row alone is ranked by, too; where ids are
                    given */
} ops_ranking;

typedef struct ops_ranked {
  int32_t count;                          /* <= that of the ranking */
  ranking_token list[SAMPLER_RANKED_MAX]; /* the best first */
} ops_ranked;

#define OPS_VIEWS_MAX    4
#define OPS_CAPTURES_MAX 9 /* ops `capture` of a forward: 8 states of a row, and what tiles weigh */

/* A forward, as plain numbers. The arrays belong to the caller. */
typedef struct ops_batch {
  const ops_row *rows; /* [row_count], rows of one sequence side by side, a path's rows ascending */
  int32_t row_count;
  const int32_t *paths; /* [path_length] staged rows */
  int32_t path_length;
  ops_view views[OPS_VIEWS_MAX];
  int32_t view_count;
  /* Rows that go through the output head: first those whose logits are kept, then those whose tokens are
   * ranked, then those that choose a token. */
  const int32_t *head_rows; /* [head_count] */
  int32_t head_count, logit_count, rank_count;
  const ops_ranking *rankings; /* [rank_count] */
  const int32_t *tokens;       /* [token_count] the histories of the rankings */
  int32_t token_count;
  const int32_t *bias_tokens; /* [bias_count] the biases of the rankings */
  const float *bias_values;
  int32_t bias_count;
  const ops_sampling *choices;        /* [ops_choice_count] */
  const int32_t *capture_rows;        /* [capture_count] rows whose activations each op `capture` keeps; */
  int32_t capture_count, weigh_count; /* what tiles weigh is found for the first weigh_count of them */
} ops_batch;

static inline int32_t ops_choice_count(const ops_batch *b) {
  return b->head_count - b->logit_count - b->rank_count;
}

typedef struct ops_answer { /* valid until the next begin */
  const int32_t *ids;       /* [ops_choice_count] the chosen tokens; -1: no output is above -infinity */
  uint64_t device_us;       /* what the forward took there */
  bool prepared; /* the device did something once that later forwards of this kind need not do: the time of
                    this one says nothing of theirs */
} ops_answer;

typedef struct ops_counters {
  uint64_t forwards, rows;
  uint64_t staged_writes; /* rows written to staging, once a layer */
  uint64_t
      commit_copies; /* rows moved from staging to the committed cache, once a layer; counted by kv_commit */
  uint64_t launches; /* kernels and graphs that were started; of a CPU: 0 */
  uint64_t logit_lines;   /* that `logits` has given to the host */
  uint64_t captured_rows; /* that `capture` has kept, once a capture */
} ops_counters;
