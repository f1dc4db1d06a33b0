#include "kernels/cpu/rank.h"

static void meet_noisy(float logit, int32_t token, const ops_sampling *c, ranking_list *best) {
  const noise_source source = {c->seed, c->choice, c->position};
  const float z = logit * c->scale;
  if (z + NOISE_MAX < ranking_least(best)) return;
  const uint32_t bits = noise_block(&source, token / 4).lane[token % 4];
  if (z + noise_bound(bits) >= ranking_least(best)) ranking_challenge(best, z + noise_gumbel(bits), token);
}

bool cpu_rank_outputs_c(const float *logits, const int32_t *tokens, int32_t first, int32_t n,
                        const ops_sampling *choice, ranking_list *best) {
  bool numbers = true;
  for (int32_t i = 0; i < n; i++) {
    const int32_t token = tokens ? tokens[i] : first + i;
    if (token < 0) continue;
    numbers &= logits[i] < INFINITY;
    if (!(logits[i] > -INFINITY)) continue;
    if (choice->scale == 0)
      ranking_challenge(best, logits[i], token);
    else
      meet_noisy(logits[i], token, choice, best);
  }
  return numbers;
}
