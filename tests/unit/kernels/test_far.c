/* libs: kernels */
/* The far device catches what it is for: host code that leans on memory, on time or on arrays that a remote
 * device does not share. */
#include "kernels/far/far.h"
#include "tests/support/fake_device.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { COLUMNS = 32, ROWS = 4, HEAD_DIM = 8, QUERY_HEADS = 4, KV_HEADS = 2 };

typedef struct fixture {
  bool closed;
  fake_device *inner;
  device *d;
  device_memory *m;
  device_weight w, query, key, head;
  device_vector norm;
  device_act *x, *y, *z, *q, *k, *v, *mass; /* y is an input */
  device_kv *kv;
} fixture;

#define CALL(f, name, ...) (f)->d->table->name((f)->d, ##__VA_ARGS__)

static device_weight weight(fixture *f, int32_t rows) {
  return (device_weight){.type = OPS_F32, .rows = rows, .columns = COLUMNS, .memory = f->m};
}

static fixture *open_far(void) {
  fixture *f = calloc(1, sizeof *f);
  device *inner = fake_open(&f->closed);
  err e = {0};
  f->inner = fake_of(inner);
  if (far_open(&f->d, inner, &e) != ERR_OK) fail_msg("%s", e.text);
  return f;
}

static void open_things(fixture *f) {
  f->m = CALL(f, take, MEM_WEIGHTS, 65536);
  f->w = weight(f, COLUMNS), f->head = weight(f, FAKE_VOCABULARY);
  f->query = weight(f, QUERY_HEADS * HEAD_DIM), f->key = weight(f, KV_HEADS * HEAD_DIM);
  f->norm = (device_vector){f->m, 64};
  f->x = CALL(f, act, ROWS, COLUMNS, false);
  f->y = CALL(f, act, ROWS, COLUMNS, true);
  f->z = CALL(f, act, ROWS, COLUMNS, true);
  f->q = CALL(f, act, ROWS, QUERY_HEADS * HEAD_DIM, false);
  f->k = CALL(f, act, ROWS, KV_HEADS * HEAD_DIM, false);
  f->v = CALL(f, act, ROWS, KV_HEADS * HEAD_DIM, false);
  f->mass = CALL(f, act, ROWS, 64 / OPS_TILE, false);
  ops_kv_shape s = {.layers = 2,
                    .kv_heads = KV_HEADS,
                    .head_dim = HEAD_DIM,
                    .blocks = 8,
                    .sequences = 2,
                    .context = 64,
                    .stage = 16};
  f->kv = CALL(f, kv_open, &s);
  assert_true(f->m && f->x && f->kv);
}

static int open_fixture(void **state) {
  fixture *f = open_far();
  open_things(f);
  *state = f;
  return 0;
}

static int close_fixture(void **state) {
  fixture *f = *state;
  device_act *acts[] = {f->x, f->y, f->z, f->q, f->k, f->v, f->mass};
  for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) CALL(f, act_drop, acts[i]);
  CALL(f, kv_close, f->kv);
  CALL(f, drop, f->m);
  CALL(f, close);
  assert_true(f->closed);
  free(f);
  return 0;
}

/* --- a forward of two rows: a staged root and its child; the root's logits, the child's best and its token
 * --- */

typedef struct rows {
  ops_row rows[2];
  int32_t paths[3], first[3], heads[3], tokens[3], captured[1];
  ops_span spans[2];
  ops_ranking rankings[1];
  ops_sampling choices[1];
} rows;

static const rows ROWS_OF_TEST = {
    .rows = {{.token = 11, .position = 4, .length = 4, .path_at = 0, .path_count = 1},
             {.token = 12, .position = 5, .length = 4, .path_at = 1, .path_count = 2}},
    .paths = {3, 3, 9},
    .first = {0, 1, 2},
    .heads = {0, 1, 1},
    .tokens = {31, 32, 33},
    .captured = {1},
    .spans = {{0, 5}, {0, 6}},
    .rankings = {{.options = {.top_p = 1, .repeat_penalty = 1},
                  .position = 78,
                  .count = 2,
                  .history = {{1, 2}},
                  .own = {3, 2}}},
    .choices = {{.seed = 77}},
};

