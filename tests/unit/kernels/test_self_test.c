/* libs: kernels : emulated */
/* The self-test of devices: every device of this machine passes, and a device with one op that computes
 * something else does not. */
#include "kernels/devices/devices.h"
#include "kernels/devices/self_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static device *open_named(const char *name, ops_math math) {
  device *d = NULL;
  err e = {0};
  const device_options o = {.math = math, .threads = 2};
  if (device_open(&d, name, &o, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  return d;
}

static void expect_passes(const char *name) {
  for (int math = 0; math < OPS_MATH_COUNT; math++) {
    err e = {0};
    device *d = open_named(name, (ops_math)math);
    int rc = self_test_run(d, &e);
    if (rc != ERR_OK) fail_msg("%s", e.text);
    d->table->close(d);
  }
}

static void every_device_passes(void **state) {
  (void)state;
  const char *more = getenv("TANDEM_TEST_DEVICE");
  for (int32_t i = 0; devices_name(i); i++) expect_passes(devices_name(i));
  if (more) expect_passes(more);
}

/* --- a device of which one function is wrong --- */

static const device_table *right;

static void wrong_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  right->norm(d, x, head, w, eps * 1.5f, y);
}

static void wrong_attention(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  right->attention(d, layer, 0, q, y);
  (void)view;
}

static void wrong_rank(device *d, device_ids ids) {
  ids.common /= 2;
  right->rank(d, ids);
}

static void wrong_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                         int32_t length) {
  right->kv_commit(d, k, sequence, path, count - 1, length);
}

static ops_code wrong_wait(device *d, ops_answer *a) {
  ops_code code = right->wait(d, a);
  return code == OPS_OK ? OPS_FAILED : code;
}

static void expect_refusal(device_table table, const char *op) {
  err e = {0};
  device *d = open_named("cpu", OPS_MATH_INT8);
  right = d->table;
  d->table = &table;
  assert_int_equal(self_test_run(d, &e), ERR_UNSUPPORTED);
  if (!strstr(e.text, op) || !strstr(e.text, d->table->name)) fail_msg("%s: names no %s", e.text, op);
  d->table = right;
  d->table->close(d);
}

static void an_op_that_is_wrong_is_named(void **state) {
  (void)state;
  device *d = open_named("cpu", OPS_MATH_INT8);
  device_table table = *d->table;
  d->table->close(d);
  table.norm = wrong_norm;
  expect_refusal(table, "norm");
  table = *right;
  table.attention = wrong_attention;
  expect_refusal(table, "attention");
  table = *right;
  table.rank = wrong_rank;
  expect_refusal(table, "rank");
  table = *right;
  table.kv_commit = wrong_commit;
  expect_refusal(table, "commit");
  table = *right;
  table.wait = wrong_wait;
  expect_refusal(table, "fails at embed");
}

/* --- at opening --- */

static int open_tested(device **d, mem *m, err *e) {
  const device_options o = {.math = OPS_MATH_INT8, .threads = 1, .tested = true};
  *e = (err){0};
  return device_open(d, "far:cpu", &o, m, e);
}

static void a_device_that_computes_wrongly_is_refused_at_opening(void **state) {
  (void)state;
  err e;
  mem m = {0};
  device *d;
  assert_int_equal(open_tested(&d, &m, &e), ERR_OK);
  d->table->close(d);
  setenv("TANDEM_FAR", "wrong=1", 1);
  assert_int_equal(open_tested(&d, &m, &e), ERR_UNSUPPORTED);
  assert_null(d);
  if (!strstr(e.text, "far:cpu") || !strstr(e.text, "computes norm with other bits")) fail_msg("%s", e.text);
  d = open_named("far:cpu", OPS_MATH_INT8); /* it was not asked for */
  d->table->close(d);
  unsetenv("TANDEM_FAR");
}

/* What will fail in mid-life does so after the self-test, not in it. */
static void a_fault_to_come_is_not_the_self_tests(void **state) {
  (void)state;
  err e;
  mem m = {0};
  device *d;
  setenv("TANDEM_FAR", "lose=1", 1);
  assert_int_equal(open_tested(&d, &m, &e), ERR_OK);
  unsetenv("TANDEM_FAR");
  const ops_row row = {.length = 1};
  assert_true(d->table->begin(d, NULL, &(ops_batch){.rows = &row, .row_count = 1}));
  d->table->end(d);
  assert_int_equal(d->table->wait(d, NULL), OPS_LOST);
  d->table->close(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_device_passes),
      cmocka_unit_test(an_op_that_is_wrong_is_named),
      cmocka_unit_test(a_device_that_computes_wrongly_is_refused_at_opening),
      cmocka_unit_test(a_fault_to_come_is_not_the_self_tests),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
