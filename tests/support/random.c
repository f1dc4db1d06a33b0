#include "tests/support/random.h"

uint64_t random_next(uint64_t *state) {
  uint64_t x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

uint64_t random_source(void *state) {
  return random_next(state);
}

uint32_t random_below(uint64_t *state, uint32_t below) {
  return (uint32_t)(random_next(state) >> 32) % below;
}
