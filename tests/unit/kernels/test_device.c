/* libs: kernels : far emulated */
/* What a device promises beside its ops (kernels/device.h): names, memory, windows, limits, counters. */
#include "common/base/clock.h"
#include "kernels/cpu/cpu_isa.h"
#include "tests/support/ops_cache.h"
#include "tests/support/patience.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

/* --- names --- */

static int open_one(device **out, const char *name, const device_options *o, err *e) {
  *e = (err){0};
  int rc = device_open(out, name, o, NULL, e);
  assert_int_equal(rc == ERR_OK, *out != NULL);
  assert_int_equal(rc, e->code);
  return rc;
}

static const device_options plain = {.math = OPS_MATH_INT8, .threads = 1};

static void an_unknown_name_is_refused_with_the_known_ones(void **state) {
  (void)state;
  const char *const names[] = {"",
                               "gpu",
                               "cpu:",
                               "cpux",
                               "cp",
                               "CPU",
                               "cpu:sse",
                               "cpu:c:1",
                               "cpu c",
                               ":c",
                               "a name that is much longer than the message has room for: "
                               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    device *d;
    err e;
    assert_int_equal(open_one(&d, names[i], &plain, &e), ERR_ARG);
    const char *known;
    for (int32_t k = 0; (known = devices_name(k)); k++) assert_non_null(strstr(e.text, known));
  }
}

static void a_set_that_the_processor_lacks_is_refused_with_the_reason(void **state) {
  (void)state;
  for (cpu_isa isa = CPU_C; isa < CPU_ISA_COUNT; isa++) {
    device *d;
    err e;
    char name[32];
    const char *lacking = cpu_isa_lacks(isa);
    snprintf(name, sizeof name, "cpu:%s", cpu_isa_name(isa));
    if (lacking) print_message("not tested, this processor has no %s: %s\n", lacking, name);
    assert_int_equal(open_one(&d, name, &plain, &e), lacking ? ERR_UNSUPPORTED : ERR_OK);
    if (lacking) assert_non_null(strstr(e.text, lacking));
    if (d) assert_string_equal(d->table->name, name);
    if (d) d->table->close(d);
  }
}

static void cpu_alone_is_the_best_one(void **state) {
  (void)state;
  device *d;
  err e;
  char name[32];
  snprintf(name, sizeof name, "cpu:%s", cpu_isa_name(cpu_isa_best()));
  assert_int_equal(open_one(&d, "cpu", &plain, &e), ERR_OK);
  assert_string_equal(d->table->name, name);
  assert_string_equal(device_numerics(d), "int8");
  d->table->close(d);
  assert_int_equal(open_one(&d, "cpu:c", &(device_options){.math = OPS_MATH_F32, .threads = 1}, &e), ERR_OK);
  assert_string_equal(device_numerics(d), "f32");
  d->table->close(d);
}

/* Each chunk waits for the others to begin, so that as many threads are seen as compute. */
typedef struct seen_threads {
  _Atomic int32_t begun, alone; /* alone: those that waited in vain */
  int32_t wanted;
} seen_threads;

static void wait_for_all(void *context, int32_t i) {
  seen_threads *s = context;
  (void)i;
  atomic_fetch_add(&s->begun, 1);
  for (uint64_t end = clock_us() + PATIENCE_US; s->begun < s->wanted && clock_us() < end;) usleep(100);
  if (s->begun < s->wanted) atomic_fetch_add(&s->alone, 1);
}

static void assert_threads(device *d, int32_t count) {
  seen_threads s = {.wanted = count};
  assert_int_equal(d->threads, count);
  d->table->parallel(d, count, wait_for_all, &s);
  assert_int_equal(s.alone, 0);
}

/* Beside another program some of the threads compute, and all of them again afterwards. */
static void some_threads_compute_beside_another_program(void **state) {
  (void)state;
  const device_options o = {.math = OPS_MATH_INT8, .threads = 4, .threads_beside = 2};
  device *d;
  err e;
  assert_int_equal(open_one(&d, "cpu", &o, &e), ERR_OK);
  for (int i = 0; i < 3; i++) {
    assert_threads(d, 4);
    d->table->beside(d, true);
    assert_threads(d, 2);
    d->table->beside(d, true);
    assert_threads(d, 2);
    d->table->beside(d, false);
  }
  d->table->close(d);
  assert_int_equal(open_one(&d, "cpu", &plain, &e), ERR_OK);
  d->table->beside(d, true);
  assert_threads(d, 1);
  d->table->close(d);
}

