#include "orchestrator/service/session_line.h"

#include "common/base/json_text.h"
#include "common/file/json.h"
#include "orchestrator/ledger/options_json.h"
#include "orchestrator/service/result_json.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_DIGITS   16
#define SECONDS_MAX 1e11 /* of a date */

/* ---- its checksum ---- */

static int checksum_of(const json_t *object, char out[33]) {
  json_t *rest = json_copy((json_t *)object);
  if (rest) json_object_del(rest, "checksum");
  char *text =
      rest ? json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(SESSION_LINE_DIGITS))
           : NULL;
  json_decref(rest);
  if (!text) return ERR_NOMEM;
  hash_format(hash_bytes(text, strlen(text)), out);
  free(text);
  return ERR_OK;
}

/* The object with what makes it a line of its own; what it is comes first. */
static json_t *sealed(json_t *object, const ledger_session *s) {
  char seed[ID_DIGITS + 1], sum[33];
  snprintf(seed, sizeof seed, "%016llx", (unsigned long long)s->hash_seed);
  json_t *o = json_object();
  bool ok = json_object_set_new(o, "format", json_string(SESSION_LINE_FORMAT)) == 0 &&
            json_object_set_new(o, "version", json_integer(SESSION_LINE_VERSION)) == 0 &&
            json_object_update(o, object) == 0 &&
            json_object_set_new(o, "epoch", json_integer(s->epoch)) == 0 &&
            json_object_set_new(o, "hash_seed", json_string(seed)) == 0 && checksum_of(o, sum) == ERR_OK &&
            json_object_set_new(o, "checksum", json_string(sum)) == 0;
  if (ok) return o;
  json_decref(o);
  return NULL;
}

char *session_line_write(json_t *object, const ledger_session *s) {
  json_t *o = object ? sealed(object, s) : NULL;
  char *text = json_text(o, JSON_COMPACT | JSON_REAL_PRECISION(SESSION_LINE_DIGITS));
  json_decref(o);
  return text;
}

/* ---- reading its keys; each returns false where the value is none ---- */

static bool take_hex(const json_t *o, const char *key, size_t digits, uint8_t *bytes) {
  const char *text = json_string_value(json_object_get(o, key));
  return text && strlen(text) == digits && hash_read_hex(text, digits / 2, bytes);
}

static bool take_number(const json_t *o, const char *key, uint64_t *out) {
  uint8_t bytes[ID_DIGITS / 2];
  if (!take_hex(o, key, ID_DIGITS, bytes)) return false;
  *out = 0;
  for (size_t i = 0; i < sizeof bytes; i++) *out = *out << 8 | bytes[i];
  return true;
}

static bool take_text(const json_t *o, const char *key, char **out) {
  const json_t *value = json_object_get(o, key);
  const char *text = json_string_value(value);
  if (!text) return json_is_null(value);
  *out = strlen(text) == json_string_length(value) && strlen(text) < LEDGER_PATH_MAX ? strdup(text) : NULL;
  return *out != NULL;
}

static bool take_object(const json_t *o, const char *key, char **out) {
  const json_t *value = json_object_get(o, key);
  if (!json_is_object(value)) return json_is_null(value);
  *out = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(SESSION_LINE_DIGITS));
  return *out && strlen(*out) <= SESSION_LINE_TEXT_MAX;
}

static bool take_time(const json_t *o, const char *key, int64_t *out) {
  const json_t *value = json_object_get(o, key);
  double seconds = json_number_value(value);
  if (!json_is_number(value) || !(seconds >= 0 && seconds < SECONDS_MAX)) return false;
  *out = llround(seconds * 1e6);
  return true;
}

static bool take_epoch(const json_t *o, ledger_session *out) {
  const json_t *value = json_object_get(o, "epoch");
  json_int_t n = json_integer_value(value);
  out->epoch = (uint32_t)n;
  return json_is_integer(value) && n >= 1 && n <= SESSION_LINE_EPOCH_MAX;
}

/* One that runs elsewhere is interrupted here. */
static bool take_state(const json_t *o, ledger_session *out) {
  const char *state = json_string_value(json_object_get(o, "state"));
  out->state = LEDGER_INTERRUPTED;
  if (!state) return false;
  if (strcmp(state, "running") == 0 || strcmp(state, "interrupted") == 0) return true;
  out->state = LEDGER_ENDED;
  out->finish = (wire_finish)LEDGER_BY_HAND;
  if (strcmp(state, SESSION_LINE_BY_HAND) == 0) return true;
  for (int f = WIRE_FINISH_STOP; f <= WIRE_FINISH_ERROR; f++)
    if (strcmp(state, result_json_finish_name((wire_finish)f)) == 0) {
      out->finish = (wire_finish)f;
      return true;
    }
  return false;
}

