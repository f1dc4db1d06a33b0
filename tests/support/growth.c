#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/growth.h"

#define LEAST 10000 /* fewer steps are the beginning and the end, whatever the size */
#define MOVED 16    /* bytes are one step */

static uint64_t steps;

/* GCC calls it at every branch: -fsanitize-coverage=trace-pc. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
  steps++;
}

/* The linker puts them in between: --wrap. */
void *__wrap_memcpy(void *to, const void *from, size_t size);
void *__wrap_memmove(void *to, const void *from, size_t size);
void *__real_memcpy(void *to, const void *from, size_t size);
void *__real_memmove(void *to, const void *from, size_t size);

void *__wrap_memcpy(void *to, const void *from, size_t size) {
  steps += size / MOVED;
  return __real_memcpy(to, from, size);
}

void *__wrap_memmove(void *to, const void *from, size_t size) {
  steps += size / MOVED;
  return __real_memmove(to, from, size);
}

static uint64_t steps_of(growth_work *work, void *context, size_t size) {
  steps = 0;
  work(context, size);
  return steps;
}

bool growth_is_near_linear(growth_work *work, void *context, size_t size) {
  uint64_t part = steps_of(work, context, size / GROWTH_PART), whole = steps_of(work, context, size);
  if (whole == 0) fail_msg("no steps were counted: the test does not link text_counted");
  return whole <= GROWTH_MOST * (part > LEAST ? part : LEAST);
}
