/* transport_nodes.h - programs of a test on one event loop: what each of them has heard, and how it
 * answers. */
#pragma once

#include "wire/keys.h"
#include "wire/transport.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/patience.h"
#include "tests/support/scratch.h"

#define WAIT_MS PATIENCE_MS

/* A folder with the keys of all roles. */
void make_keys(const char *folder);

/* The keys of this process's programs. */
const char *test_keys(void);

/* A clock that stands until a test moves it. */
extern _Atomic uint64_t standing_us;

uint64_t standing_clock(void);

/* One program of a test: a transport and what it has heard. */
typedef struct node {
  transport *wire;
  uint64_t heard;
  peer_id last_peer, ended_peer; /* ended_peer: whose connection ended last */
  uint64_t ended;                /* connections of peers */
  msg last;                      /* without its arrays */
  char text[600];                /* of the last ERROR */
  uint64_t sum;                  /* of PING sequences */
  uint64_t unsent;               /* echoes that found no way */
  bool echo;                     /* answers PING with the same */
  bool leave;                    /* disconnects the sender of the first message, in the callback */
  bool close;                    /* closes the whole transport in the callback */
  bool checks_order;             /* sequences must come 0, 1, 2... */
  uint32_t busy_poll_us;
  clock_source clock;
  const char *keys; /* NULL: test_keys */
  wire_role role;   /* whose key it has; 0: a draft's if its name is 2, else an orchestrator's */
} node;

void node_on_message(void *context, peer_id from, const msg *m);

void node_open(node *n, uv_loop_t *loop, uint8_t name, bool allow_plaintext);

msg ping_of(uint64_t sequence);

msg hello_of(void);

/* Runs the loop until *value >= wanted. It sleeps between events, so a lost wake-up shows as a failure here.
 */
bool run_until(uv_loop_t *loop, const uint64_t *value, uint64_t wanted, uint64_t ms);

void finish_loop(uv_loop_t *loop);

/* A pair: `server` bound, `client` connected and known to it. Returns the client's peer id of the server. */
peer_id pair_open(uv_loop_t *loop, node *server, node *client, const char *endpoint);

void pair_close(uv_loop_t *loop, node *server, node *client);

void temp_endpoint(char *out, size_t size, const char *name);
