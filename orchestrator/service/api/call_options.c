#include "orchestrator/service/api/call_options.h"

#include "common/base/program.h"
#include "orchestrator/ledger/options_json.h"
#include "orchestrator/service/partial_options.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

/* A field that is null counts as not given, as in OpenAI's API. */
static const json_t *field(const json_t *body, const char *name) {
  const json_t *value = json_object_get(body, name);
  return json_is_null(value) ? NULL : value;
}

static int refuse(call_error *e, const char *param, int code, const char *text) {
  e->param = param;
  return err_set(&e->why, code, "'%s' %s", param, text);
}

int call_options_bool(const json_t *body, const char *name, bool *out, call_error *e) {
  const json_t *value = field(body, name);
  if (!value) return ERR_OK;
  if (!json_is_boolean(value)) return refuse(e, name, ERR_ARG, "must be true or false");
  *out = json_is_true(value);
  return ERR_OK;
}

static int read_int(const json_t *body, const char *name, int32_t low, int32_t high, int32_t *out,
                    call_error *e) {
  const json_t *value = field(body, name);
  if (!value) return ERR_OK;
  double x = json_number_value(value); /* some clients write 5.0 */
  if (!json_is_number(value) || x != floor(x) || x < low || x > high) {
    e->param = name;
    return err_set(&e->why, ERR_ARG, "'%s' must be a whole number from %d to %d", name, low, high);
  }
  *out = (int32_t)x;
  return ERR_OK;
}

static int read_float(const json_t *body, const char *name, double low, double high, float *out,
                      call_error *e) {
  const json_t *value = field(body, name);
  if (!value) return ERR_OK;
  double x = json_number_value(value);
  if (!json_is_number(value) || !(x >= low && x <= high)) {
    e->param = name;
    return err_set(&e->why, ERR_ARG, "'%s' must be a number from %g to %g", name, low, high);
  }
  *out = (float)x;
  return ERR_OK;
}

/* ---- sampling ---- */

typedef struct float_field {
  const char *name;
  double low, high;
  size_t offset; /* of a float in request */
} float_field;

static const float_field float_fields[] = {
    {"temperature", 0, SAMPLER_TEMPERATURE_MAX, offsetof(request, sampling.temperature)},
    {"top_p", 0, 1, offsetof(request, sampling.top_p)},
    {"min_p", 0, 1, offsetof(request, sampling.min_p)},
    {"repetition_penalty", 0, SAMPLER_PENALTY_MAX, offsetof(request, sampling.repeat_penalty)},
    {"repeat_penalty", 0, SAMPLER_PENALTY_MAX, offsetof(request, sampling.repeat_penalty)},
    {"presence_penalty", -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX,
     offsetof(request, sampling.presence_penalty)},
    {"frequency_penalty", -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX,
     offsetof(request, sampling.frequency_penalty)},
};

static int read_seed(const json_t *body, request *r, call_error *e) {
  const json_t *seed = field(body, "seed");
  if (seed && !json_is_integer(seed)) return refuse(e, "seed", ERR_ARG, "must be a whole number");
  r->seed_given = seed != NULL;
  if (seed) r->sampling.seed = (uint64_t)json_integer_value(seed);
  return seed ? ERR_OK : program_random(&r->sampling.seed, sizeof r->sampling.seed, &e->why);
}

static int read_top_k(const json_t *body, request *r, call_error *e) {
  int32_t k = -1; /* vLLM's word for "off" */
  if (!field(body, "top_k")) return ERR_OK;
  int rc = read_int(body, "top_k", -1, SAMPLER_VOCAB_MAX, &k, e);
  r->sampling.top_k = k < 0 ? 0 : k;
  return rc;
}

static int read_bias(const json_t *body, request *r, call_error *e) {
  const json_t *bias = field(body, "logit_bias");
  e->param = bias ? "logit_bias" : e->param;
  return bias ? options_json_bias(bias, "'logit_bias'", &r->bias, &r->bias_count, &e->why) : ERR_OK;
}

