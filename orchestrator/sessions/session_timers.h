/* session_timers.h - what a session does when time passes: it repeats frames that were not answered, renews
 * its lease, and leaves a target that hangs. */
#pragma once

#include "orchestrator/sessions/client_session.h"

/* Does what is due. */
void session_timers_tick(client_step *c, client_session *s);
/* When the next thing is due; MACHINE_NEVER when nothing will be. */
uint64_t session_timers_deadline(const client_sessions *all, const client_session *s);
/* Puts the ends of waits off by gap_us: the machine itself was not stepped for so long, so nobody could come
 * and no sign of life arrive. */
void session_timers_excuse(client_sessions *all, uint64_t gap_us);
