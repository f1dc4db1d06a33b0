/* libs: api */
/* Bodies of requests to the HTTP API: what they set, what is ignored, and what is refused. */
#include "orchestrator/service/api/call_options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const text_model model = {.config.vocab = 100};
static request defaults;

static int setup(void **state) {
  (void)state;
  request_init(&defaults);
  defaults.speculate = true;
  defaults.sampling.temperature = 1;
  defaults.max_tokens = 4096;
  return 0;
}

static int read_body(const char *text, bool chat, call_options *out, call_error *e) {
  json_t *body = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
  assert_non_null(body);
  *e = (call_error){0};
  int rc = call_options_read(body, chat, &defaults, &model, out, e);
  json_decref(body);
  return rc;
}

static call_options options_of(const char *text, bool chat) {
  call_options o;
  call_error e;
  if (read_body(text, chat, &o, &e)) fail_msg("%s: %s", text, e.why.text);
  assert_null(e.param);
  return o;
}

#define ASK "\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]"

static void test_a_body_without_options_has_the_defaults(void **state) {
  (void)state;
  call_options o = options_of("{" ASK "}", true), other = options_of("{" ASK "}", true);
  assert_true(o.chat && !o.stream && !o.include_usage && !o.echo);
  assert_int_equal(o.choices, 1);
  assert_int_equal(o.request.max_tokens, 4096);
  assert_true(o.request.sampling.temperature == 1 && o.request.speculate);
  assert_int_equal(o.request.message_count, 1);
  assert_false(o.request.seed_given);
  assert_true(o.request.sampling.seed != other.request.sampling.seed); /* each request draws its own */
  request_fini(&o.request);
  request_fini(&other.request);
}

static void test_options_are_taken(void **state) {
  (void)state;
  call_options o = options_of("{" ASK ", \"temperature\": 0.5, \"top_p\": 0.9, \"top_k\": 40, \"min_p\": 0.1,"
                              "\"repetition_penalty\": 1.1, \"seed\": -3, \"max_tokens\": 5.0, \"n\": 3,"
                              "\"stop\": [\"a\", \"b\"], \"stream\": true, \"stream_options\":"
                              "{\"include_usage\": true}, \"speculation\": {\"enabled\": false},"
                              "\"presence_penalty\": -0.5, \"frequency_penalty\": 2,"
                              "\"logit_bias\": {\"50\": -100, \"7\": 0.5}}",
                              true);
  const request *r = &o.request;
  assert_true(r->sampling.temperature == 0.5f && r->sampling.top_p == 0.9f && r->sampling.min_p == 0.1f);
  assert_true(r->sampling.repeat_penalty == 1.1f && r->sampling.top_k == 40);
  assert_true(r->seed_given && r->sampling.seed == (uint64_t)-3);
  assert_true(o.stream && o.include_usage && !r->speculate);
  assert_int_equal(r->max_tokens, 5);
  assert_int_equal(o.choices, 3);
  assert_int_equal(r->stop_count, 2);
  assert_true(r->sampling.presence_penalty == -0.5f && r->sampling.frequency_penalty == 2);
  assert_true(r->bias_count == 2 && r->bias.tokens[0] == 50 && r->bias.values[0] == -100);
  assert_true(r->bias.tokens[1] == 7 && r->bias.values[1] == 0.5f);
  request_fini(&o.request);
  o = options_of(
      "{" ASK ", \"max_completion_tokens\": 7, \"top_k\": -1, \"speculation\": {\"max_nodes\": 4}}", true);
  assert_int_equal(o.request.max_tokens, 7);
  assert_int_equal(o.request.sampling.top_k, 0);
  assert_int_equal(o.request.budget, 4);
  request_fini(&o.request);
}

static void test_logprobs_of_both_kinds(void **state) {
  (void)state;
  static const struct {
    const char *body;
    bool chat;
    int32_t want;
  } asks[] = {{"{" ASK ", \"logprobs\": true}", true, 1},
              {"{" ASK ", \"logprobs\": true, \"top_logprobs\": 20}", true, 21},
              {"{" ASK ", \"logprobs\": false, \"top_logprobs\": 0}", true, 0},
              {"{\"prompt\": \"a\"}", false, 0},
              {"{\"prompt\": \"a\", \"logprobs\": null}", false, 0},
              {"{\"prompt\": \"a\", \"logprobs\": 0}", false, 1},
              {"{\"prompt\": \"a\", \"logprobs\": 5}", false, 6}};
  for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
    call_options o = options_of(asks[i].body, asks[i].chat);
    assert_int_equal(o.request.logprobs, asks[i].want);
    request_fini(&o.request);
  }
}