static ops_batch batch_of(const rows *r) {
  return (ops_batch){.rows = r->rows,
                     .row_count = 2,
                     .paths = r->paths,
                     .path_length = 3,
                     .views = {{r->first, r->spans}},
                     .view_count = 1,
                     .head_rows = r->heads,
                     .head_count = 3,
                     .logit_count = 1,
                     .rank_count = 1,
                     .rankings = r->rankings,
                     .tokens = r->tokens,
                     .token_count = 3,
                     .choices = r->choices,
                     .capture_rows = r->captured,
                     .capture_count = 1,
                     .weigh_count = 1};
}

static void prepare(fixture *f) {
  int32_t blocks[] = {5, 2};
  assert_true(CALL(f, kv_stage, f->kv));
  CALL(f, kv_map, f->kv, 0, blocks, 2);
}

static void queue_ops(fixture *f) {
  device_linear jobs[] = {{.w = f->query, .y = f->q}, {.w = f->key, .y = f->k, .bias = f->norm}};
  CALL(f, embed, &f->w, f->x);
  CALL(f, norm, f->x, false, f->norm, 0.5f, f->y);
  CALL(f, linear, jobs, 2, f->y);
  memset(jobs, 0, sizeof jobs);
  CALL(f, rope, &(device_rope){.frequency = f->norm, .dim = HEAD_DIM});
  CALL(f, rope_store, 1, &(device_rotary){.q_norm = f->norm}, f->q, f->k, f->v);
  CALL(f, mass, 1, f->q, true, f->mass);
  CALL(f, bound, 0, OPS_WEIGH_BOUND_MEAN, f->q, false, f->mass);
  CALL(f, attention, 1, 0, f->q, f->z);
  CALL(f, linear_swiglu, &f->w, &f->w, f->y, f->x);
  CALL(f, norm, f->x, true, f->norm, 0.25f, f->y);
  CALL(f, head, &f->head, f->y);
  CALL(f, rank, (device_ids){.memory = f->m, .count = 9, .outputs = 7, .common = 3});
  CALL(f, end);
}

/* The caller's arrays are gone when the ops are queued. */
static void queue_forward(fixture *f) {
  rows r = ROWS_OF_TEST;
  ops_batch b = batch_of(&r);
  assert_true(CALL(f, begin, f->kv, &b));
  memset(&r, 0, sizeof r);
  memset(&b, 0, sizeof b);
  queue_ops(f);
}

static ops_answer forward(fixture *f) {
  ops_answer a;
  queue_forward(f);
  assert_int_equal(CALL(f, wait, &a), OPS_OK);
  return a;
}

/* --- the signal that ends a child which calls body; 0: none --- */

typedef void child_body(fixture *f, void *p);

static int signal_of(child_body *body, fixture *f, void *p) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL); /* neither cmocka's handler nor a sanitizer's */
    signal(SIGBUS, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
    if (!freopen("/dev/null", "w", stderr)) _exit(1);
    body(f, p);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void touch_byte(fixture *f, void *p) {
  (void)f;
  *(volatile char *)p;
}

static bool crashes(const void *p) {
  return signal_of(touch_byte, NULL, (void *)(uintptr_t)p) == SIGSEGV;
}

static void reading_what_is_on_the_device_crashes(void **state) {
  fixture *f = *state;
  const void *addresses[] = {f->m, (char *)f->m + 65535, f->x, f->y, f->kv};
  assert_false(crashes(f));
  for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) assert_true(crashes(addresses[i]));
}

static void the_inner_device_says_what_was_prepared(void **state) {
  fixture *f = *state;
  prepare(f);
  f->inner->prepared = true;
  assert_true(forward(f).prepared);
  f->inner->prepared = false;
  assert_false(forward(f).prepared);
}

static void nothing_happens_before_wait(void **state) {
  fixture *f = *state;
  int32_t path[] = {3, 9};
  prepare(f);
  queue_forward(f);
  assert_string_equal(f->inner->log, "stage ");
  assert_int_equal(f->d->counters.forwards, 0);
  assert_int_equal(CALL(f, wait, NULL), OPS_OK);
  assert_int_equal(f->d->counters.forwards, 1);
  CALL(f, kv_commit, f->kv, 0, path, 2, 4);
  memset(path, 0, sizeof path);
  queue_forward(f);
  assert_null(strstr(f->inner->log, "commit"));
  assert_int_equal(CALL(f, wait, NULL), OPS_OK);
#define OPS                                                                                                  \
  "begin:11:2 embed:32 norm:0:0.5 linear:32:0 16:0 rope:8 store:1 mass:1:1 bound:0:2:0 attention:1:0 "       \
  "swiglu:32 "                                                                                               \
  "norm:1:0.25 "                                                                                             \
  "head:5 rank:7 end wait "
  assert_string_equal(f->inner->log, "stage map:0:5,2 " OPS "commit:0:3,9:4 " OPS);
}

