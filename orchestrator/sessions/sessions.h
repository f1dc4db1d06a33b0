/* sessions.h - the orchestrator's logic, sans-IO: requests become sessions at a target and a draft, their
 * tokens are logged and then shown, what goes out of step is repaired. The owner pulls news after every step.
 */
#pragma once

#include "common/speculative/prefix.h"
#include "orchestrator/ledger/ledger.h"
#include "wire/machine.h"

#define ORCH_SESSIONS_MAX 256
#define ORCH_REPEAT_US    300000 /* OPEN, END */
#define ORCH_ACK_US       500000 /* idle: acknowledges again, which renews the lease */
#define ORCH_END_TRIES    5
#define ORCH_DRAFT_AGAIN_US                                                                                  \
  10000000                           /* a draft that did not reach the target is asked again after so long   \
                                      */
#define ORCH_TROUBLE_US     60000000 /* the same trouble with a draft is told again after so long */
#define ORCH_DESYNC_MAX     16       /* repairs of one session before it ends with an error */
#define ORCH_TARGET_WAIT_US 30000000 /* without any target for so long: error */
#define ORCH_QUIET_US                                                                                        \
  10000000 /* a target that owes tokens and gives no sign of life for so long hangs: elsewhere. Ours give    \
              one every 2 s while their engine lives (TARGET_ALIVE_US) */
#define ORCH_QUIET_GROWTH 4 /* with each move before the next token: nobody is moved in circles for ever */
#define ORCH_QUIET_MAX_US UINT64_C(3600000000)
#define ORCH_HUNG_US      300000000 /* a target that hung is asked last for so long */
#define ORCH_HUNG_MAX     16        /* targets that this is remembered of */
#define ORCH_LOOK_US      1000000   /* is there another target by now? */

typedef struct orch_options {
  wire_id incarnation;
  hash16 model_fingerprint, vocabulary_hash; /* zero: learnt from no one */
  int32_t vocabulary_size;
  uint64_t (*random)(void *context); /* ids, seeds, tickets; seeded in the simulation */
  void *random_context;
  ledger ledger;           /* borrowed */
  uint64_t target_wait_us; /* a session is without any target for so long: error; 0: ORCH_TARGET_WAIT_US */
} orch_options;

typedef struct orch orch;

int orch_alloc(orch **out, const orch_options *o, err *e);
void orch_free(orch *o);
machine orch_machine(orch *o);

typedef struct orch_resume { /* a session of the ledger that goes on */
  uint64_t session, hash_seed;
  uint32_t epoch;        /* the highest that may have been sent */
  const int32_t *output; /* [output_length], copied; fewer than max_tokens, and without an end */
  int32_t output_length;
  const char *numerics; /* of who has decoded; "": nobody */
} orch_resume;

typedef struct orch_request {
  const int32_t *prompt; /* copied */
  int32_t prompt_length;
  const orch_resume *resume; /* NULL: a new session */
  const char *about;         /* for the ledger; NULL: nothing */
  msg_options options;       /* stops copied; context 0: the target's own */
  bool draft;                /* false: --draft none */
  /* Called with each run of new tokens before they are logged: how many of them to keep (all if NULL). Fewer
   * than count, or *stop set, ends the answer there (a stop string). Below 0: so many tokens of the output
   * that are logged already go as well. */
  int32_t (*admit)(void *context, const int32_t *tokens, int32_t count, bool *stop);
  void *admit_context;
} orch_request;

typedef enum {
  ORCH_WAITING, /* for a target */
  ORCH_OPENING,
  ORCH_RUNNING,
  ORCH_ENDING,  /* finished for the client; the workers are being told */
  ORCH_FINISHED /* everybody knows, or has been told often enough: orch_release it */
} orch_state;

typedef struct orch_view { /* what a client may see of its session */
  orch_state state;
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
} orch_view;

/* Begins a session and returns its id, or 0 and *e (ERR_FULL, ERR_NOMEM, ERR_ARG). Messages go out with the
 * actions. */
uint64_t orch_start(orch *o, const orch_request *r, uint64_t now_us, actions *out, err *e);
/* Ends an answer early: finish becomes cancelled. */
void orch_cancel(orch *o, uint64_t session, uint64_t now_us, actions *out);
bool orch_look(const orch *o, uint64_t session, orch_view *out); /* false: no such session */
/* Forgets a session that is ORCH_ENDING or ORCH_FINISHED (the ledger keeps it); cancels any other. */
void orch_release(orch *o, uint64_t session, uint64_t now_us, actions *out);

/* Workers that are registered and heard of. */
int32_t orch_workers(const orch *o, wire_role role);
/* Sessions that the targets among them take at a time, by their word. */
int32_t orch_capacity(const orch *o);
/* The only way a worker shows what it is: its greeting, by role and index in [0, orch_workers), or NULL. */
const msg_hello *orch_worker(const orch *o, wire_role role, int32_t index);
int32_t orch_worker_load(const orch *o, wire_role role, int32_t index); /* sessions that it has */

/* The owner knows that a worker program has died (its own child): no need to wait for its silence. */
void orch_worker_died(orch *o, wire_id incarnation, uint64_t now_us, actions *out);
