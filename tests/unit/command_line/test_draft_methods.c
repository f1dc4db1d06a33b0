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

/* Who looks into earlier answers looks into this one, too. */
static void test_prompt_lookup_stands_beside_suffix(void **state) {
  (void)state;
  draft_methods m;
  err e = {0};
  assert_int_equal(draft_methods_parse(&m, "suffix", &e), ERR_OK);
  assert_true(m.count == 2 && m.list[0] == DRAFT_SUFFIX && m.list[1] == DRAFT_NGRAM);
  assert_int_equal(draft_methods_parse(&m, "ngram,eagle3,suffix", &e), ERR_OK);
  assert_true(m.count == 3 && m.list[0] == DRAFT_NGRAM && m.list[2] == DRAFT_SUFFIX);
  assert_int_equal(draft_methods_parse(&m, "suffix,eagle3,replay:a:1", &e), ERR_OK);
  assert_true(m.count == 4 && draft_methods_have(&m, DRAFT_NGRAM));
  assert_false(draft_methods_compute("suffix"));
}

static void test_a_corpus_goes_with_suffix(void **state) {
  (void)state;
  static const struct {
    const char *list;
    bool corpus, learns, typed, fits;
  } table[] = {{"ngram", false, false, false, true},  {"ngram", true, false, true, false},
               {"ngram", true, true, false, true},    {"eagle3", false, true, true, false},
               {"suffix", true, false, true, true},   {"eagle3,suffix", false, true, false, true},
               {"suffix", false, false, false, false}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    draft_methods m;
    err e = {0};
    assert_int_equal(draft_methods_parse(&m, table[i].list, &e), ERR_OK);
    int rc = draft_methods_check_corpus(&m, table[i].corpus, table[i].learns, table[i].typed, &e);
    assert_int_equal(rc, table[i].fits ? ERR_OK : ERR_ARG);
  }
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
      cmocka_unit_test(test_prompt_lookup_stands_beside_suffix),
      cmocka_unit_test(test_a_corpus_goes_with_suffix),
      cmocka_unit_test(test_what_is_no_list_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