static void a_read_comes_after_what_was_queued_before(void **state) {
  fixture *f = *state;
  float row[COLUMNS];
  prepare(f);
  assert_int_equal(CALL(f, act_read, f->x, 1, row), OPS_OK);
  CALL(f, kv_map, f->kv, 1, &(int32_t){7}, 1);
  assert_int_equal(CALL(f, read, f->m, 0, 4, row), OPS_OK);
  assert_string_equal(f->inner->log, "stage map:0:5,2 act_read map:1:7 read ");
}

/* An inner device that keeps a pointer to an argument reads garbage. */
static void arguments_are_gone_when_the_inner_device_has_returned(void **state) {
  fixture *f = *state;
  const int32_t garbage = (int32_t)0xa5a5a5a5;
  prepare(f);
  forward(f);
  assert_int_equal(f->inner->choice.seed, 77);
  assert_int_equal(f->inner->ranking.position, 78);
  assert_int_equal(f->inner->token, 31);
  assert_int_equal(*f->inner->kept_tokens, garbage);
  assert_int_equal(f->inner->kept->token, garbage);
  assert_int_equal(f->inner->kept_map[0], garbage);
}

static void an_answer_ends_at_the_next_begin(void **state) {
  fixture *f = *state;
  prepare(f);
  ops_answer a = forward(f);
  const float *logits = CALL(f, logits, 0);
  const ops_ranked *ranked = CALL(f, ranked, 0, 1);
  assert_int_equal(a.ids[0], 100);
  assert_memory_equal(ranked, f->inner->ranked, sizeof *ranked);
  assert_ptr_not_equal(ranked, f->inner->ranked);
  assert_int_equal(a.device_us, 7);
  assert_memory_equal(logits, f->inner->logits, sizeof f->inner->logits);
  assert_ptr_not_equal(logits, f->inner->logits);
  assert_true(crashes((const char *)logits + 64)); /* past the last one's line of the processor */
  queue_forward(f);
  assert_true(crashes(a.ids));
  assert_true(crashes(logits));
  assert_true(crashes(ranked));
  assert_int_equal(CALL(f, wait, NULL), OPS_OK);
}

static void a_window_ends_with_filled(void **state) {
  fixture *f = *state;
  char bytes[5] = "", *window = CALL(f, fill, f->m, 128, 4);
  assert_null(CALL(f, adopt, bytes, 64));
  memcpy(window, "abcd", 4);
  assert_int_equal(CALL(f, read, f->m, 128, 4, bytes), OPS_OK);
  assert_string_equal(bytes, ""); /* not there yet */
  assert_int_equal(CALL(f, filled), OPS_OK);
  assert_int_equal(CALL(f, read, f->m, 128, 4, bytes), OPS_OK);
  assert_string_equal(bytes, "abcd");
  assert_true(crashes(window));
  size_t too_much = CALL(f, window_max) + 1;
  device_memory *much = CALL(f, take, MEM_WEIGHTS, too_much);
  assert_null(CALL(f, fill, much, 0, too_much));
  CALL(f, drop, much);
}

/* --- faults --- */

static void a_forward_fails_once(void **state) {
  fixture *f = *state;
  prepare(f);
  far_set_faults(f->d, &(far_faults){.fail = 2});
  forward(f);
  queue_forward(f);
  f->inner->log[f->inner->used = 0] = 0;
  ops_answer a;
  CALL(f, kv_map, f->kv, 1, &(int32_t){7}, 1);
  assert_int_equal(CALL(f, wait, &a), OPS_FAILED);
  assert_null(a.ids);
  assert_string_equal(f->inner->log, "map:1:7 "); /* only the forward was left out */
  assert_int_equal(forward(f).ids[0], 100);
}

