#include "orchestrator/service/request.h"

#include "common/grammar/grammar.h"
#include "common/base/utf8.h"
#include "orchestrator/service/json_schema.h"
#include <stdlib.h>
#include <string.h>

static int no_memory(err *e) {
  return err_set(e, ERR_NOMEM, "out of memory for a request");
}

/* size bytes and a NUL behind them; NULL: out of memory. */
static char *copy_bytes(const char *text, size_t size) {
  char *copy = malloc(size + 1);
  if (!copy) return NULL;
  if (size) memcpy(copy, text, size);
  copy[size] = 0;
  return copy;
}

/* ---- life ---- */

void request_init(request *r) {
  *r = (request){.sampling = SAMPLER_DEFAULTS,
                 .max_tokens = REQUEST_MAX_TOKENS_DEFAULT,
                 .speculate = true,
                 .budget = REQUEST_BUDGET_DEFAULT};
}

static void clear_prompt(request *r) {
  for (int32_t i = 0; i < r->message_count; i++) {
    free((char *)r->messages[i].role);
    free((char *)r->messages[i].content);
  }
  free(r->messages);
  free(r->text);
  tokenizer_ids_fini(&r->ids);
  r->messages = NULL;
  r->message_count = r->message_capacity = 0;
  r->text = NULL;
  r->text_size = 0;
  r->ids = (tokenizer_ids){0};
  r->prompt_kind = REQUEST_NO_PROMPT;
}

void request_clear_stops(request *r) {
  while (r->stop_count > 0) free(r->stops[--r->stop_count]);
}

void request_fini(request *r) {
  clear_prompt(r);
  request_clear_stops(r);
  free(r->system);
  free(r->grammar);
  free(r->title);
  *r = (request){0};
}

/* The parts that are owned; those that are not are there already. */
static int copy_owned(request *to, const request *from, err *e) {
  int rc = ERR_OK;
  if (from->prompt_kind == REQUEST_TEXT) rc = request_set_text(to, from->text, from->text_size, e);
  if (from->prompt_kind == REQUEST_IDS) rc = request_set_ids(to, from->ids.ids, from->ids.count, e);
  for (int32_t i = 0; rc == ERR_OK && i < from->message_count; i++) {
    const chat_message *m = &from->messages[i];
    rc = request_add_message(to, m->role, m->content, m->size, e);
  }
  for (int32_t i = 0; rc == ERR_OK && i < from->stop_count; i++)
    rc = request_add_stop(to, "a stop string", from->stops[i], strlen(from->stops[i]), e);
  if (rc == ERR_OK && from->system) rc = request_set_system(to, from->system, e);
  if (rc == ERR_OK && from->grammar && !(to->grammar = strdup(from->grammar))) rc = no_memory(e);
  if (rc == ERR_OK && from->title) rc = request_set_title(to, from->title, strlen(from->title), e);
  return rc;
}

int request_copy(request *to, const request *from, err *e) {
  *to = *from;
  to->prompt_kind = REQUEST_NO_PROMPT;
  to->text = to->system = to->grammar = to->title = NULL;
  to->text_size = 0;
  to->ids = (tokenizer_ids){0};
  to->messages = NULL;
  to->message_count = to->message_capacity = to->stop_count = 0;
  int rc = copy_owned(to, from, e);
  if (rc) {
    request_fini(to);
    request_init(to);
  }
  return rc;
}

/* ---- the prompt ---- */

int request_set_text(request *r, const char *text, size_t size, err *e) {
  char *copy = copy_bytes(text, size);
  if (!copy) return no_memory(e);
  clear_prompt(r);
  r->prompt_kind = REQUEST_TEXT;
  r->text = copy;
  r->text_size = size;
  return ERR_OK;
}

int request_set_ids(request *r, const int32_t *ids, size_t count, err *e) {
  int32_t *copy = malloc((count ? count : 1) * sizeof *copy);
  if (!copy) return no_memory(e);
  if (count) memcpy(copy, ids, count * sizeof *copy);
  clear_prompt(r);
  r->prompt_kind = REQUEST_IDS;
  r->ids = (tokenizer_ids){.ids = copy, .count = count, .capacity = count};
  return ERR_OK;
}

static int reserve_message(request *r) {
  if (r->message_count < r->message_capacity) return ERR_OK;
  int32_t capacity = r->message_capacity ? 2 * r->message_capacity : 8;
  chat_message *more = realloc(r->messages, (size_t)capacity * sizeof *more);
  if (!more) return ERR_NOMEM;
  r->messages = more;
  r->message_capacity = capacity;
  return ERR_OK;
}

int request_add_message(request *r, const char *role, const char *content, size_t size, err *e) {
  if (r->prompt_kind != REQUEST_MESSAGES) clear_prompt(r);
  char *own_role = copy_bytes(role, strlen(role)), *own = copy_bytes(content, size);
  if (!own_role || !own || reserve_message(r)) {
    free(own_role);
    free(own);
    return no_memory(e);
  }
  r->prompt_kind = REQUEST_MESSAGES;
  r->messages[r->message_count++] = (chat_message){.role = own_role, .content = own, .size = size};
  return ERR_OK;
}

/* ---- the rest ---- */

int request_set_system(request *r, const char *text, err *e) {
  char *copy = copy_bytes(text, strlen(text));
  if (!copy) return no_memory(e);
  free(r->system);
  r->system = copy;
  return ERR_OK;
}

