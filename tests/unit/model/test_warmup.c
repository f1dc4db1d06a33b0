/* libs: model : emulated */
/* Forwards before the first real ones: which there are, how often, and that nothing is left of them. */
#include "common/model/warmup.h"
#include "tests/support/models.h"

enum { CONTEXT = 64, MOST = 8 };

static const model_sampling greedy = {0};
static const int32_t taps[] = {0, 1};
static const model_segment prompt = {.no_logits = true},
                           step = {.sampling = &greedy, .taps = taps, .tap_count = 2},
                           verify = {.kind = MODEL_TREE, .all_logits = true, .sampling = &greedy};

typedef struct setup {
  gguf_builder bytes;
  model_file *file;
  model *m;
  device *device;
  kv_cache *k;
} setup;

static setup open_setup(const char *name) {
  setup s;
  s.file = support_tiny_file(&s.bytes);
  s.m = support_open_model(s.file, OPS_MATH_INT8, name, 2);
  s.device = model_device(s.m);
  s.k = support_open_cache(s.m, 1, CONTEXT, KV_F16);
  assert_int_equal(kv_acquire(s.k), 0);
  return s;
}

static void close_setup(setup *s) {
  kv_close(s->k);
  support_close_model(s->m);
  model_file_close(s->file);
  gb_free(&s->bytes);
}

/* --- a device that says how often a number of rows must run before nothing is left to prepare --- */

static const device_table *real_table;
static int32_t runs[CONTEXT + 1], rows_of_last, preparations;

static bool noting_begin(device *d, device_kv *k, const ops_batch *b) {
  rows_of_last = b->row_count;
  runs[rows_of_last]++;
  return real_table->begin(d, k, b);
}

static ops_code preparing_wait(device *d, ops_answer *a) {
  ops_code code = real_table->wait(d, a);
  if (a) a->prepared = runs[rows_of_last] <= preparations;
  return code;
}

/* How often each number of rows runs in a warm-up of up to `most`, with so many preparations of each. */
static void warm_up_with(int32_t most, int32_t count) {
  setup s = open_setup("cpu:c");
  const warmup_form form = {step, most, 1};
  real_table = s.device->table;
  device_table noting = *real_table;
  noting.begin = noting_begin;
  noting.wait = preparing_wait;
  memset(runs, 0, sizeof runs);
  preparations = count;
  s.device->table = &noting;
  s.device->prepares = true;
  warmup_model(s.m, s.k, 0, &form, 1);
  s.device->table = real_table;
  close_setup(&s);
}

static void all_numbers_of_rows_run_until_nothing_is_prepared(void **state) {
  (void)state;
  const int32_t times[][2] = {
      {0, 1}, {1, 2}, {2, 3}, {1000, 4}}; /* one that never stops is no reason to wait */
  for (int32_t i = 0; i < 4; i++) {
    warm_up_with(5, times[i][0]);
    for (int32_t rows = 1; rows <= 8; rows++) {
      bool is_kind = rows == 5 || rows == 4 || rows == 2 || rows == 1;
      assert_int_equal(runs[rows], is_kind ? times[i][1] : 0);
    }
  }
}

static void nothing_is_left_of_it(void **state) {
  (void)state;
  setup s = open_setup("cpu:c");
  s.device->prepares = true;
  const warmup_form forms[] = {{prompt, MOST, 2}, {verify, MOST, 2}, {step, MOST, 2}};
  uint64_t rows = s.device->counters.rows;
  warmup_model(s.m, s.k, 0, forms, 3);
  assert_int_equal(s.device->counters.rows - rows, 3 * (MOST + MOST / 2 + 2));
  assert_int_equal(kv_length(s.k, 0), 0);
  assert_int_equal(kv_parent(s.k, 0, 0), KV_SLOT_FREE);
  close_setup(&s);
}

/* Rows for which there is no room are left out, and those that fit are not. */
static void what_does_not_fit_is_left_out(void **state) {
  (void)state;
  setup s = open_setup("cpu:c");
  s.device->prepares = true;
  const warmup_form form = {prompt, 2 * CONTEXT, CONTEXT / 2};
  uint64_t rows = s.device->counters.rows;
  warmup_model(s.m, s.k, 0, &form, 1);
  assert_int_equal(s.device->counters.rows - rows, CONTEXT + CONTEXT / 2);
  assert_int_equal(kv_length(s.k, 0), 0);
  close_setup(&s);
}

static void check_real(setup *s, const model_segment *form, int32_t count) {
  static const int32_t tokens[] = {3, 1, 4, 1, 5}, parents[] = {-1, 0, 0, 1, 1};
  model_segment real = *form;
  real.count = count;
  real.tokens = tokens;
  real.parents = real.kind == MODEL_TREE ? parents : NULL;
  if (real.parents) assert_int_equal(kv_stage(s->k, 0, parents, count), ERR_OK);
  assert_int_equal(model_forward(s->m, s->k, &real, 1), ERR_OK);
  assert_false(model_prepared(s->m));
  kv_rollback(s->k, 0, 0);
}

/* Of every form, whatever memory the others have taken after it. Devices that prepare nothing compute
 * nothing. */
static void real_forwards_find_all_prepared(void **state) {
  (void)state;
  setup s = open_setup(support_device());
  const warmup_form forms[] = {{step, 1, 1}, {prompt, MOST, 2}, {verify, MOST, 2}, {step, MOST, 1}};
  uint64_t before = s.device->counters.forwards;
  warmup_model(s.m, s.k, 0, forms, 4);
  assert_true(s.device->prepares == (s.device->counters.forwards > before));
  for (int32_t i = 1; i < 4; i++)
    for (int32_t count = 2; count <= 5; count++) check_real(&s, &forms[i].rows, count);
  check_real(&s, &step, 1);
  close_setup(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_numbers_of_rows_run_until_nothing_is_prepared),
      cmocka_unit_test(nothing_is_left_of_it),
      cmocka_unit_test(what_does_not_fit_is_left_out),
      cmocka_unit_test(real_forwards_find_all_prepared),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