static void test_what_the_answer_follows(void **state) {
  (void)state;
  static const char any[] = "r0 ::= object ";
  static const struct {
    const char *body, *has; /* the grammar; NULL: there is none */
  } asks[] = {
      {"{" ASK ", \"grammar\": \"root ::= \\\"a\\\"\"}", "root ::= \"a\""},
      {"{" ASK ", \"response_format\": {\"type\": \"text\"}}", NULL},
      {"{" ASK ", \"response_format\": {\"type\": \"text\"}, \"grammar\": \"root ::= [a]\"}", "root ::= [a]"},
      {"{" ASK ", \"response_format\": {\"type\": \"json_object\"}}", any},
      {"{" ASK ", \"response_format\": {\"type\": \"json_object\", \"schema\": {\"const\": 5}}}",
       "r0 ::= \"5\""},
      {"{" ASK
       ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", \"strict\":"
       " true, \"schema\": {\"type\": \"array\"}}}}",
       "r0 ::= \"[\" ws "},
  };
  for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
    call_options o = options_of(asks[i].body, true);
    const char *grammar = o.request.grammar;
    if ((grammar != NULL) != (asks[i].has != NULL) || (grammar && !strstr(grammar, asks[i].has)))
      fail_msg("%s: %s", asks[i].body, grammar ? grammar : "no grammar");
    msg_options sent = request_options(&o.request);
    assert_int_equal(sent.grammar_size, grammar ? strlen(grammar) : 0);
    request_fini(&o.request);
  }
}

static void test_null_and_unknown_fields_are_as_if_they_were_not_there(void **state) {
  (void)state;
  call_options o =
      options_of("{" ASK ", \"temperature\": null, \"n\": null, \"stop\": null, \"tools\": null,"
                 "\"user\": 5, \"metadata\": {\"a\": []}, \"logit_bias\": {}, \"logprobs\": false,"
                 "\"presence_penalty\": 0, \"frequency_penalty\": 0.0, \"tool_choice\": \"none\","
                 "\"response_format\": {\"type\": \"text\"}}",
                 true);
  assert_true(o.request.sampling.temperature == 1);
  assert_int_equal(o.choices, 1);
  request_fini(&o.request);
}

static void test_parts_of_a_message_are_one_text(void **state) {
  (void)state;
  call_options o =
      options_of("{\"messages\": [{\"role\": \"developer\", \"content\": \"be brief\"}, {\"role\":"
                 "\"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\":"
                 "\"text\", \"text\": \"\\u0000b\"}]}]}",
                 true);
  assert_int_equal(o.request.message_count, 2);
  assert_string_equal(o.request.messages[0].role, "system");
  assert_int_equal(o.request.messages[1].size, 3);
  assert_memory_equal(o.request.messages[1].content, "a\0b", 3);
  request_fini(&o.request);
}

static void test_several_prompts(void **state) {
  (void)state;
  json_t *body = json_loads("{\"prompt\": [\"abc\", [1, 99], \"d\"], \"n\": 2}", 0, NULL);
  call_options o;
  call_error e = {0};
  assert_int_equal(call_options_read(body, false, &defaults, &model, &o, &e), ERR_OK);
  assert_int_equal(o.prompt_count, 3);
  assert_int_equal(o.choices, 2);
  assert_string_equal(o.request.text, "abc");
  assert_int_equal(call_options_set_prompt(&o, 1, &model, &e), ERR_OK);
  assert_int_equal(o.request.prompt_kind, REQUEST_IDS);
  assert_int_equal(o.request.ids.ids[1], 99);
  assert_int_equal(call_options_set_prompt(&o, 2, &model, &e), ERR_OK);
  assert_int_equal(o.request.prompt_kind, REQUEST_TEXT);
  assert_string_equal(o.request.text, "d");
  request_fini(&o.request);
  json_decref(body);
}

static void test_so_many_answers_and_no_more(void **state) {
  (void)state;
  json_t *prompts = json_array(), *body = json_pack("{s:O, s:i}", "prompt", prompts, "n", 8);
  call_options o;
  call_error e = {0};
  for (int i = 0; i < CALL_ANSWERS_MAX / 8; i++) json_array_append_new(prompts, json_string("a"));
  assert_int_equal(call_options_read(body, false, &defaults, &model, &o, &e), ERR_OK);
  request_fini(&o.request);
  json_array_append_new(prompts, json_string("a"));
  assert_int_equal(call_options_read(body, false, &defaults, &model, &o, &e), ERR_ARG);
  assert_string_equal(e.param, "prompt");
  assert_non_null(strstr(e.why.text, "33 prompts"));
  request_fini(&o.request);
  json_decref(prompts);
  json_decref(body);
}

