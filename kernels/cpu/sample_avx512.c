#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/noise_avx512.h"
#include "kernels/cpu/sample.h"

#define TOGETHER                                                                                             \
  4 /* groups whose random bits are made side by side: one alone waits for its own products                  \
     */

/* What stays the same over a row's outputs. */
typedef struct philox {
  __m512i counter;             /* [block 0..3][token / 4 of group 0, position, choice, 0] */
  __m512i keys[PHILOX_ROUNDS]; /* [block][k0, 0, k1, 0] */
} philox;

/* [a, b, c, 0] four times. */
INLINE __m512i four_times(uint32_t a, uint32_t b, uint32_t c) {
  return _mm512_broadcast_i32x4(_mm_setr_epi32((int32_t)a, (int32_t)b, (int32_t)c, 0));
}

INLINE philox philox_of(const ops_sampling *c) {
  philox p;
  p.counter = _mm512_add_epi32(four_times(0, c->position, c->choice),
                               _mm512_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0));
  for (uint32_t i = 0; i < PHILOX_ROUNDS; i++)
    p.keys[i] = four_times((uint32_t)c->seed + i * PHILOX_W0, 0, (uint32_t)(c->seed >> 32) + i * PHILOX_W1);
  return p;
}

/* Four blocks of 128 bits. The products of words 0 and 2 come as [a low, a high, b low, b high]; the next
 * state is [b high ^ word 1 ^ k0, b low, a high ^ word 3 ^ k1, a low], which has the products in reverse
 * order. */
INLINE __m512i philox_round(__m512i state, __m512i key) {
  __m512i products = _mm512_mul_epu32(state, four_times(PHILOX_M0, 0, PHILOX_M1));
  __m512i turned = _mm512_shuffle_epi32(products, _MM_PERM_ABCD);
  return _mm512_xor_si512(turned, _mm512_xor_si512(_mm512_srli_epi64(state, 32), key));
}

/* bits[i] = of the tokens of group first / 16 + i, in order. */
INLINE void philox_bits(const philox *p, int32_t first, __m512i *bits, const int T) {
  const uint32_t block = (uint32_t)first / 4;
  UNROLL for (int i = 0; i < T; i++) bits[i] =
      _mm512_add_epi32(p->counter, four_times(block + 4 * (uint32_t)i, 0, 0));
  for (int round = 0; round < PHILOX_ROUNDS; round++) {
    UNROLL for (int i = 0; i < T; i++) bits[i] = philox_round(bits[i], p->keys[round]);
  }
}

static void meet_greedy(const float *logits, int32_t stride, int32_t first, int32_t n, cpu_winner *w) {
  for (int32_t end = first + n; first < end; first += OPS_GROUP, logits += stride) {
    for (uint32_t some = noise_reaching(_mm512_loadu_ps(logits), w->value); some; some &= some - 1) {
      int32_t i = __builtin_ctz(some);
      cpu_winner_meet_greedy(w, logits[i], first + i);
    }
  }
}

/* The last step: few outputs come here. */
static __attribute__((noinline)) void meet_some(const float *logits, uint32_t some, __m512i bits, float scale,
                                                int32_t first, cpu_winner *w) {
  uint32_t x[OPS_GROUP];
  _mm512_storeu_si512(x, bits);
  for (; some; some &= some - 1) {
    int32_t i = __builtin_ctz(some);
    cpu_winner_meet_noisy(w, logits[i], scale, x[i], first + i);
  }
}

/* T groups. */
INLINE void meet_groups(const float *logits, int32_t stride, int32_t first, const philox *p, float scale,
                        cpu_winner *w, const int T) {
  const __m512 scales = _mm512_set1_ps(scale);
  __m512 largest = _mm512_set1_ps(-INFINITY);
  __m512i bits[TOGETHER];
  uint32_t others = 0;
  UNROLL for (int i = 0; i < T; i++) {
    const __m512 x = _mm512_loadu_ps(logits + i * stride);
    others |= noise_reaching(x, INFINITY);
    largest = _mm512_max_ps(x, largest);
  }
  if (others) *w = CPU_NO_NUMBERS;
  if (!noise_reaching(_mm512_add_ps(_mm512_mul_ps(largest, scales), _mm512_set1_ps(NOISE_MAX)), w->value))
    return;
  philox_bits(p, first, bits, T);
  UNROLL for (int i = 0; i < T; i++, logits += stride, first += OPS_GROUP) {
    __m512 z = _mm512_mul_ps(_mm512_loadu_ps(logits), scales);
    uint32_t some = noise_reaching(_mm512_add_ps(z, noise_bounds(bits[i])), w->value);
    if (some) meet_some(logits, some, bits[i], scale, first, w);
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

void cpu_sample_avx512(const float *logits, int32_t stride, int32_t first, int32_t n,
                       const ops_sampling *choice, cpu_winner *w) {
  int32_t left = n % OPS_GROUP, whole = n - left;
  if (choice->scale == 0)
    meet_greedy(logits, stride, first, whole, w);
  else
    meet_noisy(logits, stride, first, whole, choice, w);
  if (left) cpu_sample_c(logits + whole / OPS_GROUP * stride, stride, first + whole, left, choice, w);
}
#endif
