/* libs: api service sessions ledger wire text file speculative base */
/* fuzz_api - the bodies of requests to the HTTP API: a chat's, a completion's, /tokenize's and /detokenize's.
 * Refused with one error, or within their limits. First byte: which of them, and whether it goes on from a
 * right beginning. */
#include "common/base/utf8.h"
#include "orchestrator/service/api/openai_json.h"
#include "orchestrator/service/api/tokens_json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCABULARY = 5, CONTEXT = 99, TEXT_MAX = 1 << 16 };

/* The third token is the first byte of a character of two. */
static const char vocabulary[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true}],"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\u00c3\":3},\"merges\":[\"a b\"]},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[4]}}}}";
static text_model model = {.config.vocab = VOCABULARY};

static void open_model(void) {
  const tokenizer_texts texts = {.tokenizer = vocabulary, .tokenizer_size = sizeof vocabulary - 1};
  err e = {0};
  if (!model.tokens && tokenizer_open_texts(&model.tokens, &texts, 0, &e)) abort();
}

/* A refusal has a sentence, and becomes an object of OpenAI's shape with a status below 500. */
static void check_error(int rc, const call_error *e) {
  if (rc != e->why.code || !e->why.text[0] || openai_json_status(rc) >= 500) abort();
  json_t *object = openai_json_error(400, rc, e->why.text, e->param);
  if (!object) abort();
  json_decref(object);
}

static void check_call(const json_t *body, bool chat) {
  request defaults;
  call_options o;
  call_error e = {0};
  request_init(&defaults);
  int rc = call_options_read(body, chat, &defaults, &model, &o, &e);
  const request *r = &o.request;
  if (rc) check_error(rc, &e);
  if (!rc && (o.choices < 1 || o.choices > CALL_CHOICES_MAX || r->max_tokens < 1)) abort();
  if (!rc && (r->stop_count > DETOKENIZER_STOP_MAX || r->logprobs > 1 + SAMPLER_LOGPROBS_MAX)) abort();
  if (!rc && chat != (r->prompt_kind == REQUEST_MESSAGES)) abort();
  for (size_t i = 0; !rc && i < r->ids.count; i++)
    if (r->ids.ids[i] < 0 || r->ids.ids[i] >= VOCABULARY) abort();
  request_fini(&o.request);
  request_fini(&defaults);
}

static void check_chat(const json_t *body) {
  check_call(body, true);
}

static void check_completion(const json_t *body) {
  check_call(body, false);
}

typedef int convert(const json_t *body, json_t **out, call_error *e);

static int tokenize(const json_t *body, json_t **out, call_error *e) {
  return tokens_json_tokenize(body, &model, CONTEXT, out, e);
}

static int detokenize(const json_t *body, json_t **out, call_error *e) {
  return tokens_json_detokenize(body, &model, out, e);
}

static void check_answer(const json_t *body, convert *to) {
  call_error e = {0};
  json_t *out;
  int rc = to(body, &out, &e);
  if (rc) {
    check_error(rc, &e);
    return;
  }
  char *text = json_dumps(out, JSON_COMPACT);
  if (!text || utf8_valid(text, strlen(text)) != strlen(text)) abort();
  free(text);
  json_decref(out);
}

static void check_tokenize(const json_t *body) {
  check_answer(body, tokenize);
}

static void check_detokenize(const json_t *body) {
  check_answer(body, detokenize);
}

static const struct {
  void (*check)(const json_t *body);
  const char *begin;
} kinds[] = {
    {check_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true"},
    {check_completion, "{\"prompt\":\"ab\",\"stop\":[\"b\"]"},
    {check_completion, "{\"n\":2,\"prompt\":[\"ab\",[1,2]"},
    {check_completion, "{\"logit_bias\":{\"1\":2},\"prompt\":[1,2"},
    {check_tokenize, "{\"content\":\"ab\",\"with_pieces\":true"},
    {check_tokenize, "{\"prompt\":\"ab\",\"return_token_strs\":true"},
    {check_detokenize, "{\"tokens\":[0,3,3"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[TEXT_MAX];
  if (size < 1 || size > TEXT_MAX / 2) return 0;
  open_model();
  size_t kind = data[0] / 2 % KINDS, at = data[0] % 2 ? strlen(kinds[kind].begin) : 0;
  memcpy(text, kinds[kind].begin, at);
  memcpy(text + at, data + 1, size - 1);
  json_t *body = json_loadb(text, at + size - 1, JSON_ALLOW_NUL, NULL);
  if (body) kinds[kind].check(body);
  json_decref(body);
  return 0;
}
