/* target_world.h - a target under test: its state machine, an engine that plays a toy model, an
 * orchestrator and two drafts, driven by hand (machine_rig.h). */
#pragma once

#include "target_worker/scheduler.h"
#include "target_worker/token_stream.h"
#include "target_worker/worker.h"
#include "tests/support/machine_rig.h"

/* The model of these tests: the next token is a function of the last one. Every token is below VOCAB. */
enum { VOCAB = 97, CONTEXT = 4096, SLOTS = 3 };
enum { ORCH = 1, DRAFT = 2, DRAFT2 = 3, ORCH2 = 4, STRANGER = 50 };
enum { S = 77, SEED = 9, JOB_US = 1000, LONG_US = 20000 /* nobody waits so long for a draft here */ };
#define SELF   id_of(100)
#define ID(p)  id_of((uint8_t)(p))
#define TICKET id_of(200)

int32_t next_of(int32_t token);

/* A token that does not follow `token`. */
int32_t wrong_of(int32_t token);

/* Of the model, for drafts that read features: eight taps in f32 are the widest row. */
enum { TAP_LAYERS = 9, TAP_EMBED = 8192 };

/* Blocks of the cache that the tests run over; 0: a static cache. */
extern int32_t virtual_blocks;
enum { EACH = CONTEXT / KV_BLOCK, BLOCKS = SLOTS * EACH };

typedef struct world {
  rig r;
  target *t;
  engine_batch batch;                                          /* the last one */
  ranking_token logprobs[ENGINE_ROWS_MAX * WIRE_LOGPROBS_MAX]; /* of the last result that has some */
  engine_job job;                                              /* its first */
  int32_t rows[SLOTS][CONTEXT];                                /* the cache, as an engine would keep it */
  int32_t length[SLOTS];
  int32_t pool[BLOCKS][KV_BLOCK], map[SLOTS][EACH], map_count[SLOTS]; /* virtual: where the rows lie */
  int fail;                                                           /* code of the next result */
  bool differs;            /* the next selfcheck finds a difference */
  uint64_t forward_us;     /* of the next forward, 0: JOB_US */
  uint64_t layers;         /* that the engine has computed, as engine_watch sees it */
  bool holds;              /* a job is at the engine */
  int32_t jobs, node_rows; /* VERIFY jobs, nodes in them */
  int32_t tapped;          /* rows whose states were wanted */
  bool prepares;           /* its device does in each forward what others find done */
  bool untapped;           /* the engine cannot give the states of the next result */
  uint8_t *features[SLOTS];
  float *states[SLOTS]; /* of a row to be fused: its token, everywhere */
  int32_t fused;        /* rows to which fc was applied */
} world;

/* The features of a token in this test: value i of its row. */
float feature_of(int32_t token, int32_t i);

int32_t child_of(const engine_job *j, int32_t row, int32_t token);

void verify(world *w, const engine_job *j, engine_result *out);

session *held(world *w, uint64_t id);

/* Checks what every job must be: the cache holds rows of C up to the job's start, and n tokens have n-1 rows.
 */
void check_job(world *w, const engine_job *j);

bool ask_job(world *w);

/* The job at the engine, or the next one. */
bool take_job(world *w);

void give_result(world *w);

bool run_job(world *w);

/* Runs forwards until `count` are done or nothing may run now; returns how many. */
int32_t play(world *w, int32_t count);

/* The same, but before each forward a wait for a draft passes in vain. */
void play_slowly(world *w, int32_t count);

int set_up(void **state);
int set_up_one(void **state);

int tear_down(void **state);

/* Time passes, and nobody is silent. */
void pass(world *w, uint64_t us, bool with_drafts);

static const int32_t PROMPT[] = {1, 2, 3};
enum { PROMPT_LENGTH = 3 };

msg open_message(uint64_t id, uint32_t epoch, const int32_t *tokens, int32_t count);

msg prompt_message(void);

void say_and_open(world *w, msg m);

/* C of a session as it will become: the prompt and the model's tokens. */
const int32_t *truth(void);

hash16 true_hash(int32_t length);

msg ack(uint32_t epoch, int32_t length);

void expect_tokens(const msg *m, int32_t base, int32_t length);

msg attach_message(uint32_t epoch, wire_id ticket);

/* Attaches a draft and returns its generation. */
uint32_t attach(world *w, peer_id peer);

typedef struct guess {
  uint64_t parent;
  int32_t token;
  float score;
} guess;

typedef struct batch { /* memory of one NODES */
  uint64_t parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
} batch;

msg nodes_message(batch *b, uint32_t epoch, uint32_t generation, int32_t base, uint64_t first,
                  const guess *list, int32_t count, bool done);

void send_nodes(world *w, peer_id from, uint32_t generation, int32_t base, uint64_t first, const guess *list,
                int32_t count, bool done);

/* Sends a chain of `count` right nodes below C at `base`, with ids from `first`. */
void send_chain(world *w, peer_id from, uint32_t generation, int32_t base, uint64_t first, int32_t count,
                bool done);

/* A second orchestrator, which the target has called as well. */
void greet_another_orchestrator_of(world *w, uint32_t version);

void greet_another_orchestrator(world *w);

/* Opens a session and attaches one draft; returns its generation. */
uint32_t open_with_draft(world *w, bool lockstep);

/* Its draft has been right often enough for any number of nodes, and rows cost nothing. */
void believe(world *w);

void prefill(world *w);

msg delta(uint32_t epoch, int32_t base, const int32_t *tokens, int32_t count);

/* PART of C: its tokens [base, end), of so many in all. */
msg part_message(uint32_t epoch, int32_t base, int32_t end, int32_t total);

msg other_prompt(uint64_t id);

/* Runs `rounds` verify steps of two right nodes each; returns how many of the jobs were selfchecks. */
int32_t rounds_with_nodes(world *w, uint32_t g, uint64_t *id, int32_t rounds);

bool begins(wire_string s, const char *text);

/* A virtual cache of few blocks, over whatever cache the tests run. */
int set_up_few_blocks(void **state);

/* The target has partial KV, from the second token on. */
int set_up_partial(void **state);

#define PARTIAL(f)    cmocka_unit_test_setup_teardown(f, set_up_partial, tear_down)
#define FEW_BLOCKS(f) cmocka_unit_test_setup_teardown(f, set_up_few_blocks, tear_down)
#define CASE(f)       cmocka_unit_test_setup_teardown(f, set_up, tear_down)

/* Runs a program's tests over a static cache and over a virtual one; returns how many failed. */
int run_over_both_caches(const struct CMUnitTest *tests, size_t count);
