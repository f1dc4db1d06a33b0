/* session_store.h - the target's sessions: who is here, in which cache slot, how long it may stay.
 *
 * A fixed number of places, taken once. A conversation's next turn finds the rows of those before it. Static
 * cache: what it holds of an ended session stays until its place is taken again. Virtual cache: the full
 * blocks of all sessions can be found (kv_blocks.h), by several at once; a session has the blocks of its
 * whole answer from its OPEN to its end, so it never runs out of them. They are given back at once, even
 * while a job of it is under way: batches come one after the other, so that who takes them writes later. Idle
 * sessions (finished, or waiting for a next turn) make room for new ones, least recently used first; busy
 * ones never do. */
#pragma once

#include "common/base/err.h"
#include "common/model/kv_blocks.h"
#include "common/speculative/prefix.h"
#include "common/speculative/tree.h"
#include "common/speculative/wait.h"
#include "common/speculative/width.h"
#include "wire/actions.h"

#define SESSION_DRAFTS_MAX 4

typedef enum {
  SESSION_FREE,
  SESSION_RUNNING,  /* prefilling or decoding */
  SESSION_DESYNCED, /* DESYNC sent: waits for OPEN of a higher epoch */
  SESSION_FINISHED  /* DONE sent, not yet ended */
} session_state;

typedef struct session_draft {
  peer_id peer;            /* 0: free place */
  tree_ids ids;            /* of its nodes; memory is kept when it leaves */
  int32_t base_named;      /* newest base of its NODES */
  int32_t done_base;       /* base of its last done mark, 0: none */
  int32_t told;            /* length of C that it has been sent */
  uint64_t reset_sent_us;  /* when TREE_RESET was */
  uint64_t tokens_sent_us; /* when TOKENS were, or it was attached */
  uint64_t resent_us;      /* when RESEND was answered */
  bool timed;              /* an answer to one TOKENS is timed: */
  int32_t timed_length;    /* where its tokens ended */
  uint64_t timed_us;       /* when it went out */
} session_draft;

typedef struct session_stats { /* as DONE tells them: msg_stats */
  uint64_t forwards, rounds, rows, accepted;
  uint64_t prefill_us, queue_us, forward_us, accept_us, commit_us, wait_us;
  uint64_t plain_steps, resets, dropped;
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX];
} session_stats;

typedef struct session {
  session_state state;
  uint64_t id;
  uint32_t epoch;
  int32_t slot;     /* index in the store and sequence of the cache */
  uint64_t used_us; /* opened or finished last */

  /* As opened: */
  peer_id orchestrator;
  wire_id ticket; /* that a draft must show */
  int32_t prompt_length;
  bool draft_expected;
  bool drafts_gave_up; /* none of them will come, or come back: lockstep waits for those alone that are
                          attached */
  msg_options options; /* stops point to stop_tokens */
  int32_t stop_tokens[WIRE_STOPS_MAX];
  uint64_t lease_until_us; /* freed then, unless it is renewed */

  /* Tokens, and their rows in the cache: */
  prefix committed;   /* C */
  int32_t kv_rows;    /* rows of the cache that are those of C */
  int32_t *penalised; /* [context] C as a job's penalties see it; NULL until session_store_penalised */
  int32_t *blocks;    /* virtual cache: [context / KV_BLOCK], of which block_count hold the session's rows, in
                         order */
  int32_t block_count;
  int32_t published; /* so many of them can be found by others, and are only read */
  bool remap;        /* the engine does not know the blocks yet; */
  bool rows_given;   /* nor that they hold kv_rows */

  /* At the engine: */
  uint64_t job; /* serial of its job there, 0: none */
  int32_t
      kv_valid; /* rows that will still be right after that job (C was shortened meanwhile); else INT32_MAX */
  uint64_t ready_us;   /* when its next job could begin */
  uint64_t stepped_us; /* when its last round ended; 0: none in this epoch */

  /* What its orchestrator knows: */
  int32_t acked, told;    /* tokens that it has acknowledged, and has been sent */
  uint64_t tell_after_us; /* more are not sent before this */
  uint64_t tell_until_us; /* but then, if the next round has not; UINT64_MAX: nothing to look for */
  uint64_t resent_us;     /* when tokens were sent last */

  /* Speculation: */
  session_draft drafts[SESSION_DRAFTS_MAX];
  uint32_t generation; /* of ids, last one given out */
  tree live;
  bool has_tree;                    /* taken at the first attach */
  bool off_for_good;                /* selfcheck, or an error inside a verify; */
  const char *off_reason;           /* then: static sentence */
  char draft_left[WIRE_STRING_MAX]; /* why the draft that left last did; "": none has */
  uint64_t lockstep_until_us;       /* lockstep: the done mark must be there */
  uint64_t wait_until_us;           /* free pace: no plain step before this while no node is at hand */
  uint64_t waited_us;               /* by the round in hand */
  uint64_t wait_owed_us;            /* by rounds that no verify with nodes has paid for yet */
  wait_history history;
  pay_state pay;
  width_record record; /* what its drafts have earned, which bounds the next verify */
  double plain_us;     /* moving averages of a forward: without nodes; */
  double verify_us;    /* with nodes, or after a wait that brought none, as history.tokens_per_step */

  /* The end: */
  int finish;              /* wire_finish, 0: not yet */
  int finish_code;         /* ERR_ of WIRE_FINISH_ERROR */
  const char *finish_text; /* static sentence for it, or NULL */
  uint64_t done_sent_us;
  session_stats stats;
} session;

