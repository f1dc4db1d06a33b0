/* libs: command_line wire model file base : */
/* The table is in order, and says what the parts that use its values say. */
#include "common/command_line/flag_value.h"

#include "common/base/log.h"
#include "common/base/sampler.h"
#include "common/file/model_config.h"
#include "common/model/kv_cache.h"
#include "common/model/model.h"
#include "kernels/ops.h"
#include "wire/message.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static bool share_a_command(const flag_row *a, const flag_row *b) {
  return a->commands & b->commands;
}

static void names_and_letters_are_those_of_one_flag(void **state) {
  (void)state;
  for (const flag_row *a = flag_rows; a < flag_rows + flag_row_count; a++) {
    assert_true(a->commands && a->name[0] && (a->type == FLAG_SWITCH) == !a->argument);
    for (const flag_row *b = flag_rows; b < a; b++) {
      if (a->id == b->id && (a->type != b->type || share_a_command(a, b))) fail_msg("--%s", a->name);
      if (!share_a_command(a, b)) continue;
      if (strcmp(a->name, b->name) == 0) fail_msg("--%s is there twice", a->name);
      if (a->letter && a->letter == b->letter) fail_msg("-%c is there twice", a->letter);
    }
  }
}

/* What is handed on is a flag of the worker, of the same type. */
static void workers_have_what_they_are_handed(void **state) {
  (void)state;
  for (const flag_row *r = flag_rows; r < flag_rows + flag_row_count; r++) {
    const char *const names[] = {r->target, r->draft};
    const flag_command workers[] = {COMMAND_TARGET, COMMAND_DRAFT};
    for (int i = 0; i < 2; i++) {
      if (!names[i] || !*names[i]) continue;
      const flag_row *w = flag_named(workers[i], names[i] + 2, strlen(names[i] + 2));
      if (!w || (w->type != r->type && w->type != FLAG_OWN)) fail_msg("%s for --%s", names[i], r->name);
      if (r->low < w->low || r->high > w->high) fail_msg("%s has another range than --%s", names[i], r->name);
    }
  }
}

static void ranges_are_those_of_what_uses_them(void **state) {
  (void)state;
  static const struct {
    flag_id id;
    double high;
  } table[] = {{FLAG_budget, WIRE_BUDGET_MAX},
               {FLAG_max_tokens, WIRE_CONTEXT_MAX},
               {FLAG_context, WIRE_CONTEXT_MAX},
               {FLAG_draft_context, WIRE_CONTEXT_MAX},
               {FLAG_top_k, SAMPLER_VOCAB_MAX},
               {FLAG_draft_outputs, SAMPLER_VOCAB_MAX},
               {FLAG_rows, MODEL_VOCAB_MAX},
               {FLAG_draft_layers, MODEL_LAYERS_MAX},
               {FLAG_kv_blocks, KV_BLOCKS_MAX},
               {FLAG_temperature, SAMPLER_TEMPERATURE_MAX},
               {FLAG_repeat_penalty, SAMPLER_PENALTY_MAX},
               {FLAG_presence_penalty, SAMPLER_COUNTED_MAX},
               {FLAG_frequency_penalty, SAMPLER_COUNTED_MAX}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (flag_of(table[i].id)->high != table[i].high) fail_msg("--%s", flag_of(table[i].id)->name);
}

static void check_words(flag_id id, const char *const *words, int count) {
  for (int i = 0; i < count; i++) assert_int_equal(flag_word_number(flag_of(id), words[i]), i);
  char none[64];
  assert_false(flag_word(flag_of(id), count, none));
}

static void words_are_in_the_order_of_what_they_choose(void **state) {
  (void)state;
  static const char *const math[] = {
      [OPS_MATH_F32] = "f32", [OPS_MATH_INT8] = "int8", [OPS_MATH_BF16] = "bf16", [MODEL_MATH_AUTO] = "auto"};
  check_words(FLAG_math, math, MODEL_MATH_AUTO + 1);
  assert_int_equal(flag_defaults.math, MODEL_MATH_AUTO);
  check_words(FLAG_log, log_level_words, 4);
  check_words(FLAG_log_format, log_format_words, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_and_letters_are_those_of_one_flag),
      cmocka_unit_test(workers_have_what_they_are_handed),
      cmocka_unit_test(ranges_are_those_of_what_uses_them),
      cmocka_unit_test(words_are_in_the_order_of_what_they_choose),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
