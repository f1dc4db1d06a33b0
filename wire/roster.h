/* roster.h - who is at the other end of each connection: the handshake and liveness, alike for every role.
 * Pure. */
#pragma once

#include "common/base/err.h"
#include "common/base/log_limit.h"
#include "common/speculative/prefix.h"
#include "wire/actions.h"

#define ROSTER_MAX 128
#define ROSTER_DRAFTS_MAX                                                                                    \
  96 /* of them, that call us: however many drafts there are, a target finds a place */
#define ROSTER_HELLO_US 500000 /* HELLO is repeated until WELCOME */
#define ROSTER_PING_US  500000
#define ROSTER_LOST_US  3000000 /* silent for so long: lost */
#define ROSTER_RIVAL_US 400000  /* who does not answer within this, when another claims its place, is dead */

typedef struct roster_peer {
  peer_id id;   /* 0: free place */
  bool greeted; /* we know who it is: HELLO or WELCOME came */
  bool calls;   /* we connected to it: HELLO is ours to repeat */
  bool lost;    /* silent for ROSTER_LOST_US; false again with its next frame */
  bool leaving; /* BYE came: nothing new goes there */
  msg_hello hello;
  char numerics[WIRE_STRING_MAX + 1], endpoint[WIRE_STRING_MAX + 1], method[WIRE_STRING_MAX + 1],
      device[WIRE_STRING_MAX + 1];
  uint64_t received_us, hello_us, ping_us, ping_sequence, round_trip_us;
  uint64_t asked_us; /* another claimed its place, and a PING asked whether it lives; 0: never */
  int32_t load;
  int32_t told_code; /* why the other side does not take us, as the log knows; 0: it has not refused */
  log_limit log;
} roster_peer;

#define ROSTER_TOLD_MAX                                                                                      \
  32 /* refusals that are remembered, so that one repeated every 500 ms is logged once */
typedef struct roster_refusal {
  wire_id incarnation;
  int code;
} roster_refusal;

typedef struct roster {
  roster_peer list[ROSTER_MAX];
  int32_t top;         /* places [top, ROSTER_MAX) have never been used */
  msg_hello self;      /* borrowed strings */
  uint64_t stepped_us; /* the last step */
  log_limit log;       /* of all peers together */
  roster_refusal told[ROSTER_TOLD_MAX];
  int32_t told_next; /* the oldest of them */
} roster;

void roster_init(roster *r, const msg_hello *self);
roster_peer *roster_find(roster *r, peer_id id); /* NULL: unknown */
/* Does this peer compute on the device of the host that we compute on (msg_colocated)? False for one that has
 * not greeted yet. */
bool roster_colocated(roster *r, peer_id id);

/* A connection that we asked for is there: HELLO goes out. NULL: the table is full (logged). */
roster_peer *roster_connected(roster *r, peer_id id, uint64_t now_us, actions *out);
void roster_drop(roster *r, peer_id id);

typedef enum {
  ROSTER_PASS,    /* a frame for the role's own logic; *from is greeted */
  ROSTER_GREETED, /* HELLO or WELCOME: *from is new, or has a new incarnation */
  ROSTER_LEAVES,  /* BYE */
  ROSTER_FORGED,  /* *from wanted to be of another role: refused, and nothing new goes there */
  ROSTER_REFUSED, /* our HELLO was answered with ERROR: the message tells why */
  ROSTER_HANDLED  /* answered or dropped here */
} roster_verdict;

/* First stop of every received message: handshake, PING and PONG, frames for another incarnation. */
roster_verdict roster_receive(roster *r, peer_id id, const msg *m, int32_t load, uint64_t now_us,
                              roster_peer **from, actions *out);

/* Repeats HELLO, pings, marks silent ones as lost and returns one that was just lost, or NULL: call again
 * until NULL. */
roster_peer *roster_tick(roster *r, uint64_t now_us, actions *out);
uint64_t roster_deadline(const roster *r);

/* BYE to everybody. */
void roster_bye(const roster *r, actions *out);

/* A frame about a session (0: none), addressed to the peer's incarnation where that is known. */
msg roster_message(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch);
/* The same with what is held of the session (NULL: nothing): OPENED, ACK, DESYNC, ATTACH, ATTACHED, DETACH.
 * `reason`, which may be NULL, is borrowed. */
msg roster_state(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch, const prefix *held,
                 const char *reason);
void roster_error(roster *r, peer_id to, uint64_t session, uint32_t epoch, int code, actions *out,
                  const char *format, ...) __attribute__((format(printf, 7, 8)));
/* The answer to `m` is ERROR. */
void roster_refuse(roster *r, peer_id from, const msg *m, int code, const char *text, actions *out);

/* A line of the log that a peer (0, or unknown: a stranger) has caused: only so many of each, and of all
 * together, go out. False: this one was left out, and is counted. */
bool roster_log(roster *r, peer_id cause, uint64_t now_us, int level, actions *out, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

#define WIRE_BRIEF_MAX 240
typedef struct wire_brief { /* a peer's words for a line of the log: not long, and of printable ASCII */
  char text[WIRE_BRIEF_MAX + 1];
} wire_brief;
wire_brief wire_brief_of(wire_string s);

/* Does a HELLO name the place of this peer: its role and address, or its incarnation? */
bool roster_claims_identity(const msg_hello *h, const roster_peer *q);

wire_string wire_text(const char *s); /* of a NUL-terminated string; NULL gives the empty one */
bool wire_id_equal(wire_id a, wire_id b);
