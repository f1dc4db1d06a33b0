/* libs: cli */
#include "orchestrator/cli/verify_trees.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static text_model no_words; /* tokens are shown as numbers */

/* What is printed of these lines; NULL: an error, which *e has. */
static char *printed(const char *lines, const text_model *m, int columns, err *e) {
  char path[VERIFY_TREES_PATH_MAX], *text = NULL;
  size_t size = 0;
  assert_int_equal(verify_trees_begin(path, e), ERR_OK);
  FILE *steps = fopen(path, "w"), *to = open_memstream(&text, &size);
  fputs(lines, steps);
  fclose(steps);
  int rc = verify_trees_print(to, path, m, columns, e);
  fclose(to);
  unlink(path);
  if (rc == ERR_OK) return text;
  free(text);
  return NULL;
}

static void test_accepted_nodes_have_a_star(void **state) {
  (void)state;
  err e = {0};
  char *text = printed(
      "{\"position\": 9, \"tree\": [[-1, 5], [-1, 6], [1, 7], [1, 8], [2, 9]], \"sampled\": [6, 7, 4]}\n"
      "{\"position\": 12, \"tree\": [], \"sampled\": [3]}\n"
      "{\"position\": 13, \"tree\": [[-1, 2]], \"sampled\": [1]}\n",
      &no_words, 80, &e);
  assert_non_null(text);
  assert_string_equal(text, "at 9: 2 of 5 nodes accepted (*), then 4\n"
                            "|-   5\n"
                            "`- * 6\n"
                            "  |- * 7\n"
                            "  | `-   9\n"
                            "  `-   8\n"
                            "at 13: 0 of 1 nodes accepted (*), then 1\n"
                            "`-   2\n");
  free(text);
}

static void test_no_line_is_wider_than_the_terminal(void **state) {
  (void)state;
  err e = {0};
  char *text =
      printed("{\"position\": 9, \"tree\": [[-1, 5], [0, 123456]], \"sampled\": [5, 4]}\n", &no_words, 8, &e);
  assert_string_equal(text, "at 9: 1 \n`- * 5\n  `-   1\n");
  free(text);
}

static void test_texts_are_escaped(void **state) {
  (void)state;
  static const char path[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
  err e = {0};
  text_model m = {0};
  if (access(path, R_OK) != 0) skip();
  assert_int_equal(text_model_open(&m, path, &e), ERR_OK);
  assert_int_equal(text_model_load(&m, NULL, &e), ERR_OK);
  tokenizer_ids ids = {0};
  assert_int_equal(tokenizer_encode(m.tokens, "\n\"", 2, 0, &ids, &e), ERR_OK);
  assert_int_equal(ids.count, 2);
  char line[200];
  snprintf(line, sizeof line, "{\"position\": 1, \"tree\": [[-1, %d]], \"sampled\": [%d]}\n", ids.ids[0],
           ids.ids[1]);
  char *text = printed(line, &m, 80, &e);
  assert_string_equal(text, "at 1: 0 of 1 nodes accepted (*), then \"\\\"\"\n`-   \"\\x0a\"\n");
  free(text);
  tokenizer_ids_fini(&ids);
  text_model_close(&m);
}

static void test_a_line_that_is_no_step_is_named(void **state) {
  (void)state;
  static const char *const bad[] = {
      "nonsense\n",
      "{\"position\": 1, \"sampled\": [1]}\n",                        /* no tree */
      "{\"position\": 1, \"tree\": [[0, 5]], \"sampled\": [1]}\n",    /* a parent that comes later */
      "{\"position\": 1, \"tree\": [[-2, 5]], \"sampled\": [1]}\n",   /* no parent */
      "{\"position\": 1, \"tree\": [[-1, 5]], \"sampled\": []}\n",    /* no token */
      "{\"position\": 1, \"tree\": [[-1, 5]], \"sampled\": [6, 1]}\n" /* accepted, and no node */
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    err e = {0};
    assert_null(printed(bad[i], &no_words, 80, &e));
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.text, "line 1"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_accepted_nodes_have_a_star),
      cmocka_unit_test(test_no_line_is_wider_than_the_terminal),
      cmocka_unit_test(test_texts_are_escaped),
      cmocka_unit_test(test_a_line_that_is_no_step_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
