/* clock.h - monotonic microseconds. State machines get time as an argument and never call this. */
#pragma once

#include <stdint.h>

uint64_t clock_us(void);
