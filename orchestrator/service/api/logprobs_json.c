#include "orchestrator/service/api/logprobs_json.h"

#include "common/base/utf8.h"
#include <stdio.h>
#include <stdlib.h>

#define LEAST (-9999.0) /* what OpenAI writes for a token that cannot come */

static json_t *number(float logprob) {
  return json_real((double)logprob > LEAST ? (double)logprob : LEAST);
}

/* ---- tokens ---- */

static const char *piece_of(const completion *c, int32_t token, size_t *size) {
  *size = 0;
  return c->model->tokens ? tokenizer_piece(c->model->tokens, token, size) : NULL;
}

static json_t *spelled(const char *piece, size_t size) {
  static const char head[] = "bytes:";
  char *text = malloc(sizeof head + 4 * size);
  if (!text) return NULL;
  int at = sprintf(text, "%s", head);
  for (size_t i = 0; i < size; i++) at += sprintf(text + at, "\\x%02x", (unsigned char)piece[i]);
  json_t *s = json_string(text);
  free(text);
  return s;
}

static json_t *text_of(const completion *c, int32_t token) {
  size_t size;
  const char *piece = piece_of(c, token, &size);
  if (!piece) return json_sprintf("token_id:%d", token);
  return utf8_valid(piece, size) == size ? json_stringn(piece, size) : spelled(piece, size);
}

static json_t *bytes_of(const completion *c, int32_t token) {
  size_t size;
  const char *piece = piece_of(c, token, &size);
  json_t *list = json_array();
  if (!piece) return json_null();
  for (size_t i = 0; i < size; i++) json_array_append_new(list, json_integer((unsigned char)piece[i]));
  return list;
}

static const ranking_token *entries_of(const completion *c, int32_t i) {
  return c->logprobs + i * c->logprobs_each;
}

static bool is_shown(const completion *c, int32_t i) {
  int32_t token = entries_of(c, i)[0].token;
  for (int32_t k = 0; k < c->model->stop_count; k++)
    if (c->model->stops[k] == token) return false;
  return token >= 0;
}

/* ---- chat ---- */

static json_t *chat_entry(const completion *c, const ranking_token *x) {
  return json_pack("{s:o, s:o, s:o}", "token", text_of(c, x->token), "logprob", number(x->value), "bytes",
                   bytes_of(c, x->token));
}

static json_t *chat_token(const completion *c, int32_t i) {
  const ranking_token *x = entries_of(c, i);
  json_t *o = chat_entry(c, x), *best = json_array();
  for (int32_t k = 1; k < c->logprobs_each && x[k].token >= 0; k++)
    json_array_append_new(best, chat_entry(c, &x[k]));
  json_object_set_new(o, "top_logprobs", best);
  return o;
}

static json_t *chat_logprobs(const completion *c, int32_t first, int32_t end) {
  json_t *content = json_array();
  for (int32_t i = first; i < end; i++)
    if (is_shown(c, i)) json_array_append_new(content, chat_token(c, i));
  return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* ---- completions ---- */

/* The likeliest, and the token's own. */
static json_t *best_of(const completion *c, int32_t i) {
  const ranking_token *x = entries_of(c, i);
  json_t *o = c->logprobs_each > 1 ? json_object() : json_null();
  for (int32_t k = 0; c->logprobs_each > 1 && k < c->logprobs_each && x[k].token >= 0; k++) {
    json_t *text = text_of(c, x[k].token);
    json_object_set_new(o, json_string_value(text), number(x[k].value));
    json_decref(text);
  }
  return o;
}

static json_t *text_logprobs(const completion *c, size_t offset, int32_t first, int32_t end) {
  json_t *tokens = json_array(), *own = json_array(), *best = json_array(), *offsets = json_array();
  for (int32_t i = first; i < end; i++) {
    size_t before = offset + utf8_characters(c->text, i > 0 ? c->text_after[i - 1] : 0);
    if (!is_shown(c, i)) continue;
    json_array_append_new(tokens, text_of(c, entries_of(c, i)[0].token));
    json_array_append_new(own, number(entries_of(c, i)[0].value));
    json_array_append_new(best, best_of(c, i));
    json_array_append_new(offsets, json_integer((json_int_t)before));
  }
  return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", own, "top_logprobs", best,
                   "text_offset", offsets);
}

/* ---- both ---- */

json_t *logprobs_json(const completion *c, bool chat, size_t offset, int32_t first, int32_t end) {
  if (c->logprobs_each == 0) return NULL;
  if (end > c->logprob_count) end = c->logprob_count;
  if (end > c->fed) end = c->fed;
  return chat ? chat_logprobs(c, first, end) : text_logprobs(c, offset, first, end);
}

int32_t logprobs_json_shown(const completion *c, int32_t first) {
  int32_t kept = c->kept >= 0 && c->kept < c->fed ? c->kept : c->fed;
  while (first < kept && c->text_after[first] <= c->shown) first++;
  return first;
}
