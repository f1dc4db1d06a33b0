/* draft_times.h - how much of its sessions' time a draft was idle. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Microseconds up to the last event. attached: at least one session was attached. idle: of this time, no
 * batch was out, so that there was nothing to compute: the draft waited for tokens or features, or, where it
 * takes turns with its target, for its turn. Drafters that reply at once compute within an event, which takes
 * no time here: a draft that has no other is idle all the time. */
typedef struct draft_times {
  uint64_t attached_us, idle_us;
  uint64_t event_us; /* when the last event came */
  bool busy;         /* a batch is out */
} draft_times;

/* Before each event: counts the time since the one before. Only an event, or a batch that was asked for
 * behind it, changes what a draft does. attached: a session has been since then. */
void draft_times_event(draft_times *t, uint64_t now_us, bool attached);
void draft_times_print(const draft_times *t); /* for --counters: one line of JSON on stderr */
