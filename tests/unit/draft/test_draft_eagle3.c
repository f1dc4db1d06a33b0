/* libs: draft wire speculative text model file base */
/* What a head's files say of it as a drafter. */
#include "draft_worker/draft_eagle3.h"

#include "common/command_line/flag_value.h"

#include "tests/support/head_target.h"

static void test_a_head_says_what_it_reads_and_how_far_it_was_trained(void **state) {
  (void)state;
  static const logger log = {"test", LOG_ERROR};
  head_target_files t = head_target_open(0);
  folder f = folder_make();
  char target[200], head[200];
  snprintf(target, sizeof target, "%s/target.gguf", f.path);
  snprintf(head, sizeof head, "%s/head.gguf", f.path);
  folder_put(&f, "target.gguf", t.bytes.bytes, t.bytes.size);
  head_target_put(f.path, "head.gguf", &HEAD_TARGET_SHAPE, &t);
  flag_values a = flag_defaults;
  a.model = target, a.draft_model = head, a.device = "cpu";
  a.threads = a.sessions = 1, a.rows = 4;
  a.draft_type = flag_word_number(flag_of(FLAG_draft_type), "bf16");
  static draft_eagle3 m;
  draft_options o = {0};
  drafter d = {0};
  err e;
  if (draft_eagle3_open(&m, &a, &log, &o, &d, &e)) fail_msg("%s", e.text);
  assert_string_equal(d.method, "eagle3");
  assert_true(d.kind->tokens_per_forward == 1 && d.kind->goes_past_guess);
  assert_true(d.wants.tap_count == 1 && d.wants.taps[0] == 1 && d.wants.fc_width == SUPPORT_TINY_EMBED);
  assert_int_equal(d.wants.horizon, HEAD_FILE_HORIZON);
  drafter_free(&d);
  draft_eagle3_close(&m);
  head_target_remove(f.path, "head.gguf");
  folder_remove(&f);
  head_target_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_head_says_what_it_reads_and_how_far_it_was_trained),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
