#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/noise_avx512.h"
#include "kernels/cpu/rank.h"

#define LANES  16
#define HALVES 2 /* of the lanes, as words of 64 bits */

/* Outputs whose noise is still to be made: fewer than LANES, and what is added at once. */
typedef struct waiting {
  float logits[2 * LANES];
  int32_t tokens[2 * LANES], count;
} waiting;

/* Of each token its own block of Philox, a word in the lower half of 64 bits (above it is anything), and of
 * that the word that is the token's. */
INLINE void philox_bits(const ops_sampling *c, const __m512i *tokens, __m512i *bits) {
  const __m512i m0 = _mm512_set1_epi64(PHILOX_M0), m1 = _mm512_set1_epi64(PHILOX_M1);
  uint32_t k0 = (uint32_t)c->seed, k1 = (uint32_t)(c->seed >> 32);
  __m512i c0[HALVES], c1[HALVES], c2[HALVES], c3[HALVES];
  UNROLL for (int h = 0; h < HALVES; h++) {
    c0[h] = _mm512_srli_epi64(tokens[h], 2);
    c1[h] = _mm512_set1_epi64(c->position);
    c2[h] = _mm512_set1_epi64(c->choice);
    c3[h] = _mm512_setzero_si512();
  }
  for (int round = 0; round < PHILOX_ROUNDS; round++, k0 += PHILOX_W0, k1 += PHILOX_W1) {
    UNROLL for (int h = 0; h < HALVES; h++) {
      const __m512i a = _mm512_mul_epu32(c0[h], m0), b = _mm512_mul_epu32(c2[h], m1);
      c0[h] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(b, 32), c1[h]), _mm512_set1_epi64(k0));
      c2[h] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(a, 32), c3[h]), _mm512_set1_epi64(k1));
      c1[h] = b;
      c3[h] = a;
    }
  }
  UNROLL for (int h = 0; h < HALVES; h++) {
    const __mmask8 odd = _mm512_test_epi64_mask(tokens[h], _mm512_set1_epi64(1));
    const __mmask8 high = _mm512_test_epi64_mask(tokens[h], _mm512_set1_epi64(2));
    bits[h] = _mm512_mask_blend_epi64(high, _mm512_mask_blend_epi64(odd, c0[h], c1[h]),
                                      _mm512_mask_blend_epi64(odd, c2[h], c3[h]));
  }
}

/* The random bits of these tokens. */
INLINE __m512i bits_of(const ops_sampling *c, __m512i tokens) {
  const __m512i halves[HALVES] = {_mm512_cvtepu32_epi64(_mm512_castsi512_si256(tokens)),
                                  _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(tokens, 1))};
  __m512i bits[HALVES];
  philox_bits(c, halves, bits);
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(bits[0])),
                            _mm512_cvtepi64_epi32(bits[1]), 1);
}

/* The first LANES of those that wait, or all. */
static void meet_waiting(waiting *w, const ops_sampling *c, ranking_list *best) {
  uint32_t bits[LANES], some = w->count < LANES ? (1u << w->count) - 1 : 0xffff;
  const __m512i of = bits_of(c, _mm512_loadu_si512(w->tokens));
  const __m512 z = _mm512_mul_ps(_mm512_loadu_ps(w->logits), _mm512_set1_ps(c->scale));
  some &= noise_reaching(_mm512_add_ps(z, noise_bounds(of)), ranking_least(best));
  _mm512_storeu_si512(bits, of);
  for (; some; some &= some - 1) {
    int32_t i = __builtin_ctz(some);
    ranking_challenge(best, w->logits[i] * c->scale + noise_gumbel(bits[i]), w->tokens[i]);
  }
  w->count -= w->count < LANES ? w->count : LANES;
  _mm512_storeu_ps(w->logits, _mm512_loadu_ps(w->logits + LANES));
  _mm512_storeu_si512(w->tokens, _mm512_loadu_si512(w->tokens + LANES));
}

static void meet_noisy(__m512 x, __m512i tokens, uint32_t live, const ops_sampling *c, waiting *w,
                       ranking_list *best) {
  const __m512 z = _mm512_mul_ps(x, _mm512_set1_ps(c->scale));
  live &= noise_reaching(_mm512_add_ps(z, _mm512_set1_ps(NOISE_MAX)), ranking_least(best));
  _mm512_storeu_ps(w->logits + w->count, _mm512_maskz_compress_ps((__mmask16)live, x));
  _mm512_storeu_si512(w->tokens + w->count, _mm512_maskz_compress_epi32((__mmask16)live, tokens));
  w->count += __builtin_popcount(live);
  if (w->count >= LANES) meet_waiting(w, c, best);
}

static void meet_greedy(const float *logits, __m512i tokens, uint32_t live, ranking_list *best) {
  int32_t of[LANES];
  live &= noise_reaching(_mm512_loadu_ps(logits), ranking_least(best));
  if (!live) return;
  _mm512_storeu_si512(of, tokens);
  for (; live; live &= live - 1) {
    int32_t i = __builtin_ctz(live);
    ranking_challenge(best, logits[i], of[i]);
  }
}

bool cpu_rank_outputs_avx512(const float *logits, const int32_t *tokens, int32_t first, int32_t n,
                             const ops_sampling *choice, ranking_list *best) {
  const int32_t whole = n / LANES * LANES;
  const __m512i in_turn = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t others = 0;
  waiting w;
  w.count = 0;
  for (int32_t i = 0; i < whole; i += LANES) {
    const __m512 x = _mm512_loadu_ps(logits + i);
    const __m512i of =
        tokens ? _mm512_loadu_si512(tokens + i) : _mm512_add_epi32(in_turn, _mm512_set1_epi32(first + i));
    uint32_t live = _mm512_cmpge_epi32_mask(of, _mm512_setzero_si512());
    others |= live & noise_reaching(x, INFINITY);
    live &= _mm512_cmp_ps_mask(x, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
    if (choice->scale == 0)
      meet_greedy(logits + i, of, live, best);
    else
      meet_noisy(x, of, live, choice, &w, best);
  }
  if (w.count > 0) meet_waiting(&w, choice, best);
  return cpu_rank_outputs_c(logits + whole, tokens ? tokens + whole : NULL, first + whole, n - whole, choice,
                            best) &&
         !others;
}
#endif
