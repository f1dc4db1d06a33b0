/* sessions_world.h - a sessions machine with a ledger that watches the order of things, for the tests of
 * the sessions room; the test plays the workers. */
#pragma once

#include "orchestrator/sessions/sessions.h"
#include "tests/support/machine_rig.h"

enum { VOCAB = 97, CONTEXT = 512, OUTPUT = 40 };
enum { TARGET = 2, TARGET2 = 3, TARGET3 = 4, DRAFT = 5, DRAFT2 = 6, STRANGER = 9 };
#define SELF  id_of(100)
#define ID(p) id_of((uint8_t)(p))

static const int32_t PROMPT[] = {1, 2, 3};
enum { PROMPT_LENGTH = 3 };

const int32_t *truth(void);

/* --- a ledger that watches the order of things --- */

typedef struct spy {
  ledger inner;
  const actions *out;
  int32_t appended, epochs;
  int fail;       /* code of the next append */
  int fail_epoch; /* code of the next epoch */
  int32_t held;
  bool taken_over; /* all sessions belong to another process */
} spy;

/* Recorded before the first send of that epoch. */
int spy_epoch(void *self, uint64_t session, uint32_t epoch);

/* Logged before it is acknowledged. */
int spy_append(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count);

/* --- the world --- */

typedef struct world {
  rig r;
  sessions_machine *o;
  spy ledger;
  uint64_t random;
  uint64_t id;   /* of the session that `start` began */
  uint64_t seed; /* its hash seed, as the last OPEN told */
  uint32_t epoch;
  wire_id ticket;      /* of the last OPEN that was read */
  int32_t part_tokens; /* of the next machine; 0: as many as one OPEN carries */
} world;

sessions_machine *open_machine(world *w, bool targets_return);

int set_up(void **state);

int tear_down(void **state);

msg target_hello(peer_id peer);

msg draft_hello(peer_id peer);

void register_workers(world *w, peer_id target, peer_id draft);

sessions_request request(bool draft);

void start_request(world *w, const sessions_request *r);

sessions_view view(world *w);

void expect_state(world *w, sessions_state state);

hash16 true_hash(world *w, int32_t length);

/* Reads the last OPEN to a peer, and checks what holds for each. */
const msg_open *opened(world *w, peer_id peer);

msg worker_state(world *w, msg_type type, int32_t length);

void send_tokens(world *w, peer_id from, int32_t base, int32_t count);

msg done_message(world *w, int32_t length, wire_finish finish);

/* A session that runs at TARGET, with DRAFT if asked for. */
void start_running(world *w, bool draft);

/* Time passes, and these are not silent. */
void pass(world *w, uint64_t us, peer_id a, peer_id b);

void set_load(world *w, peer_id peer, int32_t load);

void finish_by_done(world *w, int32_t length);

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
