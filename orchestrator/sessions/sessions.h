/* sessions.h - the machine of the orchestrator: it makes requests into sessions at a target and a draft, logs
 * their tokens before they are shown, and repairs a worker that is out of step. It does no I/O
 * (wire/machine.h); its owner looks for news after every step. */
#pragma once

#include "common/speculative/prefix.h"
#include "orchestrator/ledger/ledger.h"
#include "orchestrator/sessions/session_limits.h"
#include "wire/machine.h"

typedef struct sessions_options {
  wire_id incarnation;
  /* zero: unknown, and not compared with the workers' */
  hash16 model_fingerprint, model_hash, vocabulary_hash;
  int32_t vocabulary_size;           /* 0: unknown */
  uint64_t (*random)(void *context); /* for ids, seeds and tickets; seeded in the simulation */
  void *random_context;
  ledger ledger;           /* borrowed */
  uint64_t target_wait_us; /* how long a session may be without any target; 0: SESSIONS_TARGET_WAIT_US */
  int32_t part_tokens;     /* most tokens in one OPEN, for tests; 0: WIRE_TOKENS_MAX */
  /* A target that ends is started again: a session whose target has lost its device waits for it. */
  bool targets_return;
} sessions_options;

typedef struct sessions_machine sessions_machine;

int sessions_alloc(sessions_machine **out, const sessions_options *options, err *e);
void sessions_free(sessions_machine *m);
machine sessions_as_machine(sessions_machine *m);

typedef struct sessions_resume { /* a session of the ledger that goes on */
  uint64_t session, hash_seed;
  uint32_t epoch;        /* the highest that may have been sent */
  const int32_t *output; /* [output_length], copied; fewer than max_tokens, and not at an end token */
  int32_t output_length;
  const char *numerics; /* of the target that decoded last; "": none did */
} sessions_resume;

typedef struct sessions_request {
  const int32_t *prompt; /* copied */
  int32_t prompt_length;
  const sessions_resume *resume; /* NULL: a new session */
  const char *about;             /* JSON for the ledger; NULL: nothing */
  msg_options options;           /* stops are copied; context 0: the target's own */
  bool draft;                    /* false: no draft may serve it */
  bool accepted;                 /* the view shall say which tokens are accepted ones */
  /* Called with each run of new tokens before they are logged (NULL: all are kept). It returns how many to
   * keep; fewer than count, or *stop, ends the session there, as a stop string does. A negative number takes
   * back so many tokens that are logged already. */
  int32_t (*admit)(void *context, const int32_t *tokens, int32_t count, bool *stop);
  void *admit_context;
} sessions_request;

typedef enum {
  SESSIONS_WAITING, /* for a target */
  SESSIONS_OPENING,
  SESSIONS_RUNNING,
  SESSIONS_ENDING,  /* it is over for the client, and the workers are being sent END */
  SESSIONS_FINISHED /* the workers know, or were told often enough: call sessions_release */
} sessions_state;

typedef struct sessions_view { /* what a client may see of its session */
  sessions_state state;
  const int32_t *tokens; /* [length], prompt and output; valid until the next step */
  int32_t length, prompt_length;
  /* [length] 1: an accepted token; NULL: not asked for. Tokens of earlier runs count as not accepted. */
  const uint8_t *accepted;
  /* [length - prompt_length][options.logprobs] of the output, as in TOKENS; NULL: not asked for. Tokens of
   * earlier runs have none. */
  const ranking_token *logprobs;
  uint32_t plain_us;  /* a plain step of the target takes so long; 0: not known, or yet (without accepted) */
  int32_t logged;     /* how many of `length` may be shown; at first it may be less than prompt_length */
  wire_finish finish; /* 0: it goes on */
  int code;           /* ERR_ when finish is error */
  const char *text;   /* the sentence for code, or "" */
  msg_stats stats;   /* zero before finish is set, complete in SESSIONS_FINISHED; valid until the next call */
  int32_t uncounted; /* output tokens that stats do not cover: of a target that died, or of an earlier run */
  const char *off_reason;   /* why speculation was off at the end; "": it was on */
  bool unpaid;              /* because it was tried and did not pay for itself */
  const char *draft_method; /* "" without a draft */
  const char *numerics_id;  /* of the target that decodes, or did last; and SESSIONS_LOSSY */
  bool numerics_changed;    /* targets of different numerics have decoded this output */
  uint64_t hash_seed;       /* of its prefix hashes */
  uint32_t epoch;
  int32_t repairs; /* desyncs that were repaired */
} sessions_view;

/* Begins a session and returns its id, or 0 and *e (ERR_FULL, ERR_NOMEM, ERR_ARG, ERR_LIMIT). */
uint64_t sessions_start(sessions_machine *m, const sessions_request *r, uint64_t now_us, actions *out,
                        err *e);
/* Ends a session early: its finish becomes cancelled. */
void sessions_cancel(sessions_machine *m, uint64_t session, uint64_t now_us, actions *out);
bool sessions_get(const sessions_machine *m, uint64_t session, sessions_view *out); /* false: there is none */
/* Forgets a session that has ended (the ledger keeps it), and cancels any other first. */
void sessions_release(sessions_machine *m, uint64_t session, uint64_t now_us, actions *out);

/* Workers that are registered and not lost. */
int32_t sessions_worker_count(const sessions_machine *m, wire_role role);
/* How many sessions the registered targets take at a time, as they said; those that get none do not count. */
int32_t sessions_capacity(const sessions_machine *m);
/* The HELLO of a worker, by role and index in [0, sessions_worker_count), or NULL. */
const msg_hello *sessions_worker(const sessions_machine *m, wire_role role, int32_t index);
int32_t sessions_worker_load(const sessions_machine *m, wire_role role, int32_t index); /* its sessions */

typedef enum {
  SESSIONS_WORKER_READY,
  SESSIONS_WORKER_DRAINED,
  SESSIONS_WORKER_LEAVING
} sessions_worker_state;
sessions_worker_state sessions_worker_is(const sessions_machine *m, wire_role role, int32_t index);

/* Drains the worker of this incarnation, so that it gets no new sessions and keeps those that it has, or lets
 * it have new ones again. It stays drained until then, or until its program ends. False: there is no such
 * worker. */
bool sessions_drain(sessions_machine *m, wire_id worker, bool drained, uint64_t now_us, actions *out);

/* Why no draft is here, for who asks while there is none: `why' stays the owner's. */
void sessions_explain_no_draft(sessions_machine *m, const char *why);

/* The owner knows that no draft will come any more, so that a session in lockstep need not wait for one. */
void sessions_no_draft_comes(sessions_machine *m, uint64_t now_us, actions *out);

/* The owner knows that a worker has died, for example its own child process, so the machine need not wait
 * until it counts as silent. */
void sessions_worker_died(sessions_machine *m, wire_id incarnation, uint64_t now_us, actions *out);
