/* libs: cli service wire speculative text file base */
/* What is typed becomes a request and the settings of the workers; a line of JSON asks for the same. */
#include "orchestrator/cli/flags.h"

#include "orchestrator/service/request_json.h"
#include "tests/support/same_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { ARGUMENTS_MAX = 40 };

/* `tandem batch -m m.gguf ARGUMENTS... IN OUT` */
static void parse(flags *f, const char *const *arguments) {
  char *argv[ARGUMENTS_MAX] = {(char *)"tandem batch", (char *)"-m", (char *)"m.gguf"};
  int argc = 3;
  while (*arguments) argv[argc++] = (char *)*arguments++;
  argv[argc++] = (char *)"IN";
  argv[argc++] = (char *)"OUT";
  flags_parse(f, COMMAND_BATCH, argc, argv);
}

/* Both ways to say the same. */
typedef struct pair {
  const char *json; /* what a line says besides its id and its prompt */
  const char *typed[4];
} pair;

static const pair pairs[] = {
    {"", {NULL}},
    {"\"max_tokens\": 7", {"--max-tokens", "7"}},
    {"\"temperature\": 0.5", {"--temp", "0.5"}},
    {"\"top_k\": 3", {"--top-k", "3"}},
    {"\"top_p\": 0.9", {"--top-p", "0.9"}},
    {"\"min_p\": 0.1", {"--min-p", "0.1"}},
    {"\"repeat_penalty\": 1.5", {"--repeat-penalty", "1.5"}},
    {"\"presence_penalty\": -2", {"--presence-penalty", "-2"}},
    {"\"frequency_penalty\": 0.1", {"--frequency-penalty", "0.1"}},
    {"\"logit_bias\": {\"7\": -100, \"0\": 2.5}", {"--logit-bias", "7-100", "--logit-bias", "0+2.5"}},
    {"\"logit_bias\": {\"7\": -1}", {"--logit-bias", "7+3", "--logit-bias", "7-1"}}, /* the last one */
    {"\"seed\": 9", {"--seed", "9"}},
    {"\"budget\": 4", {"--budget", "4"}},
    {"\"stop\": [\"a\", \"\\u00e9\"]", {"--stop", "a", "--stop", "\xc3\xa9"}},
    {"\"force_single_token\": true", {"--force-single-token"}},
    {"\"draft\": false", {"--draft", "none"}},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static void check_pair(const pair *p) {
  char line[300];
  flags plain, typed;
  request said;
  json_t *id;
  err e = {0};
  parse(&plain, (const char *[]){NULL});
  parse(&typed, (const char *[]){p->typed[0], p->typed[1], p->typed[2], p->typed[3], NULL});
  plain.request.context = typed.request.context = 4096;
  snprintf(line, sizeof line, "{\"id\": 1, \"prompt\": \"hello\"%s%s}", *p->json ? ", " : "", p->json);
  if (request_json_read(line, strlen(line), &plain.request, 100, &said, &id, &e))
    fail_msg("%s: %s", line, e.text);
  request_set_text(&typed.request, "hello", 5, NULL);
  if (!typed.request.seed_given) typed.request.sampling.seed = said.sampling.seed; /* each parse draws one */
  if (!same_options(&said, &typed.request) || !same_prompt(&said, &typed.request)) fail_msg("%s", line);
  assert_int_equal(request_check(&said, &e), ERR_OK);
  request_fini(&said);
  json_decref(id);
  flags_fini(&plain);
  flags_fini(&typed);
}

static void test_flags_and_a_line_of_json_ask_for_the_same(void **state) {
  (void)state;
  for (int i = 0; i < PAIRS; i++) check_pair(&pairs[i]);
}

static void test_the_rest_of_the_request(void **state) {
  (void)state;
  flags f;
  parse(&f, (const char *[]){"--system", "be brief", "--no-special", "--pace", "lockstep", "--selfcheck", "5",
                             "--ctx", "777", NULL});
  assert_string_equal(f.request.system, "be brief");
  assert_true(f.request.no_special && f.request.lockstep && f.request.selfcheck == 5 &&
              f.request.context == 777);
  assert_true(f.request.speculate && f.request.budget == REQUEST_BUDGET_DEFAULT && !f.request.raw);
  flags_fini(&f);
  parse(&f, (const char *[]){"--raw", NULL});
  assert_true(f.request.raw && !f.request.no_special && f.request.prompt_kind == REQUEST_NO_PROMPT);
  flags_fini(&f);
}

static void test_a_seed_is_drawn_where_none_is_given(void **state) {
  (void)state;
  flags one, other;
  parse(&one, (const char *[]){NULL});
  parse(&other, (const char *[]){NULL});
  assert_true(one.request.sampling.seed != other.request.sampling.seed && !one.request.seed_given);
  assert_true(one.request.sampling.seed < UINT64_C(1) << 53); /* every reader of JSON keeps it */
  flags_fini(&one);
  flags_fini(&other);
}

static void test_settings_of_the_workers(void **state) {
  (void)state;
  flags f;
  parse(&f, (const char *[]){"--threads",       "3",     "--pin",       "auto", "--kv",           "virtual",
                             "--kv-blocks",     "9",     "--math",      "f32",  "--draft-layers", "4",
                             "--draft-threads", "2",     "--draft-ctx", "100",  "--sessions",     "6",
                             "--repack-cache",  "cache", "-v",          NULL});
  const flag_values *w = &f.given;
  assert_string_equal(w->model, "m.gguf");
  assert_true(w->threads == 3 && w->kv_blocks == 9 && w->sessions == 6 && w->verbose);
  assert_true(w->draft_layers == 4 && w->draft_threads == 2 && w->draft_context == 100 && !w->draft_model);
  assert_string_equal(w->draft, "model,ngram"); /* which its layers mean */
  assert_string_equal(w->pin, "auto");
  assert_true(w->kv == 1 && w->math == 0); /* virtual, f32 */
  assert_string_equal(w->repack_cache, "cache");
  assert_true(flags_wants_draft(&f));
  flags_fini(&f);
  parse(&f, (const char *[]){"--budget", "0", NULL});
  assert_string_equal(f.given.draft, "ngram");
  assert_false(flags_wants_draft(&f));
  flags_fini(&f);
}

static void test_a_draft_model_is_a_file_or_synthetic(void **state) {
  (void)state;
  flags f;
  err e = {0};
  parse(&f, (const char *[]){NULL});
  f.given.draft = "model";
  f.given.draft_model = "/nothing/there.gguf";
  assert_int_equal(flags_check_draft(&f.given, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "/nothing/there.gguf"));
  f.given.draft_model = "synth:llama-3.2-1b";
  if (flags_check_draft(&f.given, &e) != ERR_OK) fail_msg("%s", e.text);
  flags_fini(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flags_and_a_line_of_json_ask_for_the_same),
      cmocka_unit_test(test_the_rest_of_the_request),
      cmocka_unit_test(test_a_seed_is_drawn_where_none_is_given),
      cmocka_unit_test(test_settings_of_the_workers),
      cmocka_unit_test(test_a_draft_model_is_a_file_or_synthetic),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
