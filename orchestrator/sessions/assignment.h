/* assignment.h - the two workers of a session: chosen, opened, lost, opened again in the next epoch, told of
 * the end. For sessions.c, whose sans-IO machine this is a part of, and session_frames.c. */
#pragma once

#include "orchestrator/sessions/prefix_affinity.h"
#include "orchestrator/sessions/session_stats.h"
#include "orchestrator/sessions/sessions.h"
#include "wire/roster.h"

#define ASSIGNMENT_UNABLE_MAX 8 /* targets that may be too small for one session before it ends */

/* What a session knows of one of its two workers. */
typedef struct seat {
  peer_id peer;     /* 0: none */
  bool opened;      /* OPENED came for this epoch */
  bool ended;       /* ENDED came, or there is nobody to tell */
  int32_t base;     /* length that the next OPEN builds on */
  uint64_t sent_us; /* OPEN or END was */
} seat;

typedef struct client_session {
  sessions_state state;
  uint64_t id, number; /* number: in the order of their beginnings */
  uint32_t epoch;

  /* What was asked for: */
  wire_id ticket; /* that its draft shows to its target */
  int32_t prompt_length;
  msg_options options; /* stops: in OPEN they are `stops` */
  int32_t stops[WIRE_STOPS_MAX];
  bool want_draft;
  int32_t (*admit)(void *context, const int32_t *tokens, int32_t count, bool *stop); /* sessions_request's */
  void *admit_context;

  prefix committed; /* what the ledger has been given */
  bool begun;       /* the ledger holds its beginning for good */

  seat target, draft;
  peer_id target_avoid, draft_avoid;     /* they refused it: others first; 0: none */
  peer_id unable[ASSIGNMENT_UNABLE_MAX]; /* targets too small for it; 0: none */
  bool no_room;                          /* the last target was full: who began later waits behind it */
  uint64_t waiting_us;                   /* since when it waits for a target */
  uint64_t opening_us;                   /* the OPEN that is not answered yet went out first */
  uint64_t retry_us;                     /* no target is asked before this; 0: at once */
  uint64_t lost_us;                      /* a target was lost last; 0: none yet */
  uint64_t ack_us, resend_us;            /* ACK, RESEND were sent last */
  uint64_t quiet_us;                     /* no sign of life of its target for so long: it hangs */
  uint64_t quiet_until_us;               /* this is looked at then */
  bool quiet_told;                       /* the log knows that there is nowhere to go */
  uint64_t draft_placed_us;              /* a draft was chosen last; 0: the next one at once */
  int32_t end_tries;                     /* ENDs so far */
  int32_t repairs, draft_repairs;        /* desyncs repaired; of the draft in this epoch */
  int32_t draft_refusals;                /* drafts that did not want it */
  char draft_note[WIRE_STRING_MAX + 1];  /* why it has no draft; "": it has, or none was there */
  char draft_at[WIRE_STRING_MAX + 1];    /* where its draft was told that the target is */
  uint64_t draft_since_us;               /* a draft has been asked to attach there since; 0: none has */
  uint64_t draft_again_us; /* who could not reach the target is asked again; 0: nobody waits for that */
  char method[WIRE_STRING_MAX + 1]; /* of its draft, or last one */

  bool decoded; /* a token came from a target of these numerics: */
  char numerics[WIRE_STRING_MAX + 1];
  bool numerics_changed; /* so did others from another one */

  wire_finish finish;                   /* 0: it goes on */
  int code;                             /* ERR_ where finish is error */
  char text[WIRE_STRING_MAX + 1];       /* sentence for it */
  char off_reason[WIRE_STRING_MAX + 1]; /* of DONE */
  session_stats counted;
} client_session;

typedef struct hung_target {
  peer_id peer; /* 0: none */
  uint64_t until_us;
} hung_target;

struct sessions_machine {
  sessions_options options;
  roster roster;
  hung_target hung[SESSIONS_HUNG_MAX];    /* sessions had to leave them */
  uint64_t stepped_us;                    /* the last step was */
  prefix_affinity read;                   /* what ended sessions have left at their targets */
  client_session *sessions[SESSIONS_MAX]; /* NULL: free place */
  uint64_t started;                       /* sessions so far */
  char trouble[WIRE_STRING_MAX + 1];      /* of sessions with a draft that was told last, and when: */
  uint64_t trouble_us;
};

/* One step's surroundings, so that handlers need few arguments. */
typedef struct step {
  sessions_machine *o;
  uint64_t now;
  actions *out;
} step;

static inline bool session_live(const client_session *s) {
  return s->state < SESSIONS_ENDING;
}

void assignment_text(char out[WIRE_STRING_MAX + 1], wire_string s); /* copied, with a NUL */
const msg_hello *assignment_greeting(step *c, peer_id id);          /* NULL: none came */
/* Sessions that a worker has: by our own count, which is newer, or by its own, which knows of others' too. */
int32_t assignment_load(const sessions_machine *o, const roster_peer *p);
/* How many tokens the ledger holds for good; 0: nothing may be sent yet. */
int32_t assignment_logged(const sessions_machine *o, const client_session *s);

/* Finds workers for what has none, and is in the ledger. */
void assignment_place(step *c, client_session *s);
/* A session has ended somewhere: who waits for room asks again at once. */
void assignment_room_made(sessions_machine *o);
/* OPEN goes out (again). */
void assignment_open_target(step *c, client_session *s);
void assignment_open_draft(step *c, client_session *s);

/* The target holds another prefix, or another place in it: the next epoch starts from what both hold. */
void assignment_repair(step *c, client_session *s, int32_t length, hash16 hash);
/* It would not have the session: the next epoch at another one, from retry_us on (0: at once). */
void assignment_target_lost(step *c, client_session *s, uint64_t retry_us);
/* It is too small for the session, and always will be: the same at one that has not said so; false: there is
 * none. */
bool assignment_target_unable(step *c, client_session *s);
/* Its target told something of the session: it lives; by TOKENS, which it owes to its engine, that lives too.
 */
void assignment_alive(step *c, client_session *s, bool tokens);
/* It gave no sign of life for s->quiet_us, or none at all: the next epoch at another one. Where there is
 * none, nothing changes. */
bool assignment_leave_hung(step *c, client_session *s);
/* It would not serve this session; another may. */
void assignment_draft_refused(step *c, client_session *s, const char *why);
/* It has not reached the target: another one may, or this one later. */
void assignment_draft_astray(step *c, client_session *s);
/* Its target says that no draft has ever attached: why not, as far as is known here. */
void assignment_explain_unattached(step *c, client_session *s);
/* Of all sessions. */
void assignment_worker_lost(step *c, peer_id id, const char *why);

/* The answer is over for the client; the workers are told. text may be NULL. A cancel is an epoch bump. */
void assignment_finish(step *c, client_session *s, wire_finish finish, int code, const char *text,
                       bool cancel);
void assignment_fail(step *c, client_session *s, int code,
                     const char *text);                   /* finish is error, the workers are stopped */
void assignment_end(step *c, client_session *s, seat *w); /* END goes out, unless it has been answered */
/* Both know: then the session is SESSIONS_FINISHED. */
void assignment_end_if_told(client_session *s);
