/* session_limits.h - how many sessions there may be, and how long and how often a session tries things. Times
 * are in microseconds. */
#pragma once

#include <stdint.h>

#define SESSIONS_MAX        256
#define SESSIONS_REPEAT_US  300000 /* OPEN and END are repeated until they are answered */
#define SESSIONS_END_TRIES  5      /* after so many ENDs a worker counts as gone */
#define SESSIONS_ACK_US     500000 /* how often an idle session sends ACK again, which renews its lease */
#define SESSIONS_RESEND_US  20000  /* how long a gap is not asked for again, whatever frames follow it */
#define SESSIONS_DESYNC_MAX 16     /* repairs of one session before it ends with an error */

#define SESSIONS_TARGET_WAIT_US  30000000 /* a session without any target for so long ends with an error */
#define SESSIONS_TOO_SMALL_MAX   8        /* targets that may be too small for a session before it ends */
#define SESSIONS_TARGET_CHECK_US 1000000  /* how often a session at a hung target looks for another one */
/* A target that owes tokens and gives no sign of life for so long hangs, and the session moves to another
 * one. A target gives a sign every 2 s while its engine lives (ENGINE_WATCH_ALIVE_US). Each move before the
 * next token makes the time longer, so that no session moves in circles for ever. */
#define SESSIONS_SILENCE_US     10000000
#define SESSIONS_SILENCE_GROWTH 4
#define SESSIONS_SILENCE_MAX_US UINT64_C(3600000000)

#define SESSIONS_DRAFT_REFUSALS_MAX 8 /* drafts that may refuse a session before it stays without one */
#define SESSIONS_DRAFT_RETRY_US     10000000 /* when a draft that did not reach the target is asked again */
#define SESSIONS_ATTACH_US          3000000  /* after so long, a draft that cannot attach says so */
#define SESSIONS_TROUBLE_US         60000000 /* when the same trouble with a draft is logged again */