static void impossible_threads_are_refused(void **state) {
  (void)state;
  const int32_t threads[] = {-1, 0, OPS_THREADS_MAX + 1};
  for (int i = 0; i < 3; i++) {
    device *d;
    err e;
    assert_int_equal(open_one(&d, "cpu", &(device_options){.threads = threads[i]}, &e), ERR_ARG);
  }
  const int32_t nowhere[] = {-1, CPU_SETSIZE};
  for (int i = 0; i < 2; i++) {
    device *d;
    err e;
    const device_options o = {.threads = 2, .cpus = &nowhere[i], .cpu_count = 1};
    assert_int_equal(open_one(&d, "cpu", &o, &e), ERR_ARG);
  }
  device *d;
  err e;
  const device_options more = {.math = OPS_MATH_INT8, .threads = 2, .threads_beside = 3};
  assert_int_equal(open_one(&d, "cpu", &more, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "--threads-beside"));
}

/* A thread of its own, because it stays bound. */
static void *forward_while_bound(void *cpu) {
  device *d;
  err e;
  cpu_set_t now;
  const device_options o = {.threads = 2, .cpus = cpu, .cpu_count = 1};
  if (open_one(&d, "cpu", &o, &e) != ERR_OK) return NULL;
  begin_rows(d, 1);
  end_rows(d);
  d->table->close(d);
  bool bound = sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&now) == 1 &&
               CPU_ISSET(*(const int32_t *)cpu, &now);
  return bound ? cpu : NULL;
}

static void the_thread_of_the_forwards_is_bound(void **state) {
  (void)state;
  cpu_set_t allowed;
  int32_t cpu = CPU_SETSIZE - 1;
  pthread_t thread;
  void *bound;
  assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  while (!CPU_ISSET(cpu, &allowed)) cpu--;
  assert_int_equal(pthread_create(&thread, NULL, forward_while_bound, &cpu), 0);
  assert_int_equal(pthread_join(thread, &bound), 0);
  assert_ptr_equal(bound, &cpu);
}

/* --- memory --- */

static void memory_is_zeroed_and_keeps_what_windows_wrote(void **state) {
  (void)state;
  enum { BYTES = 100000, AT = 64 * 700, PART = 3333 };
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    uint8_t got[BYTES] = {0};
    device_memory *m = d->table->take(d, MEM_GENERAL, BYTES);
    assert_non_null(m);
    assert_true(d->table->window_max(d) >= PART);
    memset(got, 0x5a, BYTES);
    assert_int_equal(d->table->read(d, m, 0, BYTES, got), OPS_OK);
    for (int k = 0; k < BYTES; k++) assert_int_equal(got[k], 0);
    for (int turn = 1; turn <= 2; turn++) { /* the second one overlaps the first */
      uint8_t *to = d->table->fill(d, m, AT + 1000 * (size_t)turn, PART);
      assert_non_null(to);
      for (int k = 0; k < PART; k++) to[k] = (uint8_t)(turn * 100 + k % 7);
      assert_int_equal(d->table->filled(d), OPS_OK);
    }
    assert_int_equal(d->table->read(d, m, 0, BYTES, got), OPS_OK);
    for (int k = 0; k < BYTES; k++) {
      int turn = k >= AT + 2000 && k < AT + 2000 + PART ? 2 : k >= AT + 1000 && k < AT + 2000 ? 1 : 0;
      assert_int_equal(got[k], turn ? turn * 100 + (k - AT - 1000 * turn) % 7 : 0);
    }
    assert_int_equal(d->table->read(d, m, AT + 1000, 3, got), OPS_OK);
    assert_int_equal(got[2], 102);
    d->table->drop(d, m);
    d->table->drop(d, NULL);
  }
}

