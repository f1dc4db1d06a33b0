/* libs: cli service wire speculative text model file base */
#include "orchestrator/cli/default_head.h"

#include "tests/support/head_target.h"

static void test_a_head_that_came_with_the_program_is_used(void **state) {
  (void)state;
  head_target_files t = head_target_open(0);
  folder empty = folder_make(), heads = folder_make();
  const char *folders[] = {empty.path, heads.path};
  flags f = {.draft_by_default = true, .request = {.budget = 15}, .given = {.draft = "ngram"}};
  default_head_use_from(&f, t.file, folders, 2);
  assert_string_equal(f.given.draft, "ngram");
  assert_null(f.given.draft_model);
  head_target_put(heads.path, "x.gguf", &HEAD_TARGET_SHAPE, &t);
  default_head_use_from(&f, t.file, folders, 2);
  assert_string_equal(f.given.draft, FLAGS_HEAD_DRAFT);
  assert_string_equal(f.given.draft_model + strlen(heads.path), "/x.gguf");
  head_target_remove(heads.path, "x.gguf");
  folder_remove(&heads);
  folder_remove(&empty);
  head_target_close(&t);
}

static void test_what_the_user_says_comes_first(void **state) {
  (void)state;
  head_target_files t = head_target_open(0);
  folder heads = folder_make();
  const char *folders[] = {heads.path};
  flags named = {.given = {.draft = "ngram"}},
        others = {.draft_by_default = true, .request = {.budget = 15}, .given = {.listen = "ipc://x"}},
        off = {.draft_by_default = true};
  head_target_put(heads.path, "x.gguf", &HEAD_TARGET_SHAPE, &t);
  default_head_use_from(&named, t.file, folders, 1);
  default_head_use_from(&others, t.file, folders, 1); /* whose drafts others start */
  default_head_use_from(&off, t.file, folders, 1);
  assert_string_equal(named.given.draft, "ngram");
  assert_null(others.given.draft_model);
  assert_null(off.given.draft_model);
  head_target_remove(heads.path, "x.gguf");
  folder_remove(&heads);
  head_target_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_head_that_came_with_the_program_is_used),
      cmocka_unit_test(test_what_the_user_says_comes_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
