#include "tests/support/growth.h"

bool growth_is_near_linear(growth_work *work, void *context, size_t size) {
  clock_t part = 0, whole = 0;
  for (int i = 0; i < GROWTH_TRIES; i++) {
    clock_t began = clock();
    work(context, size / GROWTH_PART);
    clock_t between = clock();
    work(context, size);
    clock_t end = clock();
    if (i == 0 || between - began < part) part = between - began;
    if (i == 0 || end - between < whole) whole = end - between;
    if (whole <= GROWTH_MOST * (part > GROWTH_LEAST ? part : GROWTH_LEAST)) return true;
  }
  return false;
}
