/* libs: kernels_cuda_emulated */
/* The host's side of a CUDA device, over the emulated runtime: what it says when it cannot open, memory and
 * windows, graphs that are replayed with other data, out of memory, a device that is lost. What the ops
 * compute is held against the plain C device. */
#define TANDEM_CUDA_EMULATED
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/device_parts.h"
#include "kernels/cuda/shim_runtime.h"
#include "kernels/devices/devices.h"
#include "kernels/devices/self_test.h"
#include "tests/support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define DRIVER     13000
#define ROWS       16
#define COLUMNS    64
#define VOCABULARY 100
#define MEBIBYTE   ((size_t)1 << 20)

static mem counted;

static int open_with(device **out, const char *name, size_t memory, err *e) {
  const device_options o = {.math = OPS_MATH_INT8, .threads = 2, .memory = memory};
  return device_open(out, name, &o, &counted, e);
}

static device *open_one(const char *name) {
  device *d = NULL;
  err e = {0};
  if (open_with(&d, name, 0, &e) != ERR_OK) fail_msg("%s", e.text);
  return d;
}

static device *open_in_host(const char *name) {
  const device_options o = {.math = OPS_MATH_INT8, .threads = 2, .kv_in_host = true};
  device *d = NULL;
  err e = {0};
  if (device_open(&d, name, &o, &counted, &e) != ERR_OK) fail_msg("%s", e.text);
  return d;
}

static void close_one(device *d) {
  d->table->close(d);
}

/* After every test: nothing may be left. */
static int reset(void **state) {
  (void)state;
  size_t taken = shim_runtime_taken();
  shim_runtime_machine(1, DRIVER, 9, 0);
  shim_runtime_limit((size_t)1 << 30);
  shim_runtime_limit_pinned((size_t)1 << 30);
  unsetenv("TANDEM_CUDA_GRAPHS");
  unsetenv("TANDEM_CUDA_LOSE");
  if (taken > 0) print_error("%zu bytes of the device were not given back\n", taken);
  return taken > 0;
}

/* --- opening --- */

static void expect_refusal(const char *name, int code, const char *part, const char *other) {
  device *d = NULL;
  err e = {0};
  assert_int_equal(open_with(&d, name, 0, &e), code);
  assert_null(d);
  if (!strstr(e.text, part) || !strstr(e.text, other)) fail_msg("%s: lacks %s or %s", e.text, part, other);
}

static void a_machine_that_cannot_says_why_and_what_to_do(void **state) {
  (void)state;
  shim_runtime_machine(0, 0, 9, 0);
  expect_refusal("emulated:0", ERR_UNSUPPORTED, "no CUDA driver", "--device cpu");
  shim_runtime_machine(1, 12040, 9, 0);
  expect_refusal("emulated:0", ERR_UNSUPPORTED, "12.4", "13.0");
  shim_runtime_machine(0, DRIVER, 9, 0);
  expect_refusal("emulated", ERR_UNSUPPORTED, "no GPU", "--device cpu");
  shim_runtime_machine(2, DRIVER, 9, 0);
  expect_refusal("emulated:2", ERR_UNSUPPORTED, "emulated:2", "has 2");
  shim_runtime_machine(1, DRIVER, 7, 5);
  expect_refusal("emulated:0", ERR_UNSUPPORTED, "7.5", "8.0");
  shim_runtime_machine(1, DRIVER, 9, 0);
  expect_refusal("emulated:x", ERR_ARG, "emulated:x", "cpu:avx2");
  expect_refusal("emulated:-1", ERR_ARG, "emulated:-1", "cpu");
}

static void the_list_of_devices_tells_what_is_lacking(void **state) {
  (void)state;
  const char *name, *what, *lacks;
  shim_runtime_machine(2, DRIVER, 9, 0);
  assert_true(cuda_device_at(1, &name, &what, &lacks));
  assert_string_equal(name, "emulated:1");
  assert_string_equal(what, "emulated");
  assert_string_equal(lacks, "");
  assert_false(cuda_device_at(2, &name, &what, &lacks));
  shim_runtime_machine(0, 0, 9, 0);
  assert_true(cuda_device_at(0, &name, &what, &lacks));
  assert_string_equal(lacks, "a CUDA driver");
  assert_false(cuda_device_at(1, &name, &what, &lacks));
}

