#include "orchestrator/service/api/openai_json.h"

#include "common/base/utf8.h"
#include "orchestrator/service/api/logprobs_json.h"
#include "orchestrator/service/result_json.h"
#include <string.h>

static json_t *head_of(const openai_head *h, const char *object) {
  return json_pack("{s:s, s:s, s:I, s:s}", "id", h->id, "object", object, "created", (json_int_t)h->created,
                   "model", h->model);
}

/* ---- events ---- */

static json_t *delta_of(bool first, const char *text, size_t size) {
  json_t *delta = json_object();
  if (first) json_object_set_new(delta, "role", json_string("assistant"));
  if (text) json_object_set_new(delta, "content", json_stringn(text, size));
  return delta;
}

json_t *openai_json_chunk(const openai_head *h, int32_t index, bool first, const char *text, size_t size,
                          const char *finish, json_t *logprobs) {
  json_t *choice =
      json_pack("{s:i, s:s?, s:o?}", "index", index, "finish_reason", finish, "logprobs", logprobs);
  if (h->chat)
    json_object_set_new(choice, "delta", delta_of(first, text, size));
  else
    json_object_set_new(choice, "text", json_stringn(text ? text : "", size));
  json_t *o = head_of(h, h->chat ? "chat.completion.chunk" : "text_completion");
  json_object_set_new(o, "choices", json_pack("[o]", choice));
  return o;
}

json_t *openai_json_last(const openai_head *h, int32_t index, const char *finish, json_t *logprobs,
                         const completion *c) {
  json_t *chunk = openai_json_chunk(h, index, false, NULL, 0, finish, logprobs);
  if (completion_is_lossy(c)) json_object_set_new(chunk, "lossy", json_true());
  return chunk;
}

json_t *openai_json_usage_chunk(const openai_head *h, json_t *usage, json_t *metrics) {
  json_t *o = head_of(h, h->chat ? "chat.completion.chunk" : "text_completion");
  json_object_set_new(o, "choices", json_array());
  json_object_set_new(o, "usage", usage);
  json_object_set_new(o, "metrics", metrics);
  return o;
}

/* ---- whole answers ---- */

json_t *openai_json_choice(const openai_head *h, int32_t index, const char *before, const completion *c) {
  const char *text = c->text ? c->text : "";
  json_t *o = json_pack("{s:i, s:s}", "index", index, "finish_reason", result_json_finish_name(c->finish));
  json_t *logprobs = logprobs_json(c, h->chat, utf8_characters(before, strlen(before)), 0, c->count);
  json_object_set_new(o, "logprobs", logprobs ? logprobs : json_null());
  if (h->chat)
    json_object_set_new(
        o, "message",
        json_pack("{s:s, s:s%, s:n}", "role", "assistant", "content", text, c->shown, "refusal"));
  else
    json_object_set_new(o, "text", json_pack("s+%", before, text, c->shown));
  return o;
}

json_t *openai_json_whole(const openai_head *h, json_t *choices, json_t *usage, json_t *metrics) {
  json_t *o = head_of(h, h->chat ? "chat.completion" : "text_completion");
  json_object_set_new(o, "choices", choices);
  json_object_set_new(o, "usage", usage);
  json_object_set_new(o, "metrics", metrics);
  return o;
}

/* ---- errors ---- */

unsigned openai_json_status(int code) {
  switch (code) {
  case ERR_ARG:
  case ERR_FORMAT:
  case ERR_LIMIT:
  case ERR_UNSUPPORTED:
    return 400;
  case ERR_FULL:
    return 429;
  case ERR_DENIED:
    return 401;
  case ERR_GONE:
  case ERR_TIMEOUT:
  case ERR_NOMEM:
    return 503;
  default:
    return 500;
  }
}

static const char *type_of(unsigned status) {
  switch (status) {
  case 401:
    return "authentication_error";
  case 403:
    return "permission_error";
  case 404:
    return "not_found_error";
  case 429:
    return "rate_limit_error";
  case 503:
    return "overloaded_error";
  default:
    return status < 500 ? "invalid_request_error" : "server_error";
  }
}

static const char *code_of(int code) {
  return code == ERR_LIMIT ? "context_length_exceeded" : NULL;
}

json_t *openai_json_error(unsigned status, int code, const char *text, const char *param) {
  char clean[ERR_TEXT_MAX]; /* a sentence may quote bytes that are no UTF-8 */
  size_t n = 0;
  for (; text[n] && n + 1 < sizeof clean; n++) clean[n] = (text[n] & 0x80) ? '?' : text[n];
  clean[n] = 0;
  json_t *message = json_string(text);
  return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", message ? message : json_string(clean),
                   "type", type_of(status), "param", param, "code", code_of(code));
}
