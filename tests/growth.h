/* growth.h - does work grow as the size of what is given, or as its square? Include after cmocka.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define GROWTH_PART  8    /* the small piece is this part of the whole: linear 8, quadratic 64 */
#define GROWTH_MOST  32   /* times as long the whole may take */
#define GROWTH_TRIES 5    /* the least times count, as others disturb a measurement */
#define GROWTH_LEAST 1000 /* ticks of clock(), microseconds: less is not measured well */

typedef void growth_work(void *context, size_t size);

/* Only two sizes on one machine are compared, and never a time with a limit. */
static inline bool growth_is_near_linear(growth_work *work, void *context, size_t size) {
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
