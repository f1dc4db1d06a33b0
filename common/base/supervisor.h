/* supervisor.h - what a service manager is told: systemd's notification protocol (sd_notify(3)). */
#pragma once

/* Sends `state`, such as "READY=1", to the socket that NOTIFY_SOCKET of the environment names; without one,
 * or if nobody is there, nothing happens. */
void supervisor_tell(const char *state);
