/* completion_trace.h - the spans of one completion, as the orchestrator knows them, for a trace_file:
 *
 *   answer    from the request to the end, on a lane of its own; within it
 *   queue     until it had a place
 *   prefill   until the first tokens came
 *   round     from tokens to the next ones: a verify step, or the plain steps of some milliseconds
 *   failover  the same where the session went to another target, or to another epoch, meanwhile
 *
 * and on a second lane `ledger`: from tokens until they were durable and could be shown. */
#pragma once

#include "common/base/trace_file.h"
#include "orchestrator/sessions/sessions.h"

typedef struct completion_trace {
  trace_file *file; /* borrowed; NULL: nothing is traced, and all of these do nothing */
  int64_t lane, ledger_lane;
  uint64_t came_us, begun_us;
  uint64_t tokens_us;  /* when tokens came last; 0: never */
  int32_t length;      /* then, */
  uint32_t epoch;      /* and the epoch */
  uint64_t waiting_us; /* since when tokens wait for the ledger; 0: none do */
  int32_t waiting_for; /* the length that was there then, and the one before that */
  int32_t waiting_from;
} completion_trace;

/* The session has begun; the request came at came_us, or now (0). `length`: of all tokens that are there
 * already. */
void completion_trace_begin(completion_trace *t, trace_file *file, uint64_t session, uint64_t came_us,
                            int32_t length, uint64_t now_us);
void completion_trace_update(completion_trace *t, const sessions_view *v, uint64_t now_us);
/* After the last update. */
void completion_trace_end(completion_trace *t, wire_finish finish, uint64_t now_us);