static void a_begin_is_refused_once(void **state) {
  fixture *f = *state;
  rows r = ROWS_OF_TEST;
  ops_batch b = batch_of(&r);
  prepare(f);
  far_set_faults(f->d, &(far_faults){.refuse_begin = 1});
  assert_false(CALL(f, begin, f->kv, &b));
  assert_int_equal(CALL(f, wait, NULL), OPS_FAILED);
  forward(f);
}

static void what_the_inner_device_refuses_fails_at_wait(void **state) {
  fixture *f = *state;
  prepare(f);
  f->inner->refuses = true;
  f->inner->code = OPS_FAILED;
  queue_forward(f);
  assert_int_equal(CALL(f, wait, NULL), OPS_FAILED);
  assert_string_equal(f->inner->log, "stage map:0:5,2 refuse wait ");
  f->inner->refuses = false;
  f->inner->code = OPS_OK;
  forward(f);
}

static void memory_is_refused_on_request(void **state) {
  fixture *f = *state;
  far_set_faults(f->d, &(far_faults){.refuse = 2});
  device_memory *first = CALL(f, take, MEM_KV, 64);
  assert_non_null(first);
  assert_null(CALL(f, take, MEM_KV, 64));
  CALL(f, drop, first);
  far_set_faults(f->d, &(far_faults){.refuse = 1});
  assert_false(CALL(f, kv_stage, f->kv));
  assert_true(CALL(f, kv_stage, f->kv));
}

/* From a wait on; whichever device has said so. */
static void assert_lost(fixture *f) {
  rows r = ROWS_OF_TEST;
  ops_batch b = batch_of(&r);
  char byte;
  assert_null(CALL(f, logits, 0));
  assert_null(CALL(f, ranked, 0, 1));
  assert_false(CALL(f, begin, f->kv, &b));
  assert_int_equal(CALL(f, wait, NULL), OPS_LOST);
  assert_null(CALL(f, take, MEM_KV, 64));
  assert_null(CALL(f, fill, f->m, 0, 64));
  assert_int_equal(CALL(f, read, f->m, 0, 1, &byte), OPS_LOST);
}

static void a_lost_device_stays_lost(void **state) {
  fixture *f = *state;
  prepare(f);
  far_set_faults(f->d, &(far_faults){.lose = 2});
  forward(f);
  queue_forward(f);
  assert_int_equal(CALL(f, wait, NULL), OPS_LOST);
  assert_lost(f);
}

static void the_loss_of_the_inner_device_stays(void **state) {
  fixture *f = *state;
  prepare(f);
  f->inner->code = OPS_LOST;
  queue_forward(f);
  assert_int_equal(CALL(f, wait, NULL), OPS_LOST);
  f->inner->code = OPS_OK;
  assert_lost(f);
}