/* A weight and a vector that do not begin where their memory does. */
static void several_things_share_a_piece_of_memory(void **state) {
  (void)state;
  enum { ROWS = 40, COLUMNS = 96, AT = 640 };
  matrix m = make_matrix(OPS_Q4_1, ROWS, COLUMNS);
  float *x = random_floats(2 * COLUMNS), *bias = random_floats(ROWS);
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    size_t bytes = d->table->packed_bytes(m.type, ROWS, COLUMNS);
    uint8_t *host = aligned_alloc(64, AT + bytes);
    memset(host, 0x5a, AT);
    memcpy(host + 64, bias, ROWS * sizeof *bias);
    d->table->pack(m.type, ROWS, COLUMNS, m.file, host + AT, 0, (ROWS + OPS_GROUP - 1) / OPS_GROUP);
    device_memory *own = upload(d, host, AT + bytes), *lent = d->table->adopt(d, host, AT + bytes);
    device_act *in = act_of(d, 2, COLUMNS, true, x), *y = act_of(d, 2, ROWS, false, NULL);
    float *plain_y = linear_of(d, &m, in, 2);
    for (int k = 0; k < (lent ? 2 : 1); k++) { /* NULL: this device serves from its own memory alone */
      const device_memory *from = k ? lent : own;
      const device_linear job = {{m.type, ROWS, COLUMNS, from, AT}, y, false, {from, 64}};
      begin_rows(d, 2);
      d->table->linear(d, &job, 1, in);
      end_rows(d);
      float *got = read_act(d, y, 2, ROWS);
      for (int t = 0; t < 2 * ROWS; t++) assert_true(got[t] == plain_y[t] + bias[t % ROWS]);
      free(got);
    }
    if (lent) {
      uint8_t first[64];
      assert_int_equal(d->table->read(d, lent, 0, 64, first), OPS_OK);
      assert_memory_equal(first, host, 64);
    }
    d->table->drop(d, lent);
    d->table->drop(d, own);
    d->table->act_drop(d, in);
    d->table->act_drop(d, y);
    free(plain_y);
    free(host);
  }
  free(x), free(bias);
  free_matrix(&m);
}

/* --- limits --- */

#define LIMIT ((size_t)4 << 20)

static device *open_limited(const char *name, mem *m) {
  device *d;
  err e = {0};
  const device_options o = {.math = OPS_MATH_INT8, .threads = 2, .memory = LIMIT};
  if (device_open(&d, name, &o, m, &e) != ERR_OK) fail_msg("%s: %s", name, e.text);
  return d;
}

/* Each device once more, with a limit. */
static void on_every_limited_device(void (*check)(device *d, mem *m)) {
  for (int32_t i = 1; i < device_count; i++) {
    mem m = {0};
    const char *more = getenv("TANDEM_TEST_DEVICE");
    device *d = open_limited(more && i == device_count - 1 ? more : devices[0][i]->table->name, &m);
    check(d, &m);
    d->table->close(d);
  }
}

static void check_memory_limit(device *d, mem *m) {
  ops_kv_shape shape = {OPS_KV_F32, 2, 4, 128, 64, 1, 64, 512};
  (void)m;
  for (int turn = 0; turn < 3; turn++) { /* it is no lasting state, and what is dropped may be taken again */
    assert_null(d->table->take(d, MEM_WEIGHTS, LIMIT + 1));
    assert_null(d->table->take(d, MEM_WEIGHTS, SIZE_MAX / 2));
    assert_null(d->table->act(d, 512, 4096, true));
    assert_null(d->table->kv_open(d, &shape));
    device_memory *large = d->table->take(d, MEM_WEIGHTS, LIMIT / 2);
    assert_non_null(large);
    assert_null(d->table->take(d, MEM_WEIGHTS, LIMIT / 2 + 1));
    d->table->drop(d, large);
  }
  shape.blocks = 4;
  device_kv *k = d->table->kv_open(d, &shape);
  assert_non_null(k);
  assert_false(d->table->kv_stage(d, k));
  device_act *a = d->table->act(d, 16, 64, true);
  assert_non_null(a);
  d->table->act_drop(d, a);
  d->table->kv_close(d, k);
  d->table->kv_close(d, NULL);
}

static void memory_ends_at_the_limit(void **state) {
  (void)state;
  on_every_limited_device(check_memory_limit);
}

