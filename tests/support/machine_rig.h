/* machine_rig.h - drives one role's state machine by hand: events in, the messages it would send out, a
 * clock that only the test moves. What it sends piles up until rig_clear. */
#pragma once

#include "wire/machine.h"
#include "wire/roster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RIG_START     1000000 /* a clock of 0 could hide a time that was never set */
#define RIG_TICKS_MAX 20000   /* in one rig_advance: more is a machine that spins */
#define RIG_STUCK_MAX 2000    /* ticks without the clock moving */
#define RIG_ANY       0       /* any peer */

typedef struct rig {
  machine m;
  actions out;
  uint64_t now;
  uint64_t ticks;
  void (*after)(void *context); /* after every step of rig_advance; may be NULL */
  void *context;
} rig;

void rig_init(rig *r, machine m);

void rig_fini(rig *r);

void rig_clear(rig *r);

void rig_event(rig *r, event_kind kind, peer_id peer, uint64_t tag, const msg *m, const void *result);

void rig_say(rig *r, peer_id from, msg m);
void rig_connected(rig *r, uint64_t tag, peer_id peer);

/* Moves the clock on by `us`, giving every tick that the machine asks for on the way. */
void rig_advance(rig *r, uint64_t us);

/* --- what went out since rig_clear --- */

int32_t rig_count(const rig *r, peer_id to, msg_type type);

/* Every message to a peer, of whatever type. */
int32_t rig_count_all(const rig *r, peer_id to);

/* The n-th (from 0) of that type to that peer, or NULL. */
const msg *rig_peek(const rig *r, peer_id to, msg_type type, int32_t n);

const msg *rig_last(const rig *r, peer_id to, msg_type type);

/* There must be exactly one. */
const msg *rig_only(const rig *r, peer_id to, msg_type type);

void rig_expect_error(const rig *r, peer_id to, int code);

const action *rig_connect_asked(const rig *r);

/* Lines of the log with this part. */
int32_t rig_logged(const rig *r, const char *part);

/* The place of the first one among all actions; -1: there is none. */
int32_t rig_place(const rig *r, peer_id to, msg_type type);

/* --- messages --- */

wire_id id_of(uint8_t n);

msg message(msg_type type, wire_id to, uint64_t id, uint32_t epoch);

msg hello_message(msg_type type, wire_role role, wire_id incarnation);

msg ping_message(msg_type type, wire_id to, uint64_t sequence, uint64_t time_us, int32_t load);

msg error_message(wire_id to, uint64_t id, uint32_t epoch, int code);

/* OPENED, ACK, DESYNC, ATTACH, ATTACHED, DETACH */
msg state_message(msg_type type, wire_id to, uint64_t id, uint32_t epoch, int32_t length, hash16 hash);

msg tokens_message(wire_id to, uint64_t id, uint32_t epoch, int32_t base, const int32_t *tokens,
                   int32_t count, hash16 hash);

msg resend_message(wire_id to, uint64_t id, uint32_t epoch, int32_t from);

hash16 hash_of(uint64_t seed, const int32_t *tokens, int32_t count);

bool text_has(wire_string s, const char *part);

bool text_is(wire_string s, const char *all);
