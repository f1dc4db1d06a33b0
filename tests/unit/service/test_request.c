/* libs: service wire speculative text file base */
/* The request itself: what it owns, what it copies, and the one check of it. */
#include "orchestrator/service/request.h"

#include "common/base/utf8.h"
#include "tests/support/same_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static const int32_t ids[] = {5, 6, 7};

/* One that can be sent. */
static void make(request *r) {
  request_init(r);
  r->context = 4096;
  assert_int_equal(request_set_text(r, "hello", 5, NULL), ERR_OK);
}

static void test_the_defaults_are_a_request_but_for_prompt_and_context(void **state) {
  (void)state;
  request r;
  err e = {0};
  request_init(&r);
  assert_int_equal(request_check(&r, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "no prompt"));
  make(&r);
  assert_int_equal(request_check(&r, &e), ERR_OK);
  assert_true(request_wants_draft(&r) && !r.seed_given && r.stop_count == 0);
  request_fini(&r);
}

static void test_a_prompt_takes_the_place_of_the_one_before(void **state) {
  (void)state;
  request r;
  make(&r);
  assert_int_equal(request_set_ids(&r, ids, 3, NULL), ERR_OK);
  assert_true(r.prompt_kind == REQUEST_IDS && !r.text && r.ids.count == 3);
  assert_int_equal(request_add_message(&r, "user", "one", 3, NULL), ERR_OK);
  assert_true(r.prompt_kind == REQUEST_MESSAGES && r.ids.count == 0 && r.message_count == 1);
  for (int i = 0; i < 40; i++)
    assert_int_equal(request_add_message(&r, "assistant", "more", 4, NULL), ERR_OK);
  assert_true(r.message_count == 41 && strcmp(r.messages[0].content, "one") == 0);
  assert_int_equal(request_set_text(&r, "a\0b", 3, NULL), ERR_OK);
  assert_true(r.prompt_kind == REQUEST_TEXT && r.message_count == 0 && r.text_size == 3 && r.text[3] == 0);
  request_fini(&r);
}

/* What was given may go: the request has its own. */
static void test_a_copy_shares_nothing(void **state) {
  (void)state;
  for (unsigned kind = REQUEST_TEXT; kind <= REQUEST_MESSAGES; kind++) {
    request r, copy;
    char stop[] = "stop", system[] = "be brief";
    make(&r);
    if (kind == REQUEST_IDS) request_set_ids(&r, ids, 3, NULL);
    if (kind == REQUEST_MESSAGES)
      request_add_message(&r, "user", "x", 1, NULL), request_add_message(&r, "assistant", "y", 1, NULL);
    r.sampling.seed = 9;
    r.max_tokens = 3;
    r.speculate = false;
    assert_int_equal(request_add_stop(&r, "stop", stop, 4, NULL), ERR_OK);
    assert_int_equal(request_set_system(&r, system, NULL), ERR_OK);
    assert_int_equal(request_set_title(&r, "a title", 7, NULL), ERR_OK);
    memset(stop, 'x', 4), memset(system, 'x', 4);
    assert_int_equal(request_copy(&copy, &r, NULL), ERR_OK);
    assert_true(same_options(&copy, &r) && same_prompt(&copy, &r) && same_text(copy.title, r.title));
    request_fini(&r);
    assert_true(copy.prompt_kind == kind && copy.max_tokens == 3 && copy.sampling.seed == 9);
    assert_string_equal(copy.stops[0], "stop");
    assert_string_equal(copy.system, "be brief");
    assert_string_equal(copy.title, "a title");
    request_fini(&copy);
  }
}

static void test_a_draft_is_wanted_by_both_its_switches(void **state) {
  (void)state;
  request r;
  make(&r);
  r.budget = 0;
  assert_false(request_wants_draft(&r));
  r.budget = 1;
  assert_true(request_wants_draft(&r));
  r.speculate = false;
  assert_false(request_wants_draft(&r));
  request_fini(&r);
}

static void refused(request *r, const char *phrase) {
  err e = {0};
  assert_int_equal(request_check(r, &e), ERR_ARG);
  if (!strstr(e.text, phrase)) fail_msg("%s: %s", phrase, e.text);
}

/* low and high are the ends of the range; beyond INT32_MAX nothing can be said. */
#define CHECK_RANGE(field, low, high, phrase)                                                                \
  do {                                                                                                       \
    int32_t before = r.field;                                                                                \
    r.field = (low)-1;                                                                                       \
    refused(&r, phrase);                                                                                     \
    r.field = low;                                                                                           \
    assert_int_equal(request_check(&r, NULL), ERR_OK);                                                       \
    r.field = high;                                                                                          \
    assert_int_equal(request_check(&r, NULL), ERR_OK);                                                       \
    if ((high) < INT32_MAX) r.field = (int32_t)((high) + 1L), refused(&r, phrase);                           \
    r.field = before;                                                                                        \
  } while (0)

