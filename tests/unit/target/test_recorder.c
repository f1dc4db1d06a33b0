/* libs: target wire speculative base */
#include "target_worker/recorder.h"

#include "target_worker/session_store.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/scratch.h"
#include <jansson.h>
#include <unistd.h>

static int64_t int_of(const json_t *o, const char *name) {
  assert_true(json_is_number(json_object_get(o, name)));
  return (int64_t)json_number_value(json_object_get(o, name));
}

/* A session of ten tokens with a chain of two nodes and one beside it. */
static session *with_nodes(session_store *store) {
  static const int32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  bool fresh;
  session *s = session_store_take(store, 0xabc, 0, tokens, 10, &fresh);
  assert_non_null(s);
  assert_int_equal(prefix_append(&s->committed, tokens, 10), ERR_OK);
  assert_non_null(session_draft_take(s, 10));
  int32_t first = tree_add(&s->drafts.tree, TREE_ROOT, 11, -0.1f, NULL);
  tree_add(&s->drafts.tree, first, 12, -0.2f, NULL);
  tree_add(&s->drafts.tree, TREE_ROOT, 40, -3, NULL);
  return s;
}

static void check_line(const json_t *line) {
  assert_string_equal(json_string_value(json_object_get(line, "session")), "0000000000000abc");
  assert_int_equal(int_of(line, "position"), 10);
  assert_int_equal(int_of(line, "verified"), 2);
  assert_int_equal(int_of(line, "waited_us"), 77);
  assert_int_equal(int_of(line, "arrived_us"), 55);
  assert_int_equal(int_of(line, "forward_us"), 4321);
  assert_int_equal(int_of(line, "steps"), 1);
  assert_int_equal(int_of(line, "rows"), 3);
  assert_int_equal(int_of(line, "reads"), 30);
  assert_true(json_is_false(json_object_get(line, "prompts")));
  assert_true(json_is_false(json_object_get(line, "colocated")));
  assert_true(json_is_true(json_object_get(line, "on")));
  json_t *nodes = json_pack("[[i,i],[i,i],[i,i]]", -1, 11, 0, 12, -1, 40),
         *got = json_object_get(line, "nodes");
  for (size_t i = 0; i < 3; i++) {
    assert_true(json_real_value(json_array_get(json_array_get(got, i), 2)) < 0 || i == 2);
    json_array_remove(json_array_get(got, i), 2);
  }
  assert_true(json_equal(got, nodes));
  json_t *sampled = json_pack("[i,i,i]", 11, 12, 13);
  assert_true(json_equal(json_object_get(line, "sampled"), sampled));
  json_t *carried = json_pack("[[i,i],[i,i]]", -1, 11, 0, 12);
  assert_true(json_equal(json_object_get(line, "tree"), carried));
  json_decref(carried);
  json_decref(sampled);
  json_decref(nodes);
}

static void test_a_step_is_a_line_of_json(void **state) {
  (void)state;
  const scratch_path_text file = scratch_path("steps");
  const char *path = file.text;
  err e;
  session_store store;
  recorder r = {0};
  assert_int_equal(session_store_init(&store, 1, 64, 0, &e), ERR_OK);
  session *s = with_nodes(&store);
  speculation_forward f = {.steps = 1, .rows = 3, .reads = 30, .us = 4321};
  engine_result x = {.node_count = 2, .sampled = {11, 12, 13}, .sampled_count = 3};
  s->speculation.step.waited_us = 77;
  s->speculation.arrived_us = 55;
  assert_int_equal(recorder_open(&r, path, &e), ERR_OK);
  const schedule_pick pick = {.rows = 2, .parents = {-1, 0}, .tokens = {11, 12}};
  recorder_step(&r, s, &pick, &f, &x);
  recorder_close(&r);
  recorder_close(&r); /* once is enough, twice no harm */
  json_t *line = json_load_file(path, 0, NULL);
  assert_non_null(line);
  check_line(line);
  json_decref(line);
  session_store_fini(&store);
}

static void test_a_file_that_cannot_be_written_is_an_error(void **state) {
  (void)state;
  recorder r = {0};
  err e;
  assert_int_equal(recorder_open(&r, scratch_path("none/steps").text, &e), ERR_IO);
  recorder_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_step_is_a_line_of_json),
      cmocka_unit_test(test_a_file_that_cannot_be_written_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
