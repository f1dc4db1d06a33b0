/* metrics.h - what /metrics tells: counters and times of all answers since the server began, in Prometheus's
 * text format 0.0.4. What vLLM measures too has vLLM's name (its page "Production Metrics"), so that its
 * dashboards work here; the rest begins with tandem:. A choice of a request with `n` counts as a request. */
#pragma once

#include "orchestrator/service/completion.h"

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define METRICS_BUCKETS_MAX  16

typedef struct metrics_histogram {
  uint64_t counts[METRICS_BUCKETS_MAX + 1]; /* of each bucket alone; the last one: beyond all bounds */
  double sum;
} metrics_histogram;

typedef enum { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_ERROR, METRICS_ENDS } metrics_end;

typedef struct metrics {
  uint64_t ends[METRICS_ENDS], prompt_tokens, generation_tokens, verifies, draft_tokens, accepted_tokens;
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX]; /* verify steps whose i-th draft token was accepted */
  uint64_t verdicts, ahead_hits, survivors;      /* of drafting ahead (wire/message.h), */
  uint64_t rewound, plain_steps, wait_us, resets, dropped; /* and msg_stats' */
  metrics_histogram queue, first, token, whole;            /* seconds */
  metrics_histogram prefill, decode, inference;
  metrics_histogram prompts, answers; /* tokens of each */
} metrics;

typedef struct metrics_now { /* what is not counted, but is so */
  const char *model_name;
  int32_t running, waiting, slots;
  bool ready;                        /* a target is there */
  uint64_t wire_sent, wire_received; /* bytes of this process's links to workers */
} metrics_now;

/* An answer that has begun and ended now; it waited so long for a place. */
void metrics_add(metrics *m, const completion *c, uint64_t waited_us);
/* The caller frees it; NULL: out of memory. */
char *metrics_text(const metrics *m, const metrics_now *now);
