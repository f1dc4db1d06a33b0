/* client_session.h - one session of a client: what was asked for, its committed tokens and its two workers;
 * and what all sessions of one machine share. Private to orchestrator/sessions: other folders include
 * sessions.h. */
#pragma once

#include "orchestrator/ledger/ledger.h"
#include "orchestrator/sessions/drained_workers.h"
#include "orchestrator/sessions/hung_targets.h"
#include "orchestrator/sessions/prefix_affinity.h"
#include "orchestrator/sessions/session_limits.h"
#include "orchestrator/sessions/session_stats.h"
#include "wire/roster.h"

/* The assignment of one worker to a session. */
typedef struct client_assignment {
  peer_id peer;     /* 0: none */
  bool opened;      /* OPENED came in this epoch */
  bool ended;       /* ENDED came, or there is no worker that must know of the end */
  int32_t base;     /* the length that the next OPEN or PART builds on */
  int32_t end;      /* the length that the last one makes, */
  bool part;        /* and it was a PART: more has to follow */
  uint64_t sent_us; /* when OPEN or END was last sent */
  /* Since when a draft should take the session and attach; 0: OPEN has still to be sent */
  uint64_t offered_us;
} client_assignment;

/* A target that could not serve a session. */
typedef struct client_unable {
  peer_id peer;      /* 0: none */
  uint64_t until_us; /* when it may be asked again; MACHINE_NEVER: not at all */
} client_unable;

typedef struct client_session {
  uint64_t id, order; /* order: sessions are numbered as they begin */
  uint32_t epoch;

  /* What was asked for. */
  wire_id ticket; /* the draft shows it to the target; another one for each draft and each epoch */
  uint32_t ticket_number;
  bool ticket_used; /* a draft was given it */
  bool ticket_owed; /* the target has to be told, by an OPEN of the same epoch, until it says OPENED */
  /* OPENs to the target, of this epoch, that OPENED has not answered: all, and those with an earlier ticket
   */
  int32_t opens_unanswered, opens_outdated;
  int32_t prompt_length;
  msg_options options; /* its stops, bias and grammar are these: */
  int32_t stops[WIRE_STOPS_MAX];
  msg_bias bias;
  char *grammar; /* NULL: none */
  bool want_draft, want_accepted;
  int32_t (*admit)(void *context, const int32_t *tokens, int32_t count,
                   bool *stop); /* as in sessions_request */
  void *admit_context;

  prefix committed;        /* what the ledger was given */
  uint8_t *accepted;       /* [capacity of committed] 1: an accepted token; NULL: not wanted */
  ranking_token *logprobs; /* [capacity of committed - prompt_length][options.logprobs]; NULL: not wanted */
  uint32_t plain_us;       /* of the target's plain steps, as it told last; 0: it did not */
  bool in_ledger;          /* its beginning is durable there, so that frames may go out */
  int32_t acked;           /* tokens that the target was told are durable */
  int32_t durable;         /* how many were when that was noted last, */
  uint64_t durable_us;     /* and when more had become so, or all were */
  bool cut_to_durable;     /* the ledger gave no more: the answer ends with what is durable */
  int32_t repairs;         /* desyncs of the target that were repaired, */
  int32_t vain_repairs;    /* and those since a token came */
  uint64_t ack_us, resend_us; /* when ACK and RESEND were sent last */
  int32_t end_tries;          /* how often END was repeated */

  /* The target. */
  client_assignment target;
  peer_id refused_by;                        /* this target is asked last, because it refused; 0: none */
  client_unable unable[SESSIONS_UNABLE_MAX]; /* targets that are too small for this session, or failed it */
  int32_t unable_count;                      /* how often that was so */
  bool needs_room;           /* the last target was full: younger sessions wait behind this one */
  uint64_t waiting_since_us; /* when it began to wait for a target */
  uint64_t opening_since_us; /* when the first OPEN was sent that is not answered yet */
  uint64_t retry_us;         /* no target is asked before this; 0: at once */
  uint64_t lost_us;          /* when a target was lost last; 0: never */
  uint64_t silence_us;       /* after so long without a sign of life the target hangs */
  uint64_t silence_ends_us;  /* when that is checked */
  bool silence_logged;       /* the log says that the target hangs and there is no other, */
  uint64_t hung_us;          /* and when it said so */

  /* The draft. */
  client_assignment draft;
  peer_id draft_refused_by; /* this draft is not asked; 0: none */
  int32_t draft_refusals;   /* how many drafts refused */
  int32_t draft_repairs;    /* its desyncs that were repaired in this epoch */
  uint64_t draft_chosen_us; /* when a draft was chosen last; 0: the next one is chosen at once */
  uint64_t draft_retry_us;  /* when drafts that refused are asked again; 0: not any more */
  uint64_t attach_since_us; /* when a draft was first asked to attach at this target; 0: not yet */
  char target_address[WIRE_STRING_MAX + 1]; /* where the draft was told to attach */
  char draft_note[WIRE_STRING_MAX + 1];     /* why it has no draft; "": it has one, or there was none */
  char method[WIRE_STRING_MAX + 1];         /* of the draft, or of the last one */

  bool decoded; /* a target has decoded tokens; the last one has these numerics: */
  char numerics[WIRE_STRING_MAX + 1];
  bool numerics_changed; /* targets of different numerics have decoded */

  wire_finish finish;                   /* 0: the session goes on */
  int code;                             /* ERR_ when finish is error */
  char text[WIRE_STRING_MAX + 1];       /* the sentence for code */
  char off_reason[WIRE_STRING_MAX + 1]; /* from DONE, */
  uint32_t off;                         /* with its number (wire_off) */
  session_stats stats;
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX]; /* of the total that a client sees */
} client_session;

