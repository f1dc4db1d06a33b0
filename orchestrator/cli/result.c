#include "orchestrator/cli/result.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS     8   /* of a number in the output */
#define CLAUSE_MAX 700 /* bytes of one of the closing lines' clauses */

const char *result_finish_name(wire_finish finish) {
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

static json_t *milliseconds(uint64_t us) {
  return rounded((double)us / 1000);
}

/* A sentence that may quote bytes of a bad input. */
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

static const char *method_of(const completion *a) {
  return a->draft_wanted && a->draft_method[0] ? a->draft_method : "none";
}

static json_t *stats_of(const completion *a) {
  const msg_stats *s = &a->stats;
  json_t *o = json_object();
  if (!o) return NULL;
  json_object_set_new(o, "tok_s", rounded(completion_tokens_per_second(a)));
  json_object_set_new(o, "ttft_ms", rounded(completion_first_ms(a)));
  json_object_set_new(o, "rounds", count_of(s->rounds));
  json_object_set_new(o, "draft_tokens", count_of(s->rows));
  json_object_set_new(o, "accepted_tokens", count_of(s->accepted));
  json_object_set_new(o, "rewound_tokens", count_of(s->rewound));
  json_object_set_new(o, "mean_accepted", rounded(completion_mean_accepted(a)));
  json_object_set_new(o, "accepted_per_pos", accepted_per_pos(s));
  json_object_set_new(o, "draft_method", json_string(method_of(a)));
  json_object_set_new(o, "speculation_off_reason", text_or_null(completion_off_reason(a)));
  json_object_set_new(o, "forwards", count_of(s->forwards));
  if (a->uncounted > 0) json_object_set_new(o, "counted_tokens", json_integer(completion_counted(a)));
  json_object_set_new(o, "plain_steps", count_of(s->plain_steps));
  json_object_set_new(o, "prefill_ms", milliseconds(s->prefill_us));
  json_object_set_new(o, "queue_ms", milliseconds(s->queue_us));
  json_object_set_new(o, "forward_ms", milliseconds(s->forward_us));
  json_object_set_new(o, "accept_ms", milliseconds(s->accept_us));
  json_object_set_new(o, "commit_ms", milliseconds(s->commit_us));
  json_object_set_new(o, "wait_ms", milliseconds(s->wait_us));
  return o;
}

static json_t *session_name(uint64_t id) {
  char text[17];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)id);
  return json_string(text);
}

json_t *result_of(const completion *a, json_t *id) {
  json_t *o = json_object();
  if (!o) return NULL;
  if (id) json_object_set(o, "id", id);
  json_object_set_new(o, "text", json_stringn(a->text ? a->text : "", a->shown));
  json_object_set_new(o, "token_ids", ids(a->tokens, (size_t)a->count));
  json_object_set_new(o, "prompt_tokens", json_integer((json_int_t)a->prompt.count));
  json_object_set_new(o, "prompt_ids", ids(a->prompt.ids, a->prompt.count));
  json_object_set_new(o, "finish_reason", json_string(result_finish_name(a->finish)));
  if (a->trouble.code) json_object_set_new(o, "error", sentence(a->trouble.text));
  if (a->id) json_object_set_new(o, "session", session_name(a->id));
  json_object_set_new(o, "seed", count_of(a->seed));
  json_object_set_new(o, "numerics_id", json_string(a->numerics_id));
  if (a->numerics_changed) json_object_set_new(o, "numerics_changed", json_true());
  json_object_set_new(o, "stats", stats_of(a));
  return o;
}

json_t *result_of_error(json_t *id, const char *why) {
  completion none = {.finish = WIRE_FINISH_ERROR};
  err_set(&none.trouble, ERR_ARG, "%s", why);
  return result_of(&none, id);
}

int32_t result_first_difference(const completion *plain, const completion *drafted) {
  int32_t n = 0;
  while (n < plain->count && n < drafted->count && plain->tokens[n] == drafted->tokens[n]) n++;
  return n == plain->count && n == drafted->count ? -1 : n;
}

/* How many times as fast; 0: too few tokens to say. */
static double speedup(const completion *plain, const completion *drafted) {
  double slow = completion_tokens_per_second(plain), fast = completion_tokens_per_second(drafted);
  return slow > 0 ? fast / slow : 0;
}

json_t *result_of_both(const completion *plain, const completion *drafted) {
  int32_t at = result_first_difference(plain, drafted);
  json_t *o = json_object();
  if (!o) return NULL;
  json_object_set_new(o, "identical", json_boolean(at < 0));
  json_object_set_new(o, "first_difference", at < 0 ? json_null() : json_integer(at));
  json_object_set_new(o, "speedup", rounded(speedup(plain, drafted)));
  json_object_set_new(o, "plain", result_of(plain, NULL));
  json_object_set_new(o, "draft", result_of(drafted, NULL));
  return o;
}

char *result_line(json_t *object) {
  char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;
  json_decref(object);
  size_t size = text ? strlen(text) : 0;
  char *line = text ? realloc(text, size + 2) : NULL;
  if (line)
    memcpy(line + size, "\n", 2);
  else
    free(text);
  return line;
}

/* ---- for people ---- */

#define COLUMNS 108 /* of a line; a longer clause has one of its own */

typedef struct closing { /* clauses, as many on a line as fit */
  FILE *to;
  size_t column;
} closing;

