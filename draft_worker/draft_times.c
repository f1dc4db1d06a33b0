#include "draft_worker/draft_times.h"

#include <stdio.h>

void draft_times_event(draft_times *t, uint64_t now_us, bool attached) {
  uint64_t us = now_us - t->event_us;
  t->event_us = now_us;
  if (!attached) return;
  t->attached_us += us;
  if (!t->busy) t->idle_us += us;
}

void draft_times_print(const draft_times *t) {
  fprintf(stderr, "{\"times\": {\"attached_ms\": %.3f, \"idle_ms\": %.3f}}\n", (double)t->attached_us / 1e3,
          (double)t->idle_us / 1e3);
}
