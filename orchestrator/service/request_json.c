#include "orchestrator/service/request_json.h"

#include "common/command_line/nearest_word.h"
#include "orchestrator/ledger/options_json.h"
#include "orchestrator/service/partial_options.h"
#include "wire/message.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- the three ways to give a prompt ---- */

static int read_text(const json_t *value, int32_t vocabulary, request *r, err *e) {
  (void)vocabulary;
  if (!json_is_string(value)) return err_set(e, ERR_ARG, "\"prompt\" must be a string");
  return request_set_text(r, json_string_value(value), json_string_length(value), e);
}

static int read_ids(const json_t *value, int32_t vocabulary, request *r, err *e) {
  if (!json_is_array(value)) return err_set(e, ERR_ARG, "\"prompt_ids\" must be an array of token ids");
  size_t count = json_array_size(value), i;
  int32_t *ids = malloc((count ? count : 1) * sizeof *ids);
  if (!ids) return err_set(e, ERR_NOMEM, "out of memory for prompt ids");
  int rc = ERR_OK;
  for (i = 0; rc == ERR_OK && i < count; i++) {
    const json_t *item = json_array_get(value, i);
    json_int_t id = json_integer_value(item);
    ids[i] = (int32_t)id;
    if (!json_is_integer(item) || id < 0 || id >= vocabulary)
      rc = err_set(e, ERR_ARG, "\"prompt_ids\"[%zu] is no token id from 0 to %d", i, vocabulary - 1);
  }
  if (rc == ERR_OK) rc = request_set_ids(r, ids, count, e);
  free(ids);
  return rc;
}

static int read_messages(const json_t *value, int32_t vocabulary, request *r, err *e) {
  size_t count = json_array_size(value);
  (void)vocabulary;
  if (!json_is_array(value) || count < 1 || count > REQUEST_JSON_MESSAGES_MAX)
    return err_set(e, ERR_ARG, "\"messages\" must be an array of 1 to %d messages",
                   REQUEST_JSON_MESSAGES_MAX);
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < count; i++) {
    const json_t *item = json_array_get(value, i);
    const json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    if (!json_is_string(role) || !json_is_string(content))
      return err_set(e, ERR_ARG, "\"messages\"[%zu] must be {\"role\": text, \"content\": text}", i);
    rc = request_add_message(r, json_string_value(role), json_string_value(content),
                             json_string_length(content), e);
  }
  return rc;
}

typedef struct prompt_reader {
  const char *key;
  int (*read)(const json_t *value, int32_t vocabulary, request *r, err *e);
} prompt_reader;

static const prompt_reader prompt_readers[] = {
    {"prompt", read_text}, {"prompt_ids", read_ids}, {"messages", read_messages}};
enum { PROMPT_READERS = sizeof prompt_readers / sizeof *prompt_readers };

static int read_prompt(const json_t *object, int32_t vocabulary, request *r, err *e) {
  const prompt_reader *chosen = NULL;
  for (size_t i = 0; i < PROMPT_READERS; i++) {
    if (!json_object_get(object, prompt_readers[i].key)) continue;
    if (chosen)
      return err_set(e, ERR_ARG, "both \"%s\" and \"%s\" are given: give one", chosen->key,
                     prompt_readers[i].key);
    chosen = &prompt_readers[i];
  }
  if (!chosen) return err_set(e, ERR_ARG, "none of \"prompt\", \"prompt_ids\" and \"messages\" is given");
  return chosen->read(json_object_get(object, chosen->key), vocabulary, r, e);
}

/* ---- the options of one request ---- */

typedef struct int_option {
  const char *key;
  json_int_t low, high;
  size_t offset; /* of an int32_t in request */
  bool endless;  /* -1 means the highest, as in llama.cpp */
} int_option;

static const int_option int_options[] = {
    {"budget", 0, WIRE_BUDGET_MAX, offsetof(request, budget), false},
    {"max_tokens", 1, WIRE_CONTEXT_MAX, offsetof(request, max_tokens), true},
    {"top_k", 0, SAMPLER_VOCAB_MAX, offsetof(request, sampling.top_k), false},
};

typedef struct float_option {
  const char *key;
  double low, high; /* sampler_check knows which of these are outside */
  size_t offset;    /* of a float in request */
} float_option;