static void a_device_has_the_name_that_it_was_opened_by(void **state) {
  (void)state;
  shim_runtime_machine(3, DRIVER, 9, 0);
  device *d = open_one("emulated:2");
  assert_string_equal(d->table->name, "emulated:2");
  assert_string_equal(d->table->variant(d, 5), "sm_90 x8");
  assert_int_equal(d->table->width(d, 5), 8);
  assert_int_equal(d->table->width(d, 65), 128);
  close_one(d);
}

/* --- memory --- */

static void memory_is_zeroed_counted_and_given_back(void **state) {
  (void)state;
  uint8_t bytes[1000];
  device *d = open_one("emulated:0");
  uint64_t before = counted.bytes[MEM_KV];
  device_memory *m = d->table->take(d, MEM_KV, sizeof bytes);
  assert_non_null(m);
  assert_int_equal(counted.bytes[MEM_KV] - before, sizeof bytes);
  memset(bytes, 1, sizeof bytes);
  assert_int_equal(d->table->read(d, m, 0, sizeof bytes, bytes), OPS_OK);
  for (size_t i = 0; i < sizeof bytes; i++) assert_int_equal(bytes[i], 0);
  d->table->drop(d, m);
  d->table->drop(d, NULL);
  assert_null(d->table->adopt(d, bytes, sizeof bytes));
  close_one(d);
}

/* Windows are filled again while the copies of earlier ones may still be
 * queued. */
static void windows_arrive_in_order_though_they_are_copied_later(void **state) {
  (void)state;
  device *d = open_one("emulated:0");
  const size_t piece = 3000, pieces = 5;
  uint8_t got[5 * 3000];
  device_memory *m = d->table->take(d, MEM_WEIGHTS, sizeof got);
  for (size_t i = 0; i < pieces; i++) {
    uint8_t *window = d->table->fill(d, m, i * piece, piece);
    assert_non_null(window);
    memset(window, (int)i + 1, piece);
    assert_int_equal(d->table->filled(d), OPS_OK);
  }
  assert_int_equal(d->table->read(d, m, 0, sizeof got, got), OPS_OK);
  for (size_t i = 0; i < sizeof got; i++) assert_int_equal(got[i], i / piece + 1);
  d->table->drop(d, m);
  close_one(d);
}

static void out_of_memory_is_no_lasting_state(void **state) {
  (void)state;
  device *d = open_one("emulated:0");
  shim_runtime_limit(MEBIBYTE);
  assert_null(d->table->take(d, MEM_WEIGHTS, 2 * MEBIBYTE));
  device_memory *m = d->table->take(d, MEM_WEIGHTS, MEBIBYTE / 2);
  assert_non_null(m);
  d->table->drop(d, m);
  close_one(d);
}

static void no_more_is_taken_than_the_options_allow(void **state) {
  (void)state;
  device *d = NULL;
  assert_int_equal(open_with(&d, "emulated:0", MEBIBYTE, NULL), ERR_OK);
  assert_null(d->table->take(d, MEM_KV, MEBIBYTE + 1));
  device_memory *m = d->table->take(d, MEM_KV, MEBIBYTE);
  assert_non_null(m);
  assert_null(d->table->take(d, MEM_KV, 1));
  d->table->drop(d, m);
  m = d->table->take(d, MEM_KV, 1);
  assert_non_null(m);
  d->table->drop(d, m);
  close_one(d);
}

/* --- a small model: embed, a linear, the head --- */

typedef struct small_model {
  device *d;
  device_memory *memory;
  device_weight embed, head;
  device_act *x;
  bool prepared; /* of the last answer */
} small_model;

static small_model open_model(device *d) {
  static float file[VOCABULARY * COLUMNS];
  uint64_t random = 99;
  for (size_t i = 0; i < VOCABULARY * COLUMNS; i++)
    file[i] = (float)random_below(&random, 1 << 24) / 0x1p23f - 1.0f;
  small_model m = {.d = d, .x = d->table->act(d, ROWS, COLUMNS, true)};
  size_t bytes = d->table->packed_bytes(OPS_F32, VOCABULARY, COLUMNS);
  m.memory = d->table->take(d, MEM_WEIGHTS, bytes);
  void *window = d->table->fill(d, m.memory, 0, bytes);
  d->table->pack(OPS_F32, VOCABULARY, COLUMNS, file, window, 0, (VOCABULARY + OPS_GROUP - 1) / OPS_GROUP);
  assert_int_equal(d->table->filled(d), OPS_OK);
  m.embed = m.head = (device_weight){OPS_F32, VOCABULARY, COLUMNS, m.memory, 0};
  return m;
}

