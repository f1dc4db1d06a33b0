/* session_stats.h - what the targets of one session have counted, added up. A target tells its counts with
 * DONE alone: when the answer ends there, or when it is told to end the session because that goes on
 * elsewhere. Of one that died nothing is known. */
#pragma once

#include "wire/actions.h"

typedef struct session_stats {
  msg_stats before; /* of targets that were left; accepted_per_pos points to: */
  uint64_t per_pos[WIRE_POSITIONS_MAX];
  msg_stats now; /* of the present one, or the last; points to: */
  uint64_t per_pos_now[WIRE_POSITIONS_MAX];
  bool told;       /* by the present one */
  int32_t from;    /* C where it began */
  int32_t missing; /* tokens of those that were left and have not told */
  peer_id left;    /* the last one of them may still tell; 0: none */
  int32_t left_tokens;
  uint64_t per_pos_sum[WIRE_POSITIONS_MAX]; /* session_stats_total's */
} session_stats; /* all zero at the start, but for what others have decoded: missing */

void session_stats_begin(session_stats *f, int32_t length); /* of C, which targets will make longer */
void session_stats_leave(session_stats *f, peer_id target,
                         int32_t length); /* the next one goes on from here; this one may still tell */
void session_stats_report(session_stats *f, const msg_stats *s); /* the present one's counts, once or again */
void session_stats_report_late(session_stats *f, peer_id target,
                               const msg_stats *s); /* those of one that was left, if it is awaited */

msg_stats session_stats_total(session_stats *f); /* valid until the next call */
/* Tokens of output that the sum does not count, when C has so many. */
int32_t session_stats_missing(const session_stats *f, int32_t length);