static const float_option float_options[] = {
    {"temperature", 0, SAMPLER_TEMPERATURE_MAX, offsetof(request, sampling.temperature)},
    {"top_p", 0, 1, offsetof(request, sampling.top_p)},
    {"min_p", 0, 1, offsetof(request, sampling.min_p)},
    {"repeat_penalty", 0, SAMPLER_PENALTY_MAX, offsetof(request, sampling.repeat_penalty)},
    {"presence_penalty", -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX,
     offsetof(request, sampling.presence_penalty)},
    {"frequency_penalty", -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX,
     offsetof(request, sampling.frequency_penalty)},
};

static int read_int(const json_t *value, const int_option *o, request *r, err *e) {
  json_int_t n = json_integer_value(value);
  if (o->endless && n == -1) n = o->high;
  if (!json_is_integer(value) || n < o->low || n > o->high)
    return err_set(e, ERR_ARG, "\"%s\" must be a whole number from %lld to %lld%s", o->key, (long long)o->low,
                   (long long)o->high, o->endless ? ", or -1" : "");
  *(int32_t *)((char *)r + o->offset) = (int32_t)n;
  return ERR_OK;
}

static int read_float(const json_t *value, const float_option *o, request *r, err *e) {
  double x = json_number_value(value);
  if (!json_is_number(value) || !(x >= o->low && x <= o->high))
    return err_set(e, ERR_ARG, "\"%s\" must be a number from %g to %g", o->key, o->low, o->high);
  *(float *)((char *)r + o->offset) = (float)x;
  return ERR_OK;
}

static int read_numbers(const json_t *object, request *r, err *e) {
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < sizeof int_options / sizeof *int_options; i++) {
    const json_t *value = json_object_get(object, int_options[i].key);
    if (value) rc = read_int(value, &int_options[i], r, e);
  }
  for (size_t i = 0; rc == ERR_OK && i < sizeof float_options / sizeof *float_options; i++) {
    const json_t *value = json_object_get(object, float_options[i].key);
    if (value) rc = read_float(value, &float_options[i], r, e);
  }
  return rc ? rc : sampler_check(&r->sampling, e);
}

static int read_seed(const json_t *object, request *r, err *e) {
  const json_t *seed = json_object_get(object, "seed");
  if (!seed) return ERR_OK;
  if (!json_is_integer(seed) || json_integer_value(seed) < 0)
    return err_set(e, ERR_ARG, "\"seed\" must be a whole number from 0 on");
  r->sampling.seed = (uint64_t)json_integer_value(seed);
  r->seed_given = true;
  return ERR_OK;
}

/* It replaces the default one. */
static int read_grammar(const json_t *object, request *r, err *e) {
  const json_t *value = json_object_get(object, "grammar");
  if (!value) return ERR_OK;
  if (!json_is_string(value)) return err_set(e, ERR_ARG, "\"grammar\" must be the text of a grammar");
  return request_set_grammar(r, json_string_value(value), e);
}

/* It replaces the default one. */
static int read_bias(const json_t *object, request *r, err *e) {
  const json_t *value = json_object_get(object, "logit_bias");
  return value ? options_json_bias(value, "\"logit_bias\"", &r->bias, &r->bias_count, e) : ERR_OK;
}

static int add_stop(const json_t *value, const char *name, request *r, err *e) {
  return request_add_stop(r, name, json_string_value(value), json_string_length(value), e);
}

/* A text or several, which replace the default ones. */
static int read_stops(const json_t *object, request *r, err *e) {
  static const char name[] = "\"stop\"";
  const json_t *value = json_object_get(object, "stop");
  if (!value) return ERR_OK;
  request_clear_stops(r);
  if (json_is_string(value)) return add_stop(value, name, r, e);
  if (!json_is_array(value)) return err_set(e, ERR_ARG, "%s must be a string, or an array of them", name);
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < json_array_size(value); i++) {
    const json_t *item = json_array_get(value, i);
    if (!json_is_string(item)) return err_set(e, ERR_ARG, "%s[%zu] must be a string", name, i);
    rc = add_stop(item, name, r, e);
  }
  return rc;
}