static void faults_are_read_from_the_environment(void **state) {
  (void)state;
  far_faults faults;
  assert_true(far_faults_parse(&faults, "lose=120,fail=7"));
  assert_int_equal(faults.lose, 120);
  assert_int_equal(faults.fail, 7);
  assert_true(far_faults_parse(&faults, "refuse_begin=3,refuse=2"));
  assert_int_equal(faults.refuse_begin, 3);
  assert_int_equal(faults.refuse, 2);
  assert_true(far_faults_parse(&faults, "wrong=5,slow=20,hang=4"));
  assert_int_equal(faults.hang, 4);
  assert_int_equal(faults.wrong, 5);
  assert_int_equal(faults.slow, 20);
  assert_true(far_faults_parse(&faults, ""));
  const char *const wrong[] = {"lose", "lose=", "lose=0", "lose=-1", "lose=1x", "loose=1", "lose=9999999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    assert_false(far_faults_parse(&faults, wrong[i]));

  setenv("TANDEM_FAR", "lose=soon", 1);
  bool closed;
  device *d;
  err e = {0};
  assert_int_equal(far_open(&d, fake_open(&closed), &e), ERR_ARG);
  assert_non_null(strstr(e.text, "lose=soon"));
  assert_true(closed);
  setenv("TANDEM_FAR", "refuse=1", 1);
  fixture *f = open_far();
  unsetenv("TANDEM_FAR");
  assert_string_equal(f->d->table->name, "far:fake");
  assert_string_equal(f->d->table->layout, "fake-1");
  assert_null(CALL(f, take, MEM_KV, 64));
  CALL(f, close);
  free(f);
}

static void it_stands_around_a_device_by_name(void **state) {
  (void)state;
  const device_options o = {.threads = 1};
  device *d;
  err e = {0};
  if (device_open(&d, "far:cpu:c", &o, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  assert_string_equal(d->table->name, "far:cpu:c");
  assert_string_equal(device_numerics(d), "f32");
  d->table->close(d);
  assert_int_equal(device_open(&d, "far:cpu:abacus", &o, NULL, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "cpu:abacus"));
  assert_null(d);
}

/* --- rules: each of these ends the program --- */

static void begin_with(fixture *f, const rows *r) {
  ops_batch b = batch_of(r);
  CALL(f, begin, f->kv, &b);
}

static void op_outside(fixture *f, void *p) {
  (void)p;
  CALL(f, embed, &f->w, f->x);
}

static void logits_before_wait(fixture *f, void *p) {
  (void)p;
  queue_forward(f);
  CALL(f, logits, 0);
}

static void logits_not_kept(fixture *f, void *p) {
  (void)p;
  forward(f);
  CALL(f, logits, 1);
}

static void ranked_before_wait(fixture *f, void *p) {
  (void)p;
  queue_forward(f);
  CALL(f, ranked, 0, 1);
}

static void more_than_was_ranked(fixture *f, void *p) {
  (void)p;
  forward(f);
  CALL(f, ranked, 0, 2);
}

static void rank_before_head(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, rank, (device_ids){.count = FAKE_VOCABULARY});
}

static void rank_of_outputs(fixture *f, device_ids ids) {
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, head, &f->head, f->y);
  CALL(f, rank, ids);
}

static void own_outputs_among_the_common(fixture *f, void *p) {
  (void)p;
  rank_of_outputs(f, (device_ids){.memory = f->m, .count = 9, .outputs = 7, .common = 4});
}

static void own_outputs_without_ids(fixture *f, void *p) {
  (void)p;
  rank_of_outputs(f, (device_ids){.memory = f->m, .count = 9, .outputs = 4, .common = 3});
}

static void own_outputs_where_tokens_are_outputs(fixture *f, void *p) {
  (void)p;
  rank_of_outputs(f, (device_ids){.count = 5});
}

static void history_past_the_tokens(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.rankings[0].history[1] = (ops_slice){2, 2};
  begin_with(f, &r);
}

static void ranking_of_nothing(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.rankings[0].count = 0;
  begin_with(f, &r);
}

static void ranking_with_impossible_options(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.rankings[0].options.top_p = 0;
  begin_with(f, &r);
}

static void wait_before_end(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, wait, NULL);
}

static void wait_for_nothing(fixture *f, void *p) {
  (void)p;
  forward(f);
  CALL(f, wait, NULL);
}

static void begin_before_wait(fixture *f, void *p) {
  (void)p;
  queue_forward(f);
  begin_with(f, &ROWS_OF_TEST);
}

static void memory_before_wait(fixture *f, void *p) {
  (void)p;
  queue_forward(f);
  CALL(f, take, MEM_KV, 64);
}

static void commit_in_a_forward(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, kv_commit, f->kv, 0, (int32_t[]){3}, 1, 4);
}

static void use_after_drop(fixture *f, void *p) {
  (void)p;
  CALL(f, act_drop, f->x);
  CALL(f, act_drop, f->x);
}

static void one_thing_for_another(fixture *f, void *p) {
  (void)p;
  CALL(f, drop, (device_memory *)f->x);
}

static void weight_past_its_memory(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  device_weight w = f->w;
  w.at = 65536 - 64;
  CALL(f, embed, &w, f->x);
}

static void linear_of_no_input(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, linear, &(device_linear){.w = f->w, .y = f->z}, 1, f->x);
}

static void view_that_is_not_there(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, attention, 0, 1, f->q, f->z);
}

static void begin_without_weighing(fixture *f) {
  rows r = ROWS_OF_TEST;
  ops_batch b = batch_of(&r);
  b.weigh_count = 0;
  CALL(f, begin, f->kv, &b);
}

static void first_row_that_shares(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  ops_batch b = batch_of(&r);
  r.rows[0].shared = OPS_TILE;
  CALL(f, begin, f->kv, &b);
}

