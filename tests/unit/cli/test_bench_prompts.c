/* libs: cli */
#include "orchestrator/cli/bench_prompts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int read(bench_prompts *p, const char *text, err *e) {
  static request defaults;
  input_file in = {.data = (char *)text, .size = strlen(text)};
  request_init(&defaults);
  defaults.max_tokens = 7;
  return bench_prompts_read(p, &in, &defaults, 100, e);
}

static void test_a_prompt_may_be_given_in_four_ways(void **state) {
  (void)state;
  bench_prompts p;
  err e = {0};
  int rc =
      read(&p,
           "{\"prompt\": \"one\"}\n"
           "\n"
           "{\"prompt\": \"rendered\", \"prompt_ids\": [1, 2], \"category\": \"b\", \"token_ids\": [9]}\n"
           "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"category\": \"a\"}\n"
           "{\"turns\": [\"first\", \"second\"], \"category\": \"b\"}",
           &e);
  if (rc) fail_msg("%s", e.text);
  assert_int_equal(p.count, 4);
  assert_int_equal(p.list[0].request.prompt_kind, REQUEST_TEXT);
  assert_int_equal(p.list[0].request.max_tokens, 7);
  assert_int_equal(p.list[1].request.prompt_kind, REQUEST_IDS);
  assert_int_equal(p.list[1].line, 3);
  assert_int_equal(p.list[2].request.message_count, 1);
  assert_int_equal(p.list[3].request.message_count, 1);
  assert_string_equal(p.list[3].request.messages[0].content, "first");
  assert_int_equal(p.category_count, 3);
  assert_string_equal(p.categories[p.list[0].category], "other");
  assert_string_equal(p.categories[p.list[1].category], "b");
  assert_int_equal(p.list[1].category, p.list[3].category);
  bench_prompts_fini(&p);
}

static void test_a_bad_line_is_named(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } table[] = {{"{\"prompt\": \"a\"}\nnonsense\n", "line 2: it is no JSON object"},
               {"{\"category\": \"a\"}", "line 1: it has none of prompt_ids"},
               {"\n{\"prompt_ids\": [100]}", "line 2: "},
               {"{\"prompt\": 5}", "line 1: "},
               {"\n \n", "no prompts"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    bench_prompts p;
    err e = {0};
    assert_int_not_equal(read(&p, table[i].text, &e), ERR_OK);
    if (!strstr(e.text, table[i].says)) fail_msg("%s", e.text);
    bench_prompts_fini(&p);
  }
}

static void test_there_are_not_endlessly_many_categories(void **state) {
  (void)state;
  static char text[64 * (BENCH_PROMPTS_CATEGORIES_MAX + 1)];
  for (int i = 0; i <= BENCH_PROMPTS_CATEGORIES_MAX; i++)
    sprintf(text + strlen(text), "{\"prompt\": \"a\", \"category\": \"%d\"}\n", i);
  bench_prompts p;
  err e = {0};
  assert_int_equal(read(&p, text, &e), ERR_LIMIT);
  assert_non_null(strstr(e.text, "64 categories"));
  bench_prompts_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_prompt_may_be_given_in_four_ways),
      cmocka_unit_test(test_a_bad_line_is_named),
      cmocka_unit_test(test_there_are_not_endlessly_many_categories),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
