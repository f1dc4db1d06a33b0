#include "tests/support/choices.h"

float choice_value(const ops_sampling *c, float logit, int32_t id) {
  const noise_source noise = {c->seed, c->choice, c->position};
  return c->scale == 0 ? logit : logit * c->scale + noise_of(&noise, id);
}

winner choice_winner(winner w, const ops_sampling *c, const float *logits, int32_t first, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    if (isnan(logits[i]) || logits[i] == INFINITY) return (winner){INFINITY, -1};
    if (logits[i] == -INFINITY) continue;
    float value = choice_value(c, logits[i], first + i);
    if (value > w.value || (value == w.value && first + i < w.id)) w = (winner){value, first + i};
  }
  return w;
}

int32_t choice_of(const ops_sampling *c, const float *logits, int32_t n) {
  winner w = choice_winner((winner){-INFINITY, INT32_MAX}, c, logits, 0, n);
  return w.id == INT32_MAX ? -1 : w.id;
}

ops_sampling choice_random(int i) {
  static const float scales[] = {0, 1.25f, 1, 0.01f, 1e5f, 1e-40f, 3e38f};
  return (ops_sampling){.scale = scales[i % 7],
                        .seed = (uint64_t)random_bits() << 40 ^ random_bits(),
                        .choice = random_bits() % 3,
                        .position = random_bits()};
}