int request_set_grammar(request *r, const char *text, err *e) {
  grammar *g = NULL;
  char *copy = NULL;
  int rc = text ? grammar_read(&g, text, strlen(text), e) : ERR_OK;
  grammar_free(g);
  if (rc == ERR_OK && text && !(copy = strdup(text))) rc = no_memory(e);
  if (rc) return rc;
  free(r->grammar);
  r->grammar = copy;
  return ERR_OK;
}

int request_set_schema(request *r, const json_t *schema, err *e) {
  char *text;
  int rc = json_schema_grammar(schema, &text, e);
  if (rc == ERR_OK) rc = request_set_grammar(r, text, e);
  free(text);
  return rc;
}

int request_set_schema_text(request *r, const char *text, err *e) {
  json_error_t why;
  json_t *schema = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
  if (!schema) return err_set(e, ERR_FORMAT, "the schema is not JSON: %s (line %d)", why.text, why.line);
  int rc = request_set_schema(r, schema, e);
  json_decref(schema);
  return rc;
}

int request_set_title(request *r, const char *text, size_t size, err *e) {
  char words[REQUEST_TITLE_MAX + 1];
  size_t n = 0;
  for (const char *end = text + size; text < end && n < REQUEST_TITLE_MAX; text++) {
    bool blank = (unsigned char)*text <= ' ';
    if (blank && (n == 0 || words[n - 1] == ' ')) continue;
    words[n++] = blank ? ' ' : *text;
  }
  while (n > 0 && words[n - 1] == ' ') n--;
  char *copy = copy_bytes(words, utf8_valid(words, n)); /* the last character may be cut */
  if (!copy) return no_memory(e);
  free(r->title);
  r->title = copy;
  return ERR_OK;
}

int request_add_stop(request *r, const char *name, const char *text, size_t size, err *e) {
  if (r->stop_count == DETOKENIZER_STOP_MAX)
    return err_set(e, ERR_ARG, "%s may be given %d times at most", name, DETOKENIZER_STOP_MAX);
  if (size == 0) return err_set(e, ERR_ARG, "%s is empty: give some text, or leave it out", name);
  if (size > DETOKENIZER_STOP_BYTES_MAX)
    return err_set(e, ERR_ARG, "%s has %zu bytes; %d are the most", name, size, DETOKENIZER_STOP_BYTES_MAX);
  if (strlen(text) != size) return err_set(e, ERR_ARG, "%s holds a NUL: leave it out", name);
  if (utf8_valid(text, size) != size) return err_set(e, ERR_ARG, "%s is not UTF-8: convert it", name);
  char *copy = copy_bytes(text, size);
  if (!copy) return no_memory(e);
  r->stops[r->stop_count++] = copy;
  return ERR_OK;
}

int request_add_bias(request *r, int32_t token, float value, err *e) {
  int32_t i = 0;
  while (i < r->bias_count && r->bias.tokens[i] != token) i++;
  if (i == SAMPLER_BIAS_MAX)
    return err_set(e, ERR_ARG, "a logit bias may have %d tokens at most", SAMPLER_BIAS_MAX);
  if (i == r->bias_count) r->bias_count++;
  r->bias.tokens[i] = token;
  r->bias.values[i] = value;
  return ERR_OK;
}

bool request_wants_draft(const request *r) {
  return r->speculate && r->budget > 0;
}

void request_speculate_not(request *r) {
  r->speculate = false;
  if (r->partial_kv) r->partial.mode = WIRE_PARTIAL_OFF;
}

/* ---- what the target gets ---- */

static msg_partial partial_of(const request *r) {
  msg_partial p = r->partial;
  if (p.mode == WIRE_PARTIAL_OWN && r->lossy) p.mode = WIRE_PARTIAL_LOSSY;
  return p.mode == WIRE_PARTIAL_EXACT || p.mode == WIRE_PARTIAL_LOSSY ? p : (msg_partial){.mode = p.mode};
}

msg_options request_options(const request *r) {
  const sampler_options *s = &r->sampling;
  bool draft = request_wants_draft(r);
  return (msg_options){.temperature = s->temperature,
                       .top_p = s->top_p,
                       .min_p = s->min_p,
                       .repeat_penalty = s->repeat_penalty,
                       .presence_penalty = s->presence_penalty,
                       .frequency_penalty = s->frequency_penalty,
                       .bias_count = r->bias_count,
                       .bias_tokens = r->bias.tokens,
                       .bias_values = r->bias.values,
                       .logprobs = r->logprobs,
                       .grammar = r->grammar,
                       .grammar_size = r->grammar ? (uint32_t)strlen(r->grammar) : 0,
                       .top_k = s->top_k,
                       .seed = s->seed,
                       .choice = s->choice,
                       .max_tokens = r->max_tokens,
                       .context = r->context,
                       .budget = draft ? r->budget : 0,
                       .lockstep = draft && r->lockstep,
                       .selfcheck = r->selfcheck,
                       .single = r->single_token,
                       .partial = partial_of(r)};
}

static int check_prompt(const request *r, err *e) {
  if (r->prompt_kind == REQUEST_NO_PROMPT) return err_set(e, ERR_ARG, "there is no prompt");
  if (r->raw && r->prompt_kind == REQUEST_MESSAGES)
    return err_set(e, ERR_ARG, "messages need the chat template, which a raw request leaves out");
  if (r->raw && r->system)
    return err_set(e, ERR_ARG, "a system message needs the chat template, which a raw request leaves out");
  return ERR_OK;
}

int request_check(const request *r, err *e) {
  msg_options options = request_options(r);
  options.budget = r->budget; /* also where it is not used */
  int rc = check_prompt(r, e);
  return rc ? rc : msg_options_check(&options, e);
}