static void clause(closing *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void clause(closing *c, const char *format, ...) {
  static const char begin[] = "tandem: ", more[] = "; ";
  char text[CLAUSE_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  bool fits = c->column && c->column + sizeof more - 1 + strlen(text) <= COLUMNS;
  if (c->column && !fits) fputc('\n', c->to);
  if (!fits) c->column = 0;
  fprintf(c->to, "%s%s", fits ? more : begin, text);
  c->column += strlen(text) + (fits ? sizeof more : sizeof begin) - 1;
}

static void put_length(const completion *a, char out[RESULT_FIGURES_MAX]) {
  double speed = completion_tokens_per_second(a);
  int n = snprintf(out, RESULT_FIGURES_MAX, "%d token%s", a->count, a->count == 1 ? "" : "s");
  if (speed > 0) snprintf(out + n, RESULT_FIGURES_MAX - (size_t)n, ", %.1f tok/s", speed);
}

void result_figures(const completion *a, char out[RESULT_FIGURES_MAX]) {
  put_length(a, out);
  size_t n = strlen(out);
  if (a->stats.rounds)
    snprintf(out + n, RESULT_FIGURES_MAX - n, ", %llu of %llu guessed right",
             (unsigned long long)a->stats.accepted, (unsigned long long)a->stats.rows);
}

/* Tried, and given up for good reason. */
static bool guessed_nothing(const completion *a, const char *off) {
  return off && a->stats.rounds > 0 && a->stats.accepted == 0 && strstr(off, "did not pay");
}

static void say_draft(closing *c, const completion *a, bool plain_speed) {
  const msg_stats *s = &a->stats;
  const char *off = completion_off_reason(a);
  char tries[32] = "try";
  if (s->rounds > 1) snprintf(tries, sizeof tries, "%llu tries", (unsigned long long)s->rounds);
  if (!a->draft_wanted)
    clause(c, "without a draft");
  else if (guessed_nothing(a, off))
    clause(c, "the draft guessed nothing right in its first %s, so the rest was decoded plainly", tries);
  else if (s->rounds)
    clause(c, "the draft guessed %llu of %llu right", (unsigned long long)s->accepted,
           (unsigned long long)s->rows);
  else if (!off)
    clause(c, "the draft had no guess");
  if (a->draft_wanted && a->uncounted > 0)
    clause(c, "counted over %d of the %d tokens", completion_counted(a), a->count);
  if (plain_speed && a->plain_speed[0] && s->accepted) clause(c, "%s", a->plain_speed);
  if (off && !guessed_nothing(a, off))
    clause(c, "%s decoded plainly: %s", s->rounds ? "the rest was" : "all of it was", off);
}

/* Why it is not longer, and what makes it so. */
static void say_end(closing *c, const completion *a, bool kept) {
  int32_t room = a->context - (int32_t)a->prompt.count;
  bool full = a->finish == WIRE_FINISH_LENGTH && a->max_tokens >= room;
  if (full)
    clause(c, "the context of %d tokens is full: --ctx makes it longer", a->context);
  else if (a->finish == WIRE_FINISH_LENGTH)
    clause(c, "stopped at --max-tokens %d: -n raises it", a->max_tokens);
  else if (a->finish == WIRE_FINISH_CANCELLED)
    clause(c, "interrupted");
  if (!kept || !a->id || full || a->finish == WIRE_FINISH_STOP) return;
  if (a->finish == WIRE_FINISH_LENGTH)
    clause(c, "`tandem session resume %08llx --max-tokens %d' goes on", (unsigned long long)a->id >> 32,
           a->max_tokens);
  else
    clause(c, "`tandem session resume %016llx' goes on", (unsigned long long)a->id);
}

static void say_seed(closing *c, const completion *a) {
  clause(c, "its seed was drawn: --seed %llu gives the same again", (unsigned long long)a->seed);
}

static void say_details(closing *c, const completion *a) {
  if (a->first_us) clause(c, "first token after %.0f ms", completion_first_ms(a));
  clause(c, "draft %s: %llu rounds, %.2f accepted a round", method_of(a), (unsigned long long)a->stats.rounds,
         completion_mean_accepted(a));
}

void result_print(FILE *to, const completion *a, const result_words *w) {
  closing c = {.to = to};
  char length[RESULT_FIGURES_MAX];
  put_length(a, length);
  clause(&c, "%s", length);
  say_draft(&c, a, true);
  say_end(&c, a, w->kept);
  if (w->seed_drawn) say_seed(&c, a);
  if (a->numerics_changed)
    clause(&c, "NUMERICS CHANGED on the way: the answer may differ from an unbroken one");
  if (w->details) say_details(&c, a);
  fputc('\n', to);
}

static void say_clock(closing *c, const char *what, const completion *a) {
  char length[RESULT_FIGURES_MAX];
  put_length(a, length);
  c->column = 0; /* a line of its own */
  clause(c, "%-11s %s", what, length);
}

static void say_difference(closing *c, const completion *plain, const completion *drafted, int32_t at) {
  char one[16] = "the end", other[16] = "the end";
  if (at < plain->count) snprintf(one, sizeof one, "%d", plain->tokens[at]);
  if (at < drafted->count) snprintf(other, sizeof other, "%d", drafted->tokens[at]);
  clause(c, "identical: no, from token %d of the answer on: %s plainly, %s with the draft", at + 1, one,
         other);
}

void result_print_both(FILE *to, const completion *plain, const completion *drafted, const result_words *w) {
  closing c = {.to = to};
  int32_t at = result_first_difference(plain, drafted);
  double times = speedup(plain, drafted);
  say_clock(&c, "plainly:", plain);
  fputc('\n', to);
  say_clock(&c, "with draft:", drafted);
  if (times > 0) clause(&c, "%.2f times as fast", times);
  say_draft(&c, drafted, false);
  fputc('\n', to);
  c.column = 0;
  if (at < 0)
    clause(&c, "identical: yes");
  else
    say_difference(&c, plain, drafted, at);
  if (w->seed_drawn) say_seed(&c, drafted);
  fputc('\n', to);
}
