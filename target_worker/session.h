/* session.h - one session of the target: what its OPEN asked for, its tokens, its part of the cache, its job
 * at the engine, what its orchestrator and its drafts have been sent, and its draft tree.
 *
 * C stands for the committed tokens. Nothing here sends a message or reads a clock. */
#pragma once

#include "common/base/limit.h"
#include "common/grammar/grammar_matcher.h"
#include "common/speculative/prefix.h"
#include "common/speculative/tree.h"
#include "target_worker/feature_ring.h"
#include "target_worker/speculation.h"
#include "wire/actions.h"
#include "wire/message.h"

#define SESSION_DRAFTS_MAX LIMIT(4, 2)
#define SESSION_LOGPROBS   512 /* tokens whose log-probabilities are kept: more than can be unacknowledged */

typedef enum {
  SESSION_FREE,     /* the slot belongs to no session */
  SESSION_OPENING,  /* the first PARTs of its prefix are here, its OPEN is not */
  SESSION_RUNNING,  /* prefilling or decoding */
  SESSION_DESYNCED, /* DESYNC was sent: waits for an OPEN of a higher epoch */
  SESSION_FINISHED  /* DONE was sent, END has not come yet */
} session_state;

typedef struct session_request { /* what the OPEN of this epoch asked for */
  peer_id orchestrator;
  wire_id ticket; /* a draft must show it to attach */
  int32_t prompt_length;
  bool draft_expected, accepted_wanted;
  bool reader_expected; /* and that draft is likely to read features */
  msg_options options;  /* its stops and bias are these, and its grammar's text is gone: */
  int32_t stop_tokens[WIRE_STOPS_MAX];
  msg_bias bias;
  grammar_matcher *grammar; /* NULL: none */
} session_request;

typedef struct session_cache { /* which rows and blocks of the KV cache are this session's */
  int32_t rows;                /* rows of the cache that hold the keys and values of C */
  int32_t *blocks; /* virtual cache: [context / KV_BLOCK], of which block_count hold the rows, in order */
  int32_t block_count;
  int32_t published; /* so many of the first blocks can be found by other sessions, and are only read */
  bool remap;        /* the engine does not know the blocks yet; */
  bool rows_given;   /* nor does it know that they already hold `rows` rows */
} session_cache;

typedef struct session_job { /* at the engine */
  uint64_t serial;           /* 0: none */
  /* If C was shortened meanwhile: rows that are still valid after the job; else INT32_MAX */
  int32_t valid_rows;
  int32_t *history; /* [context] C as the job's penalties see it; NULL until session_store_sampling, */
  msg_bias *bias;   /* and so is the job's bias */
  grammar_matcher *grammar; /* of the last job, which may be under way; NULL: none */
  uint64_t ready_us;        /* when the next job could begin */
  uint64_t stepped_us;      /* when the last step ended; 0: none in this epoch */
  int32_t offered;          /* live nodes when it was made, of which it carries the best */
  int32_t known;            /* tokens of C that partial KV was told, if their hash is this one */
  hash16 known_hash;
} session_job;

typedef struct session_stream { /* what the orchestrator knows */
  uint8_t *accepted; /* [context] 1: an accepted token; NULL until the orchestrator wants to know */
  /* [SESSION_LOGPROBS][options.logprobs] of the last tokens of C, in a ring by position; NULL: not wanted */
  ranking_token *logprobs;
  int32_t acked, sent;    /* tokens that it has acknowledged, and that were sent to it */
  uint64_t send_after_us; /* new tokens are not sent before this, */
  uint64_t send_by_us;    /* and at this time at the latest; UINT64_MAX: there is no such time */
  uint64_t sent_us;       /* when TOKENS were sent last */
  uint64_t done_sent_us;  /* when DONE was */
} session_stream;

typedef struct session_draft_features { /* the features that a draft was granted */
  bool granted;
  int32_t from;        /* nothing before this position is sent, */
  int32_t sent, acked; /* and everything before these was sent, and has come or was given up */
  uint64_t sent_us;    /* when rows were sent, or it was told which are lost; 0: never */
} session_draft_features;

typedef struct session_fusion { /* rows to which fc is to be applied */
  feature_ring states;          /* f32 */
  uint64_t serial;              /* of the job that applies it; 0: none is at the engine */
  int32_t end;                  /* of that job's positions */
} session_fusion;

typedef struct session_features { /* what the drafts that were granted features read */
  taps_set taps;                  /* count 0: there is no such draft */
  feature_ring ring;
  bool repeats;         /* between two jobs, rows are to be computed again: */
  int32_t repeat_from;  /* from this position on */
  uint64_t repeated_us; /* when that was done last; 0: never */
  int32_t repeat_after; /* not again before C is so long: what was computed again has to pay first */
  session_fusion fusion;
} session_features;

