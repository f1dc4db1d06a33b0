/* process_identity.h - identifies the process that serves a session, so that others can tell whether it still
 * lives. A process id is reused in time, so the identity also holds the start of the process, and the boot
 * and the PID namespace in which these two numbers mean something. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PROCESS_IDENTITY_MACHINE_MAX 128
/* A process of another machine that has not written for so long counts as dead. */
#define PROCESS_IDENTITY_SILENT_US 15000000

typedef struct process_identity {
  int64_t pid, start; /* start: clock ticks since boot, field 22 of /proc/PID/stat (proc(5)) */
  char machine[PROCESS_IDENTITY_MACHINE_MAX];
} process_identity;

void process_identity_self(process_identity *o);
/* heartbeat_us: when it wrote last; now_us: the present time; both on the wall clock. */
bool process_identity_alive(const process_identity *o, int64_t heartbeat_us, int64_t now_us);
