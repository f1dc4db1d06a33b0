#include "orchestrator/service/api/tokens_json.h"

#include "orchestrator/service/prompt.h"
#include <stdlib.h>
#include <string.h>

static int no_memory(call_error *e) {
  return err_set(&e->why, ERR_NOMEM, "out of memory for the tokens");
}

static int needs_vocabulary(const json_t *body, const text_model *m, call_error *e) {
  if (!json_is_object(body)) return err_set(&e->why, ERR_FORMAT, "the body must be a JSON object");
  return text_model_needs_text(m, &e->why);
}

/* ---- tokenize ---- */

typedef struct tokenize_options {
  bool special;  /* special tokens written in the text become their ids */
  bool begin;    /* the token that begins a text, where the vocabulary has one */
  bool pieces;   /* llama-server: each token with its text */
  bool spelling; /* vLLM: the texts in an array of their own */
} tokenize_options;

/* vLLM's `prompt' begins like a completion's, llama-server's `content' does not unless it is asked to. */
static int read_options(const json_t *body, tokenize_options *o, call_error *e) {
  *o = (tokenize_options){.special = true, .begin = !json_object_get(body, "content")};
  const struct {
    const char *name;
    bool *value;
  } fields[] = {{"add_special", &o->begin},
                {"add_special_tokens", &o->begin},
                {"parse_special", &o->special},
                {"with_pieces", &o->pieces},
                {"return_token_strs", &o->spelling}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    int rc = call_options_bool(body, fields[i].name, fields[i].value, e);
    if (rc) return rc;
  }
  return ERR_OK;
}

static int encode_text(const json_t *body, const tokenize_options *o, const text_model *m, tokenizer_ids *out,
                       call_error *e) {
  const char *name = json_object_get(body, "content") ? "content" : "prompt";
  const json_t *text = json_object_get(body, name);
  e->param = name;
  if (!json_is_string(text))
    return err_set(&e->why, ERR_ARG, "'content', 'prompt' (both a string) or 'messages' must be given");
  const char *data = json_string_value(text);
  size_t size = json_string_length(text);
  unsigned how = o->special ? TOKENIZER_SPECIAL : 0;
  if (!o->begin) return tokenizer_encode(m->tokens, data, size, how, out, &e->why);
  const request r = {.prompt_kind = REQUEST_TEXT,
                     .raw = true,
                     .no_special = !o->special,
                     .text = (char *)data,
                     .text_size = size};
  return prompt_encode(&r, m, out, &e->why);
}

static int encode_messages(const json_t *body, const text_model *m, tokenizer_ids *out, call_error *e) {
  request r;
  bool reply = true;
  request_init(&r);
  int rc = call_options_bool(body, "add_generation_prompt", &reply, e);
  if (rc == ERR_OK) rc = call_options_messages(body, &r, e);
  if (rc == ERR_OK && !reply) {
    e->param = "add_generation_prompt";
    rc = err_set(&e->why, ERR_UNSUPPORTED, "'add_generation_prompt' cannot be false here: leave it out");
  }
  if (rc == ERR_OK) rc = prompt_encode(&r, m, out, &e->why);
  request_fini(&r);
  return rc;
}

json_t *tokens_json_spelling(const tokenizer *t, int32_t id) {
  size_t size;
  const char *spelling = tokenizer_spelling(t, id, &size);
  json_t *s = spelling ? json_stringn(spelling, size) : NULL;
  return s ? s : json_string("\xef\xbf\xbd");
}

/* The text of a token, or its bytes where they are no whole characters, as llama-server has it. */
static json_t *piece_of(const tokenizer *t, int32_t id) {
  size_t size;
  const char *text = tokenizer_piece(t, id, &size);
  json_t *piece = json_stringn(text ? text : "", text ? size : 0);
  if (piece) return piece;
  piece = json_array();
  for (size_t i = 0; i < size; i++) json_array_append_new(piece, json_integer((unsigned char)text[i]));
  return piece;
}

static json_t *object_of(const tokenizer_ids *ids, const tokenize_options *o, const text_model *m,
                         int32_t context) {
  json_t *tokens = json_array(), *spellings = o->spelling ? json_array() : NULL;
  for (size_t i = 0; i < ids->count; i++) {
    int32_t id = ids->ids[i];
    json_array_append_new(tokens, o->pieces
                                      ? json_pack("{s:i, s:o}", "id", id, "piece", piece_of(m->tokens, id))
                                      : json_integer(id));
    if (spellings) json_array_append_new(spellings, tokens_json_spelling(m->tokens, id));
  }
  return json_pack("{s:o, s:I, s:i, s:o*}", "tokens", tokens, "count", (json_int_t)ids->count,
                   "max_model_len", context, "token_strs", spellings);
}

int tokens_json_tokenize(const json_t *body, const text_model *m, int32_t context, json_t **out,
                         call_error *e) {
  tokenize_options o;
  tokenizer_ids ids = {0};
  int rc = needs_vocabulary(body, m, e);
  if (rc == ERR_OK) rc = read_options(body, &o, e);
  if (rc) return rc;
  rc = json_object_get(body, "messages") ? encode_messages(body, m, &ids, e)
                                         : encode_text(body, &o, m, &ids, e);
  if (rc == ERR_OK) {
    *out = object_of(&ids, &o, m, context);
    if (!*out) rc = no_memory(e);
  }
  tokenizer_ids_fini(&ids);
  return rc;
}

/* ---- detokenize ---- */

typedef struct text {
  char *data;
  size_t size, capacity;
} text;

static int add(text *t, const detokenizer_out *more) {
  if (t->size + more->size > t->capacity) {
    size_t wanted = 2 * (t->size + more->size);
    char *p = realloc(t->data, wanted);
    if (!p) return ERR_NOMEM;
    t->data = p;
    t->capacity = wanted;
  }
  if (more->size) memcpy(t->data + t->size, more->text, more->size);
  t->size += more->size;
  return ERR_OK;
}

static int decode(const request *r, const text_model *m, text *out, call_error *e) {
  detokenizer *d;
  detokenizer_out more;
  int rc = detokenizer_alloc(&d, m->tokens, NULL, 0, false, true, &e->why);
  if (rc) return rc;
  for (size_t i = 0; rc == ERR_OK && i <= r->ids.count; i++) {
    rc = i < r->ids.count ? detokenizer_feed(d, r->ids.ids[i], &more) : detokenizer_end(d, &more);
    if (rc == ERR_OK) rc = add(out, &more);
  }
  detokenizer_free(d);
  return rc == ERR_ARG ? err_set(&e->why, rc, "'tokens' has an id that is not in the vocabulary")
         : rc          ? no_memory(e)
                       : ERR_OK;
}

int tokens_json_detokenize(const json_t *body, const text_model *m, json_t **out, call_error *e) {
  request r;
  text all = {0};
  int rc = needs_vocabulary(body, m, e);
  if (rc) return rc;
  request_init(&r);
  rc = call_options_ids(json_object_get(body, "tokens"), "tokens", m, &r, e);
  if (rc == ERR_OK) rc = decode(&r, m, &all, e);
  if (rc == ERR_OK) {
    const char *data = all.data ? all.data : "";
    *out = json_pack("{s:s%, s:s%}", "content", data, all.size, "prompt", data, all.size);
    if (!*out) rc = no_memory(e);
  }
  request_fini(&r);
  free(all.data);
  return rc;
}