static void close_model(small_model *m) {
  m->d->table->act_drop(m->d, m->x);
  m->d->table->drop(m->d, m->memory);
  close_one(m->d);
}

/* count rows from token `first` on; the last one chooses, the one before keeps
 * its logits. */
static ops_code forward(small_model *m, int32_t first, int32_t count, int32_t *id) {
  ops_row rows[ROWS];
  ops_sampling choice = {.scale = 0.7f, .seed = 5, .choice = 1, .position = (uint32_t)first};
  int32_t head_rows[] = {count - 2, count - 1};
  for (int32_t i = 0; i < count; i++)
    rows[i] = (ops_row){.token = (first + i) % VOCABULARY, .position = i, .length = i + 1};
  ops_batch b = {.rows = rows,
                 .row_count = count,
                 .head_rows = head_rows,
                 .head_count = 2,
                 .logit_count = 1,
                 .choices = &choice};
  ops_answer a = {0};
  device *d = m->d;
  if (d->table->begin(d, NULL, &b)) {
    memset(rows, 0xee, sizeof rows); /* what begin has copied is ours again */
    head_rows[0] = head_rows[1] = -1;
    choice = (ops_sampling){0};
    d->table->embed(d, &m->embed, m->x);
    d->table->head(d, &m->head, m->x);
    d->table->end(d);
  }
  ops_code code = d->table->wait(d, &a);
  m->prepared = a.prepared;
  if (code == OPS_OK) *id = a.ids[0];
  return code;
}

static void expect_same_forward(small_model *a, small_model *b, int32_t first, int32_t count) {
  int32_t id[2] = {-1, -2};
  float x[2][ROWS * COLUMNS];
  assert_int_equal(forward(a, first, count, &id[0]), OPS_OK);
  assert_int_equal(forward(b, first, count, &id[1]), OPS_OK);
  assert_int_equal(id[0], id[1]);
  const float *logits[2] = {a->d->table->logits(a->d, 0), b->d->table->logits(b->d, 0)};
  assert_memory_equal(logits[0], logits[1], VOCABULARY * sizeof(float));
  assert_int_equal(a->d->table->act_read(a->d, a->x, count, x[0]), OPS_OK);
  assert_int_equal(b->d->table->act_read(b->d, b->x, count, x[1]), OPS_OK);
  assert_memory_equal(x[0], x[1], (size_t)count * COLUMNS * sizeof(float));
}

static void a_graph_is_replayed_with_the_data_of_now(void **state) {
  (void)state;
  small_model a = open_model(open_one("emulated:0")), b = open_model(open_one("cpu:c"));
  expect_same_forward(&a, &b, 3, 7); /* takes its memory while it records */
  assert_true(a.prepared && !b.prepared);
  expect_same_forward(&a, &b, 3, 7); /* is captured */
  assert_true(a.prepared);
  uint64_t before = a.d->counters.launches;
  for (int32_t i = 0; i < 5; i++) {
    expect_same_forward(&a, &b, 10 * i, 5 + i % 4); /* rows of one bucket */
    assert_false(a.prepared);
  }
  assert_int_equal(a.d->counters.launches - before, 5);
  expect_same_forward(&a, &b, 1, 12); /* another bucket */
  assert_true(a.prepared);
  expect_same_forward(&a, &b, 1, 6);
  assert_false(a.prepared);
  assert_int_equal(a.d->counters.forwards, 9);
  close_model(&a);
  close_model(&b);
}

/* How long the thread sleeps before it asks whether a forward is over. */
static uint64_t learnt_us(const small_model *m) {
  const cuda_graph *g = ((cuda_device *)m->d)->forward.graph;
  return g ? g->usual_us : 0;
}

/* The host made the graph meanwhile: the next forward, of which this is not known, would be waited for as
 * long, and take as long by all accounts. */
static void the_time_of_a_capture_is_not_learnt(void **state) {
  (void)state;
  int32_t id;
  small_model a = open_model(open_one("emulated:0"));
  do {
    assert_int_equal(forward(&a, 0, 7, &id), OPS_OK);
    assert_int_equal(learnt_us(&a) > 0, !a.prepared);
  } while (a.prepared);
  close_model(&a);
}

static void without_graphs_ops_are_launched_one_by_one(void **state) {
  (void)state;
  setenv("TANDEM_CUDA_GRAPHS", "0", 1);
  small_model a = open_model(open_one("emulated:0")), b = open_model(open_one("cpu:c"));
  for (int32_t i = 0; i < 3; i++) expect_same_forward(&a, &b, 10 * i, 7);
  assert_int_equal(a.d->counters.launches, 3 * 3); /* embed; logits and sample */
  close_model(&a);
  close_model(&b);
}

