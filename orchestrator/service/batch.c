#include "orchestrator/service/batch.h"

#include "common/base/program_flags.h"
#include "wire/message.h"
#include <stdlib.h>
#include <string.h>

/* ---- the three ways to give a prompt ---- */

static int from_text(const json_t *value, const text_model *m, const flags *f, tokenizer_ids *out, err *e) {
  if (!json_is_string(value)) return err_set(e, ERR_ARG, "\"prompt\" must be a string");
  prompt_options o = {.raw = f->raw, .special = !f->no_special, .system = f->system};
  return text_model_prompt(m, &o, json_string_value(value), json_string_length(value), out, e);
}

static int add_id(tokenizer_ids *out, int32_t id, err *e) {
  if (out->count == out->capacity) {
    size_t wanted = out->capacity ? 2 * out->capacity : 256;
    int32_t *p = realloc(out->ids, wanted * sizeof *p);
    if (!p) return err_set(e, ERR_NOMEM, "out of memory for prompt ids");
    out->ids = p;
    out->capacity = wanted;
  }
  out->ids[out->count++] = id;
  return ERR_OK;
}

static int from_ids(const json_t *value, const text_model *m, const flags *f, tokenizer_ids *out, err *e) {
  (void)f;
  if (!json_is_array(value)) return err_set(e, ERR_ARG, "\"prompt_ids\" must be an array of token ids");
  size_t i;
  const json_t *item;
  json_array_foreach(value, i, item) {
    json_int_t id = json_integer_value(item);
    if (!json_is_integer(item) || id < 0 || id >= m->config.vocab)
      return err_set(e, ERR_ARG, "\"prompt_ids\"[%zu] is no token id from 0 to %d", i, m->config.vocab - 1);
    int rc = add_id(out, (int32_t)id, e);
    if (rc) return rc;
  }
  return ERR_OK;
}

static int read_message(const json_t *item, size_t i, chat_message *out, err *e) {
  const json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
  if (!json_is_string(role) || !json_is_string(content))
    return err_set(e, ERR_ARG, "\"messages\"[%zu] must be {\"role\": text, \"content\": text}", i);
  *out = (chat_message){json_string_value(role), json_string_value(content), json_string_length(content)};
  return ERR_OK;
}

/* --system comes first, unless the conversation has a system message of its own. */
static int from_messages(const json_t *value, const text_model *m, const flags *f, tokenizer_ids *out,
                         err *e) {
  chat_message list[BATCH_MESSAGES_MAX + 1];
  size_t count = json_array_size(value), i;
  const json_t *item;
  if (f->raw) return err_set(e, ERR_ARG, "\"messages\" need the chat template, which --raw leaves out");
  if (!json_is_array(value) || count < 1 || count > BATCH_MESSAGES_MAX)
    return err_set(e, ERR_ARG, "\"messages\" must be an array of 1 to %d messages", BATCH_MESSAGES_MAX);
  chat_message *given = list + 1;
  json_array_foreach(value, i, item) {
    int rc = read_message(item, i, &given[i], e);
    if (rc) return rc;
  }
  if (!f->system || strcmp(given[0].role, "system") == 0)
    return text_model_messages(m, given, (int32_t)count, out, e);
  list[0] = (chat_message){"system", f->system, strlen(f->system)};
  return text_model_messages(m, list, (int32_t)count + 1, out, e);
}

typedef struct way {
  const char *key;
  int (*read)(const json_t *value, const text_model *m, const flags *f, tokenizer_ids *out, err *e);
} way;

static const way ways[] = {{"prompt", from_text}, {"prompt_ids", from_ids}, {"messages", from_messages}};

/* ---- the switches of one request ---- */

typedef struct int_switch {
  const char *key;
  json_int_t low, high;
  size_t offset; /* of an int32_t in flags */
} int_switch;

static const int_switch int_switches[] = {{"budget", 0, WIRE_BUDGET_MAX, offsetof(flags, budget)},
                                          {"max_tokens", 1, WIRE_CONTEXT_MAX, offsetof(flags, max_tokens)},
                                          {"top_k", 0, SAMPLER_VOCAB_MAX, offsetof(flags, sampling.top_k)}};

typedef struct float_switch {
  const char *key;
  double high;   /* from 0; sampler_check knows which of the bounds are outside */
  size_t offset; /* of a float in flags */
} float_switch;

static const float_switch float_switches[] = {
    {"temperature", SAMPLER_TEMPERATURE_MAX, offsetof(flags, sampling.temperature)},
    {"top_p", 1, offsetof(flags, sampling.top_p)},
    {"min_p", 1, offsetof(flags, sampling.min_p)},
    {"repeat_penalty", SAMPLER_PENALTY_MAX, offsetof(flags, sampling.repeat_penalty)},
};

static int read_number(const json_t *value, const int_switch *s, flags *f, err *e) {
  json_int_t n = json_integer_value(value);
  if (!json_is_integer(value) || n < s->low || n > s->high)
    return err_set(e, ERR_ARG, "\"%s\" must be a whole number from %lld to %lld", s->key, (long long)s->low,
                   (long long)s->high);
  *(int32_t *)((char *)f + s->offset) = (int32_t)n;
  return ERR_OK;
}

static int read_fraction(const json_t *value, const float_switch *s, flags *f, err *e) {
  double x = json_number_value(value);
  if (!json_is_number(value) || !(x >= 0 && x <= s->high))
    return err_set(e, ERR_ARG, "\"%s\" must be a number from 0 to %g", s->key, s->high);
  *(float *)((char *)f + s->offset) = (float)x;
  return ERR_OK;
}

