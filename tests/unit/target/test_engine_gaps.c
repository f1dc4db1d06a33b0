/* libs: target : far */
/* Which pairs of jobs count as a round without a wait, and that what lies between them is what is measured.
 */
#include "target_worker/engine.h"
#include "tests/support/models.h"

#include "common/base/clock.h"
#include <unistd.h>

#define CONTEXT  64
#define PROMPT   10
#define SLOTS    2
#define PAUSE_US 20000

typedef struct setup {
  gguf_builder bytes;
  model_file *file;
  model *model;
  kv_cache *kv;
  engine *engine;
  int32_t length[SLOTS];
} setup;

static int open_setup(void **state) {
  setup *s = calloc(1, sizeof *s);
  err e = {0};
  s->file = support_tiny_file(&s->bytes);
  s->model = support_open_model(s->file, OPS_MATH_INT8, support_device(), 1);
  s->kv = support_open_cache(s->model, SLOTS, CONTEXT, KV_F16);
  engine_options o = {.model = s->model, .kv = s->kv, .sequences = SLOTS};
  if (engine_open(&s->engine, &o, &e)) fail_msg("%s", e.text);
  *state = s;
  return 0;
}

static int close_setup(void **state) {
  setup *s = *state;
  engine_close(s->engine);
  kv_close(s->kv);
  support_close_model(s->model);
  model_file_close(s->file);
  gb_free(&s->bytes);
  free(s);
  return 0;
}

static void run(setup *s, const engine_job *job, bool at_once) {
  engine_batch batch = {.count = 1, .at_once = at_once, .jobs = {*job}};
  engine_results r;
  engine_run(s->engine, &batch, &r);
  assert_int_equal(r.of[0].code, ERR_OK);
  s->length[job->slot] = r.of[0].kv_length;
}

static void prefill(setup *s, int32_t slot) {
  engine_job job = {.kind = ENGINE_PREFILL, .slot = slot, .kv_length = s->length[slot], .count = PROMPT};
  for (int32_t i = 0; i < PROMPT; i++) job.tokens[i] = i;
  run(s, &job, false);
}

static void round_of(setup *s, int32_t slot, int32_t nodes, bool at_once, bool selfcheck) {
  engine_job job = {.kind = ENGINE_VERIFY,
                    .slot = slot,
                    .kv_length = s->length[slot],
                    .count = nodes + 1,
                    .parents = {-1},
                    .sampling = {.top_p = 1, .repeat_penalty = 1},
                    .sampled_max = nodes + 1,
                    .selfcheck = selfcheck};
  for (int32_t i = 1; i <= nodes; i++) {
    job.tokens[i] = i;
    job.parents[i] = i - 1;
  }
  run(s, &job, at_once);
}

static uint64_t gaps(const setup *s) {
  return engine_count(s->engine)->gaps;
}

static void only_rounds_without_a_wait_count(void **state) {
  setup *s = *state;
  prefill(s, 0);
  prefill(s, 1);
  round_of(s, 0, 2, true, false); /* after a prefill */
  assert_int_equal(gaps(s), 0);
  round_of(s, 0, 2, true, false);
  assert_int_equal(gaps(s), 1);
  round_of(s, 0, 2, false, false); /* something was waited for */
  assert_int_equal(gaps(s), 1);
  round_of(s, 0, 0, true, false); /* no nodes */
  assert_int_equal(gaps(s), 1);
  round_of(s, 0, 2, true, false); /* after a plain step */
  assert_int_equal(gaps(s), 2);
  round_of(s, 1, 2, true, false); /* another session's */
  assert_int_equal(gaps(s), 2);
  round_of(s, 1, 2, true, true);
  assert_int_equal(gaps(s), 3);
  round_of(s, 1, 2, true, false); /* after a selfcheck, which decodes meanwhile */
  assert_int_equal(gaps(s), 3);
}

/* Between two forwards is less time than the test sees pass around both. */
static void a_gap_is_the_time_between_forwards(void **state) {
  setup *s = *state;
  prefill(s, 0);
  uint64_t first = clock_us();
  round_of(s, 0, 2, false, false);
  usleep(PAUSE_US);
  uint64_t second = clock_us();
  round_of(s, 0, 2, true, false);
  uint64_t third = clock_us();
  round_of(s, 0, 2, true, false);
  uint64_t end = clock_us();
  const engine_counters *n = engine_count(s->engine);
  assert_int_equal(n->gaps, 2);
  assert_in_range(n->gap_us[0], PAUSE_US, third - first);
  assert_in_range(n->gap_us[1], 0, end - second);
  assert_in_range(n->idle_us[0], PAUSE_US, third - first);
  assert_in_range(n->idle_us[1], 0, end - second);
}

static const device_table *real_table;

static ops_code slow_wait(device *d, ops_answer *a) {
  ops_code code = real_table->wait(d, a);
  usleep(PAUSE_US);
  if (a) a->device_us = PAUSE_US;
  return code;
}

static void the_device_is_not_idle_while_it_computes(void **state) {
  setup *s = *state;
  device *d = model_device(s->model);
  real_table = d->table;
  device_table slow = *real_table;
  slow.wait = slow_wait;
  d->table = &slow;
  prefill(s, 0);
  uint64_t began = clock_us();
  round_of(s, 0, 2, false, false);
  for (int i = 0; i < 10; i++) round_of(s, 0, 2, true, false);
  d->table = real_table;
  uint64_t took = clock_us() - began, idle = 0;
  const engine_counters *n = engine_count(s->engine);
  for (uint64_t i = 0; i < n->gaps; i++) idle += n->idle_us[i];
  assert_int_equal(n->gaps, 10);
  assert_in_range(idle, 0, took - 11 * PAUSE_US); /* it computed in all eleven rounds */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(only_rounds_without_a_wait_count, open_setup, close_setup),
      cmocka_unit_test_setup_teardown(a_gap_is_the_time_between_forwards, open_setup, close_setup),
      cmocka_unit_test_setup_teardown(the_device_is_not_idle_while_it_computes, open_setup, close_setup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