static void check_memory_left(device *d, mem *m) {
  size_t at_first = d->table->left(d);
  (void)m;
  assert_true(at_first > LIMIT / 4 * 3 && at_first <= LIMIT); /* the machine has more than that free */
  device_memory *half = d->table->take(d, MEM_WEIGHTS, LIMIT / 2);
  assert_int_equal(d->table->left(d), at_first - LIMIT / 2);
  assert_null(d->table->take(d, MEM_WEIGHTS, d->table->left(d) + 1));
  d->table->drop(d, half);
  assert_int_equal(d->table->left(d), at_first);
}

static void a_device_tells_what_may_still_be_taken(void **state) {
  (void)state;
  on_every_limited_device(check_memory_left);
}

/* The logits of `count` rows; whether the forward began, and what it said. */
static bool run_logits(device *d, device_weight w, device_act *x, int32_t count, ops_code *code) {
  ops_row rows[SUPPORT_ROWS];
  int32_t head[SUPPORT_ROWS];
  for (int32_t i = 0; i < count; i++) rows[i] = (ops_row){.length = 1}, head[i] = i;
  const ops_batch b = {
      .rows = rows, .row_count = count, .head_rows = head, .head_count = count, .logit_count = count};
  bool began = d->table->begin(d, NULL, &b);
  if (began) {
    d->table->head(d, &w, x);
    d->table->end(d);
  }
  *code = d->table->wait(d, NULL);
  return began;
}

static void check_logit_limit(device *d, mem *m) {
  enum { VOCAB = 4096 };
  ops_code code;
  matrix head = make_matrix(OPS_F16, VOCAB, 32);
  device_weight w = pack_matrix(d, &head);
  device_act *x = act_of(d, SUPPORT_ROWS, 32, true, NULL);
  (void)m;
  run_logits(d, w, x, SUPPORT_ROWS, &code); /* 8 MiB */
  assert_int_equal(code, OPS_FAILED);
  assert_true(run_logits(d, w, x, 3, &code));
  assert_int_equal(code, OPS_OK);
  ops_counters before = d->counters; /* now it is known how long they are, and begin may refuse */
  if (!run_logits(d, w, x, SUPPORT_ROWS, &code)) assert_int_equal(d->counters.forwards, before.forwards);
  assert_int_equal(code, OPS_FAILED);
  assert_true(run_logits(d, w, x, 3, &code));
  assert_int_equal(code, OPS_OK);
  assert_non_null(d->table->logits(d, 2));
  d->table->act_drop(d, x);
  drop_weight(d, w);
  free_matrix(&head);
}

static void too_many_logits_fail_one_forward(void **state) {
  (void)state;
  on_every_limited_device(check_logit_limit);
}

/* --- off means untouched --- */

static uint64_t calls_of(const mem *m) {
  uint64_t all = 0;
  for (int t = 0; t < MEM_TAG_COUNT; t++) all += m->calls[t];
  return all;
}

/* A forward of the ops that have memory of their own. */
static void whole_forward(device *d, device_kv *k, const device_weight *w, device_vector frequency,
                          device_act *const *a, bool tree) {
  const ops_row rows[] = {{.position = 0, .length = tree ? 0 : 1, .path_count = tree},
                          {.position = 1, .length = tree ? 0 : 2, .path_count = tree ? 2 : 0}};
  const int32_t path[] = {16, 17}, first[] = {0, 1, 2}, head[] = {0, 1};
  const ops_span spans[] = {{0, 1}, {0, 2}};
  assert_true(d->table->begin(d, k,
                              &(ops_batch){.rows = rows,
                                           .row_count = 2,
                                           .paths = path,
                                           .path_length = tree ? 2 : 0,
                                           .views = {{first, spans}},
                                           .view_count = 1,
                                           .head_rows = head,
                                           .head_count = 2,
                                           .logit_count = 1,
                                           .choices = &(ops_sampling){.scale = 1}}));
  d->table->rope(d, &(device_rope){frequency, 32, 1});
  d->table->rope_store(d, 0, &(device_rotary){.eps = 1}, a[0], a[1], a[2]);
  d->table->attention(d, 0, 0, a[0], a[3]);
  d->table->head(d, w, a[3]);
  end_rows(d);
}

