/* libs: command_line base */
#include "common/command_line/draft_methods.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void test_a_list_keeps_its_order(void **state) {
  (void)state;
  draft_methods m;
  err e;
  assert_int_equal(draft_methods_parse(&m, "ngram", &e), ERR_OK);
  assert_true(m.count == 1 && m.list[0] == DRAFT_NGRAM && !m.replay);
  assert_int_equal(draft_methods_parse(&m, "model,ngram", &e), ERR_OK);
  assert_true(m.count == 2 && m.list[0] == DRAFT_MODEL && m.list[1] == DRAFT_NGRAM);
  assert_int_equal(draft_methods_parse(&m, "eagle3,ngram", &e), ERR_OK);
  assert_true(draft_methods_have(&m, DRAFT_NGRAM) && !draft_methods_have(&m, DRAFT_REPLAY));
}

static void test_a_recording_may_hold_commas(void **state) {
  (void)state;
  draft_methods m;
  err e;
  assert_int_equal(draft_methods_parse(&m, "ngram,replay:a,b.jsonl:0.5", &e), ERR_OK);
  assert_true(m.count == 2 && m.list[1] == DRAFT_REPLAY);
  assert_string_equal(m.replay, "a,b.jsonl:0.5");
  assert_true(draft_methods_compute("ngram,eagle3") && draft_methods_compute("model"));
  assert_false(draft_methods_compute("ngram") || draft_methods_compute("replay:model:1"));
  assert_true(draft_methods_name("replay:x,model:1", DRAFT_REPLAY));
  assert_false(draft_methods_name("replay:x,model:1", DRAFT_MODEL));
}

static void test_what_is_no_list_is_refused(void **state) {
  (void)state;
  static const char *const wrong[] = {"",     "eagle",  "ngram,",      ",ngram",      "ngram,ngram",
                                      "none", "replay", "ngram model", "ngram,none",  "Ngram",
                                      "any",  "ngra",   "ngramm",      "eagle3,model"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    draft_methods m;
    err e = {0};
    assert_int_equal(draft_methods_parse(&m, wrong[i], &e), ERR_ARG);
    assert_non_null(e.text);
    assert_false(draft_methods_name(wrong[i], DRAFT_NGRAM));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_list_keeps_its_order),
      cmocka_unit_test(test_a_recording_may_hold_commas),
      cmocka_unit_test(test_what_is_no_list_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