static void a_forward_without_memory_for_its_logits_fails_alone(void **state) {
  (void)state;
  int32_t id;
  small_model a = open_model(open_one("emulated:0"));
  shim_runtime_limit(1);
  assert_int_equal(forward(&a, 0, 7, &id), OPS_FAILED);
  shim_runtime_limit(1 << 30);
  assert_int_equal(forward(&a, 0, 7, &id), OPS_OK);
  close_model(&a);
}

static void old_graphs_make_room_for_new_ones(void **state) {
  (void)state;
  small_model a = open_model(open_one("emulated:0")), b = open_model(open_one("cpu:c"));
  device_act *const x = a.x;
  device_act *acts[70];
  for (int32_t i = 0; i < 70; i++) {
    a.x = acts[i] = a.d->table->act(a.d, ROWS, COLUMNS, true);
    expect_same_forward(&a, &b, i, 4);
  }
  for (int32_t i = 0; i < 70; i++) a.d->table->act_drop(a.d, acts[i]);
  a.x = x;
  close_model(&a);
  close_model(&b);
}

/* --- norms on the way to linears --- */

typedef enum { NORMED_AGAIN, READ_AFTERWARDS, SOURCE_CHANGED, READ_ELSEHOW } norm_use;

/* norm, a linear of it, and what `use` says. Gives the launches without graphs.
 */
static uint64_t norm_forward(device *d, norm_use use, float *out) {
  small_model m = open_model(d);
  const device_table *t = d->table;
  float x[ROWS * COLUMNS];
  const ops_row row = {.length = 1};
  const ops_batch b = {.rows = &row, .row_count = 1};
  device_act *y = t->act(d, ROWS, COLUMNS, true), *z = t->act(d, ROWS, VOCABULARY, false);
  const device_vector w = {.memory = m.memory};
  for (int32_t i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 7) - 2.5f;
  t->act_write(d, m.x, ROWS, x);
  uint64_t before = d->counters.launches;
  assert_true(t->begin(d, NULL, &b));
  t->norm(d, m.x, false, w, 1e-5f, y);
  if (use == SOURCE_CHANGED) t->embed(d, &m.embed, m.x);
  t->linear(d, &(device_linear){.w = m.head, .y = z}, 1, y);
  if (use == READ_ELSEHOW) t->norm(d, y, false, w, 1e-5f, m.x);
  if (use != READ_AFTERWARDS) t->norm(d, m.x, false, w, 1e-3f, y);
  t->end(d);
  assert_int_equal(t->wait(d, NULL), OPS_OK);
  uint64_t launches = d->counters.launches - before;
  assert_int_equal(t->act_read(d, z, 1, out), OPS_OK);
  assert_int_equal(t->act_read(d, y, 1, out + VOCABULARY), OPS_OK);
  t->act_drop(d, y);
  t->act_drop(d, z);
  close_model(&m);
  return launches;
}

static void a_norm_that_only_linears_read_needs_no_launch(void **state) {
  (void)state;
  const uint64_t launches[] = {2, 2, 4, 4};
  float got[VOCABULARY + COLUMNS], want[VOCABULARY + COLUMNS];
  setenv("TANDEM_CUDA_GRAPHS", "0", 1);
  for (norm_use use = NORMED_AGAIN; use <= READ_ELSEHOW; use++) {
    assert_int_equal(norm_forward(open_one("emulated:0"), use, got), launches[use]);
    norm_forward(open_one("cpu:c"), use, want);
    assert_memory_equal(got, want, sizeof want);
  }
}

/* --- q, k and v that are stored by the linear that makes them --- */

typedef enum { STORED_ALONE, HEADS_NORMED, KEYS_READ, VALUES_READ } store_use;

enum { HEAD = COLUMNS / 2, STORE_ROWS = 3 };

/* Two committed rows and a staged one, each of which sees itself and those before it. */
static void begin_store(device *d, device_kv *kv) {
  static const int32_t staged = 5, first[] = {0, 1, 2, 3}, block = 2;
  static const ops_span spans[] = {{0, 1}, {0, 2}, {0, 3}};
  static const ops_row rows[] = {{.position = 0, .length = 1},
                                 {.position = 1, .length = 2},
                                 {.position = 2, .length = 2, .path_count = 1}};
  const ops_batch b = {.rows = rows,
                       .row_count = STORE_ROWS,
                       .paths = &staged,
                       .path_length = 1,
                       .views = {{first, spans}},
                       .view_count = 1};
  d->table->kv_map(d, kv, 0, &block, 1);
  assert_true(d->table->begin(d, kv, &b));
}

