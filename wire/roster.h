/* roster.h - who is at the other end of each connection: the handshake and liveness, alike for every role. Pure. */
#pragma once

#include "common/base/err.h"
#include "common/spec/prefix.h"
#include "wire/actions.h"

#define ROSTER_MAX 128
#define ROSTER_HELLO_US 500000 /* HELLO is repeated until WELCOME */
#define ROSTER_PING_US 500000
#define ROSTER_LOST_US 3000000 /* silent for so long: lost */

typedef struct roster_peer {
  peer_id id;     /* 0: free place */
  bool greeted;   /* we know who it is: HELLO or WELCOME came */
  bool calls;     /* we connected to it: HELLO is ours to repeat */
  bool lost;      /* silent for ROSTER_LOST_US; false again with its next frame */
  bool leaving;   /* BYE came: nothing new goes there */
  msg_hello hello;
  char numerics[WIRE_STRING_MAX + 1], endpoint[WIRE_STRING_MAX + 1], method[WIRE_STRING_MAX + 1];
  uint64_t heard_us, hello_us, ping_us, ping_sequence, round_trip_us;
  int32_t load;
} roster_peer;

typedef struct roster {
  roster_peer list[ROSTER_MAX];
  int32_t top;    /* places [top, ROSTER_MAX) have never been used */
  msg_hello self; /* borrowed strings */
} roster;

void roster_init(roster *r, const msg_hello *self);
roster_peer *roster_find(roster *r, peer_id id); /* NULL: unknown */

/* A connection that we asked for is there: HELLO goes out. NULL: the table is full (logged). */
roster_peer *roster_connected(roster *r, peer_id id, uint64_t now_us, actions *out);
void roster_drop(roster *r, peer_id id);

typedef enum {
  ROSTER_PASS,    /* a frame for the role's own logic; *from is greeted */
  ROSTER_GREETED, /* HELLO or WELCOME: *from is new, or has a new incarnation */
  ROSTER_LEAVES,  /* BYE */
  ROSTER_REFUSED, /* our HELLO was answered with ERROR: the message tells why */
  ROSTER_HANDLED  /* answered or dropped here */
} roster_verdict;

/* First stop of every received message: handshake, PING and PONG, frames for another incarnation. */
roster_verdict roster_receive(roster *r, peer_id id, const msg *m, int32_t load, uint64_t now_us,
                              roster_peer **from, actions *out);

/* Repeats HELLO, pings, marks silent ones as lost and returns one that was just lost, or NULL: call again until
 * NULL. */
roster_peer *roster_tick(roster *r, uint64_t now_us, actions *out);
uint64_t roster_deadline(const roster *r);

/* BYE to everybody. */
void roster_bye(const roster *r, actions *out);

/* A frame about a session (0: none), addressed to the peer's incarnation where that is known. */
msg roster_message(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch);
/* The same with what is held of the session (NULL: nothing): OPENED, ACK, DESYNC, ATTACH, ATTACHED, DETACH. `reason`,
 * which may be NULL, is borrowed. */
msg roster_state(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch, const prefix *held,
                 const char *reason);
void roster_error(roster *r, peer_id to, uint64_t session, uint32_t epoch, int code, actions *out,
                  const char *format, ...) __attribute__((format(printf, 7, 8)));
/* The answer to `m` is ERROR. */
void roster_refuse(roster *r, peer_id from, const msg *m, int code, const char *text, actions *out);

wire_string wire_text(const char *s); /* of a NUL-terminated string; NULL gives the empty one */
bool wire_id_equal(wire_id a, wire_id b);
