#include "orchestrator/cli/speculation_figures.h"

#include <math.h>

#define POSITIONS_SHOWN 8

void speculation_figures_add(speculation_figures *f, const completion *plain, const completion *drafted) {
  const msg_stats *s = &drafted->stats;
  f->prompts++;
  f->different += completion_first_difference(plain, drafted) >= 0;
  f->tokens += (uint64_t)completion_counted(drafted);
  f->forwards += s->forwards;
  f->verifies += s->rounds;
  f->nodes += s->rows;
  f->accepted += s->accepted;
  f->verdicts += s->verdicts;
  f->ahead_hits += s->ahead_hits;
  f->survivors += s->survivors;
  for (int32_t i = 0; i < s->position_count; i++) f->accepted_per_pos[i] += s->accepted_per_pos[i];
}

void speculation_figures_add_times(speculation_figures *f, int32_t tokens, double plain, double drafted) {
  if (plain <= 0 || drafted <= 0) return;
  f->plain.tokens += tokens;
  f->plain.us += tokens * plain;
  f->drafted.tokens += tokens;
  f->drafted.us += tokens * drafted;
}

static double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

double speculation_figures_per_verify(const speculation_figures *f) {
  return ratio((double)(f->verifies + f->accepted), (double)f->verifies);
}

double speculation_figures_length(const speculation_figures *f) {
  return ratio((double)f->tokens, (double)f->forwards);
}

double speculation_figures_share(const speculation_figures *f) {
  return ratio((double)f->accepted, (double)f->tokens);
}

double speculation_figures_at(const speculation_figures *f, int32_t position) {
  return ratio((double)f->accepted_per_pos[position], (double)f->verifies);
}

double speculation_figures_ahead(const speculation_figures *f) {
  return ratio((double)f->ahead_hits, (double)f->verdicts);
}

double speculation_figures_survivors(const speculation_figures *f) {
  return ratio((double)f->survivors, (double)f->verdicts);
}

double speculation_figures_speed(const speculation_clock *c) {
  return completion_speed((int64_t)c->tokens, (uint64_t)c->us);
}

double speculation_figures_gain(const speculation_figures *f) {
  double drafted = f->nodes ? speculation_figures_speed(&f->drafted) : 0;
  return ratio(drafted, speculation_figures_speed(&f->plain));
}

/* ---- for people ---- */

#define ROW "%-14s %-8s %5s %-16s %8s %8s %8s %9s %9s %9s %7s %10s\n"

void speculation_figures_print_head(FILE *to) {
  fprintf(to, ROW, "", "", "", "", "", "", "tokens", "from the", "plain", "drafted", "", "");
  fprintf(to, ROW, "method", "tree", "temp", "category", "prompts", "tokens", "/verify", "draft", "tok/s",
          "tok/s", "gain", "different");
}

static const char *number(char out[24], const char *format, double x) {
  snprintf(out, 24, format, x);
  return x > 0 ? out : "-";
}

void speculation_figures_print(FILE *to, const speculation_label *l, const speculation_figures *f) {
  char prompts[24], tokens[24], per_verify[24], share[24], plain[24], drafted[24], gain[24], different[24];
  char temperature[24];
  snprintf(temperature, sizeof temperature, "%g", (double)l->temperature);
  snprintf(prompts, sizeof prompts, "%d", f->prompts);
  snprintf(tokens, sizeof tokens, "%llu", (unsigned long long)f->tokens);
  snprintf(share, sizeof share, "%.0f %%", 100 * speculation_figures_share(f));
  snprintf(different, sizeof different, "%d", f->different);
  fprintf(to, ROW, l->method, l->tree, temperature, l->category, prompts, tokens,
          number(per_verify, "%.2f", speculation_figures_per_verify(f)), share,
          number(plain, "%.1f", speculation_figures_speed(&f->plain)),
          number(drafted, "%.1f", speculation_figures_speed(&f->drafted)),
          number(gain, "%.2f", speculation_figures_gain(f)), different);
}

static int32_t positions(const speculation_figures *f) {
  int32_t count = WIRE_POSITIONS_MAX;
  while (count > 0 && f->accepted_per_pos[count - 1] == 0) count--;
  return count;
}

void speculation_figures_print_positions(FILE *to, const speculation_figures *f) {
  int32_t count = positions(f);
  if (count == 0) return;
  fprintf(to, "  verifies that accepted at least 1, 2, ... nodes:");
  for (int32_t i = 0; i < count && i < POSITIONS_SHOWN; i++)
    fprintf(to, " %.0f %%", 100 * speculation_figures_at(f, i));
  fprintf(to, "%s\n", count > POSITIONS_SHOWN ? " ..." : "");
}

void speculation_figures_print_ahead(FILE *to, const speculation_figures *f) {
  if (f->verdicts == 0) return;
  fprintf(to, "  verdicts that left nodes for the next step: %.0f %%; nodes left by a verdict: %.2f\n",
          100 * speculation_figures_ahead(f), speculation_figures_survivors(f));
}

/* ---- for programs ---- */

static json_t *rounded(double x) {
  return json_real(round(x * 10000) / 10000);
}

/* null: not known. */
static json_t *figure(double x) {
  return x > 0 ? rounded(x) : json_null();
}

json_t *speculation_figures_json(const speculation_label *l, const speculation_figures *f) {
  json_t *o = json_object(), *per = json_array();
  for (int32_t i = 0; i < positions(f); i++)
    json_array_append_new(per, rounded(speculation_figures_at(f, i)));
  json_object_set_new(o, "method", json_string(l->method));
  json_object_set_new(o, "tree", json_string(l->tree));
  json_object_set_new(o, "temperature", rounded((double)l->temperature));
  json_object_set_new(o, "category", json_string(l->category));
  json_object_set_new(o, "prompts", json_integer(f->prompts));
  json_object_set_new(o, "tokens", json_integer((json_int_t)f->tokens));
  json_object_set_new(o, "forwards", json_integer((json_int_t)f->forwards));
  json_object_set_new(o, "verifies", json_integer((json_int_t)f->verifies));
  json_object_set_new(o, "draft_tokens", json_integer((json_int_t)f->nodes));
  json_object_set_new(o, "accepted_tokens", json_integer((json_int_t)f->accepted));
  json_object_set_new(o, "tokens_per_verify", rounded(speculation_figures_per_verify(f)));
  json_object_set_new(o, "acceptance_length", rounded(speculation_figures_length(f)));
  json_object_set_new(o, "accepted_share", rounded(speculation_figures_share(f)));
  json_object_set_new(o, "accepted_per_pos", per);
  json_object_set_new(o, "verdicts", json_integer((json_int_t)f->verdicts));
  json_object_set_new(o, "ahead_hits", json_integer((json_int_t)f->ahead_hits));
  json_object_set_new(o, "survivors", json_integer((json_int_t)f->survivors));
  json_object_set_new(o, "survivors_per_verdict", rounded(speculation_figures_survivors(f)));
  json_object_set_new(o, "plain_tok_s", figure(speculation_figures_speed(&f->plain)));
  json_object_set_new(o, "tok_s", figure(speculation_figures_speed(&f->drafted)));
  json_object_set_new(o, "gain", figure(speculation_figures_gain(f)));
  json_object_set_new(o, "different", json_integer(f->different));
  return o;
}