/* What of the weights m.head: q has two heads, k and v have one. */
static void linear_of(const small_model *m, device_act *q, device_act *k, device_act *v) {
  const size_t later = (size_t)HEAD * COLUMNS * sizeof(float);
  const device_linear jobs[] = {{.w = {OPS_F32, COLUMNS, COLUMNS, m->memory, 0}, .y = q},
                                {.w = {OPS_F32, HEAD, COLUMNS, m->memory, later}, .y = k},
                                {.w = {OPS_F32, HEAD, COLUMNS, m->memory, 2 * later}, .y = v}};
  m->d->table->linear(m->d, jobs, 3, m->x);
}

/* out: what attention makes of it, then what was read of k or v. Gives the launches without graphs. */
static uint64_t store_forward(device *d, ops_kv_type type, store_use use, float *out) {
  static float x[ROWS * COLUMNS];
  const ops_kv_shape shape = {type, 1, 1, HEAD, 4, 1, 2 * OPS_TILE, OPS_TILE};
  small_model m = open_model(d);
  const device_table *t = d->table;
  device_kv *kv = t->kv_open(d, &shape);
  device_act *acts[] = {t->act(d, ROWS, COLUMNS, false), t->act(d, ROWS, HEAD, true),
                        t->act(d, ROWS, HEAD, true), t->act(d, ROWS, COLUMNS, false),
                        t->act(d, ROWS, HEAD, false)};
  device_act *q = acts[0], *k = acts[1], *v = acts[2], *y = acts[3], *z = acts[4];
  const device_rope rope = {.frequency = {.memory = m.memory}, .dim = HEAD - 8, .times = 1};
  const device_rotary rotary = {.k_norm = {.memory = use == HEADS_NORMED ? m.memory : NULL}, .eps = 1e-5f};
  assert_true(t->kv_stage(d, kv));
  for (int32_t i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 11) - 4.5f;
  t->act_write(d, m.x, ROWS, x);
  uint64_t before = 0;
  for (int32_t turn = 0; turn < 2;
       turn++) { /* in the first one memory grows, and what was recorded goes first */
    begin_store(d, kv);
    before = d->counters.launches;
    t->rope(d, &rope);
    linear_of(&m, q, k, v);
    t->rope_store(d, 0, &rotary, q, k, v);
    t->attention(d, 0, 0, q, y);
    const device_weight square = {OPS_F32, HEAD, HEAD, m.memory, 0};
    if (use == KEYS_READ) t->linear(d, &(device_linear){.w = square, .y = z}, 1, k);
    if (use == VALUES_READ) t->linear(d, &(device_linear){.w = square, .y = z}, 1, v);
    t->end(d);
    assert_int_equal(t->wait(d, NULL), OPS_OK);
  }
  uint64_t launches = d->counters.launches - before;
  assert_int_equal(t->act_read(d, y, STORE_ROWS, out), OPS_OK);
  assert_int_equal(t->act_read(d, z, STORE_ROWS, out + STORE_ROWS * COLUMNS), OPS_OK);
  for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) t->act_drop(d, acts[i]);
  t->kv_close(d, kv);
  close_model(&m);
  return launches;
}

static void a_linear_stores_what_nobody_else_reads(void **state) {
  (void)state;
  const uint64_t launches[] = {3, 4, 5, 5};
  static float got[STORE_ROWS * (COLUMNS + HEAD)], want[STORE_ROWS * (COLUMNS + HEAD)];
  setenv("TANDEM_CUDA_GRAPHS", "0", 1);
  for (store_use use = STORED_ALONE; use <= VALUES_READ; use++)
    for (int type = 0; type < 2; type++) {
      ops_kv_type kv = type == 0 ? OPS_KV_F32 : OPS_KV_F16;
      assert_int_equal(store_forward(open_one("emulated:0"), kv, use, got), launches[use]);
      store_forward(open_one("cpu:c"), kv, use, want);
      assert_memory_equal(got, want, sizeof want);
    }
}

/* --- the cache: one layer, one head; the attention of one key is its value ---
 */

typedef struct small_cache {
  device *d;
  device_kv *kv;
  device_memory *frequency; /* zeros: nothing is rotated */
  device_act *q, *k, *v, *y;
} small_cache;