typedef struct session_draft {
  peer_id peer;            /* 0: this entry is free */
  tree_ids ids;            /* of its nodes; the memory is kept when the draft leaves */
  int32_t base_named;      /* newest base length of its NODES */
  int32_t done_base;       /* base length of its last done mark, 0: none */
  int32_t sent;            /* length of C that was sent to it */
  uint64_t reset_sent_us;  /* when TREE_RESET was sent */
  uint64_t tokens_sent_us; /* when TOKENS were, or it was attached */
  uint64_t resent_us;      /* when a RESEND of this entry's draft, or of the one before it, was answered, */
  int32_t resent_end;      /* where the tokens of that answer end, */
  bool resent_part;        /* and whether C went on there, but one message holds no more */
  bool timed;              /* the time until it sends nodes for one TOKENS is being measured: */
  bool replied;            /* it has named their end, */
  int32_t timed_length;    /* length of C at the end of those tokens, */
  uint64_t timed_us;       /* and when they were sent */
  session_draft_features features;
} session_draft;

/* Why speculation is off where a draft was expected and has never attached. */
#define SESSION_UNATTACHED "no draft worker is attached"

typedef struct session_drafts { /* the attached drafts and the tree that they feed */
  session_draft of[SESSION_DRAFTS_MAX];
  uint32_t generation; /* of node ids: the last one given out */
  tree tree;
  bool has_tree; /* memory is taken at the first attach */
  bool gave_up;  /* the expected draft will not come, or not come back: lockstep waits only for those that are
                    attached */
  char left_reason[WIRE_STRING_MAX]; /* why the last one that left did; "": none has */
  uint64_t lockstep_until_us;        /* lockstep: the done mark must be there by then */
  uint64_t
      alone_us; /* when the orchestrator was last told that no draft is attached, or had no need to know */
  session_features features;
} session_drafts;

typedef struct session_outcome {
  int reason;       /* wire_finish, 0: not finished */
  int code;         /* ERR_ of WIRE_FINISH_ERROR */
  const char *text; /* a sentence for it, static or the session's own (`trouble`), or NULL */
} session_outcome;

typedef struct session_ahead { /* drafting ahead: msg_stats has the meaning */
  uint64_t verdicts, hits, survivors;
} session_ahead;

typedef struct session_chunks { /* where a forward carries a bounded number of a session's nodes, a chunk */
  uint64_t cut;                 /* forwards that carried so many and left others */
  uint64_t left_out;            /* by how many chunks fewer of these others were live behind its verdict */
} session_chunks;

typedef struct session_stats { /* as DONE tells them: msg_stats */
  uint64_t forwards, rounds, rows, accepted;
  uint64_t prefill_us, queue_us, forward_us, accept_us, commit_us, wait_us;
  uint64_t plain_steps, resets, dropped;
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX];
  session_ahead ahead;
} session_stats;

typedef struct session {
  session_state state;
  uint64_t id;
  uint32_t epoch;
  int32_t slot;            /* index in the store, and the sequence of the cache */
  uint64_t used_us;        /* when it was opened or finished last */
  uint64_t lease_until_us; /* it is freed then, unless the lease is renewed */
  session_request request;
  prefix committed; /* C */
  session_cache cache;
  session_job job;
  session_stream stream;
  session_drafts drafts;
  speculation speculation;
  session_outcome finish;
  char trouble[200]; /* a sentence for `finish` that names a position */
  session_stats stats;
} session;

/* Tokens that may still be added to C, >= 0: max_tokens and the context bound them. */
int32_t session_room(const session *s);
/* Has the answer begun? What it waits for then, people see. */
bool session_has_begun(const session *s);
/* At least one live node of a draft is at hand. */
bool session_has_nodes(const session *s);

/* Lockstep: how long a session waits for the next done mark, from this call on. */
#define SESSION_LOCKSTEP_US 60000000
void session_lockstep_begin(session *s, uint64_t now);

/* The attached drafts. */
session_draft *session_draft_of(session *s, peer_id peer);   /* NULL: it is not attached */
session_draft *session_draft_take(session *s, peer_id peer); /* NULL: no entry is free, or no memory */
void session_draft_drop(session *s, session_draft *d); /* also drops the nodes that it alone has named */
int32_t session_draft_count(const session *s);
/* Drafts that have sent their done mark for this C. */
int32_t session_draft_done_count(const session *s);
/* There are drafts, and all of them have said that they have nothing more to send for this C. */
bool session_drafts_done(const session *s);
/* Every id map gets a new generation and the tree is emptied: C was shortened or the epoch is new. */
void session_draft_restart(session *s);
/* Writes the id maps of the attached drafts to maps[SESSION_DRAFTS_MAX] and returns how many there are. */
int32_t session_draft_maps(session *s, tree_ids **maps);
/* Frees the tree and the id maps. */
void session_drafts_fini(session *s);
