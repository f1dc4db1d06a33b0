#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/noise_avx2.h"
#include "kernels/cpu/rank.h"

#define LANES  8
#define HALVES 2 /* of the lanes, as words of 64 bits */

/* Outputs whose noise is still to be made: fewer than LANES, and what is added at once. */
typedef struct waiting {
  float logits[2 * LANES];
  int32_t tokens[2 * LANES], count;
} waiting;

/* Where a bit of a token is set, the second. */
INLINE __m256i choose(__m256i tokens, int bit, __m256i first, __m256i second) {
  const __m256i set = _mm256_slli_epi64(tokens, 63 - bit);
  return _mm256_castpd_si256(
      _mm256_blendv_pd(_mm256_castsi256_pd(first), _mm256_castsi256_pd(second), _mm256_castsi256_pd(set)));
}

/* Of each token its own block of Philox, a word in the lower half of 64 bits (above it is anything), and of
 * that the word that is the token's. */
INLINE void philox_bits(const ops_sampling *c, const __m256i *tokens, __m256i *bits) {
  const __m256i m0 = _mm256_set1_epi64x(PHILOX_M0), m1 = _mm256_set1_epi64x(PHILOX_M1);
  uint32_t k0 = (uint32_t)c->seed, k1 = (uint32_t)(c->seed >> 32);
  __m256i c0[HALVES], c1[HALVES], c2[HALVES], c3[HALVES];
  UNROLL for (int h = 0; h < HALVES; h++) {
    c0[h] = _mm256_srli_epi64(tokens[h], 2);
    c1[h] = _mm256_set1_epi64x(c->position);
    c2[h] = _mm256_set1_epi64x(c->choice);
    c3[h] = _mm256_setzero_si256();
  }
  for (int round = 0; round < PHILOX_ROUNDS; round++, k0 += PHILOX_W0, k1 += PHILOX_W1) {
    UNROLL for (int h = 0; h < HALVES; h++) {
      const __m256i a = _mm256_mul_epu32(c0[h], m0), b = _mm256_mul_epu32(c2[h], m1);
      c0[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1[h]), _mm256_set1_epi64x(k0));
      c2[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3[h]), _mm256_set1_epi64x(k1));
      c1[h] = b;
      c3[h] = a;
    }
  }
  UNROLL for (int h = 0; h < HALVES; h++) bits[h] =
      choose(tokens[h], 1, choose(tokens[h], 0, c0[h], c1[h]), choose(tokens[h], 0, c2[h], c3[h]));
}

/* The random bits of these tokens. */
INLINE __m256i bits_of(const ops_sampling *c, __m256i tokens) {
  const __m256i halves[HALVES] = {_mm256_cvtepu32_epi64(_mm256_castsi256_si128(tokens)),
                                  _mm256_cvtepu32_epi64(_mm256_extracti128_si256(tokens, 1))};
  const __m256i lower = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  __m256i bits[HALVES];
  philox_bits(c, halves, bits);
  return _mm256_blend_epi32(_mm256_permutevar8x32_epi32(bits[0], lower),
                            _mm256_permutevar8x32_epi32(bits[1], lower), 0xf0);
}

/* The first LANES of those that wait, or all. */
static void meet_waiting(waiting *w, const ops_sampling *c, ranking_list *best) {
  uint32_t bits[LANES], some = w->count < LANES ? (1u << w->count) - 1 : 0xff;
  const __m256i of = bits_of(c, _mm256_loadu_si256((const __m256i *)w->tokens));
  const __m256 z = _mm256_mul_ps(_mm256_loadu_ps(w->logits), _mm256_set1_ps(c->scale));
  some &= noise_reaching(_mm256_add_ps(z, noise_bounds(of)), ranking_least(best));
  _mm256_storeu_si256((__m256i *)bits, of);
  for (; some; some &= some - 1) {
    int32_t i = __builtin_ctz(some);
    ranking_challenge(best, w->logits[i] * c->scale + noise_gumbel(bits[i]), w->tokens[i]);
  }
  w->count -= w->count < LANES ? w->count : LANES;
  _mm256_storeu_ps(w->logits, _mm256_loadu_ps(w->logits + LANES));
  _mm256_storeu_si256((__m256i *)w->tokens, _mm256_loadu_si256((const __m256i *)(w->tokens + LANES)));
}

static void meet_noisy(const float *logits, const int32_t *tokens, uint32_t live, const ops_sampling *c,
                       waiting *w, ranking_list *best) {
  const __m256 z = _mm256_mul_ps(_mm256_loadu_ps(logits), _mm256_set1_ps(c->scale));
  live &= noise_reaching(_mm256_add_ps(z, _mm256_set1_ps(NOISE_MAX)), ranking_least(best));
  for (; live; live &= live - 1, w->count++) {
    int32_t i = __builtin_ctz(live);
    w->logits[w->count] = logits[i];
    w->tokens[w->count] = tokens[i];
  }
  if (w->count >= LANES) meet_waiting(w, c, best);
}

static void meet_greedy(const float *logits, const int32_t *tokens, uint32_t live, ranking_list *best) {
  live &= noise_reaching(_mm256_loadu_ps(logits), ranking_least(best));
  for (; live; live &= live - 1) {
    int32_t i = __builtin_ctz(live);
    ranking_challenge(best, logits[i], tokens[i]);
  }
}

bool cpu_rank_outputs_avx2(const float *logits, const int32_t *tokens, int32_t first, int32_t n,
                           const ops_sampling *choice, ranking_list *best) {
  const int32_t whole = n / LANES * LANES;
  const __m256i in_turn = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  uint32_t others = 0;
  waiting w = {.count = 0};
  for (int32_t i = 0; i < whole; i += LANES) {
    int32_t of[LANES];
    const __m256 x = _mm256_loadu_ps(logits + i);
    const __m256i ids = tokens ? _mm256_loadu_si256((const __m256i *)(tokens + i))
                               : _mm256_add_epi32(in_turn, _mm256_set1_epi32(first + i));
    uint32_t live = ~(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(ids)); /* not the signs */
    others |= live & noise_reaching(x, INFINITY);
    live &= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-INFINITY), _CMP_GT_OQ));
    _mm256_storeu_si256((__m256i *)of, ids);
    if (choice->scale == 0)
      meet_greedy(logits + i, of, live, best);
    else
      meet_noisy(logits + i, of, live, choice, &w, best);
  }
  if (w.count > 0) meet_waiting(&w, choice, best);
  return cpu_rank_outputs_c(logits + whole, tokens ? tokens + whole : NULL, first + whole, n - whole, choice,
                            best) &&
         !others;
}
#endif
