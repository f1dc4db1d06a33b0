/* roster.h - knows who is at the other end of each connection: the handshake and liveness, which are the same
 * for every role. Pure. */
#pragma once

#include "common/base/limit.h"
#include "common/base/err.h"
#include "common/base/log_limit.h"
#include "common/speculative/prefix.h"
#include "wire/actions.h"

#define ROSTER_MAX LIMIT(128, 6)
/* Of these, drafts that connect to us: however many there are, an entry is left for a target */
#define ROSTER_DRAFTS_MAX LIMIT(96, 3)
#define ROSTER_HELLO_US   500000 /* HELLO is repeated until WELCOME */
#define ROSTER_PING_US    500000
#define ROSTER_LOST_US    3000000 /* silent for so long: lost */
#define ROSTER_STALL_US   1000000 /* no step for so long, though PINGs were due: this program stood still */
/* A peer in doubt, because its connection has ended or another one claims its identity, is dead if it is not
 * heard within this time */
#define ROSTER_DOUBT_US 400000
/* and one whose connection has ended is asked so often: it may have connected again */
#define ROSTER_ASK_US 100000

typedef struct roster_peer {
  peer_id id;   /* 0: the entry is free */
  bool greeted; /* we know who it is: HELLO or WELCOME came */
  bool calls;   /* we connected to it: HELLO is ours to repeat */
  bool lost; /* silent for ROSTER_LOST_US, or in doubt for ROSTER_DOUBT_US; false again with its next frame */
  bool leaving; /* BYE came: nothing new goes there */
  msg_hello hello;
  char numerics[WIRE_STRING_MAX + 1], endpoint[WIRE_STRING_MAX + 1], method[WIRE_STRING_MAX + 1],
      device[WIRE_STRING_MAX + 1];
  uint64_t received_us, hello_us, ping_us, ping_sequence;
  /* When a PING asked whether it lives, because another peer claimed its identity; 0: never */
  uint64_t checked_us;
  uint64_t ended_us; /* when its connection ended; 0: it was heard since, or it never did */
  int32_t load;
  /* ERR_ of the refusal by the other side that was logged last; 0: it has not refused us */
  int32_t refused_code;
  log_limit log;
} roster_peer;

/* Refusals that are remembered, so that one repeated every 500 ms is logged once */
#define ROSTER_REFUSALS_MAX LIMIT(32, 2)
typedef struct roster_refusal {
  wire_id incarnation;
  int code;
} roster_refusal;

typedef struct roster {
  roster_peer list[ROSTER_MAX];
  int32_t top;         /* entries [top, ROSTER_MAX) have never been used */
  msg_hello self;      /* borrowed strings */
  uint64_t stepped_us; /* the last step */
  uint64_t stalled_us; /* when this program went on after it had stood still for ROSTER_STALL_US; 0: never */
  log_limit log;       /* of all peers together */
  roster_refusal refusals[ROSTER_REFUSALS_MAX];
  int32_t refusal_next; /* the oldest of them */
} roster;

void roster_init(roster *r, const msg_hello *self);
roster_peer *roster_find(roster *r, peer_id id); /* NULL: unknown */
/* Does this peer compute on the device of the host that we compute on (msg_colocated)? False for one that has
 * not greeted yet. */
bool roster_colocated(roster *r, peer_id id);
bool roster_beside(roster *r, peer_id id); /* the same of msg_beside */

/* The version of the protocol that is spoken with this peer; 0: it has not greeted yet. */
uint32_t roster_version(roster *r, peer_id id);

/* A connection that we asked for stands: sends HELLO. NULL: the table is full, which is logged. */
roster_peer *roster_connected(roster *r, peer_id id, uint64_t now_us, actions *out);
void roster_drop(roster *r, peer_id id);

typedef enum {
  ROSTER_PASS,    /* a frame for the role's own logic; *from is greeted */
  ROSTER_GREETED, /* HELLO or WELCOME: *from is new, or has a new incarnation */
  ROSTER_LEAVES,  /* BYE */
  ROSTER_FORGED,  /* *from wanted to be of another role: refused, and nothing new goes there */
  ROSTER_REFUSED, /* our HELLO was answered with ERROR, or by a WELCOME that does not fit: roster_why_refused
                   */
  ROSTER_HANDLED  /* answered or dropped here */
} roster_verdict;

/* Gets every received message first. It handles the handshake, PING and PONG, and frames for another
 * incarnation. */
roster_verdict roster_receive(roster *r, peer_id id, const msg *m, int32_t load, uint64_t now_us,
                              roster_peer **from, actions *out);

/* Why we were refused, from the message with which roster_receive has said so. */
wire_brief roster_why_refused(const msg *m);

/* The connection of this peer has ended, which is no proof that the program has: it is asked whether it
 * lives, and roster_tick returns it if it does not answer soon. */
void roster_disconnected(roster *r, peer_id id, uint64_t now_us, actions *out);

/* Repeats HELLO, sends PING and marks silent peers as lost. Returns a peer that was just lost, or NULL; call
 * it again until it returns NULL. */
roster_peer *roster_tick(roster *r, uint64_t now_us, actions *out);
/* Why a peer that roster_tick has returned is lost, after "the draft worker ". */
const char *roster_lost_why(const roster_peer *lost);
uint64_t roster_deadline(const roster *r);
/* Has this program stood still at some time since then (a stopped process, a paused machine)? Then what was
 * measured since then says nothing about others. */
bool roster_stalled_since(const roster *r, uint64_t since_us, uint64_t now_us);

/* Sends BYE to every peer. */
void roster_bye(const roster *r, actions *out);

/* Makes a frame about a session (0: none), addressed to the peer's incarnation if that is known. */
msg roster_message(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch);
/* The same for OPENED, ACK, DESYNC, ATTACH, ATTACHED and DETACH, with the length and hash of `held` (NULL:
 * nothing is held of the session). `reason`, which may be NULL, is borrowed. */
msg roster_state(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch, const prefix *held,
                 const char *reason);
void roster_error(roster *r, peer_id to, uint64_t session, uint32_t epoch, int code, actions *out,
                  const char *format, ...) __attribute__((format(printf, 7, 8)));
/* Answers `m` with ERROR. */
void roster_refuse(roster *r, peer_id from, const msg *m, int code, const char *text, actions *out);

/* Logs a line that a peer has caused (0 or an unknown id: a stranger). The number of lines is limited for
 * each peer and for all together. False: this line was left out and counted. */
bool roster_log(roster *r, peer_id cause, uint64_t now_us, int level, actions *out, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* Does a HELLO claim to be this peer, by its role and address or by its incarnation? */
bool roster_claims_identity(const msg_hello *h, const roster_peer *q);