static void check_untouched(device *d, mem *m) {
  float *x = random_floats(2 * 64), frequency[16] = {1, 0.5f, 0.25f};
  matrix head = make_matrix(OPS_Q4_1, 100, 64);
  device_weight w = pack_matrix(d, &head);
  device_vector f = upload_floats(d, frequency, 16);
  device_act *a[] = {act_of(d, 2, 64, false, x), act_of(d, 2, 32, false, x), act_of(d, 2, 32, false, x),
                     act_of(d, 2, 64, true, NULL)};
  device_kv *k = d->table->kv_open(d, &(ops_kv_shape){OPS_KV_F16, 1, 1, 32, 4, 1, 64, 32});
  const int32_t block = 2;
  d->table->kv_map(d, k, 0, &block, 1);
  whole_forward(d, k, &w, f, a, false);
  uint64_t calls = calls_of(m);
  for (int i = 0; i < 3; i++) whole_forward(d, k, &w, f, a, false);
  assert_int_equal(calls_of(m), calls); /* nothing is taken in a forward */
  assert_int_equal(m->bytes[MEM_SPECULATION], 0);
  assert_int_equal(d->counters.staged_writes, 0);
  assert_true(d->table->kv_stage(d, k));
  assert_true(d->table->kv_stage(d, k)); /* it is there already */
  assert_true(m->bytes[MEM_SPECULATION] > 0);
  whole_forward(d, k, &w, f, a, true);
  calls = calls_of(m);
  for (int i = 0; i < 3; i++) {
    d->table->kv_commit(d, k, 0, &(int32_t){16}, 1, 0);
    whole_forward(d, k, &w, f, a, true);
  }
  assert_int_equal(calls_of(m), calls);
  assert_int_equal(d->counters.staged_writes, 4 * 2);
  assert_int_equal(d->counters.commit_copies, 3);
  d->table->kv_close(d, k);
  for (int i = 0; i < 4; i++) d->table->act_drop(d, a[i]);
  drop_weight(d, w);
  drop_vector(d, f);
  free_matrix(&head);
  free(x);
}

static void forwards_take_no_memory_and_plain_ones_none_for_trees(void **state) {
  (void)state;
  on_every_limited_device(check_untouched);
}

/* A map and a commit are asked for between forwards: what the last one answered stays. */
static void answers_stay_until_the_next_forward(void **state) {
  (void)state;
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_F32][i];
    cache k = make_cache(d, &(attention_case){OPS_KV_F16, 1, 1, 16, 16, 0, 0, false, 0}, CACHE_CONTEXT);
    matrix head = make_matrix(OPS_F32, 50, 16);
    device_weight w = pack_matrix(d, &head);
    float *x = random_floats(16);
    device_act *a = act_of(d, 1, 16, true, x);
    ops_code code;
    assert_true(run_logits(d, w, a, 1, &code));
    float *expected = linear_of(d, &head, a, 1);
    assert_true(run_logits(d, w, a, 1, &code));
    map_blocks(&k, 0, 1);
    d->table->kv_commit(d, k.kv, 0, &(int32_t){3}, 1, 0);
    d->table->act_write(d, a, 1, expected);
    assert_memory_equal(d->table->logits(d, 0), expected, 50 * sizeof(float));
    free(expected), free(x);
    d->table->act_drop(d, a);
    drop_weight(d, w);
    free_matrix(&head);
    free_cache(&k);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_unknown_name_is_refused_with_the_known_ones),
      cmocka_unit_test(a_set_that_the_processor_lacks_is_refused_with_the_reason),
      cmocka_unit_test(cpu_alone_is_the_best_one),
      cmocka_unit_test(some_threads_compute_beside_another_program),
      cmocka_unit_test(impossible_threads_are_refused),
      cmocka_unit_test(the_thread_of_the_forwards_is_bound),
      cmocka_unit_test(memory_is_zeroed_and_keeps_what_windows_wrote),
      cmocka_unit_test(several_things_share_a_piece_of_memory),
      cmocka_unit_test(memory_ends_at_the_limit),
      cmocka_unit_test(a_device_tells_what_may_still_be_taken),
      cmocka_unit_test(too_many_logits_fail_one_forward),
      cmocka_unit_test(forwards_take_no_memory_and_plain_ones_none_for_trees),
      cmocka_unit_test(answers_stay_until_the_next_forward),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
