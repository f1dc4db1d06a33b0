/* patience.h - waiting for what must come: a test may be kept from its processor for as long as you like, so
 * how long a thing takes is no verdict. Include after cmocka.h. */
#pragma once

#include "common/base/clock.h"
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define PATIENCE_US UINT64_C(120000000) /* then it does not come any more */
#define PATIENCE_MS (PATIENCE_US / 1000)

/* Looks at `condition` until it holds, each time a millisecond after the last look, and fails if it never
 * does. */
#define WAIT_UNTIL(condition)                                                                                \
  for (uint64_t wait_until_us = clock_us() + PATIENCE_US; !(condition); usleep(1000))                        \
    if (clock_us() > wait_until_us) fail_msg("it never came: %s", #condition)
