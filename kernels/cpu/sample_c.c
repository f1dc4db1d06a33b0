#include "kernels/cpu/sample.h"

/* +infinity where there is a NaN. */
static float largest_of(const float *x, int32_t n) {
  float largest = -INFINITY;
  for (int32_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
  for (int32_t i = 0; i < n; i++) largest = x[i] < INFINITY ? largest : INFINITY;
  return largest;
}

static void meet_greedy(const float *logits, int32_t first, int32_t n, cpu_winner *w) {
  for (int32_t i = 0; i < n; i++) cpu_winner_meet_greedy(w, logits[i], first + i);
}

/* The bounds of a group are made at once, so that the compiler may use vectors. */
static void meet_noisy(const float *logits, int32_t first, int32_t n, const ops_sampling *c, cpu_winner *w) {
  const float largest = largest_of(logits, n);
  if (largest == INFINITY) *w = CPU_NO_NUMBERS;
  if (largest * c->scale + NOISE_MAX < w->value) return;
  const noise_source source = {c->seed, c->choice, c->position};
  uint32_t bits[OPS_GROUP];
  float bounds[OPS_GROUP];
  noise_bits(&source, first / 4, OPS_GROUP / 4, bits);
  for (int32_t i = 0; i < OPS_GROUP; i++) bounds[i] = noise_bound(bits[i]);
  for (int32_t i = 0; i < n; i++) {
    if (logits[i] * c->scale + bounds[i] < w->value) continue;
    cpu_winner_meet_noisy(w, logits[i], c->scale, bits[i], first + i);
  }
}

void cpu_sample_c(const float *logits, int32_t stride, int32_t first, int32_t n, const ops_sampling *choice,
                  cpu_winner *w) {
  for (int32_t at = 0; at < n; at += OPS_GROUP, logits += stride) {
    int32_t width = n - at < OPS_GROUP ? n - at : OPS_GROUP;
    if (choice->scale == 0)
      meet_greedy(logits, first + at, width, w);
    else
      meet_noisy(logits, first + at, width, choice, w);
  }
}