static void test_prompts_of_a_completion(void **state) {
  (void)state;
  static const char *const texts[] = {"{\"prompt\": \"abc\"}", "{\"prompt\": [\"abc\"]}"},
                           *const ids[] = {"{\"prompt\": [1, 99]}", "{\"prompt\": [[1, 99]]}"};
  for (int i = 0; i < 2; i++) {
    call_options o = options_of(texts[i], false);
    assert_int_equal(o.request.prompt_kind, REQUEST_TEXT);
    assert_true(o.request.raw);
    assert_string_equal(o.request.text, "abc");
    request_fini(&o.request);
    o = options_of(ids[i], false);
    assert_int_equal(o.request.prompt_kind, REQUEST_IDS);
    assert_int_equal(o.request.ids.count, 2);
    assert_int_equal(o.request.ids.ids[1], 99);
    request_fini(&o.request);
  }
}

static const struct {
  const char *body, *param, *why;
  bool chat;
  int code;
} cases[] = {
    {"5", NULL, "must be a JSON object", true, ERR_FORMAT},
    {"{}", "messages", "at least one message", true, ERR_ARG},
    {"{\"messages\": []}", "messages", "at least one message", true, ERR_ARG},
    {"{\"messages\": [5]}", "messages", "'role' and 'content'", true, ERR_ARG},
    {"{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", "messages", "need a 'content'", true, ERR_ARG},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", "messages",
     "no images", true, ERR_UNSUPPORTED},
    {"{" ASK ", \"temperature\": -1}", "temperature", "a number from 0", true, ERR_ARG},
    {"{" ASK ", \"temperature\": true}", "temperature", "a number from 0", true, ERR_ARG},
    {"{" ASK ", \"max_tokens\": 1e99}", "max_tokens", "a whole number from 1", true, ERR_ARG},
    {"{" ASK ", \"max_tokens\": 1.5}", "max_tokens", "a whole number from 1", true, ERR_ARG},
    {"{" ASK ", \"n\": 17}", "n", "from 1 to 16", true, ERR_ARG},
    {"{" ASK ", \"seed\": 1.5}", "seed", "a whole number", true, ERR_ARG},
    {"{" ASK ", \"stop\": {}}", "stop", "a string, or an array", true, ERR_ARG},
    {"{" ASK ", \"stop\": \"\"}", "stop", "'stop'", true, ERR_ARG},
    {"{" ASK ", \"stream\": 1}", "stream", "true or false", true, ERR_ARG},
    {"{" ASK ", \"stream_options\": 1}", "stream_options", "an object", true, ERR_ARG},
    {"{" ASK ", \"speculation\": true}", "speculation", "an object", true, ERR_ARG},
    {"{" ASK ", \"speculation\": {\"max_nodes\": 65}}", "max_nodes", "from 0 to 64", true, ERR_ARG},
    {"{" ASK ", \"tools\": [{}]}", "tools", "not supported", true, ERR_UNSUPPORTED},
    {"{" ASK ", \"logprobs\": 5}", "logprobs", "true or false", true, ERR_ARG},
    {"{" ASK ", \"top_logprobs\": 3}", "top_logprobs", "needs 'logprobs'", true, ERR_ARG},
    {"{" ASK ", \"logprobs\": true, \"top_logprobs\": 21}", "top_logprobs", "from 0 to 20", true, ERR_ARG},
    {"{\"prompt\": \"a\", \"logprobs\": 6}", "logprobs", "from 0 to 5", false, ERR_ARG},
    {"{" ASK ", \"frequency_penalty\": 2.5}", "frequency_penalty", "from -2 to 2", true, ERR_ARG},
    {"{" ASK ", \"presence_penalty\": \"1\"}", "presence_penalty", "from -2 to 2", true, ERR_ARG},
    {"{" ASK ", \"logit_bias\": {\"x\": 1}}", "logit_bias", "no token id", true, ERR_ARG},
    {"{" ASK ", \"logit_bias\": {\"5\": 101}}", "logit_bias", "from -100 to 100", true, ERR_ARG},
    {"{" ASK ", \"logit_bias\": [5]}", "logit_bias", "must be an object", true, ERR_ARG},
    {"{" ASK ", \"grammar\": 5}", "grammar", "the text of a grammar", true, ERR_ARG},
    {"{" ASK ", \"grammar\": \"\"}", "grammar", "no rule root", true, ERR_FORMAT},
    {"{" ASK ", \"grammar\": \"root ::= \\n\\n(\"}", "grammar", "line 3", true, ERR_FORMAT},
    {"{" ASK ", \"response_format\": \"json\"}", "response_format", "must have the type", true, ERR_ARG},
    {"{" ASK ", \"response_format\": {\"type\": \"xml\"}}", "response_format", "must have the type", true,
     ERR_ARG},
    {"{" ASK ", \"response_format\": {\"type\": \"json_schema\"}}", "response_format", "needs", true,
     ERR_ARG},
    {"{" ASK ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"pattern\": "
     "\"a\"}}}}",
     "response_format", "\"pattern\" is not supported", true, ERR_UNSUPPORTED},
    {"{" ASK ", \"response_format\": {\"type\": \"json_object\"}, \"grammar\": \"root ::= [a]\"}",
     "response_format", "leave one of them out", true, ERR_ARG},
    {"{}", "prompt", "a string or an array", false, ERR_ARG},
    {"{\"prompt\": [100]}", "prompt", "no token id from 0 to 99", false, ERR_ARG},
    {"{\"prompt\": [1, \"a\"]}", "prompt", "no token id", false, ERR_ARG},
    {"{\"prompt\": [\"a\", [100]]}", "prompt", "no token id from 0 to 99", false, ERR_ARG},
    {"{\"prompt\": [\"a\", 1]}", "prompt", "must be a string or an array", false, ERR_ARG},
    {"{\"prompt\": [[[1]]]}", "prompt", "no token id", false, ERR_ARG},
    {"{\"prompt\": [null]}", "prompt", "must be a string or an array", false, ERR_ARG},
};

