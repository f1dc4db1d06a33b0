/* libs: kernels */
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
  for (int math = OPS_MATH_F32; math <= OPS_MATH_INT8; math++) {
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

/* --- a device whose norm, or whose attention, is wrong --- */

static const device_table *right;

static void wrong_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  right->norm(d, x, head, w, eps * 1.5f, y);
}

static void wrong_attention(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  right->attention(d, layer, 0, q, y);
  (void)view;
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
  table.kv_commit = wrong_commit;
  expect_refusal(table, "commit");
  table = *right;
  table.wait = wrong_wait;
  expect_refusal(table, "fails at embed");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_device_passes),
      cmocka_unit_test(an_op_that_is_wrong_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
