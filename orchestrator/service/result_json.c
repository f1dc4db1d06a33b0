#include "orchestrator/service/result_json.h"

#include "common/base/json_text.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 8 /* of a number in the output */

const char *result_json_finish_name(wire_finish finish) {
  static const char *const names[] = {[WIRE_FINISH_STOP] = "stop",
                                      [WIRE_FINISH_LENGTH] = "length",
                                      [WIRE_FINISH_CANCELLED] = "cancelled",
                                      [WIRE_FINISH_ERROR] = "error"};
  return finish >= WIRE_FINISH_STOP && finish <= WIRE_FINISH_ERROR ? names[finish] : "error";
}

static json_t *ids(const int32_t *list, size_t count) {
  json_t *array = json_array();
  for (size_t i = 0; array && i < count; i++) json_array_append_new(array, json_integer(list[i]));
  return array;
}

static json_t *count_of(uint64_t n) {
  return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n);
}

static json_t *rounded(double x) {
  return json_real(isfinite(x) ? round(x * 1000) / 1000 : 0);
}

/* null: not known. */
static json_t *figure(double x) {
  return x > 0 ? rounded(x) : json_null();
}

static json_t *milliseconds(uint64_t us) {
  return rounded((double)us / 1000);
}

/* A sentence may quote bytes of a bad input that are no UTF-8. */
static json_t *sentence(const char *text) {
  char clean[ERR_TEXT_MAX];
  size_t n = 0;
  for (; text[n] && n + 1 < sizeof clean; n++) clean[n] = (text[n] & 0x80) ? '?' : text[n];
  clean[n] = 0;
  json_t *s = json_string(text);
  return s ? s : json_string(clean);
}

static json_t *text_or_null(const char *text) {
  return text ? json_string(text) : json_null();
}

static json_t *accepted_per_pos(const msg_stats *s) {
  json_t *array = json_array();
  for (int32_t i = 0; array && i < s->position_count; i++)
    json_array_append_new(array, count_of(s->accepted_per_pos[i]));
  return array;
}

static json_t *stats_of(const completion *c) {
  const msg_stats *s = &c->stats;
  json_t *o = json_object();
  if (!o) return NULL;
  json_object_set_new(o, "tok_s", figure(completion_tokens_per_second(c)));
  json_object_set_new(o, "ttft_ms", rounded(completion_first_ms(c)));
  json_object_set_new(o, "rounds", count_of(s->rounds));
  json_object_set_new(o, "draft_tokens", count_of(s->rows));
  json_object_set_new(o, "accepted_tokens", count_of(s->accepted));
  json_object_set_new(o, "rewound_tokens", count_of(s->rewound));
  json_object_set_new(o, "mean_accepted", rounded(completion_mean_accepted(c)));
  json_object_set_new(o, "accepted_per_pos", accepted_per_pos(s));
  json_object_set_new(o, "draft_method", json_string(completion_draft_method(c)));
  json_object_set_new(o, "speculation_off_reason", text_or_null(completion_off_reason(c)));
  json_object_set_new(o, "forwards", count_of(s->forwards));
  if (c->uncounted > 0) json_object_set_new(o, "counted_tokens", json_integer(completion_counted(c)));
  json_object_set_new(o, "plain_steps", count_of(s->plain_steps));
  json_object_set_new(o, "prefill_ms", milliseconds(s->prefill_us));
  json_object_set_new(o, "queue_ms", milliseconds(s->queue_us));
  json_object_set_new(o, "forward_ms", milliseconds(s->forward_us));
  json_object_set_new(o, "accept_ms", milliseconds(s->accept_us));
  json_object_set_new(o, "commit_ms", milliseconds(s->commit_us));
  json_object_set_new(o, "wait_ms", milliseconds(s->wait_us));
  json_object_set_new(o, "verdicts", count_of(s->verdicts));
  json_object_set_new(o, "ahead_hits", count_of(s->ahead_hits));
  json_object_set_new(o, "survivors", count_of(s->survivors));
  return o;
}

static json_t *session_name(uint64_t id) {
  char text[17];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)id);
  return json_string(text);
}

json_t *result_json_of(const completion *c, json_t *id) {
  json_t *o = json_object();
  if (!o) return NULL;
  if (id) json_object_set(o, "id", id);
  json_object_set_new(o, "text", json_stringn(c->text ? c->text : "", c->shown));
  json_object_set_new(o, "token_ids", ids(c->tokens, (size_t)c->count));
  json_object_set_new(o, "prompt_tokens", json_integer((json_int_t)c->prompt.count));
  json_object_set_new(o, "prompt_ids", ids(c->prompt.ids, c->prompt.count));
  json_object_set_new(o, "finish_reason", json_string(result_json_finish_name(c->finish)));
  if (c->trouble.code) json_object_set_new(o, "error", sentence(c->trouble.text));
  if (c->id) json_object_set_new(o, "session", session_name(c->id));
  json_object_set_new(o, "seed", count_of(c->seed));
  json_object_set_new(o, "numerics_id", json_string(c->numerics_id));
  if (c->numerics_changed) json_object_set_new(o, "numerics_changed", json_true());
  json_object_set_new(o, "stats", stats_of(c));
  return o;
}

json_t *result_json_of_error(json_t *id, const char *why) {
  completion none = {.finish = WIRE_FINISH_ERROR};
  err_set(&none.trouble, ERR_ARG, "%s", why);
  return result_json_of(&none, id);
}

json_t *result_json_of_both(const completion *plain, const completion *drafted) {
  int32_t at = completion_first_difference(plain, drafted);
  json_t *o = json_object();
  if (!o) return NULL;
  json_object_set_new(o, "identical", json_boolean(at < 0));
  json_object_set_new(o, "first_difference", at < 0 ? json_null() : json_integer(at));
  json_object_set_new(o, "speedup", figure(completion_speedup(plain, drafted)));
  json_object_set_new(o, "plain", result_json_of(plain, NULL));
  json_object_set_new(o, "draft", result_json_of(drafted, NULL));
  return o;
}

char *result_json_line(json_t *object) {
  char *text = json_text(object, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
  json_decref(object);
  size_t size = text ? strlen(text) : 0;
  char *line = text ? realloc(text, size + 2) : NULL;
  if (line)
    memcpy(line + size, "\n", 2);
  else
    free(text);
  return line;
}