static small_cache open_cache(device *d) {
  const ops_kv_shape shape = {OPS_KV_F32, 1, 1, COLUMNS, 4, 1, 2 * OPS_TILE, OPS_TILE};
  small_cache c = {.d = d,
                   .kv = d->table->kv_open(d, &shape),
                   .frequency = d->table->take(d, MEM_GENERAL, 64),
                   .q = d->table->act(d, ROWS, COLUMNS, false),
                   .k = d->table->act(d, ROWS, COLUMNS, false),
                   .v = d->table->act(d, ROWS, COLUMNS, false),
                   .y = d->table->act(d, ROWS, COLUMNS, false)};
  assert_true(d->table->kv_stage(d, c.kv));
  return c;
}

static void close_cache(small_cache *c) {
  device_act *acts[] = {c->q, c->k, c->v, c->y};
  for (size_t i = 0; i < 4; i++) c->d->table->act_drop(c->d, acts[i]);
  c->d->table->drop(c->d, c->frequency);
  c->d->table->kv_close(c->d, c->kv);
  close_one(c->d);
}

/* One row, which sees its own position alone; with `stores` it writes `value`
 * there, in staged row `staged` if that is not negative. Gives what it sees. */
static float cache_row(small_cache *c, int32_t position, int32_t staged, bool stores, float value) {
  float x[COLUMNS];
  const int32_t first[] = {0, 1};
  const ops_span span = {position, position + 1};
  const ops_row row = {.position = position, .length = position + (staged < 0), .path_count = staged >= 0};
  const ops_batch b = {.rows = &row,
                       .row_count = 1,
                       .paths = &staged,
                       .path_length = staged >= 0,
                       .views = {{first, &span}},
                       .view_count = 1};
  const device_rope rope = {.frequency = {.memory = c->frequency}, .dim = 2, .times = 1};
  const device_rotary rotary = {.eps = 1e-5f};
  for (int32_t i = 0; i < COLUMNS; i++) x[i] = value;
  c->d->table->act_write(c->d, c->v, 1, x);
  assert_true(c->d->table->begin(c->d, c->kv, &b));
  c->d->table->rope(c->d, &rope);
  if (stores) c->d->table->rope_store(c->d, 0, &rotary, c->q, c->k, c->v);
  c->d->table->attention(c->d, 0, 0, c->q, c->y);
  c->d->table->end(c->d);
  assert_int_equal(c->d->table->wait(c->d, NULL), OPS_OK);
  assert_int_equal(c->d->table->act_read(c->d, c->y, 1, x), OPS_OK);
  return x[COLUMNS - 1];
}

static float seen(small_cache *c, int32_t position) {
  return cache_row(c, position, -1, false, 0);
}

static void use_block(small_cache *c, int32_t block) {
  c->d->table->kv_map(c->d, c->kv, 0, &block, 1);
}

static void a_new_block_table_holds_for_graphs_that_exist(void **state) {
  (void)state;
  small_cache c = open_cache(open_one("emulated:0"));
  use_block(&c, 3);
  cache_row(&c, 5, -1, true, 1.0f);
  assert_true(seen(&c, 5) == 1.0f && seen(&c, 5) == 1.0f);
  uint64_t before = c.d->counters.launches;
  use_block(&c, 1);
  assert_true(seen(&c, 5) == 0.0f);
  assert_true(cache_row(&c, 5, -1, true, 2.0f) == 2.0f);
  use_block(&c, 3);
  assert_true(seen(&c, 5) == 1.0f);
  use_block(&c, 1);
  assert_true(seen(&c, 5) == 2.0f);
  assert_int_equal(c.d->counters.launches - before, 3 + 4); /* tables; graphs */
  close_cache(&c);
}

/* The second commit overwrites what the first one has written, and the third
 * forward sees it. */
static void check_commits_and_maps(device *d) {
  small_cache c = open_cache(d);
  int32_t path = 2;
  use_block(&c, 0);
  cache_row(&c, 0, 2, true, 1.0f);
  cache_row(&c, 0, 7, true, 2.0f);
  c.d->table->kv_commit(c.d, c.kv, 0, &path, 1, 0);
  path = 7;
  c.d->table->kv_commit(c.d, c.kv, 0, &path, 1, 0);
  path = -1;
  assert_true(seen(&c, 0) == 2.0f);
  use_block(&c, 2);
  path = 2;
  c.d->table->kv_commit(c.d, c.kv, 0, &path, 1, 0);
  assert_true(seen(&c, 0) == 1.0f);
  use_block(&c, 0);
  assert_true(seen(&c, 0) == 2.0f);
  assert_int_equal(c.d->counters.commit_copies, 3);
  assert_int_equal(c.d->counters.staged_writes, 2);
  close_cache(&c);
}

