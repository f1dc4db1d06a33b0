/* growth.h - does work grow as the size of what is given, or as its square? What is counted is steps, not
 * time, so the answer is the same on every machine: branches of the code that td_text_counted has compiled
 * for this, and the bytes that are moved. Other libraries' steps are not counted. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define GROWTH_SIZE (1 << 14) /* of a text, so that a square takes seconds */
#define GROWTH_PART 8         /* the small piece is this part of the whole: linear 8, quadratic 64 */
#define GROWTH_MOST 16        /* times as many steps the whole may take */

typedef void growth_work(void *context, size_t size);

/* Fails the test where nothing was counted. */
bool growth_is_near_linear(growth_work *work, void *context, size_t size);
