/* service.h - provides targets, drafts and the sessions between them. It either starts a target and a draft
 * on this machine, watches them, and ends them with the loop; or it listens at an address and waits for
 * workers that others start. Everything that answers requests uses it.
 *
 * One thread. The owner's on_news is called from the loop, never from inside another call. */
#pragma once

#include "common/base/log.h"
#include "common/base/trace_file.h"
#include "orchestrator/ledger/ledger_file.h"
#include "orchestrator/ledger/ledger_query.h"
#include "orchestrator/sessions/sessions.h"
#include "orchestrator/service/text_model.h"
#include "common/command_line/flag_list.h"
#include "wire/transport.h"
#include <uv.h>

#define SERVICE_NOTICE_S      3    /* after so long without a target, a warning says what is missing */
#define SERVICE_DRAFT_WAIT_MS 2000 /* how long requests wait for the first draft once a target is ready */

typedef struct service service;

typedef struct service_options {
  flag_values workers;
  bool with_draft;            /* start a draft, or expect one */
  bool draft_needed;          /* one that cannot start is a trouble; else answers come without it */
  const char *draft_left_out; /* why none is started though one is wanted; NULL: it is started */
  /* The endpoint at which workers started by others register; NULL: they are started here. */
  const char *listen;
  const char *keys;      /* of `listen`: the folder of the keys; NULL: the default one */
  bool allow_plaintext;  /* of `listen`: tcp without keys */
  bool draft_may_follow; /* of `listen`: requests do not wait for a first draft */
  int32_t target_wait_s; /* of `listen`: how long to wait without any target before that is an error; 0: for
                            ever */
  const char *ledger;    /* the path of a file, "none", or NULL: the default file */
  ledger_mode ledger_mode;
  const char *command;          /* what the ledger calls this process */
  const ledger_session *resume; /* a session of the ledger's file to take over; NULL: none */
  const logger *log;            /* gets warnings and notices for the user */

  void (*on_news)(void *owner);      /* something may have changed: look at everything again */
  void (*on_interrupt)(void *owner); /* SIGINT came; NULL: it counts as service_signal */
  void (*on_abort)(void *owner);     /* the process ends right after this call, by a second signal; or NULL */
  void (*on_new_ledger)(void *owner, const char *path); /* the default file has just been created; or NULL */
  void *owner;
} service_options;

/* Starts the programs, unless others start them; they load their model while the caller loads its own.
 * ERR_GONE, ERR_IO, ERR_NOMEM. */
int service_open(service **out, const service_options *o, err *e);
/* Opens the ledger and lets the workers register. Call it once. ERR_ARG or ERR_IO: the address to listen at,
 * or the ledger.
 */
int service_serve(service *s, text_model *m, err *e);
/* Runs the loop until the programs have ended after service_finish. A second signal ends the process at once,
 * with status 128 + its number. */
void service_run(service *s);
void service_finish(service *s);
/* Kills what still runs. NULL is allowed. */
void service_close(service *s);

uv_loop_t *service_loop(service *s);
const flag_values *service_flags(const service *s);
/* Where workers register. */
const char *service_address(const service *s);
/* Has a target registered, and also a draft, if one is expected? */
bool service_ready(const service *s);
/* How many sessions the registered targets take at a time. */
int32_t service_capacity(const service *s);
/* Where spans go; NULL: nowhere. */
trace_file *service_trace(const service *s);
/* What the links to workers have carried. */
transport_counters service_wire(const service *s);
/* The workers, to look at; NULL before service_serve. */
const sessions_machine *service_sessions(const service *s);
/* What sessions_drain does. ERR_GONE: there is no such worker. */
int service_drain(service *s, wire_id worker, bool drained, err *e);
/* ERR_OK, or why no session can go on: a program could not start or kept dying (ERR_GONE), or there was no
 * target for target_wait_s (ERR_TIMEOUT). */
int service_trouble(const service *s, err *e);
/* Has the target that could not start said itself why? Then that is all that a person needs. */
bool service_trouble_explained(const service *s);
/* SIGINT, SIGTERM or SIGHUP once it came, else 0. */
int service_signal(const service *s);

/* service_keeps: does a file keep the sessions, all of them until now? service_kept: has a file that was
 * named taken everything? */
bool service_keeps(const service *s);
bool service_kept(const service *s);

/* These do what the functions of the same name in sessions.h do. After a release, the ledger gets nothing
 * more about that session. */
uint64_t service_start(service *s, const sessions_request *r, err *e);
void service_cancel(service *s, uint64_t session);
void service_release(service *s, uint64_t session);
bool service_look(const service *s, uint64_t session, sessions_view *out);
