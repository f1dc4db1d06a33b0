/* sample.h - the kernels of the op `sample` (cpu_kernels.h: cpu_sample).
 *
 * Noise is expensive to compute, and most outputs cannot win. So an output is compared with the best one so
 * far in three steps, and is dropped at the first step at which it cannot win: with the largest noise that
 * exists, with a bound from its random bits (noise_bound), and with its own noise. That is exact, not a
 * guess: multiplication by a scale >= 0 and addition round monotonically, so a larger noise never gives a
 * smaller sum. The SIMD kernels take the first two steps for many outputs at once; the last is scalar and the
 * same for all. */
#pragma once

#include "common/base/noise.h"
#include "kernels/cpu/cpu_kernels.h"

void cpu_sample_c(const float *logits, int32_t stride, int32_t first, int32_t n, const ops_sampling *choice,
                  cpu_winner *w);
#if defined(__x86_64__)
void cpu_sample_avx2(const float *logits, int32_t stride, int32_t first, int32_t n,
                     const ops_sampling *choice, cpu_winner *w);
void cpu_sample_avx512(const float *logits, int32_t stride, int32_t first, int32_t n,
                       const ops_sampling *choice, cpu_winner *w);
#endif

static inline void cpu_winner_meet(cpu_winner *w, float value, int32_t id) {
  if (value > w->value || (value == w->value && id < w->id)) *w = (cpu_winner){value, id};
}

/* The same for a logit that may be -infinity, which must not win, or no number. */
static inline void cpu_winner_meet_greedy(cpu_winner *w, float logit, int32_t id) {
  if (logit > -INFINITY) cpu_winner_meet(w, logit, id);
  if (!(logit < INFINITY)) *w = CPU_NO_NUMBERS;
}

/* With the noise of these random bits. */
static inline void cpu_winner_meet_noisy(cpu_winner *w, float logit, float scale, uint32_t bits, int32_t id) {
  if (logit > -INFINITY) cpu_winner_meet(w, logit * scale + noise_gumbel(bits), id);
}