static void mass_of_no_row(fixture *f, void *p) {
  (void)p;
  begin_without_weighing(f);
  CALL(f, mass, 0, f->q, false, f->mass);
}

static void bound_of_no_row(fixture *f, void *p) {
  (void)p;
  begin_without_weighing(f);
  CALL(f, bound, 0, OPS_WEIGH_BOUND_MEAN, f->q, false, f->mass);
}

static void mass_of_another_context(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, mass, 0, f->q, false, f->z);
}

static void row_rotated_before_the_first_position(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.rows[0].rope_shift = -5;
  begin_with(f, &r);
}

static void store_without_rope(fixture *f, void *p) {
  (void)p;
  begin_with(f, &ROWS_OF_TEST);
  CALL(f, rope_store, 0, &(device_rotary){0}, f->q, f->k, f->v);
}

static void row_of_an_unmapped_block(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.rows[0] = (ops_row){.position = 32, .length = 33};
  r.spans[0].end = 33;
  begin_with(f, &r);
}

static void path_that_descends(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.rows[0] = ROWS_OF_TEST.rows[1], r.rows[1] = ROWS_OF_TEST.rows[0];
  r.spans[0].end = 6, r.spans[1].end = 5;
  begin_with(f, &r);
}

static void one_staged_row_twice(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.rows[1] = r.rows[0];
  r.spans[1].end = 5;
  begin_with(f, &r);
}

static void span_that_ends_too_early(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.spans[1].end = 5;
  begin_with(f, &r);
}

static void head_row_that_is_none(fixture *f, void *p) {
  (void)p;
  rows r = ROWS_OF_TEST;
  r.heads[1] = 2;
  begin_with(f, &r);
}

static void commit_past_the_map(fixture *f, void *p) {
  (void)p;
  CALL(f, kv_commit, f->kv, 0, (int32_t[]){3}, 1, 32);
}

static void two_windows(fixture *f, void *p) {
  (void)p;
  CALL(f, fill, f->m, 0, 64);
  CALL(f, fill, f->m, 64, 64);
}

static void a_broken_rule_ends_the_program(void **state) {
  fixture *f = *state;
  prepare(f);
  child_body *const broken[] = {wait_before_end,
                                wait_for_nothing,
                                op_outside,
                                logits_before_wait,
                                logits_not_kept,
                                begin_before_wait,
                                memory_before_wait,
                                commit_in_a_forward,
                                use_after_drop,
                                one_thing_for_another,
                                linear_of_no_input,
                                weight_past_its_memory,
                                store_without_rope,
                                first_row_that_shares,
                                mass_of_no_row,
                                bound_of_no_row,
                                mass_of_another_context,
                                row_rotated_before_the_first_position,
                                view_that_is_not_there,
                                path_that_descends,
                                one_staged_row_twice,
                                two_windows,
                                row_of_an_unmapped_block,
                                commit_past_the_map,
                                span_that_ends_too_early,
                                head_row_that_is_none,
                                ranked_before_wait,
                                more_than_was_ranked,
                                rank_before_head,
                                own_outputs_among_the_common,
                                own_outputs_without_ids,
                                own_outputs_where_tokens_are_outputs,
                                history_past_the_tokens,
                                ranking_of_nothing,
                                ranking_with_impossible_options};
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
    if (signal_of(broken[i], f, NULL) != SIGABRT) fail_msg("rule %zu is not checked", i);
  }
  forward(f);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
  const struct CMUnitTest tests[] = {
      TEST(reading_what_is_on_the_device_crashes),
      TEST(the_inner_device_says_what_was_prepared),
      TEST(nothing_happens_before_wait),
      TEST(a_read_comes_after_what_was_queued_before),
      TEST(arguments_are_gone_when_the_inner_device_has_returned),
      TEST(an_answer_ends_at_the_next_begin),
      TEST(a_window_ends_with_filled),
      TEST(a_forward_fails_once),
      TEST(a_begin_is_refused_once),
      TEST(what_the_inner_device_refuses_fails_at_wait),
      TEST(memory_is_refused_on_request),
      TEST(a_lost_device_stays_lost),
      TEST(the_loss_of_the_inner_device_stays),
      cmocka_unit_test(faults_are_read_from_the_environment),
      cmocka_unit_test(it_stands_around_a_device_by_name),
      TEST(a_broken_rule_ends_the_program),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