/* Chat: whether, and how many beside the token's own. Completions: how many. */
static int read_logprobs(const json_t *body, bool chat, request *r, call_error *e) {
  bool wanted = !chat && field(body, "logprobs");
  int32_t best = 0;
  int rc = chat ? call_options_bool(body, "logprobs", &wanted, e)
                : read_int(body, "logprobs", 0, CALL_LOGPROBS_MAX, &best, e);
  if (rc == ERR_OK && chat) rc = read_int(body, "top_logprobs", 0, SAMPLER_LOGPROBS_MAX, &best, e);
  if (rc == ERR_OK && best > 0 && !wanted)
    return refuse(e, "top_logprobs", ERR_ARG, "needs 'logprobs' to be true");
  r->logprobs = wanted ? 1 + best : 0;
  return rc;
}

static int read_sampling(const json_t *body, request *r, call_error *e) {
  int rc = read_seed(body, r, e);
  for (size_t i = 0; rc == ERR_OK && i < sizeof float_fields / sizeof *float_fields; i++) {
    const float_field *f = &float_fields[i];
    rc = read_float(body, f->name, f->low, f->high, (float *)((char *)r + f->offset), e);
  }
  if (rc == ERR_OK) rc = read_top_k(body, r, e);
  if (rc == ERR_OK) rc = read_bias(body, r, e);
  return rc ? rc : sampler_check(&r->sampling, &e->why);
}

/* ---- what the answer follows ---- */

#define ANY_OBJECT "{\"type\": \"object\"}" /* a schema */

static int read_grammar(const json_t *body, request *r, call_error *e) {
  const json_t *grammar = field(body, "grammar");
  if (!grammar) return ERR_OK;
  if (!json_is_string(grammar)) return refuse(e, "grammar", ERR_ARG, "must be the text of a grammar");
  e->param = "grammar";
  return request_set_grammar(r, json_string_value(grammar), &e->why);
}

/* As OpenAI has it; beside json_object, "schema" may stand, as llama-server takes it. */
static int read_format(const json_t *body, request *r, call_error *e) {
  static const char name[] = "response_format";
  const json_t *format = field(body, "response_format"), *schema = json_object_get(format, "schema");
  const json_t *wrapped = json_object_get(format, "json_schema");
  const char *type = json_string_value(json_object_get(format, "type"));
  bool by_schema = type && strcmp(type, "json_schema") == 0;
  if (!format || (type && strcmp(type, "text") == 0)) return ERR_OK;
  if (!by_schema && !(type && strcmp(type, "json_object") == 0))
    return refuse(e, name, ERR_ARG, "must have the type text, json_object or json_schema");
  if (field(body, "grammar"))
    return refuse(e, name, ERR_ARG, "and 'grammar' are given: leave one of them out");
  if (by_schema) schema = json_object_get(wrapped, "schema");
  if (by_schema && !schema) return refuse(e, name, ERR_ARG, "needs {\"json_schema\": {\"schema\": ...}}");
  e->param = name;
  return schema ? request_set_schema(r, schema, &e->why) : request_set_schema_text(r, ANY_OBJECT, &e->why);
}

/* ---- the end of the answer ---- */

static int add_stop(const json_t *value, request *r, call_error *e) {
  if (!json_is_string(value)) return refuse(e, "stop", ERR_ARG, "must be a string, or an array of them");
  e->param = "stop";
  return request_add_stop(r, "'stop'", json_string_value(value), json_string_length(value), &e->why);
}

static int read_stops(const json_t *body, request *r, call_error *e) {
  const json_t *value = field(body, "stop");
  if (!value) return ERR_OK;
  request_clear_stops(r);
  if (!json_is_array(value)) return add_stop(value, r, e);
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < json_array_size(value); i++)
    rc = add_stop(json_array_get(value, i), r, e);
  return rc;
}

static int read_length(const json_t *body, request *r, call_error *e) {
  int rc = read_int(body, "max_tokens", 1, WIRE_CONTEXT_MAX, &r->max_tokens, e);
  return rc ? rc : read_int(body, "max_completion_tokens", 1, WIRE_CONTEXT_MAX, &r->max_tokens, e);
}

/* ---- what is not built here, and would change the answer ---- */

static bool is_empty(const json_t *v) {
  return json_object_size(v) == 0 && json_array_size(v) == 0 && (json_is_object(v) || json_is_array(v));
}

static bool is_none(const json_t *v) {
  return json_is_string(v) && strcmp(json_string_value(v), "none") == 0;
}

static const struct missing_field {
  const char *name;
  bool (*is_harmless)(const json_t *v);
} missing_fields[] = {
    {"tools", is_empty}, {"tool_choice", is_none}, {"functions", is_empty},
    {"suffix", NULL},    {"best_of", NULL},
};