static void test_what_is_wrong_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    call_options o;
    call_error e;
    int rc = read_body(cases[i].body, cases[i].chat, &o, &e);
    if (rc != cases[i].code || !strstr(e.why.text, cases[i].why))
      fail_msg("%s: %d %s", cases[i].body, rc, e.why.text);
    if (cases[i].param)
      assert_string_equal(e.param, cases[i].param);
    else
      assert_null(e.param);
    request_fini(&o.request);
  }
}

static void test_a_server_without_a_draft_says_so(void **state) {
  (void)state;
  call_options o;
  call_error e;
  defaults.speculate = false;
  assert_int_equal(read_body("{" ASK ", \"speculation\": {\"enabled\": true}}", true, &o, &e), ERR_ARG);
  assert_non_null(strstr(e.why.text, "without a draft"));
  request_fini(&o.request);
  o = options_of("{" ASK ", \"speculation\": {\"enabled\": false}}", true);
  request_fini(&o.request);
}

static void with_partial_kv(void) {
  defaults.speculate = false; /* no draft */
  defaults.partial_kv = true;
  defaults.partial = (msg_partial){WIRE_PARTIAL_OWN, 16, 2, 64, 8, 128, 4096, 32};
}

/* By the paper's names; what is not given is the server's. */
static void test_partial_kv_of_a_request(void **state) {
  (void)state;
  static const struct {
    const char *body;
    msg_partial want;
  } rows[] = {
      {"{" ASK "}", {.mode = WIRE_PARTIAL_OWN}},
      {"{" ASK ", \"enable_specpv\": null}", {.mode = WIRE_PARTIAL_OWN}},
      {"{" ASK ", \"enable_specpv\": false, \"specpv_n_sink_blocks\": 1}", {.mode = WIRE_PARTIAL_OFF}},
      {"{" ASK ", \"enable_specpv\": true}", {WIRE_PARTIAL_EXACT, 16, 2, 64, 8, 128, 4096, 32}},
      {"{" ASK ", \"specpv_n_retrieval_blocks\": 32.0}", {WIRE_PARTIAL_EXACT, 16, 2, 32, 8, 128, 4096, 32}},
      {"{" ASK ", \"specpv_lossy\": true, \"specpv_block_size\": 32, \"specpv_n_sink_blocks\": 0,"
       "\"specpv_n_retrieval_blocks\": 5, \"specpv_n_window_blocks\": 3, \"specpv_n_spec_tokens_buf\": 64,"
       "\"specpv_partial_threshold\": 256, \"specpv_full_refresh_interval\": 9}",
       {WIRE_PARTIAL_LOSSY, 32, 0, 5, 3, 64, 256, 9}},
      {"{" ASK ", \"speculation\": {\"enabled\": false}}", {.mode = WIRE_PARTIAL_OFF}},
      {"{" ASK ", \"speculation\": {\"enabled\": false}, \"specpv_n_sink_blocks\": 1}",
       {.mode = WIRE_PARTIAL_OFF}},
      {"{" ASK ", \"speculation\": {\"max_nodes\": 3}}", {.mode = WIRE_PARTIAL_OWN}},
      {"{" ASK ", \"speculation\": {\"enabled\": false}, \"enable_specpv\": true}",
       {WIRE_PARTIAL_EXACT, 16, 2, 64, 8, 128, 4096, 32}},
  };
  with_partial_kv();
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    call_options o = options_of(rows[i].body, true);
    const msg_options sent = request_options(&o.request);
    assert_memory_equal(&sent.partial, &rows[i].want, sizeof sent.partial);
    request_fini(&o.request);
  }
}

