/* libs: service wire speculative text file base */
/* The flags that the programs get which a service starts. */
#include "orchestrator/service/worker_command_line.h"

#include "common/base/log.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const flag_values plain = {.model = "m.gguf",
                                  .draft = "ngram",
                                  .math = 1, /* int8 */
                                  .draft_type = -1,
                                  .pin = "none",
                                  .context = 512,
                                  .threads = 3,
                                  .sessions = 4};

/* All arguments with blanks between them. */
static const char *joined(const worker_command_line *c) {
  static char text[1000];
  text[0] = 0;
  for (int32_t i = 0; c->list[i]; i++) {
    assert_true(i < c->count && strlen(text) + strlen(c->list[i]) + 2 < sizeof text);
    strcat(strcat(text, i ? " " : ""), c->list[i]);
  }
  return text;
}

static void test_a_target_gets_all_of_its_settings(void **state) {
  (void)state;
  flag_values s = plain;
  worker_command_line c;
  worker_command_line_target(&c, &s, "ipc:///o", "ipc:///t");
  assert_string_equal(joined(&c),
                      "--orchestrator ipc:///o --log-level warning --bind ipc:///t --ctx 512 --model m.gguf "
                      "--partial-kv-sink 0 --partial-kv-retrieval 0 --partial-kv-choice mass "
                      "--partial-kv-rows 0 --verify-chunk 0 "
                      "--threads 3 --pin none "
                      "--sessions 4 --kv static --kv-blocks 0 --kv-memory 0 --kv-in device --math "
                      "int8 --log-format text");
  s.verbose = true;
  s.repack_cache = "/packed";
  s.kv_blocks = 77;
  s.device = "cuda:1";
  s.kv_memory = (int64_t)3 << 30;
  s.kv_in = 1;
  worker_command_line_target(&c, &s, "ipc:///o", "ipc:///t");
  assert_non_null(strstr(joined(&c), "--log-level info --counters "));
  assert_non_null(strstr(joined(&c), "--device cuda:1 "));
  assert_non_null(strstr(
      joined(&c), "--kv-blocks 77 --kv-memory 3221225472 --kv-in host --math int8 --repack-cache /packed"));
  s.log_format = LOG_AS_JSON;
  worker_command_line_target(&c, &s, "ipc:///o", "ipc:///t");
  assert_non_null(strstr(joined(&c), "--log-format json"));
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_non_null(strstr(joined(&c), "--log-format json"));
}

/* Every flag that is handed on is given, so that there is the most to say. */
static void test_all_flags_at_once_have_room(void **state) {
  (void)state;
  flag_values s = plain;
  worker_command_line c;
  for (const flag_row *r = flag_rows; r < flag_rows + flag_row_count; r++) {
    void *at = (char *)&s + r->offset;
    s.from[r->id] = FLAG_FROM_COMMAND_LINE;
    if (r->type == FLAG_TEXT || r->type == FLAG_OWN) *(const char **)at = "eagle3";
    if (r->type == FLAG_SWITCH) *(bool *)at = true;
    if (r->type == FLAG_CHOICE) *(int32_t *)at = 0;
    if (r->type == FLAG_INT) *(int32_t *)at = (int32_t)r->high;
    if (r->type == FLAG_SIZE) *(int64_t *)at = INT64_MAX;
  }
  s.draft_type = -1; /* then the target has the head, too */
  worker_command_line_target(&c, &s, "ipc:///o", "ipc:///t");
  assert_non_null(strstr(joined(&c), "--head eagle3"));
  s.draft_type = 0;
  s.draft_device = s.device = "cuda:0";
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_non_null(strstr(joined(&c), "--beside"));
}

/* By turns only where the two share what computes. */
static void test_a_draft_takes_turns_on_the_targets_device_alone(void **state) {
  (void)state;
  static const struct {
    const char *target, *draft;
    bool turns;
  } table[] = {{NULL, NULL, true},      {NULL, "cpu:c", true},      {"cpu:avx2", "cpu:c", true},
               {"cuda:0", NULL, false}, {"cuda:0", "cpu", false},   {"cuda:0", "cuda:0", true},
               {NULL, "cuda:0", false}, {"cuda:0", "cuda:1", false}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    flag_values s = plain;
    worker_command_line c;
    s.draft = "model";
    s.draft_layers = 6;
    s.device = table[i].target;
    s.draft_device = table[i].draft;
    worker_command_line_draft(&c, &s, "ipc:///o");
    assert_int_equal(strstr(joined(&c), " --turns") != NULL, table[i].turns);
    const char *device = strstr(joined(&c), " --device ");
    const char *own = table[i].draft ? table[i].draft : "cpu"; /* whatever TANDEM_DEVICE is */
    assert_true(device && strncmp(device + strlen(" --device "), own, strlen(own)) == 0);
  }
}