static void test_the_check_knows_every_range(void **state) {
  (void)state;
  request r;
  make(&r);
  CHECK_RANGE(max_tokens, 1, INT32_MAX, "max_tokens");
  CHECK_RANGE(context, 0, WIRE_CONTEXT_MAX, "context");
  CHECK_RANGE(budget, 0, WIRE_BUDGET_MAX, "budget");
  CHECK_RANGE(selfcheck, 0, INT32_MAX, "selfcheck");
  r.speculate = false;
  CHECK_RANGE(budget, 0, WIRE_BUDGET_MAX, "budget");
  r.sampling.top_p = 0;
  refused(&r, "top");
  request_fini(&r);
}

static void test_the_target_gets_what_the_request_says(void **state) {
  (void)state;
  request r;
  make(&r);
  r.sampling = (sampler_options){.temperature = 0.5f,
                                 .top_k = 3,
                                 .top_p = 0.9f,
                                 .min_p = 0.1f,
                                 .repeat_penalty = 1.5f,
                                 .presence_penalty = 0.25f,
                                 .frequency_penalty = -0.5f,
                                 .seed = 9,
                                 .choice = 2};
  r.max_tokens = 7;
  r.selfcheck = 5;
  r.budget = 8;
  r.lockstep = r.single_token = true;
  assert_int_equal(request_add_bias(&r, 5, 1.5f, NULL), ERR_OK);
  msg_options o = request_options(&r);
  sampler_options s = msg_sampling(&o);
  assert_true(same_sampling(&s, &r.sampling));
  assert_true(o.max_tokens == 7 && o.context == 4096 && o.selfcheck == 5 && o.single);
  assert_true(o.budget == 8 && o.lockstep);
  assert_true(o.bias_count == 1 && o.bias_tokens[0] == 5 && o.bias_values[0] == 1.5f);
  r.speculate = false;
  o = request_options(&r);
  assert_true(o.budget == 0 && !o.lockstep);
  request_fini(&r);
}

static void test_a_raw_request_takes_no_template(void **state) {
  (void)state;
  request r;
  make(&r);
  r.raw = true;
  assert_int_equal(request_check(&r, NULL), ERR_OK);
  assert_int_equal(request_set_system(&r, "be brief", NULL), ERR_OK);
  refused(&r, "system message");
  request_fini(&r);
  make(&r);
  r.raw = true;
  assert_int_equal(request_add_message(&r, "user", "x", 1, NULL), ERR_OK);
  refused(&r, "messages");
  request_fini(&r);
}

/* ---- titles ---- */

/* To be freed. */
static char *title_of(const char *text) {
  request r;
  request_init(&r);
  assert_int_equal(request_set_title(&r, text, strlen(text), NULL), ERR_OK);
  char *title = strdup(r.title);
  request_fini(&r);
  return title;
}

static void test_titles_are_cut_between_characters(void **state) {
  (void)state;
  static const char *const characters[] = {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
  for (size_t c = 0; c < 4; c++)
    for (size_t before = 0; before < REQUEST_TITLE_MAX + 10; before++) {
      char text[400];
      size_t size = before, n = strlen(characters[c]);
      memset(text, 'a', before);
      for (int i = 0; i < 50; i++, size += n) memcpy(text + size, characters[c], n);
      text[size] = 0;
      char *title = title_of(text);
      size_t got = strlen(title), most = size < REQUEST_TITLE_MAX ? size : REQUEST_TITLE_MAX;
      assert_int_equal(utf8_valid(title, got), got);
      assert_memory_equal(title, text, got);
      size_t want = most <= before ? most : before + (most - before) / n * n;
      assert_int_equal(got, want);
      free(title);
    }
}

static void test_titles_go_on_after_a_null(void **state) {
  (void)state;
  request r;
  request_init(&r);
  assert_int_equal(request_set_title(&r, "one\0two\0\0three\0", 15, NULL), ERR_OK);
  assert_string_equal(r.title, "one two three");
  request_fini(&r);
}

static void test_titles_are_one_line(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"  two\n\n words\t ", "two words"}, {"", ""}, {"\n", ""}, {"a", "a"}, {" a", "a"}, {"a ", "a"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *title = title_of(cases[i][0]);
    assert_string_equal(title, cases[i][1]);
    free(title);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_defaults_are_a_request_but_for_prompt_and_context),
      cmocka_unit_test(test_a_prompt_takes_the_place_of_the_one_before),
      cmocka_unit_test(test_a_copy_shares_nothing),
      cmocka_unit_test(test_a_draft_is_wanted_by_both_its_switches),
      cmocka_unit_test(test_the_check_knows_every_range),
      cmocka_unit_test(test_the_target_gets_what_the_request_says),
      cmocka_unit_test(test_a_raw_request_takes_no_template),
      cmocka_unit_test(test_titles_are_cut_between_characters),
      cmocka_unit_test(test_titles_go_on_after_a_null),
      cmocka_unit_test(test_titles_are_one_line),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