typedef struct session_store {
  session *places;        /* [count] */
  int32_t count, context; /* context: tokens of one session */
  bool is_virtual;
  kv_blocks blocks;         /* of a virtual cache */
  uint64_t reused_rows;     /* of the cache, that new sessions found there */
  uint64_t longest_step_us; /* between two rounds of one session, one after the other */
} session_store;

/* blocks: of a virtual cache; 0: static. ERR_NOMEM. */
int session_store_init(session_store *s, int32_t count, int32_t context, int32_t blocks, err *e);
void session_store_fini(session_store *s);

session *session_store_get(session_store *s, uint64_t id); /* NULL: none */
/* Finds it or takes a place; NULL: full. *fresh tells. A free place whose cache begins with these tokens is
 * taken with them: its C is that beginning, kv_rows their rows; else the one that was given up longest ago,
 * with an empty C; if none is free, the least recently used finished one. */
session *session_store_take(session_store *s, uint64_t id, uint64_t now_us, const int32_t *tokens,
                            int32_t count, bool *fresh);
/* Blocks for a session whose C has just been set, with kv_rows of it in the cache, so that it can grow to
 * `tokens` tokens of which all but the last have rows; it may find more rows. ERR_FULL: not now, ERR_LIMIT:
 * never; then it holds none. Static: nothing to do. */
int session_store_admit(session_store *s, session *p, int32_t tokens, err *e);
/* Its first `settled` rows are in the cache: others may find the blocks that they fill. */
void session_store_publish(session_store *s, session *p, int32_t settled);
/* It needs no rows any more. Static: nothing to do. */
void session_store_give_back(session_store *s, session *p);
/* Room for what its penalties look at; false: no memory. */
bool session_store_penalised(const session_store *s, session *p);
bool session_store_end(session_store *s, uint64_t id); /* whether it existed */
int32_t session_store_active(const session_store *s);  /* running or desynced */

/* Draft places of one session. */
session_draft *session_draft_of(session *s, peer_id peer);   /* NULL: none */
session_draft *session_draft_take(session *s, peer_id peer); /* NULL: full or no memory */
void session_draft_drop(session *s, session_draft *d);       /* nodes that it alone has named go with it */
int32_t session_draft_count(const session *s);
/* Every id map gets a new generation and the tree is emptied: C was shortened or the epoch is new. */
void session_draft_restart(session *s);
/* Writes the attached maps to maps[SESSION_DRAFTS_MAX], returns how many. */
int32_t session_draft_maps(session *s, tree_ids **maps);