static int refuse_missing(const json_t *body, call_error *e) {
  for (size_t i = 0; i < sizeof missing_fields / sizeof *missing_fields; i++) {
    const json_t *value = field(body, missing_fields[i].name);
    if (value && !(missing_fields[i].is_harmless && missing_fields[i].is_harmless(value)))
      return refuse(e, missing_fields[i].name, ERR_UNSUPPORTED, "is not supported by tandem: leave it out");
  }
  return ERR_OK;
}

/* ---- the prompt ---- */

static int add_text(char **text, size_t *size, const json_t *value) {
  size_t more = json_string_length(value);
  char *p = realloc(*text, *size + more + 1);
  if (!p) return ERR_NOMEM;
  memcpy(p + *size, json_string_value(value), more);
  *text = p;
  *size += more;
  p[*size] = 0;
  return ERR_OK;
}

/* The text of a message: a string, or parts of which each is text. */
static int read_content(const json_t *content, char **text, size_t *size, call_error *e) {
  int rc = ERR_OK;
  if (json_is_string(content)) return add_text(text, size, content);
  if (!json_is_array(content)) return refuse(e, "messages", ERR_ARG, "need a 'content' of text");
  for (size_t i = 0; rc == ERR_OK && i < json_array_size(content); i++) {
    const json_t *part = json_object_get(json_array_get(content, i), "text");
    if (!json_is_string(part))
      return refuse(e, "messages", ERR_UNSUPPORTED,
                    "may have parts of text only: this model reads no images or sound");
    rc = add_text(text, size, part);
  }
  return rc;
}

static int read_message(const json_t *message, request *r, call_error *e) {
  const char *role = json_string_value(json_object_get(message, "role"));
  char *text = calloc(1, 1);
  size_t size = 0;
  if (!role) {
    free(text);
    return refuse(e, "messages", ERR_ARG, "must be objects with 'role' and 'content'");
  }
  if (strcmp(role, "developer") == 0) role = "system"; /* OpenAI's newer word */
  int rc = text ? read_content(json_object_get(message, "content"), &text, &size, e) : ERR_NOMEM;
  e->param = rc ? e->param : "messages";
  if (rc == ERR_OK) rc = request_add_message(r, role, text, size, &e->why);
  free(text);
  return rc;
}

int call_options_messages(const json_t *body, request *r, call_error *e) {
  const json_t *messages = field(body, "messages");
  if (!json_is_array(messages) || json_array_size(messages) == 0)
    return refuse(e, "messages", ERR_ARG, "must be an array of at least one message");
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < json_array_size(messages); i++)
    rc = read_message(json_array_get(messages, i), r, e);
  return rc;
}

int call_options_ids(const json_t *list, const char *name, const text_model *m, request *r, call_error *e) {
  if (!json_is_array(list)) return refuse(e, name, ERR_ARG, "must be an array of token ids");
  size_t count = json_array_size(list);
  int32_t *ids = malloc((count ? count : 1) * sizeof *ids);
  if (!ids) return err_set(&e->why, ERR_NOMEM, "out of memory for the prompt");
  int rc = ERR_OK;
  e->param = name;
  for (size_t i = 0; rc == ERR_OK && i < count; i++) {
    const json_t *item = json_array_get(list, i);
    json_int_t id = json_integer_value(item);
    ids[i] = (int32_t)id;
    if (!json_is_integer(item) || id < 0 || id >= m->config.vocab)
      rc = err_set(&e->why, ERR_ARG, "'%s'[%zu] is no token id from 0 to %d", name, i, m->config.vocab - 1);
  }
  if (rc == ERR_OK) rc = request_set_ids(r, ids, count, &e->why);
  free(ids);
  return rc;
}

/* Text or token ids. */
static int set_prompt(const json_t *prompt, const text_model *m, request *r, call_error *e) {
  e->param = "prompt";
  if (json_is_string(prompt))
    return request_set_text(r, json_string_value(prompt), json_string_length(prompt), &e->why);
  if (!json_is_array(prompt))
    return refuse(e, "prompt", ERR_ARG, "must be a string or an array of token ids, or an array of these");
  return call_options_ids(prompt, "prompt", m, r, e);
}

