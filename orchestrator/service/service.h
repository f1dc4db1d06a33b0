/* service.h - targets, drafts and the sessions between them: starts a target and a draft on this machine,
 * watches them, and ends them with the loop; or, with --listen, waits for those that others start. What
 * `run`, `batch` and `serve-workers` stand on.
 *
 * One thread. The owner's on_news is called from the loop, never from inside another call. */
#pragma once

#include "common/base/log.h"
#include "orchestrator/cli/flags.h"
#include "orchestrator/ledger/ledger_query.h"
#include "orchestrator/sessions/sessions.h"
#include "orchestrator/service/text_model.h"
#include <uv.h>

#define SERVICE_RESTARTS_MAX 3 /* of each program */
#define SERVICE_TELL_S       3 /* without a target: then the user is told what is waited for */
#define SERVICE_DRAFT_WAIT_MS                                                                                \
  2000 /* a target that is ready waits so long for a draft that has not come yet */

typedef struct service service;

typedef struct service_options {
  const flags *flags;
  int32_t context;              /* tokens of a session */
  const ledger_session *resume; /* of the ledger's file: is taken over; NULL: none */
  const logger *log;
  void (*on_news)(void *owner); /* look at everything again */
  void (*on_interrupt)(
      void *owner); /* SIGINT came, which then ends nothing; NULL: it is one of service_signal's */
  void (*on_abort)(void *owner); /* a second signal ends the process now; NULL: nothing to put in order */
  void *owner;
} service_options;

/* Starts the programs, if they are ours: they load while the caller does. ERR_GONE, ERR_IO, ERR_NOMEM. */
int service_open(service **out, const service_options *o, err *e);
/* Opens the ledger and lets them register. Once. ERR_ARG or ERR_IO: the address of --listen, or the ledger.
 */
int service_serve(service *p, const text_model *m, err *e);
/* Runs the loop until the programs have ended after service_finish. A second signal ends the process at once,
 * with status 128 + its number. */
void service_run(service *p);
void service_finish(service *p);
/* Ends what is left at once. NULL is allowed. */
void service_close(service *p);

uv_loop_t *service_loop(service *p);
/* The target is here, and so is the draft, if one is to come. */
bool service_ready(const service *p);
/* Sessions that the targets which are here take at a time. */
int32_t service_capacity(const service *p);
/* ERR_OK, or why no session can go on: a program could not start or kept dying. */
int service_trouble(const service *p, err *e);
/* SIGINT, SIGTERM or SIGHUP once it came, else 0. */
int service_signal(const service *p);

/* Is there a file that keeps the sessions, and did it take everything, if it was asked for by name? */
bool service_keeps(const service *p);
bool service_kept(const service *p);

/* Sessions; see sessions_start and so on. After a release no more is told to the ledger. */
uint64_t service_start(service *p, const sessions_request *r, err *e);
void service_cancel(service *p, uint64_t session);
void service_release(service *p, uint64_t session);
bool service_look(const service *p, uint64_t session, sessions_view *out);
