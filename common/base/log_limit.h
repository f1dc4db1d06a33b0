/* log_limit.h - how many lines of the log, or replies, somebody else may cause: `burst` at once, then one
 * every `every_us`. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct log_limit {
  uint64_t whole_us; /* when the burst is whole again */
  uint64_t left_out; /* lines, since one was let through */
} log_limit;

/* May this one go out? If not, it is counted. */
static inline bool log_limit_takes(log_limit *l, uint64_t now_us, uint32_t burst, uint64_t every_us) {
  uint64_t whole_us = l->whole_us > now_us ? l->whole_us : now_us;
  bool takes = whole_us - now_us < burst * every_us;
  if (takes)
    l->whole_us = whole_us + every_us;
  else
    l->left_out++;
  return takes;
}
