#include "orchestrator/operate/top_screen.h"

#include "orchestrator/operate/worker_lines.h"
#include "wire/message.h"

/* The newest sample, or the one before it, if there is one. */
static const top_sample *newest(const top_screen *s) {
  return &s->past[(s->count - 1) % TOP_SCREEN_WINDOW];
}

static const top_sample *before_newest(const top_screen *s) {
  return s->count > 1 ? &s->past[(s->count - 2) % TOP_SCREEN_WINDOW] : newest(s);
}

void top_screen_add(top_screen *s, const top_sample *sample, json_t *slots, json_t *workers) {
  s->past[s->count++ % TOP_SCREEN_WINDOW] = *sample;
  top_screen_fini(s);
  s->slots = slots;
  s->workers = workers;
}

void top_screen_fini(top_screen *s) {
  json_decref(s->slots);
  json_decref(s->workers);
  s->slots = s->workers = NULL;
}

/* Of the answers that have ended within the window, or of all. */
static void print_acceptance(FILE *to, const top_screen *s) {
  const top_sample *now = newest(s);
  top_sample then = s->count < TOP_SCREEN_WINDOW ? s->past[0] : s->past[s->count % TOP_SCREEN_WINDOW];
  bool recent = now->verifies > then.verifies;
  if (!recent) then = (top_sample){0};
  double verifies = now->verifies - then.verifies, accepted = now->accepted - then.accepted;
  double drafted = now->drafted - then.drafted;
  fputs("acceptance  ", to);
  if (verifies <= 0 || drafted <= 0)
    fputs("no draft token was verified yet\n", to);
  else
    fprintf(to, "%.2f tokens a verify step, %.0f %% of draft tokens, %s\n", 1 + accepted / verifies,
            100 * accepted / drafted, recent ? "in the last minute" : "since the server began");
}

static void print_figures(FILE *to, const top_screen *s) {
  const top_sample *now = newest(s), *then = before_newest(s);
  double speed = top_sample_rate(then->tokens, now->tokens, then, now);
  double sent = top_sample_rate(then->sent_bytes, now->sent_bytes, then, now);
  double received = top_sample_rate(then->received_bytes, now->received_bytes, then, now);
  fprintf(to, "answers     %.0f of %.0f running, %.0f waiting, %.0f ended", now->running, now->slots,
          now->waiting, now->ended);
  if (now->failed > 0) fprintf(to, ", %.0f of them with an error", now->failed);
  fprintf(to, "\ntokens      %.1f tok/s, %.0f in all\n", speed, now->tokens);
  print_acceptance(to, s);
  fprintf(to, "wire        %.1f kB/s to workers, %.1f kB/s from them", sent / 1e3, received / 1e3);
  if (speed > 0) fprintf(to, ", %.0f bytes a token", (sent + received) / speed);
  fputs("\n", to);
}

static const char *text_in(const json_t *o, const char *key, wire_brief *out) {
  *out = wire_brief_of(wire_text(json_string_value(json_object_get(o, key))));
  return out->text;
}

static void print_slot(FILE *to, const json_t *slot) {
  const json_t *next = json_object_get(slot, "next_token");
  wire_brief request;
  fprintf(to, "%-41.41s  %6lld  %8lld  %8lld  %s\n", text_in(slot, "request", &request),
          (long long)json_integer_value(json_object_get(slot, "n_prompt_tokens")),
          (long long)json_integer_value(json_object_get(next, "n_decoded")),
          (long long)json_integer_value(json_object_get(next, "n_remain")),
          json_is_true(json_object_get(slot, "speculative")) ? "on" : "off");
}

void top_screen_print(FILE *to, const top_screen *s) {
  size_t i;
  const json_t *slot;
  wire_brief url = wire_brief_of(wire_text(s->url));
  fprintf(to, "tandem at %s\n\n", url.text);
  print_figures(to, s);
  fputs("\n", to);
  worker_lines_print(to, s->workers);
  fprintf(to, "\n%-41s  %6s  %8s  %8s  %s\n", "ANSWER", "PROMPT", "TOKENS", "AT MOST", "DRAFT");
  json_array_foreach(s->slots, i, slot) if (json_is_true(json_object_get(slot, "is_processing")))
      print_slot(to, slot);
}
