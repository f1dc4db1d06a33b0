#include "orchestrator/cli/closing_lines.h"

#include "orchestrator/cli/show.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CLAUSE_MAX 700 /* bytes of one clause */
#define COLUMNS    108 /* of a line; a longer clause has one of its own */

typedef struct closing { /* clauses, as many on a line as fit */
  FILE *to;
  size_t column;
} closing;

static void clause(closing *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void clause(closing *l, const char *format, ...) {
  static const char begin[] = "tandem: ", more[] = "; ";
  char text[CLAUSE_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  bool fits = l->column && l->column + sizeof more - 1 + strlen(text) <= COLUMNS;
  if (l->column && !fits) fputc('\n', l->to);
  if (!fits) l->column = 0;
  fprintf(l->to, "%s%s", fits ? more : begin, text);
  l->column += strlen(text) + (fits ? sizeof more : sizeof begin) - 1;
}

#define LOSSY "LOSSY: guesses over partial KV are accepted"

static void put_length(const completion *c, char out[CLOSING_LINES_FIGURES_MAX]) {
  double speed = completion_tokens_per_second(c);
  int32_t fresh = completion_fresh_tokens(c);
  int n = c->resume
              ? snprintf(out, CLOSING_LINES_FIGURES_MAX, "%d more token%s, %d in all", fresh,
                         fresh == 1 ? "" : "s", c->count)
              : snprintf(out, CLOSING_LINES_FIGURES_MAX, "%d token%s", c->count, c->count == 1 ? "" : "s");
  if (speed > 0)
    snprintf(out + n, CLOSING_LINES_FIGURES_MAX - (size_t)n, ", %.1f tok/s", speed);
  else if (fresh > 1) /* also where they came all at once */
    snprintf(out + n, CLOSING_LINES_FIGURES_MAX - (size_t)n, ", too few to time");
}

void closing_lines_figures(const completion *c, char out[CLOSING_LINES_FIGURES_MAX]) {
  put_length(c, out);
  size_t n = strlen(out);
  if (c->stats.rounds)
    snprintf(out + n, CLOSING_LINES_FIGURES_MAX - n, ", %llu of %llu guessed right",
             (unsigned long long)c->stats.accepted, (unsigned long long)c->stats.rows);
  n = strlen(out);
  if (completion_is_lossy(c)) snprintf(out + n, CLOSING_LINES_FIGURES_MAX - n, "; " LOSSY);
}

/* Tried, and given up for good reason. */
static bool guessed_nothing(const completion *c, const char *off) {
  return off && c->unpaid && c->stats.rounds > 0 && c->stats.accepted == 0;
}

static void say_draft(closing *l, const completion *c) {
  const msg_stats *s = &c->stats;
  const char *off = completion_off_reason(c);
  char tries[32] = "try";
  if (s->rounds > 1) snprintf(tries, sizeof tries, "%llu tries", (unsigned long long)s->rounds);
  if (!c->draft_wanted)
    clause(l, "without a draft");
  else if (guessed_nothing(c, off))
    clause(l, "the draft guessed nothing right in its first %s, so the rest was decoded plainly", tries);
  else if (s->rounds)
    clause(l, "the draft guessed %llu of %llu right", (unsigned long long)s->accepted,
           (unsigned long long)s->rows);
  else if (!off)
    clause(l, "the draft had no guess");
  if (c->draft_wanted && c->uncounted > 0)
    clause(l, "counted over %d of the %d tokens", completion_counted(c), c->count);
  if (off && !guessed_nothing(c, off))
    clause(l, "%s decoded plainly: %s", s->rounds ? "the rest was" : "all of it was", off);
}

/* Nothing of an answer without a verify step: it is plain decoding. details: also where the draft gained
 * nothing. */
static void say_gain(closing *l, const completion *c, bool details) {
  if (!c->draft_wanted || c->stats.rounds == 0) return;
  double speed = completion_tokens_per_second(c), plain = completion_plain_speed(c);
  double gain = completion_gain(speed, plain);
  if (details && c->stats.forwards && c->uncounted <= 0)
    clause(l, "acceptance length %.2f (tokens for each step of the target)",
           (double)completion_counted(c) / (double)c->stats.forwards);
  if (gain > 0 && (details || c->stats.accepted))
    clause(l, "%.2f times plain decoding (%.0f tok/s)", gain, plain);
  else if (details && speed > 0)
    clause(l, "the gain is unknown: too few plain steps to measure (--compare measures it)");
}

/* Why it is not longer, and what makes it so. */
static void say_end(closing *l, const completion *c, const closing_lines_options *o) {
  int32_t room = c->context - (int32_t)c->prompt.count, before = c->count - completion_fresh_tokens(c);
  int32_t more = c->max_tokens - before;
  const char *flag = o->ledger ? " --ledger " : "", *file = o->ledger ? o->ledger : "";
  bool full = c->finish == WIRE_FINISH_LENGTH && c->max_tokens >= room;
  if (full)
    clause(l, "the context of %d tokens is full: --ctx makes it longer", c->context);
  else if (c->finish == WIRE_FINISH_LENGTH && o->same_limit)
    clause(l, "stopped at its limit of %d tokens", c->max_tokens);
  else if (c->finish == WIRE_FINISH_LENGTH)
    clause(l, "stopped at --max-tokens %d: -n raises it", more);
  else if (c->finish == WIRE_FINISH_CANCELLED)
    clause(l, "interrupted");
  if (!o->kept || !c->id || full || c->finish == WIRE_FINISH_STOP) return;
  if (c->finish == WIRE_FINISH_LENGTH)
    clause(l, "`tandem session resume %08llx --max-tokens %d%s%s' goes on", (unsigned long long)c->id >> 32,
           more, flag, file);
  else
    clause(l, "`tandem session resume %016llx%s%s' goes on", (unsigned long long)c->id, flag, file);
}

static void say_seed(closing *l, const completion *c) {
  clause(l, "its seed was drawn: --seed %llu gives the same again", (unsigned long long)c->seed);
}

static void say_details(closing *l, const completion *c) {
  if (c->first_shown_us) clause(l, "first token after %.0f ms", completion_first_ms(c));
  clause(l, "draft %s: %llu rounds, %.2f accepted a round", completion_draft_method(c),
         (unsigned long long)c->stats.rounds, completion_mean_accepted(c));
}

void closing_lines_print(FILE *to, const completion *c, const closing_lines_options *o) {
  closing l = {.to = to};
  char length[CLOSING_LINES_FIGURES_MAX];
  put_length(c, length);
  clause(&l, "%s", length);
  say_draft(&l, c);
  say_gain(&l, c, o->gain);
  if (o->legend) clause(&l, "%s", SHOW_LEGEND);
  say_end(&l, c, o);
  if (o->seed_drawn) say_seed(&l, c);
  if (completion_is_lossy(c)) clause(&l, LOSSY);
  if (c->numerics_changed)
    clause(&l, "NUMERICS CHANGED on the way: the answer may differ from an unbroken one");
  if (o->details) say_details(&l, c);
  fputc('\n', to);
}

static void say_clock(closing *l, const char *what, const completion *c) {
  char length[CLOSING_LINES_FIGURES_MAX];
  put_length(c, length);
  l->column = 0; /* a line of its own */
  clause(l, "%-11s %s", what, length);
}

static void say_difference(closing *l, const completion *plain, const completion *drafted, int32_t at) {
  char one[16] = "the end", other[16] = "the end";
  if (at < plain->count) snprintf(one, sizeof one, "%d", plain->tokens[at]);
  if (at < drafted->count) snprintf(other, sizeof other, "%d", drafted->tokens[at]);
  clause(l, "identical: no, from token %d of the answer on: %s plainly, %s with the draft", at + 1, one,
         other);
}

void closing_lines_print_both(FILE *to, const completion *plain, const completion *drafted,
                              const closing_lines_options *o) {
  closing l = {.to = to};
  int32_t at = completion_first_difference(plain, drafted);
  double times = completion_speedup(plain, drafted);
  say_clock(&l, "plainly:", plain);
  fputc('\n', to);
  say_clock(&l, "with draft:", drafted);
  if (times > 0) clause(&l, "%.2f times as fast", times);
  say_draft(&l, drafted);
  fputc('\n', to);
  l.column = 0;
  if (at < 0)
    clause(&l, "identical: yes");
  else
    say_difference(&l, plain, drafted, at);
  if (o->seed_drawn) say_seed(&l, drafted);
  fputc('\n', to);
}

void closing_lines_print_queue(FILE *to, const request_queue *q, const char *draft) {
  double speed = request_queue_speed(q);
  fprintf(to, "tandem: %zu answer%s, %lld tokens", q->completed, q->completed == 1 ? "" : "s",
          (long long)q->tokens);
  if (speed > 0) fprintf(to, ", %.1f tok/s", speed);
  fprintf(to, "; draft %s: %llu rounds, %.2f accepted a round (%llu of %llu)", draft,
          (unsigned long long)q->rounds, q->rounds ? (double)q->accepted / (double)q->rounds : 0.0,
          (unsigned long long)q->accepted, (unsigned long long)q->drafted);
  if (q->lost)
    fprintf(
        to,
        "; %lld tokens, %lld of them from the draft, are of targets that died and are not in these rounds",
        (long long)q->lost, (long long)q->lost_accepted);
  if (q->plain) fprintf(to, "; the end of %zu was decoded plainly: %s", q->plain, q->off_reason);
  if (q->failed) fprintf(to, "; %zu FAILED", q->failed);
  if (q->cancelled) fprintf(to, "; %zu cancelled", q->cancelled);
  fprintf(to, "\n");
}
