#include "orchestrator/service/api/usage_json.h"

#include <math.h>
#include <string.h>

static json_t *number(double x) {
  return json_real(isfinite(x) ? round(x * 1000) / 1000 : 0);
}

typedef struct figures {
  json_int_t completion, forwards, drafted, accepted;
  double seconds,
      plain_seconds; /* of the tokens whose speed both are known; the second as plain decoding would take */
  const char *method, *off;
  bool lossy;
} figures;

static void add(figures *f, const completion *c) {
  double speed = completion_tokens_per_second(c), plain = completion_plain_speed(c);
  f->completion += c->count;
  f->forwards += (json_int_t)c->stats.forwards;
  f->drafted += (json_int_t)c->stats.rows;
  f->accepted += (json_int_t)c->stats.accepted;
  if (strcmp(f->method, "none") == 0) f->method = completion_draft_method(c);
  f->lossy |= completion_is_lossy(c);
  if (completion_off_reason(c)) f->off = completion_off_reason(c);
  if (speed > 0 && plain > 0) {
    f->seconds += c->count / speed;
    f->plain_seconds += c->count / plain;
  }
}

/* The answer's speed over that of plain steps, as this target has measured them; null: not known. */
static json_t *gain_of(const figures *f) {
  return f->seconds > 0 && f->drafted ? number(f->plain_seconds / f->seconds) : json_null();
}

static json_t *speculation_of(const figures *f) {
  json_t *o =
      json_pack("{s:b, s:s, s:I, s:I, s:s?}", "enabled", strcmp(f->method, "none") != 0, "method", f->method,
                "draft_tokens", f->drafted, "accepted_tokens", f->accepted, "off_reason", f->off);
  json_object_set_new(o, "acceptance_length",
                      f->forwards ? number(1 + (double)f->accepted / (double)f->forwards) : json_null());
  json_object_set_new(o, "gain", gain_of(f));
  if (f->lossy) json_object_set_new(o, "lossy", json_true());
  return o;
}

json_t *usage_json(completion *const *choices, int32_t count, int32_t each) {
  figures f = {.method = "none"};
  json_int_t prompt = 0;
  for (int32_t i = 0; i < count; i += each) prompt += (json_int_t)choices[i]->prompt.count;
  for (int32_t i = 0; i < count; i++) add(&f, choices[i]);
  return json_pack("{s:I, s:I, s:I, s:o}", "prompt_tokens", prompt, "completion_tokens", f.completion,
                   "total_tokens", prompt + f.completion, "speculation", speculation_of(&f));
}

/* How many verify steps accepted 0, 1, 2, ... draft tokens, as far as any did. */
static json_t *histogram_of(const msg_stats *s) {
  json_t *list = json_array();
  uint64_t reached = s->rounds; /* steps that accepted at least so many */
  for (int32_t i = 0; reached > 0; i++) {
    uint64_t more = i < s->position_count ? s->accepted_per_pos[i] : 0;
    if (more > reached) more = reached;
    json_array_append_new(list, json_integer((json_int_t)(reached - more)));
    reached = more;
  }
  return list;
}

static json_t *ratio(uint64_t part, uint64_t of, double plus) {
  return of > 0 ? json_real(plus + (double)part / (double)of) : json_null();
}

static json_t *acceptance_of(const completion *c) {
  const msg_stats *s = &c->stats;
  figures f = {.method = "none"};
  add(&f, c);
  json_t *o = json_pack("{s:I, s:I, s:I, s:s, s:s?}", "num_spec_steps", (json_int_t)s->rounds,
                        "num_accepted_draft_tokens", (json_int_t)s->accepted, "num_draft_tokens",
                        (json_int_t)s->rows, "method", f.method, "off_reason", f.off);
  json_object_set_new(o, "mean_acceptance_length", ratio(s->accepted, s->rounds, 1));
  json_object_set_new(o, "draft_acceptance_rate", ratio(s->accepted, s->rows, 0));
  json_object_set_new(o, "acceptance_histogram", histogram_of(s));
  json_object_set_new(o, "gain", gain_of(&f));
  return o;
}

json_t *usage_json_metrics(completion *const *choices, int32_t count) {
  json_t *one = count == 1 ? acceptance_of(choices[0]) : json_null();
  return json_pack("{s:o}", "speculative_decoding", one);
}
