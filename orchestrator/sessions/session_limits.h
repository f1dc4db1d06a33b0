/* session_limits.h - how many sessions there may be, and how long and how often a session tries things. Times
 * are in microseconds. */
#pragma once

#include "common/base/limit.h"
#include <stdint.h>

#define SESSIONS_MAX              LIMIT(256, 3)
#define SESSIONS_REPEAT_US        300000 /* OPEN and END are repeated until they are answered */
#define SESSIONS_END_TRIES        5      /* after so many ENDs a worker counts as gone */
#define SESSIONS_ACK_US           500000 /* how often an idle session renews its lease by ACK */
#define SESSIONS_RESEND_US        20000 /* how long a gap is not asked for again, whatever frames follow it */
#define SESSIONS_LEDGER_WAIT_US   30000000 /* a ledger that takes nothing for so long ends the answer */
#define SESSIONS_LEDGER_CANCEL_US 2000000  /* the same for an answer that its client has cancelled */
#define SESSIONS_DESYNC_MAX       16       /* repairs of one session before it ends with an error */

#define SESSIONS_TARGET_WAIT_US  30000000 /* a session without any target for so long ends with an error */
#define SESSIONS_UNABLE_MAX      8        /* how often targets may be too small for a session or fail it, */
#define SESSIONS_UNABLE_US       10000000 /* and when one that failed may be asked again */
#define SESSIONS_TARGET_CHECK_US 1000000  /* how often a session at a hung target looks for another one, */
#define SESSIONS_HUNG_US         UINT64_C(600000000) /* and how long until it ends with an error */
/* A target that owes tokens and gives no sign of life for so long hangs, and the session moves to another
 * one. A target gives a sign every 2 s while its engine lives (ENGINE_WATCH_ALIVE_US). Each move before the
 * next token makes the time longer, so that no session moves in circles for ever. */
#define SESSIONS_SILENCE_US     10000000
#define SESSIONS_SILENCE_GROWTH 4
#define SESSIONS_SILENCE_MAX_US UINT64_C(3600000000)

#define SESSIONS_DRAFT_REFUSALS_MAX 8 /* drafts that may refuse a session before it stays without one */
#define SESSIONS_DRAFT_RETRY_US     10000000 /* when a draft that refused is asked again */
/* A draft that has not taken the session after so long, or that has not attached although it has, is
 * replaced. One that cannot attach says so itself after the same time. */
#define SESSIONS_ATTACH_US  3000000
#define SESSIONS_TROUBLE_US 60000000 /* when the same trouble with a draft is logged again */

/* The end of a session's numerics id where tokens may be accepted that are not its target's own */
#define SESSIONS_LOSSY "+lossy"