static int read_switches(const json_t *object, request *r, err *e) {
  const json_t *draft = json_object_get(object, "draft"),
               *single = json_object_get(object, "force_single_token");
  if (single && !json_is_boolean(single))
    return err_set(e, ERR_ARG, "\"force_single_token\" must be true or false");
  if (single) r->single_token = json_is_true(single);
  if (draft && !json_is_boolean(draft))
    return err_set(e, ERR_ARG, "\"draft\" must be true or false: the method is the draft worker's");
  if (json_is_true(draft) && !r->speculate)
    return err_set(e, ERR_ARG, "\"draft\" is true, but this run has no draft: leave that out");
  if (json_is_false(draft)) r->speculate = false;
  return ERR_OK;
}

static int read_options(const json_t *object, request *r, err *e) {
  int rc = read_switches(object, r, e);
  if (rc == ERR_OK) rc = read_seed(object, r, e);
  if (rc == ERR_OK) rc = read_stops(object, r, e);
  if (rc == ERR_OK) rc = read_bias(object, r, e);
  if (rc == ERR_OK) rc = read_grammar(object, r, e);
  if (rc == ERR_OK) rc = partial_options_read(object, '"', r, &(const char *){NULL}, e);
  return rc ? rc : read_numbers(object, r, e);
}

/* ---- the keys ---- */

/* The REQUEST_KEYS keys of a request; then those of a result or an export, so that these can
 * be asked again. */
/* clang-format off */
static const char *const keys[] = {
  "id", "prompt", "prompt_ids", "messages", "draft", "budget", "max_tokens", "seed", "force_single_token",
  "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
  "logit_bias", "grammar", "stop", "enable_specpv", "specpv_lossy", "specpv_block_size",
  "specpv_n_sink_blocks", "specpv_n_retrieval_blocks", "specpv_n_window_blocks", "specpv_n_spec_tokens_buf",
  "specpv_partial_threshold", "specpv_full_refresh_interval",
  "text", "token_ids", "prompt_tokens", "finish_reason", "error", "numerics_id", "numerics_changed", "stats",
  "session", "state", "model", "model_fingerprint", "created", "updated", "prompt_text", "options",
  "request", "format", "version", "epoch", "hash_seed", "checksum"};
/* clang-format on */
enum { KEYS = sizeof keys / sizeof *keys, REQUEST_KEYS = 28 };

/* A key that nobody reads is refused: a misspelt switch would be silently off. */
static int check_keys(const json_t *object, err *e) {
  const char *key;
  const json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    int i = 0;
    while (i < KEYS && strcmp(key, keys[i]) != 0) i++;
    if (i < KEYS) continue;
    const char *near = nearest_word(key, keys, REQUEST_KEYS);
    return err_set(e, ERR_ARG, "unknown key \"%.40s\"%s%s%s", key, near ? ": did you mean \"" : "",
                   near ? near : "", near ? "\"?" : "");
  }
  return ERR_OK;
}

/* ---- a line ---- */

bool request_json_is_blank(const char *line, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
  return true;
}

static json_t *find_id(const json_t *object) {
  json_t *id = json_object_get(object, "id");
  return json_is_string(id) || json_is_integer(id) ? json_incref(id) : NULL;
}

static int read_object(const json_t *object, int32_t vocabulary, request *r, err *e) {
  int rc = check_keys(object, e);
  if (rc == ERR_OK) rc = read_options(object, r, e);
  return rc ? rc : read_prompt(object, vocabulary, r, e);
}

int request_json_read(const char *line, size_t size, const request *defaults, int32_t vocabulary,
                      request *out, json_t **id, err *e) {
  json_error_t why;
  *id = NULL;
  int rc = request_copy(out, defaults, e);
  if (rc) return rc;
  if (size > REQUEST_JSON_LINE_MAX)
    return err_set(e, ERR_LIMIT, "a line has at most %u bytes", REQUEST_JSON_LINE_MAX);
  json_t *object = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
  if (!object) return err_set(e, ERR_FORMAT, "not JSON: %s (column %d)", why.text, why.column);
  *id = find_id(object);
  if (!json_is_object(object))
    rc = err_set(e, ERR_FORMAT, "not a JSON object");
  else if (!*id && json_object_get(object, "id"))
    rc = err_set(e, ERR_ARG, "\"id\" must be a string or a whole number");
  else
    rc = read_object(object, vocabulary, out, e);
  json_decref(object);
  return rc;
}