static bool take_options(const json_t *o, ledger_session *out, err *e) {
  char *text = NULL;
  bool ok = take_object(o, "options", &text) && text &&
            options_json_read(text, &out->options, out->stops, &out->bias, &out->grammar, e) == 0;
  const msg_options *p = &out->options;
  free(text);
  return ok && p->context >= 1 && p->context <= WIRE_CONTEXT_MAX && p->max_tokens >= 0 &&
         p->max_tokens <= WIRE_CONTEXT_MAX && p->budget >= 0 && p->budget <= WIRE_BUDGET_MAX;
}

/* There is room for all of them. */
static bool add_tokens(const json_t *list, ledger_session *out) {
  size_t i;
  json_t *id;
  json_array_foreach(list, i, id) {
    json_int_t n = json_integer_value(id);
    if (!json_is_integer(id) || n < 0 || n > INT32_MAX) return false;
    out->tokens[out->length++] = (int32_t)n;
  }
  return true;
}

static int take_tokens(const json_t *o, ledger_session *out, err *e) {
  const json_t *prompt = json_object_get(o, "prompt_ids"), *output = json_object_get(o, "token_ids");
  size_t count = json_array_size(prompt) + json_array_size(output);
  if (json_array_size(prompt) < 1 || !json_is_array(output))
    return err_set(e, ERR_FORMAT, "it has no prompt_ids, or no token_ids");
  if (count > (size_t)out->options.context)
    return err_set(e, ERR_LIMIT, "it has %zu tokens, and its context is %d", count, out->options.context);
  out->tokens = malloc((count + 1) * sizeof *out->tokens);
  if (!out->tokens) return err_set(e, ERR_NOMEM, "out of memory for %zu tokens", count);
  bool ok = add_tokens(prompt, out);
  out->prompt_length = out->length;
  if (ok && add_tokens(output, out)) return ERR_OK;
  return err_set(e, ERR_FORMAT, "its token number %d is none: ids are 0 to %d", out->length + 1, INT32_MAX);
}

/* The key of a wrong value, or NULL. */
static const char *take_values(const json_t *o, ledger_session *out) {
  err why = {0};
  return !take_number(o, "id", &out->id)                                 ? "id"
         : !take_number(o, "hash_seed", &out->hash_seed)                 ? "hash_seed"
         : !take_epoch(o, out)                                           ? "epoch"
         : !take_state(o, out)                                           ? "state"
         : !take_text(o, "model", &out->model)                           ? "model"
         : !take_hex(o, "model_fingerprint", 32, out->fingerprint.bytes) ? "model_fingerprint"
         : !take_text(o, "numerics_id", &out->numerics)                  ? "numerics_id"
         : !take_time(o, "created", &out->created)                       ? "created"
         : !take_time(o, "updated", &out->updated)                       ? "updated"
         : !take_object(o, "request", &out->about)                       ? "request"
         : !take_object(o, "stats", &out->stats)                         ? "stats"
         : !take_options(o, out, &why)                                   ? "options"
                                                                         : NULL;
}

/* Is it a line of ours, and as it was written? */
static int check_line(const json_t *o, err *e) {
  const char *format = json_string_value(json_object_get(o, "format"));
  const char *sum = json_string_value(json_object_get(o, "checksum"));
  json_int_t version = json_integer_value(json_object_get(o, "version"));
  char right[33];
  if (!format || strcmp(format, SESSION_LINE_FORMAT) != 0)
    return err_set(e, ERR_FORMAT, "it is no line of `tandem session export': its \"format\" is not \"%s\"",
                   SESSION_LINE_FORMAT);
  if (version != SESSION_LINE_VERSION)
    return err_set(e, ERR_VERSION,
                   "it is of version %lld, and this tandem knows %d: export it again, or use a "
                   "newer tandem",
                   (long long)version, SESSION_LINE_VERSION);
  if (checksum_of(o, right)) return err_set(e, ERR_NOMEM, "out of memory");
  return sum && strcmp(sum, right) == 0
             ? ERR_OK
             : err_set(e, ERR_FORMAT, "its checksum is wrong: it was changed or damaged; export it again");
}

int session_line_read(const char *text, size_t size, ledger_session *out, err *e) {
  json_t *o;
  err why = {0};
  *out = (ledger_session){0};
  if (size > SESSION_LINE_MAX)
    return err_set(e, ERR_LIMIT, "it has more than %d bytes, the most of a session", SESSION_LINE_MAX);
  int rc = json_parse_object(&o, "", text, size, &why);
  if (rc == ERR_LIMIT) return err_set(e, rc, "it nests too deep or has too many values for a session");
  if (rc == ERR_NOMEM) return err_set(e, rc, "out of memory");
  if (rc) return err_set(e, ERR_FORMAT, "it is no JSON object: is it cut off?");
  rc = check_line(o, e);
  const char *wrong = rc ? NULL : take_values(o, out);
  if (wrong) rc = err_set(e, ERR_FORMAT, "its \"%s\" is missing, or no value of a session", wrong);
  if (rc == ERR_OK) rc = take_tokens(o, out, e);
  json_decref(o);
  return rc;
}
