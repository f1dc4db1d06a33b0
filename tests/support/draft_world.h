/* draft_world.h - a draft worker that is driven by hand, with an orchestrator and a target that the test
 * plays, and a drafter that is right, with a wrong sibling beside each node; or a model whose batches the
 * test computes. */
#pragma once

#include "draft_worker/attachment.h"
#include "draft_worker/draft_session.h"
#include "draft_worker/target_links.h"
#include "draft_worker/drafters/immediate.h"
#include "draft_worker/drafters/model_drafter.h"
#include "draft_worker/worker.h"
#include "common/speculative/tree.h"
#include "tests/support/machine_rig.h"

#define GOAL (DRAFTER_AHEAD_MAX * BUDGET + 1) /* live nodes in free pace */
enum { VOCAB = 97, CONTEXT = 512 };
enum { ORCH = 1, TARGET = 2, TARGET2 = 3 };
enum { S = 77, SEED = 9, BUDGET = 4 };
#define SELF     id_of(100)
#define ID(p)    id_of((uint8_t)(p))
#define TICKET   id_of(200)
#define ENDPOINT "tcp://127.0.0.1:4000"
#define SETTLE   5000 /* microseconds in which it has grown what it wants */

int32_t next_of(int32_t token);

/* --- a drafter that is right, with a wrong sibling beside each node --- */

typedef struct fake { /* shared */
  int32_t opened, closed, advanced, asked;
  int32_t candidates; /* how many it has for a path: 0 to 3, the third is outside any vocabulary */
  float score;        /* of the first */
  bool no_memory;
} fake;

struct immediate_session {
  fake *f;
  int32_t last, length;
};

/* --- the world --- */

typedef struct seen { /* one node that went out */
  uint64_t parent;
  int32_t token, base;
  float total; /* of its path */
  uint32_t generation;
} seen;

typedef struct world {
  rig r;
  draft *d;
  drafter drafter;
  drafter beside;    /* a second one, or none */
  drafter_kind kind; /* its own copy */
  fake f;
  seen nodes[1 << 16]; /* [id], of this generation */
  uint64_t next_id;
  uint32_t generation;
  bool done;
  int32_t base;
} world;

/* wants: the features that the drafter reads by `features`; NULL: none. */
int set_up_wanting(void **state, const drafter_wants *wants,
                   void (*features)(void *self, int32_t slot, const drafter_features *f));

int set_up(void **state);

int tear_down(void **state);

static const int32_t PROMPT[] = {1, 2, 3};
enum { PROMPT_LENGTH = 3 };

const int32_t *truth(void);

hash16 true_hash(int32_t length);

msg open_message(uint64_t id, uint32_t epoch, const int32_t *tokens, int32_t count);

msg prompt_message(void);

msg delta(uint32_t epoch, int32_t base, int32_t count);

msg welcome_message(peer_id target);

msg attached_message(uint32_t epoch, int32_t length, uint32_t generation);

/* OPEN, and the way to its target. ATTACH is out afterwards. */
void open_and_greet(world *w, msg m);

/* Takes up all NODES since rig_clear, as a target would, and checks their ids. */
void gather(world *w);

void settle(world *w);

/* Attached, with its tree grown. */
void attach(world *w, bool lockstep);

void tell_tokens(world *w, int32_t base, int32_t count);

/* Time passes, and nobody is silent. */
void pass(world *w, uint64_t us, bool orchestrator, bool target);

/* It has given up: nothing more comes from it until OPEN. */
void expect_lost(world *w);

void expect_out_of_step(world *w, int32_t length);

/* --- a drafter that computes batches --- */

enum { CACHES = 2, ROWS = 3 };

int set_up_model(void **state);

/* A model, and the drafter that is right. */
int set_up_two(void **state);

/* Right first, wrong second, after each place's last token. */
draft_results results_of(const draft_batch *b, int32_t last);

void give(world *w, const draft_results *r);

/* Answers whatever is asked until nothing is; returns how many batches there were. */
int32_t compute_all(world *w, int32_t last);

void attach_model(world *w, bool lockstep);

#define CASE(f)       cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#define MODEL_CASE(f) cmocka_unit_test_setup_teardown(f, set_up_model, tear_down)
#define TWO_CASE(f)   cmocka_unit_test_setup_teardown(f, set_up_two, tear_down)
