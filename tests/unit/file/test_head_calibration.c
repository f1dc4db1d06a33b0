/* libs: file base */
#include "common/file/head_calibration.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

static const head_calibration MEASURED = {
    true, {{1.25f, 0.5f, 0, 2, 1, -0.5f}, {1, 0.25f, 0.125f, 1.5f, 0.75f, 0.25f}}};

/* Writes and reads. count: weights of the second kind. */
static int pass(const head_calibration *from, uint64_t count, head_calibration *to, err *e) {
  const scratch_path_text file = scratch_path("head.gguf");
  const char *path = file.text;
  gguf *g;
  gguf_writer *w = gguf_writer_alloc();
  gguf_write_u32(w, "other", 1);
  if (count == HEAD_CALIBRATION_WEIGHTS) {
    head_calibration_write(from, w);
  } else {
    gguf_write_f32s(w, "tandem.calibration.greedy", from->weights[0], HEAD_CALIBRATION_WEIGHTS);
    float longer[HEAD_CALIBRATION_WEIGHTS + 1] = {0};
    memcpy(longer, from->weights[1], sizeof from->weights[1]);
    if (count > 0) gguf_write_f32s(w, "tandem.calibration.sampled", longer, count);
  }
  assert_int_equal(gguf_writer_save(w, path, e), ERR_OK);
  gguf_writer_free(w);
  assert_int_equal(gguf_open(&g, path, e), ERR_OK);
  int rc = head_calibration_read_gguf(to, g, e);
  gguf_close(g);
  return rc;
}

static void what_is_written_is_read(void **state) {
  (void)state;
  head_calibration c, none = {0};
  err e;
  assert_int_equal(pass(&MEASURED, HEAD_CALIBRATION_WEIGHTS, &c, &e), ERR_OK);
  assert_true(c.there);
  assert_memory_equal(c.weights, MEASURED.weights, sizeof c.weights);
  assert_int_equal(pass(&none, HEAD_CALIBRATION_WEIGHTS, &c, &e), ERR_OK);
  assert_false(c.there);
}

static void half_of_it_and_other_lengths_are_refused(void **state) {
  (void)state;
  const uint64_t counts[] = {0, 1, HEAD_CALIBRATION_WEIGHTS - 1, HEAD_CALIBRATION_WEIGHTS + 1};
  head_calibration c;
  err e;
  for (int i = 0; i < 4; i++) {
    assert_int_equal(pass(&MEASURED, counts[i], &c, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "tandem.calibration.sampled is no list of 6 numbers"));
  }
}

static void weights_beyond_their_limits_are_refused(void **state) {
  (void)state;
  const struct {
    int weight;
    float value;
    const char *says;
  } rows[] = {{0, 0, "weight 0 not between 0 and 100"},
              {0, -1, "weight 0 not"},
              {0, NAN, "weight 0 not"},
              {3, NAN, "weight 3 not between -100 and 100"},
              {1, INFINITY, "weight 1 not"},
              {5, -100.5f, "weight 5 not"}};
  err e;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    head_calibration c = MEASURED, read;
    c.weights[1][rows[i].weight] = rows[i].value;
    assert_int_equal(pass(&c, HEAD_CALIBRATION_WEIGHTS, &read, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, rows[i].says));
    assert_non_null(strstr(e.text, "calibrate_head.py"));
  }
}

static int read_text(const char *text, head_calibration *c, err *e) {
  json_t *object = json_loads(text, 0, NULL);
  assert_non_null(object);
  int rc = head_calibration_read_json(c, object, e);
  json_decref(object);
  return rc;
}

static void json_has_both_lists(void **state) {
  (void)state;
  head_calibration c;
  err e;
  assert_int_equal(read_text("{\"greedy\": [1.25, 0.5, 0, 2, 1, -0.5], "
                             "\"sampled\": [1, 0.25, 0.125, 1.5, 0.75, 0.25]}",
                             &c, &e),
                   ERR_OK);
  assert_memory_equal(c.weights, MEASURED.weights, sizeof c.weights);
  const char *bad[] = {"{}", "{\"greedy\": [1, 0, 0, 0, 0, 0]}", "{\"greedy\": 1, \"sampled\": []}",
                       "{\"greedy\": [1, 0, 0, 0, 0, \"0\"], \"sampled\": [1, 0, 0, 0, 0, 0]}",
                       "{\"greedy\": [1, 0, 0, 0, 0, 1e9], \"sampled\": [1, 0, 0, 0, 0, 0]}"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(read_text(bad[i], &c, &e), ERR_FORMAT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_written_is_read),
      cmocka_unit_test(half_of_it_and_other_lengths_are_refused),
      cmocka_unit_test(weights_beyond_their_limits_are_refused),
      cmocka_unit_test(json_has_both_lists),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