static void commits_and_maps_take_effect_in_their_order(void **state) {
  (void)state;
  check_commits_and_maps(open_one("emulated:0"));
}

/* --- a cache in the host's memory --- */

/* What goes to a cache of one layer and one head, as bytes. */
static void read_cache(const device_kv *kv, uint8_t *out) {
  memcpy(out, kv->keys->at, kv->keys->bytes);
  memcpy(out + kv->keys->bytes, kv->values->at, kv->values->bytes);
}

static void a_cache_in_the_hosts_memory_has_the_same_rows(void **state) {
  (void)state;
  enum { SIDE = 4 * OPS_TILE * COLUMNS * (int)sizeof(float) }; /* open_cache's */
  static uint8_t rows[2][2 * SIDE];
  static float got[STORE_ROWS * (COLUMNS + HEAD)], want[STORE_ROWS * (COLUMNS + HEAD)];
  for (int in_host = 0; in_host < 2; in_host++) {
    small_cache c = open_cache(in_host ? open_in_host("emulated:0") : open_one("emulated:0"));
    const int32_t path = 7;
    assert_int_equal(c.kv->keys->bytes, SIDE);
    assert_true((c.kv->keys->host != NULL) == in_host && (c.kv->values->host != NULL) == in_host);
    assert_true(!c.kv->tables->host && !c.kv->stage_keys->host && !c.kv->stage_values->host);
    use_block(&c, 3);
    for (int32_t i = 0; i < 5; i++) cache_row(&c, i, -1, true, 1.5f + (float)i);
    cache_row(&c, 5, path, true, -2);
    c.d->table->kv_commit(c.d, c.kv, 0, &path, 1, 5);
    assert_true(seen(&c, 5) == -2);
    read_cache(c.kv, rows[in_host]);
    close_cache(&c);
  }
  assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
  for (int type = 0; type < 2; type++) {
    store_forward(open_in_host("emulated:0"), (ops_kv_type)type, STORED_ALONE, got);
    store_forward(open_one("emulated:0"), (ops_kv_type)type, STORED_ALONE, want);
    assert_memory_equal(got, want, sizeof want);
  }
  check_commits_and_maps(open_in_host("emulated:0"));
}

/* A processor's memory is the host's: there nothing changes. */
static void whose_cache_can_be_in_the_hosts_memory_says_so(void **state) {
  (void)state;
  const struct {
    const char *name;
    bool in_host;
  } table[] = {{"emulated:0", true}, {"far:emulated:0", true}, {"cpu:c", false}, {"far:cpu:c", false}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    device *d = open_in_host(table[i].name), *other = open_one(table[i].name);
    assert_true(d->kv_in_host == table[i].in_host && !other->kv_in_host);
    close_one(d);
    close_one(other);
  }
}

static void a_cache_in_the_hosts_memory_is_none_of_the_devices(void **state) {
  (void)state;
  const ops_kv_shape shape = {OPS_KV_F16, 2, 2, COLUMNS, 64, 1, 64 * OPS_TILE, OPS_TILE};
  const size_t rows = (size_t)2 * 2 * 2 * 64 * OPS_TILE * COLUMNS * sizeof(uint16_t); /* 1 MiB */
  const size_t table = 64 * sizeof(int32_t);
  device *d = open_in_host("emulated:0");
  const size_t left = d->table->left(d);
  const uint64_t before[] = {counted.bytes[MEM_KV], counted.bytes[MEM_KV_HOST]};
  shim_runtime_limit(MEBIBYTE); /* with what is taken already */
  device_kv *kv = d->table->kv_open(d, &shape);
  assert_non_null(kv);
  assert_int_equal(counted.bytes[MEM_KV] - before[0], table);
  assert_int_equal(counted.bytes[MEM_KV_HOST] - before[1], rows);
  shim_runtime_limit((size_t)1 << 30);
  assert_int_equal(d->table->left(d), left - table);
  d->table->kv_close(d, kv);
  assert_int_equal(d->table->left(d), left);
  const size_t taken = shim_runtime_taken();
  shim_runtime_limit_pinned(rows / 2 + rows / 4); /* the keys, but not the values */
  assert_null(d->table->kv_open(d, &shape));
  assert_int_equal(shim_runtime_taken(), taken);
  close_one(d);
}