#define SMALL_MODEL (INT64_C(512) << 20)

/* Of 12 or more, where the two leave room for each other. */
static void test_many_processors_are_shared(void **state) {
  (void)state;
  static const struct {
    const char *draft, *device, *draft_device;
    int32_t cores, threads, draft_threads;
    int32_t target_has, draft_has; /* 0: nothing changes */
  } table[] = {{"eagle3,ngram", NULL, NULL, 16, 0, 0, 12, 4}, {"model", "cpu:c", "cpu", 12, 0, 0, 9, 3},
               {"model", NULL, NULL, 11, 0, 0, 0, 0},         {"ngram", NULL, NULL, 16, 0, 0, 0, 0},
               {"model", "cuda:0", NULL, 16, 0, 0, 0, 0},     {"model", "cuda:0", "cuda:0", 16, 0, 0, 0, 0},
               {"model", NULL, NULL, 16, 8, 0, 8, 4},         {"model", NULL, NULL, 16, 15, 0, 15, 1},
               {"model", NULL, NULL, 16, 16, 0, 0, 0},        {"model", NULL, NULL, 16, 20, 0, 0, 0},
               {"model", NULL, NULL, 16, 0, 6, 10, 6},        {"model", NULL, NULL, 16, 0, 16, 0, 0},
               {"model", NULL, NULL, 16, 8, 8, 8, 8},         {"model", NULL, NULL, 16, 12, 5, 0, 0}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    flag_values s = plain;
    worker_command_line c;
    int32_t threads = table[i].threads ? table[i].threads : table[i].cores; /* the default */
    if (table[i].threads) s.from[FLAG_threads] = FLAG_FROM_COMMAND_LINE;
    s.draft = table[i].draft;
    s.device = table[i].device;
    s.draft_device = table[i].draft_device;
    s.threads = threads;
    s.draft_threads = table[i].draft_threads;
    worker_command_line_share(&s, &(worker_machine){table[i].cores, SMALL_MODEL, false});
    bool shared = table[i].target_has > 0;
    assert_int_equal(s.threads, threads); /* all of them while the draft is quiet */
    assert_int_equal(s.threads_beside, table[i].threads ? 0 : table[i].target_has);
    assert_int_equal(s.draft_threads, shared ? table[i].draft_has : table[i].draft_threads);
    worker_command_line_draft(&c, &s, "ipc:///o");
    assert_int_equal(strstr(joined(&c), " --beside") != NULL, shared);
    worker_command_line_target(&c, &s, "ipc:///o", "ipc:///t");
    assert_int_equal(strstr(joined(&c), " --threads-beside ") != NULL, s.threads_beside > 0);
    bool computes = strcmp(s.draft, "ngram") != 0 && !(s.device && strcmp(s.device, "cuda:0") == 0);
    assert_int_equal(strstr(joined(&c), " --spin 20") != NULL, computes && !shared); /* they take turns */
  }
}

static void test_a_large_model_and_many_sessions_have_all_processors(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) {
    flag_values s = plain;
    s.draft = "model";
    s.sessions = i == 1 ? 5 : 4;
    worker_command_line_share(&s, &(worker_machine){16, i == 2 ? SMALL_MODEL + 1 : SMALL_MODEL, false});
    assert_int_equal(s.beside, i == 0);
  }
}

static void test_a_gpu_with_mps_is_shared_by_a_small_model(void **state) {
  (void)state;
  static const struct {
    const char *draft, *device, *draft_device;
    bool mps, beside;
  } table[] = {
      {"eagle3,ngram", "cuda:0", "cuda:0", true, true}, {"eagle3,ngram", "cuda:0", "cuda:0", false, false},
      {"ngram", "cuda:0", "cuda:0", true, false},       {"model", "cuda:0", "cuda:1", true, false},
      {"model", "cuda:0", NULL, true, false},           {"model", NULL, NULL, true, false}};
  flag_values large = plain;
  large.draft = "model";
  large.device = large.draft_device = "cuda:0";
  worker_command_line_share(&large, &(worker_machine){2, SMALL_MODEL + 1, true});
  assert_false(large.beside);
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    flag_values s = plain;
    s.draft = table[i].draft;
    s.device = table[i].device;
    s.draft_device = table[i].draft_device;
    worker_command_line_share(&s, &(worker_machine){2, SMALL_MODEL, table[i].mps});
    assert_int_equal(s.beside, table[i].beside);
    assert_int_equal(s.threads, plain.threads);
  }
}