/* What the sessions of one machine share. */
typedef struct client_sessions {
  uint64_t (*random)(void *context); /* sessions_options */
  void *random_context;
  ledger ledger;           /* borrowed */
  int32_t vocabulary_size; /* 0: unknown */
  uint64_t target_wait_us;
  int32_t part_tokens;  /* most tokens in one OPEN or PART */
  bool targets_return;  /* a target that ends is started again */
  const char *no_draft; /* why no draft is here (sessions_explain_no_draft); NULL: nobody has said */
  bool no_draft_comes;  /* sessions_no_draft_comes */
  roster roster;
  hung_targets hung;
  drained_workers drained;
  prefix_affinity affinity;           /* what sessions that have ended left in the caches of their targets */
  client_session *list[SESSIONS_MAX]; /* NULL: free */
  char trouble[WIRE_STRING_MAX + 1];  /* the trouble with a draft that was logged last */
  uint64_t trouble_us;                /* when that was */
} client_sessions;

/* The surroundings of one step of the machine, so that handlers need few arguments. */
typedef struct client_step {
  client_sessions *all;
  uint64_t now;
  actions *out;
} client_step;

/* The completion is not over yet. */
static inline bool client_session_live(const client_session *s) {
  return s->finish == 0;
}

void client_session_free(client_session *s);
client_session *client_session_find(const client_sessions *all, uint64_t id); /* NULL: there is none */
/* How many of its tokens the ledger holds for good; 0: not even its beginning, so no frame may go out. Of an
 * answer that was cut to these: all of them. */
int32_t client_session_logged(const client_sessions *all, const client_session *s);

void client_text(char out[WIRE_STRING_MAX + 1], wire_string s);         /* adds a NUL; controls.h hides */
const msg_hello *client_worker_hello(const client_step *c, peer_id id); /* NULL: the worker is unknown */
/* Looks how many tokens are durable by now. */
void client_session_note_durable(const client_step *c, client_session *s);
/* An empty message about this session. */
msg client_message(const client_step *c, peer_id to, msg_type type, const client_session *s);