/* --- lost --- */

static void a_lost_device_says_so_until_it_is_closed(void **state) {
  (void)state;
  int32_t id;
  float x[COLUMNS];
  small_model a = open_model(open_one("emulated:0"));
  assert_int_equal(forward(&a, 0, 7, &id), OPS_OK);
  cuda_device_break(a.d);
  assert_int_equal(forward(&a, 0, 7, &id), OPS_LOST);
  assert_int_equal(forward(&a, 0, 7, &id), OPS_LOST);
  assert_null(a.d->table->take(a.d, MEM_KV, 64));
  assert_null(a.d->table->logits(a.d, 0));
  assert_null(a.d->table->fill(a.d, a.memory, 0, 64));
  assert_int_equal(a.d->table->act_read(a.d, a.x, 1, x), OPS_LOST);
  close_model(&a);
  small_model b = open_model(open_one("emulated:0")); /* a new process, so to speak */
  assert_int_equal(forward(&b, 0, 7, &id), OPS_OK);
  close_model(&b);
}

static void a_loss_may_be_asked_for_by_a_variable(void **state) {
  (void)state;
  int32_t id;
  setenv("TANDEM_CUDA_LOSE", "3", 1);
  small_model a = open_model(open_one("emulated:0"));
  assert_int_equal(forward(&a, 0, 7, &id), OPS_OK);
  assert_int_equal(forward(&a, 0, 7, &id), OPS_OK);
  assert_int_equal(forward(&a, 0, 7, &id), OPS_LOST);
  close_model(&a);
}

/* --- all ops --- */

static void all_ops_give_the_bits_of_the_c_reference(void **state) {
  (void)state;
  for (int math = 0; math < OPS_MATH_COUNT; math++) {
    device *d = NULL;
    err e = {0};
    const device_options o = {.math = (ops_math)math, .threads = 1, .kv_in_host = math == OPS_MATH_INT8};
    assert_int_equal(device_open(&d, "emulated:0", &o, NULL, &e), ERR_OK);
    int rc = self_test_run(d, &e);
    if (rc != ERR_OK) fail_msg("%s", e.text);
    close_one(d);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_machine_that_cannot_says_why_and_what_to_do, reset),
      cmocka_unit_test_teardown(the_list_of_devices_tells_what_is_lacking, reset),
      cmocka_unit_test_teardown(a_device_has_the_name_that_it_was_opened_by, reset),
      cmocka_unit_test_teardown(memory_is_zeroed_counted_and_given_back, reset),
      cmocka_unit_test_teardown(windows_arrive_in_order_though_they_are_copied_later, reset),
      cmocka_unit_test_teardown(out_of_memory_is_no_lasting_state, reset),
      cmocka_unit_test_teardown(no_more_is_taken_than_the_options_allow, reset),
      cmocka_unit_test_teardown(a_graph_is_replayed_with_the_data_of_now, reset),
      cmocka_unit_test_teardown(the_time_of_a_capture_is_not_learnt, reset),
      cmocka_unit_test_teardown(without_graphs_ops_are_launched_one_by_one, reset),
      cmocka_unit_test_teardown(a_forward_without_memory_for_its_logits_fails_alone, reset),
      cmocka_unit_test_teardown(old_graphs_make_room_for_new_ones, reset),
      cmocka_unit_test_teardown(a_norm_that_only_linears_read_needs_no_launch, reset),
      cmocka_unit_test_teardown(a_linear_stores_what_nobody_else_reads, reset),
      cmocka_unit_test_teardown(a_new_block_table_holds_for_graphs_that_exist, reset),
      cmocka_unit_test_teardown(commits_and_maps_take_effect_in_their_order, reset),
      cmocka_unit_test_teardown(a_cache_in_the_hosts_memory_has_the_same_rows, reset),
      cmocka_unit_test_teardown(whose_cache_can_be_in_the_hosts_memory_says_so, reset),
      cmocka_unit_test_teardown(a_cache_in_the_hosts_memory_is_none_of_the_devices, reset),
      cmocka_unit_test_teardown(a_lost_device_says_so_until_it_is_closed, reset),
      cmocka_unit_test_teardown(a_loss_may_be_asked_for_by_a_variable, reset),
      cmocka_unit_test_teardown(all_ops_give_the_bits_of_the_c_reference, reset),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
