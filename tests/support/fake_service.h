/* fake_service.h - what stands behind service.h in tests of completions: the real sessions over a ledger in
 * memory, without programs or sockets; the test is the target. One at a time. Linked before the service's own
 * functions. */
#pragma once

#include "orchestrator/service/service.h"
#include "tests/support/machine_rig.h"

enum { TARGET = 2, CONTEXT = 64 };
#define SELF id_of(100)

struct service {
  rig r;
  sessions_machine *o;
  ledger memory;
  uint64_t random;
  char about[4096]; /* of the last session */
  int signal;
  err trouble;
  bool lost; /* the ledger could not take everything */
  flag_values workers;
};

/* Of a file that is slow: so many tokens of the one session are not written yet; -1: it is not slow, and
 * there may be several sessions. */
extern int32_t unwritten;

int32_t slow_durable(void *self, uint64_t session);

/* ---- the world ---- */

void fake_service_add_target(service *s);

void fake_service_begin(service *s);

void fake_service_end(service *s);

/* Takes the OPEN that was sent last, and answers it. */
typedef struct opened {
  uint64_t session, seed;
  uint32_t epoch;
} opened;

opened fake_service_open_session(service *s);
