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
bool growth_is_near_linear(growth_work *work, void *context, size_t size);