int call_options_set_prompt(call_options *o, int32_t index, const text_model *m, call_error *e) {
  return o->prompts ? set_prompt(json_array_get(o->prompts, (size_t)index), m, &o->request, e) : ERR_OK;
}

/* All of them are checked; the first one stays in the request. */
static int read_prompts(const json_t *prompts, const text_model *m, call_options *o, call_error *e) {
  size_t count = json_array_size(prompts);
  e->param = "prompt";
  if (count * (size_t)o->choices > CALL_ANSWERS_MAX)
    return err_set(&e->why, ERR_ARG, "'prompt' has %zu prompts, for %d answers each: %d in all are the most",
                   count, o->choices, CALL_ANSWERS_MAX);
  int rc = ERR_OK;
  o->prompts = prompts;
  o->prompt_count = (int32_t)count;
  for (int32_t i = o->prompt_count - 1; rc == ERR_OK && i >= 0; i--) rc = call_options_set_prompt(o, i, m, e);
  return rc;
}

/* One prompt, or an array of them: ids are the only items of an array that are numbers. */
static int read_prompt(const json_t *body, const text_model *m, call_options *o, call_error *e) {
  const json_t *prompt = field(body, "prompt");
  o->request.raw = true;
  return json_array_size(prompt) > 0 && !json_is_number(json_array_get(prompt, 0))
             ? read_prompts(prompt, m, o, e)
             : set_prompt(prompt, m, &o->request, e);
}

/* ---- ours ---- */

static int read_speculation(const json_t *body, request *r, call_error *e) {
  const json_t *s = field(body, "speculation");
  bool enabled = r->speculate;
  if (!s) return ERR_OK;
  if (!json_is_object(s))
    return refuse(e, "speculation", ERR_ARG, "must be an object such as {\"enabled\": false}");
  int rc = call_options_bool(s, "enabled", &enabled, e);
  if (rc == ERR_OK) rc = read_int(s, "max_nodes", 0, WIRE_BUDGET_MAX, &r->budget, e);
  if (rc == ERR_OK && enabled && !r->speculate)
    return refuse(e, "speculation", ERR_ARG, "is wanted, but this server runs without a draft: leave it out");
  r->speculate = enabled;
  if (json_is_false(field(s, "enabled"))) request_speculate_not(r);
  return rc;
}

static int read_stream(const json_t *body, call_options *o, call_error *e) {
  const json_t *options = field(body, "stream_options");
  int rc = call_options_bool(body, "stream", &o->stream, e);
  if (rc || !options) return rc;
  if (!json_is_object(options)) return refuse(e, "stream_options", ERR_ARG, "must be an object");
  return call_options_bool(options, "include_usage", &o->include_usage, e);
}

int call_options_read(const json_t *body, bool chat, const request *defaults, const text_model *m,
                      call_options *o, call_error *e) {
  *o = (call_options){.chat = chat, .choices = 1, .prompt_count = 1};
  int rc = request_copy(&o->request, defaults, &e->why);
  if (rc) return rc;
  if (!json_is_object(body)) return err_set(&e->why, ERR_FORMAT, "the body must be a JSON object");
  rc = refuse_missing(body, e);
  if (rc == ERR_OK) rc = read_stream(body, o, e);
  if (rc == ERR_OK) rc = read_int(body, "n", 1, CALL_CHOICES_MAX, &o->choices, e);
  if (rc == ERR_OK && !chat) rc = call_options_bool(body, "echo", &o->echo, e);
  if (rc == ERR_OK) rc = read_sampling(body, &o->request, e);
  if (rc == ERR_OK) rc = read_logprobs(body, chat, &o->request, e);
  if (rc == ERR_OK) rc = read_grammar(body, &o->request, e);
  if (rc == ERR_OK) rc = read_format(body, &o->request, e);
  if (rc == ERR_OK) rc = read_length(body, &o->request, e);
  if (rc == ERR_OK) rc = read_stops(body, &o->request, e);
  if (rc == ERR_OK) rc = read_speculation(body, &o->request, e);
  if (rc == ERR_OK) rc = partial_options_read(body, '\'', &o->request, &e->param, &e->why);
  if (rc == ERR_OK) rc = chat ? call_options_messages(body, &o->request, e) : read_prompt(body, m, o, e);
  if (rc == ERR_OK) e->param = NULL;
  return rc;
}
