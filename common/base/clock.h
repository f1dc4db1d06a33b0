/* clock.h - the time in microseconds. State machines get it as an argument and never call this. */
#pragma once

#include <stdint.h>

uint64_t clock_us(void);     /* monotonic */
int64_t clock_wall_us(void); /* since 1970: for records that other processes read, never for waiting */

/* What takes the place of clock_us where a test moves the time. */
typedef uint64_t (*clock_source)(void);
