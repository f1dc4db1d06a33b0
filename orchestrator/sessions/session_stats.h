/* session_stats.h - adds up what the targets of one session have counted. A target reports its counts only
 * with DONE, when the completion ends there or when it is told that the session goes on elsewhere. The counts
 * of a target that dies are lost. */
#pragma once

#include "wire/actions.h"
#include "wire/message.h"

typedef struct session_stats {
  msg_stats before; /* of earlier targets; its accepted_per_pos points to before_per_pos */
  uint64_t before_per_pos[WIRE_POSITIONS_MAX];
  msg_stats now; /* of the present target, or the last; its accepted_per_pos points to now_per_pos */
  uint64_t now_per_pos[WIRE_POSITIONS_MAX];
  bool reported;       /* the present target has reported */
  int32_t from;        /* the committed length when the present target began */
  int32_t missing;     /* tokens of earlier targets that have not reported */
  wire_id at;          /* the present target's program, or the last one's */
  wire_id left_at;     /* and that of `left` */
  peer_id left;        /* the last of these, which may still report; 0: none */
  int32_t left_tokens; /* its part of `missing` */
} session_stats;       /* All zero at first, but for `missing`: tokens that an earlier run decoded. */

/* A target begins at this committed length. */
void session_stats_begin(session_stats *s, int32_t length);
/* It has gone to this target's program. */
void session_stats_arrive(session_stats *s, wire_id incarnation);
/* The session leaves its target, which may still report, and the next target begins at this length. */
void session_stats_leave(session_stats *s, peer_id target, int32_t length);
/* The present target reports at this length; a later report replaces the earlier one. It counts from the
 * first time that it had the session: one that was lost and came back tells of its earlier tokens, too. */
void session_stats_report(session_stats *s, const msg_stats *stats, int32_t length);
/* A target that the session has left reports. Only the last such target is still expected to. */
void session_stats_report_late(session_stats *s, peer_id target, const msg_stats *stats);

/* The sum over all targets; accepted_per_pos[WIRE_POSITIONS_MAX] is the caller's and becomes part of it. */
msg_stats session_stats_total(const session_stats *s, uint64_t *accepted_per_pos);
/* Of a session of this committed length: the output tokens that the total does not cover. */
int32_t session_stats_missing(const session_stats *s, int32_t length);