static int read_sampling(const json_t *object, flags *f, err *e) {
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < sizeof float_switches / sizeof *float_switches; i++) {
    const json_t *value = json_object_get(object, float_switches[i].key);
    if (value) rc = read_fraction(value, &float_switches[i], f, e);
  }
  return rc ? rc : sampler_check(&f->sampling, e);
}

/* A text or several, which replace those of the flags. */
static int read_stops(const json_t *value, flags *f, err *e) {
  static const char name[] = "\"stop\"";
  const json_t *item;
  size_t i;
  int rc = ERR_OK;
  f->stop_count = 0;
  if (json_is_string(value))
    return flags_add_stop(f, name, json_string_value(value), json_string_length(value), e);
  if (!json_is_array(value)) return err_set(e, ERR_ARG, "%s must be a string, or an array of them", name);
  json_array_foreach(value, i, item) {
    if (rc) break;
    if (json_is_string(item))
      rc = flags_add_stop(f, name, json_string_value(item), json_string_length(item), e);
    else
      rc = err_set(e, ERR_ARG, "%s[%zu] must be a string", name, i);
  }
  return rc;
}

static int read_switches(const json_t *object, flags *f, err *e) {
  const json_t *draft = json_object_get(object, "draft"),
               *single = json_object_get(object, "force_single_token");
  if (single && !json_is_boolean(single))
    return err_set(e, ERR_ARG, "\"force_single_token\" must be true or false");
  if (single) f->single = json_is_true(single);
  if (draft && !json_is_boolean(draft))
    return err_set(e, ERR_ARG, "\"draft\" must be true or false: the method is the draft worker's");
  if (json_is_true(draft) && strcmp(f->draft, "none") == 0)
    return err_set(e, ERR_ARG, "\"draft\" is true, but this run has --draft none: leave that out");
  if (json_is_false(draft)) f->draft = "none";
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < sizeof int_switches / sizeof *int_switches; i++) {
    const json_t *value = json_object_get(object, int_switches[i].key);
    if (value) rc = read_number(value, &int_switches[i], f, e);
  }
  const json_t *seed = json_object_get(object, "seed");
  if (seed && (!json_is_integer(seed) || json_integer_value(seed) < 0))
    return err_set(e, ERR_ARG, "\"seed\" must be a whole number from 0 on");
  if (seed) f->sampling.seed = (uint64_t)json_integer_value(seed);
  const json_t *stop = json_object_get(object, "stop");
  if (rc == ERR_OK && stop) rc = read_stops(stop, f, e);
  return rc ? rc : read_sampling(object, f, e);
}

/* What a request may say; then what a result or an export says besides, so that these can be asked again. */
static const char *const keys[] = {"id",
                                   "prompt",
                                   "prompt_ids",
                                   "messages",
                                   "draft",
                                   "budget",
                                   "max_tokens",
                                   "seed",
                                   "force_single_token",
                                   "temperature",
                                   "top_k",
                                   "top_p",
                                   "min_p",
                                   "repeat_penalty",
                                   "stop",
                                   "text",
                                   "token_ids",
                                   "prompt_tokens",
                                   "finish_reason",
                                   "error",
                                   "numerics_id",
                                   "numerics_changed",
                                   "stats",
                                   "session",
                                   "state",
                                   "model",
                                   "model_fingerprint",
                                   "created",
                                   "updated",
                                   "prompt_text",
                                   "options",
                                   "request"};
enum { KEYS = sizeof keys / sizeof *keys, REQUEST_KEYS = 15 };

/* A key that nobody reads is refused: a misspelt switch would be silently off. */
static int check_keys(const json_t *object, err *e) {
  const char *key;
  const json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    int i = 0;
    while (i < KEYS && strcmp(key, keys[i]) != 0) i++;
    if (i < KEYS) continue;
    const char *near = program_nearest(key, keys, REQUEST_KEYS);
    return err_set(e, ERR_ARG, "unknown key \"%.40s\"%s%s%s", key, near ? ": did you mean \"" : "",
                   near ? near : "", near ? "\"?" : "");
  }
  return ERR_OK;
}

/* ---- a line ---- */

bool batch_is_blank(const char *line, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
  return true;
}

static int read_object(const json_t *object, const text_model *m, const flags *f, tokenizer_ids *out,
                       err *e) {
  const way *chosen = NULL;
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    if (!json_object_get(object, ways[i].key)) continue;
    if (chosen)
      return err_set(e, ERR_ARG, "both \"%s\" and \"%s\" are given: give one", chosen->key, ways[i].key);
    chosen = &ways[i];
  }
  if (!chosen) return err_set(e, ERR_ARG, "none of \"prompt\", \"prompt_ids\" and \"messages\" is given");
  return chosen->read(json_object_get(object, chosen->key), m, f, out, e);
}

json_t *batch_id(const json_t *object) {
  json_t *id = json_object_get(object, "id");
  return json_is_string(id) || json_is_integer(id) ? id : NULL;
}

int batch_read_line(const char *line, size_t size, const text_model *m, flags *f, json_t **object,
                    tokenizer_ids *out, err *e) {
  json_error_t why;
  *object = NULL;
  if (size > BATCH_LINE_MAX) return err_set(e, ERR_LIMIT, "a line has at most %u bytes", BATCH_LINE_MAX);
  json_t *o = *object = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
  if (!o) return err_set(e, ERR_FORMAT, "not JSON: %s (column %d)", why.text, why.column);
  if (!json_is_object(o)) return err_set(e, ERR_FORMAT, "not a JSON object");
  if (!batch_id(o)) return err_set(e, ERR_ARG, "\"id\" must be given, as a string or a whole number");
  int rc = check_keys(o, e);
  if (rc == ERR_OK) rc = read_switches(o, f, e);
  return rc ? rc : read_object(o, m, f, out, e);
}
