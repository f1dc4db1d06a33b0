/* sessions.h - the orchestrator's logic, sans-IO: requests become sessions at a target and a draft, their
 * tokens are logged and then shown, what goes out of step is repaired. The owner pulls news after every step.
 */
#pragma once

#include "common/speculative/prefix.h"
#include "orchestrator/ledger/ledger.h"
#include "wire/machine.h"

#define SESSIONS_MAX       256
#define SESSIONS_REPEAT_US 300000 /* OPEN, END */
#define SESSIONS_ACK_US    500000 /* idle: acknowledges again, which renews the lease */
#define SESSIONS_END_TRIES 5
#define SESSIONS_DRAFT_AGAIN_US                                                                              \
  10000000 /* a draft that did not reach the target is asked again after so long                             \
            */
#define SESSIONS_TROUBLE_US     60000000 /* the same trouble with a draft is told again after so long */
#define SESSIONS_DESYNC_MAX     16       /* repairs of one session before it ends with an error */
#define SESSIONS_TARGET_WAIT_US 30000000 /* without any target for so long: error */
#define SESSIONS_QUIET_US                                                                                    \
  10000000 /* a target that owes tokens and gives no sign of life for so long hangs: elsewhere. Ours give    \
              one every 2 s while their engine lives (ENGINE_WATCH_ALIVE_US) */
#define SESSIONS_QUIET_GROWTH                                                                                \
  4 /* with each move before the next token: nobody is moved in circles for ever */
#define SESSIONS_QUIET_MAX_US UINT64_C(3600000000)
#define SESSIONS_HUNG_US      300000000 /* a target that hung is asked last for so long */
#define SESSIONS_HUNG_MAX     16        /* targets that this is remembered of */
#define SESSIONS_LOOK_US      1000000   /* is there another target by now? */

typedef struct sessions_options {
  wire_id incarnation;
  hash16 model_fingerprint, vocabulary_hash; /* zero: learnt from no one */
  int32_t vocabulary_size;
  uint64_t (*random)(void *context); /* ids, seeds, tickets; seeded in the simulation */
  void *random_context;
  ledger ledger; /* borrowed */
  uint64_t
      target_wait_us; /* a session is without any target for so long: error; 0: SESSIONS_TARGET_WAIT_US */
} sessions_options;

typedef struct sessions_machine sessions_machine;

int sessions_alloc(sessions_machine **out, const sessions_options *o, err *e);
void sessions_free(sessions_machine *o);
machine sessions_as_machine(sessions_machine *o);

typedef struct sessions_resume { /* a session of the ledger that goes on */
  uint64_t session, hash_seed;
  uint32_t epoch;        /* the highest that may have been sent */
  const int32_t *output; /* [output_length], copied; fewer than max_tokens, and without an end */
  int32_t output_length;
  const char *numerics; /* of who has decoded; "": nobody */
} sessions_resume;

typedef struct sessions_request {
  const int32_t *prompt; /* copied */
  int32_t prompt_length;
  const sessions_resume *resume; /* NULL: a new session */
  const char *about;             /* for the ledger; NULL: nothing */
  msg_options options;           /* stops copied; context 0: the target's own */
  bool draft;                    /* false: --draft none */
  /* Called with each run of new tokens before they are logged: how many of them to keep (all if NULL). Fewer
   * than count, or *stop set, ends the answer there (a stop string). Below 0: so many tokens of the output
   * that are logged already go as well. */
  int32_t (*admit)(void *context, const int32_t *tokens, int32_t count, bool *stop);
  void *admit_context;
} sessions_request;

typedef enum {
  SESSIONS_WAITING, /* for a target */
  SESSIONS_OPENING,
  SESSIONS_RUNNING,
  SESSIONS_ENDING,  /* finished for the client; the workers are being told */
  SESSIONS_FINISHED /* everybody knows, or has been told often enough: sessions_release it */
} sessions_state;

typedef struct sessions_view { /* what a client may see of its session */
  sessions_state state;
  const int32_t *tokens; /* prompt and output; until the next step */
  int32_t length, prompt_length;
  int32_t logged;     /* of `length`, those that may be shown; it may reach the prompt's length later than
                         `length` does */
  wire_finish finish; /* 0: the answer goes on */
  int code;           /* ERR_ when finish is error */
  const char *text;   /* sentence for it; else what the target says of its plain steps, or "" */
  msg_stats stats;    /* complete once finished; until the next look */
  int32_t
      uncounted; /* tokens of output that they do not cover: of a target that died, or of an earlier run */
  const char *off_reason;   /* why speculation was off at the end; empty: it was on */
  const char *draft_method; /* "" without one */
  const char *numerics_id;  /* of the target that decodes, or did */
  bool numerics_changed;    /* more than one kind decoded this answer */
  uint64_t hash_seed;       /* of its prefix */
  uint32_t epoch;
  int32_t repairs; /* desyncs repaired */
} sessions_view;

/* Begins a session and returns its id, or 0 and *e (ERR_FULL, ERR_NOMEM, ERR_ARG). Messages go out with the
 * actions. */
uint64_t sessions_start(sessions_machine *o, const sessions_request *r, uint64_t now_us, actions *out,
                        err *e);
/* Ends an answer early: finish becomes cancelled. */
void sessions_cancel(sessions_machine *o, uint64_t session, uint64_t now_us, actions *out);
bool sessions_get(const sessions_machine *o, uint64_t session,
                  sessions_view *out); /* false: no such session */
/* Forgets a session that is SESSIONS_ENDING or SESSIONS_FINISHED (the ledger keeps it); cancels any other. */
void sessions_release(sessions_machine *o, uint64_t session, uint64_t now_us, actions *out);

/* Workers that are registered and heard of. */
int32_t sessions_worker_count(const sessions_machine *o, wire_role role);
/* Sessions that the targets among them take at a time, by their word. */
int32_t sessions_capacity(const sessions_machine *o);
/* The only way a worker shows what it is: its greeting, by role and index in [0, sessions_worker_count), or
 * NULL. */
const msg_hello *sessions_worker(const sessions_machine *o, wire_role role, int32_t index);
int32_t sessions_worker_load(const sessions_machine *o, wire_role role,
                             int32_t index); /* sessions that it has */

/* The owner knows that a worker program has died (its own child): no need to wait for its silence. */
void sessions_worker_died(sessions_machine *o, wire_id incarnation, uint64_t now_us, actions *out);