static void test_what_is_wrong_with_partial_kv_is_named(void **state) {
  (void)state;
  static const struct {
    const char *body, *param, *why;
  } rows[] = {
      {"{" ASK ", \"enable_specpv\": 1}", "enable_specpv", "must be true or false"},
      {"{" ASK ", \"specpv_lossy\": \"yes\"}", "specpv_lossy", "must be true or false"},
      {"{" ASK ", \"specpv_n_sink_blocks\": 1.5}", "specpv_n_sink_blocks", "must be a whole number"},
      {"{" ASK ", \"specpv_n_sink_blocks\": -1}", "specpv_n_sink_blocks", "must be a whole number"},
      {"{" ASK ", \"specpv_block_size\": 8}", "specpv_block_size", "from 16 to 4096"},
      {"{" ASK ", \"specpv_full_refresh_interval\": 33}", "specpv_full_refresh_interval", "from 1 to 32"},
      {"{" ASK ", \"specpv_partial_threshold\": 1e300}", "specpv_partial_threshold", "from 0 to 1048576"},
      {"{" ASK ", \"specpv_block_size\": 40}", NULL, "a block has 40 tokens"},
      {"{" ASK ", \"specpv_partial_threshold\": 1000}", NULL, "is more than the threshold of 1000"},
  };
  call_options o;
  call_error e;
  for (int i = 0; i < 2; i++) { /* a server without it, and one with it */
    const char *body = "{" ASK ", \"specpv_lossy\": true}";
    assert_int_equal(read_body(body, true, &o, &e), i == 0 ? ERR_ARG : ERR_OK);
    if (i == 0) assert_non_null(strstr(e.why.text, "without --partial-kv"));
    if (i == 0) assert_string_equal(e.param, "specpv_lossy");
    request_fini(&o.request);
    with_partial_kv();
  }
  defaults.lossy = true; /* a server whose answers are, if the request does not say otherwise */
  static const struct {
    const char *body;
    wire_partial mode;
  } lossy[] = {{"{" ASK "}", WIRE_PARTIAL_LOSSY},
               {"{" ASK ", \"specpv_n_sink_blocks\": 1}", WIRE_PARTIAL_LOSSY},
               {"{" ASK ", \"specpv_lossy\": false}", WIRE_PARTIAL_EXACT},
               {"{" ASK ", \"speculation\": {\"enabled\": false}}", WIRE_PARTIAL_OFF}};
  for (size_t i = 0; i < sizeof lossy / sizeof *lossy; i++) {
    o = options_of(lossy[i].body, true);
    assert_int_equal(request_options(&o.request).partial.mode, lossy[i].mode);
    request_fini(&o.request);
  }
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(read_body(rows[i].body, true, &o, &e), ERR_ARG);
    if (!strstr(e.why.text, rows[i].why)) fail_msg("%s", e.why.text);
    assert_true(rows[i].param ? e.param && strcmp(e.param, rows[i].param) == 0 : !e.param);
    request_fini(&o.request);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_a_body_without_options_has_the_defaults, setup),
      cmocka_unit_test_setup(test_options_are_taken, setup),
      cmocka_unit_test_setup(test_logprobs_of_both_kinds, setup),
      cmocka_unit_test_setup(test_what_the_answer_follows, setup),
      cmocka_unit_test_setup(test_null_and_unknown_fields_are_as_if_they_were_not_there, setup),
      cmocka_unit_test_setup(test_parts_of_a_message_are_one_text, setup),
      cmocka_unit_test_setup(test_prompts_of_a_completion, setup),
      cmocka_unit_test_setup(test_several_prompts, setup),
      cmocka_unit_test_setup(test_so_many_answers_and_no_more, setup),
      cmocka_unit_test_setup(test_what_is_wrong_is_named, setup),
      cmocka_unit_test_setup(test_a_server_without_a_draft_says_so, setup),
      cmocka_unit_test_setup(test_partial_kv_of_a_request, setup),
      cmocka_unit_test_setup(test_what_is_wrong_with_partial_kv_is_named, setup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