static void test_a_draft_without_a_model_gets_little(void **state) {
  (void)state;
  flag_values s = plain;
  worker_command_line c;
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_string_equal(
      joined(&c), "--orchestrator ipc:///o --log-level warning --ctx 512 --draft ngram --log-format text");
  s.draft_context = 100;
  s.candidates = 1;
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_non_null(strstr(joined(&c), "--ctx 100"));
  assert_non_null(strstr(joined(&c), "--candidates 1"));
}

static void test_a_draft_with_a_corpus_gets_the_vocabulary_too(void **state) {
  (void)state;
  flag_values s = plain;
  worker_command_line c;
  s.corpus = "answers";
  s.corpus_learn = true;
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_null(strstr(joined(&c), "--corpus"));
  s.draft = "suffix";
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_string_equal(joined(&c),
                      "--orchestrator ipc:///o --log-level warning --ctx 512 --model m.gguf --draft suffix"
                      " --corpus answers --corpus-learn --log-format text");
}

/* There a frame takes as long as a row of a forward. */
static void test_the_draft_of_a_target_on_a_gpu_polls(void **state) {
  (void)state;
  flag_values s = plain;
  worker_command_line c;
  s.device = "cuda:0";
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_non_null(strstr(joined(&c), "--busy-poll 2000"));
  s.device = "cpu:avx2";
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_null(strstr(joined(&c), "--busy-poll"));
}

static void test_a_draft_with_a_model_gets_both_models(void **state) {
  (void)state;
  flag_values s = plain;
  worker_command_line c;
  s.draft = "model";
  s.draft_model = "small.gguf";
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_string_equal(
      joined(&c),
      "--orchestrator ipc:///o --log-level warning --ctx 512 --model m.gguf --draft model "
      "--model-draft small.gguf --kv-memory 0 --log-format text --sessions 4 --device cpu --turns");
  s.draft_model = NULL;
  s.draft_layers = 6;
  s.draft_threads = 2;
  s.repack_cache = "/packed";
  s.draft_kv_memory = 1000000;
  s.verbose = true;
  worker_command_line_draft(&c, &s, "ipc:///o");
  assert_non_null(strstr(joined(&c), "--counters --ctx 512 --model m.gguf --draft model --draft-layers 6 "
                                     "--kv-memory 1000000 --threads 2 --repack-cache /packed"));
  assert_non_null(strstr(joined(&c), "--sessions 4 --device cpu --turns"));
}

/* ... unless the draft reads it in a type of its own. */
static void test_a_target_gets_the_head_that_its_draft_reads(void **state) {
  (void)state;
  static const struct {
    const char *draft;
    int32_t type;
    bool head;
  } table[] = {{"eagle3,ngram", -1, true}, {"eagle3", 1, false}, {"model", -1, false},
               {"ngram", -1, false},       {"any", -1, false},   {"none", -1, false}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    flag_values s = plain;
    worker_command_line c;
    s.draft = table[i].draft;
    s.draft_type = table[i].type;
    s.draft_model = "head.gguf";
    worker_command_line_target(&c, &s, "ipc:///o", "ipc:///t");
    assert_int_equal(strstr(joined(&c), " --head head.gguf") != NULL, table[i].head);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_target_gets_all_of_its_settings),
      cmocka_unit_test(test_many_processors_are_shared),
      cmocka_unit_test(test_a_large_model_and_many_sessions_have_all_processors),
      cmocka_unit_test(test_a_gpu_with_mps_is_shared_by_a_small_model),
      cmocka_unit_test(test_a_draft_without_a_model_gets_little),
      cmocka_unit_test(test_a_draft_with_a_corpus_gets_the_vocabulary_too),
      cmocka_unit_test(test_the_draft_of_a_target_on_a_gpu_polls),
      cmocka_unit_test(test_a_draft_with_a_model_gets_both_models),
      cmocka_unit_test(test_all_flags_at_once_have_room),
      cmocka_unit_test(test_a_draft_takes_turns_on_the_targets_device_alone),
      cmocka_unit_test(test_a_target_gets_the_head_that_its_draft_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
