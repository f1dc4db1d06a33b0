#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/noise_avx2.h"
#include "kernels/cpu/sample.h"

#define HALF   8 /* outputs of one register */
#define HALVES (OPS_GROUP / HALF)
#define TOGETHER                                                                                             \
  2 /* groups whose random bits are made side by side: one alone waits for its own products                  \
     */

/* What stays the same over a row's outputs. */
typedef struct philox {
  __m256i counter;             /* [block 0..1][token / 4 of group 0, position, choice, 0] */
  __m256i keys[PHILOX_ROUNDS]; /* [block][k0, 0, k1, 0] */
} philox;

/* [a, b, c, 0] twice. */
INLINE __m256i twice(uint32_t a, uint32_t b, uint32_t c) {
  return _mm256_broadcastsi128_si256(_mm_setr_epi32((int32_t)a, (int32_t)b, (int32_t)c, 0));
}

INLINE philox philox_of(const ops_sampling *c) {
  philox p;
  p.counter = _mm256_add_epi32(twice(0, c->position, c->choice), _mm256_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0));
  for (uint32_t i = 0; i < PHILOX_ROUNDS; i++)
    p.keys[i] = twice((uint32_t)c->seed + i * PHILOX_W0, 0, (uint32_t)(c->seed >> 32) + i * PHILOX_W1);
  return p;
}

/* Two blocks of 128 bits. The products of words 0 and 2 come as [a low, a high, b low, b high]; the next
 * state is [b high ^ word 1 ^ k0, b low, a high ^ word 3 ^ k1, a low], which has the products in reverse
 * order. */
INLINE __m256i philox_round(__m256i state, __m256i key) {
  __m256i products = _mm256_mul_epu32(state, twice(PHILOX_M0, 0, PHILOX_M1));
  __m256i turned = _mm256_shuffle_epi32(products, _MM_SHUFFLE(0, 1, 2, 3));
  return _mm256_xor_si256(turned, _mm256_xor_si256(_mm256_srli_epi64(state, 32), key));
}

/* bits[i] = of the tokens [first + 8 i, first + 8 i + 8), in order; first is a multiple of 4. */
INLINE void philox_bits(const philox *p, int32_t first, __m256i *bits, const int T) {
  const uint32_t block = (uint32_t)first / 4;
  UNROLL for (int i = 0; i < T; i++) bits[i] =
      _mm256_add_epi32(p->counter, twice(block + 2 * (uint32_t)i, 0, 0));
  for (int round = 0; round < PHILOX_ROUNDS; round++) {
    UNROLL for (int i = 0; i < T; i++) bits[i] = philox_round(bits[i], p->keys[round]);
  }
}

static void meet_greedy(const float *logits, int32_t stride, int32_t first, int32_t n, cpu_winner *w) {
  for (int32_t end = first + n; first < end; first += OPS_GROUP, logits += stride) {
    const __m256 low = noise_reach(_mm256_loadu_ps(logits), w->value);
    if (!_mm256_movemask_ps(_mm256_or_ps(noise_reach(_mm256_loadu_ps(logits + HALF), w->value), low)))
      continue;
    for (int32_t i = 0; i < OPS_GROUP; i++) cpu_winner_meet_greedy(w, logits[i], first + i);
  }
}

/* The last step: few outputs come here. */
static __attribute__((noinline)) void meet_some(const float *logits, uint32_t some, __m256i bits, float scale,
                                                int32_t first, cpu_winner *w) {
  uint32_t x[HALF];
  _mm256_storeu_si256((__m256i *)x, bits);
  for (; some; some &= some - 1) {
    int32_t i = __builtin_ctz(some);
    cpu_winner_meet_noisy(w, logits[i], scale, x[i], first + i);
  }
}

/* T groups. */
INLINE void meet_groups(const float *logits, int32_t stride, int32_t first, const philox *p, float scale,
                        cpu_winner *w, const int T) {
  const __m256 scales = _mm256_set1_ps(scale);
  __m256 largest = _mm256_set1_ps(-INFINITY);
  __m256i bits[TOGETHER * HALVES];
  __m256 others = _mm256_setzero_ps();
  UNROLL for (int i = 0; i < T * HALVES; i++) {
    const __m256 x = _mm256_loadu_ps(logits + i / HALVES * stride + i % HALVES * HALF);
    others = _mm256_or_ps(others, noise_reach(x, INFINITY));
    largest = _mm256_max_ps(x, largest);
  }
  if (_mm256_movemask_ps(others)) *w = CPU_NO_NUMBERS;
  if (!noise_reaching(_mm256_add_ps(_mm256_mul_ps(largest, scales), _mm256_set1_ps(NOISE_MAX)), w->value))
    return;
  philox_bits(p, first, bits, T * HALVES);
  UNROLL for (int i = 0; i < T * HALVES; i++, first += HALF) {
    const float *at = logits + i / HALVES * stride + i % HALVES * HALF;
    __m256 z = _mm256_mul_ps(_mm256_loadu_ps(at), scales);
    uint32_t some = noise_reaching(_mm256_add_ps(z, noise_bounds(bits[i])), w->value);
    if (some) meet_some(at, some, bits[i], scale, first, w);
  }
}

static void meet_noisy(const float *logits, int32_t stride, int32_t first, int32_t n, const ops_sampling *c,
                       cpu_winner *w) {
  const philox p = philox_of(c);
  const int32_t end = first + n;
  for (; first + TOGETHER * OPS_GROUP <= end; first += TOGETHER * OPS_GROUP, logits += TOGETHER * stride)
    meet_groups(logits, stride, first, &p, c->scale, w, TOGETHER);
  for (; first < end; first += OPS_GROUP, logits += stride)
    meet_groups(logits, stride, first, &p, c->scale, w, 1);
}

void cpu_sample_avx2(const float *logits, int32_t stride, int32_t first, int32_t n,
                     const ops_sampling *choice, cpu_winner *w) {
  int32_t left = n % OPS_GROUP, whole = n - left;
  if (choice->scale == 0)
    meet_greedy(logits, stride, first, whole, w);
  else
    meet_noisy(logits, stride, first, whole, choice, w);
  if (left) cpu_sample_c(logits + whole / OPS_GROUP * stride, stride, first + whole, left, choice, w);
}
#endif
