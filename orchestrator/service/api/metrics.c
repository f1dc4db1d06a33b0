#include "orchestrator/service/api/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Upper bounds, in seconds; 0 ends a list. */
static const double short_bounds[METRICS_BUCKETS_MAX] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                                         0.1,   0.25,   0.5,   1,    2.5,   5,    10};
static const double long_bounds[METRICS_BUCKETS_MAX] = {0.3, 0.5, 0.8, 1,  1.5, 2,  2.5,
                                                        5,   10,  15,  20, 30,  40, 60};

/* ---- counting ---- */

static void observe(metrics_histogram *h, const double *bounds, double seconds) {
  int32_t i = 0;
  while (i < METRICS_BUCKETS_MAX && bounds[i] > 0 && seconds > bounds[i]) i++;
  h->counts[i]++;
  h->sum += seconds;
}

static metrics_end end_of(const completion *c) {
  switch (c->finish) {
  case WIRE_FINISH_LENGTH:
    return METRICS_LENGTH;
  case WIRE_FINISH_CANCELLED:
    return METRICS_ABORT;
  case WIRE_FINISH_ERROR:
    return METRICS_ERROR;
  default:
    return METRICS_STOP;
  }
}

static double seconds(uint64_t from_us, uint64_t to_us) {
  return to_us > from_us ? (double)(to_us - from_us) / 1e6 : 0;
}

void metrics_add(metrics *m, const completion *c, uint64_t waited_us) {
  int32_t timed = completion_timed_tokens(c);
  m->ends[end_of(c)]++;
  m->prompt_tokens += c->prompt.count;
  m->generation_tokens += (uint64_t)c->count;
  m->verifies += c->stats.rounds;
  m->draft_tokens += c->stats.rows;
  m->accepted_tokens += c->stats.accepted;
  m->verdicts += c->stats.verdicts;
  m->ahead_hits += c->stats.ahead_hits;
  m->survivors += c->stats.survivors;
  observe(&m->queue, long_bounds, (double)waited_us / 1e6);
  observe(&m->whole, long_bounds, seconds(c->start_us, c->end_us) + (double)waited_us / 1e6);
  if (c->first_shown_us)
    observe(&m->first, short_bounds, seconds(c->start_us, c->first_shown_us) + (double)waited_us / 1e6);
  if (timed) observe(&m->token, short_bounds, (double)completion_timed_us(c) / 1e6 / timed);
}

/* ---- telling ---- */

static void print_text(FILE *to, const char *text) {
  for (; *text; text++) {
    if (*text == '\\' || *text == '"') putc('\\', to);
    if (*text == '\n')
      fputs("\\n", to);
    else
      putc(*text, to);
  }
}

static void print_head(FILE *to, const char *name, const char *type, const char *help) {
  fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_labels(FILE *to, const metrics_now *now) {
  fputs("{model_name=\"", to);
  print_text(to, now->model_name);
  putc('"', to);
}

typedef struct figure {
  const char *name, *type, *help;
  uint64_t value;
} figure;

static void print_figure(FILE *to, const metrics_now *now, const figure *f) {
  print_head(to, f->name, f->type, f->help);
  fputs(f->name, to);
  print_labels(to, now);
  fprintf(to, "} %" PRIu64 "\n", f->value);
}

static void print_figures(FILE *to, const metrics *m, const metrics_now *now) {
  const figure list[] = {
      {"vllm:num_requests_running", "gauge", "Answers that are being decoded.", (uint64_t)now->running},
      {"vllm:num_requests_waiting", "gauge", "Requests that wait for a place.", (uint64_t)now->waiting},
      {"vllm:prompt_tokens_total", "counter", "Tokens of prompts.", m->prompt_tokens},
      {"vllm:generation_tokens_total", "counter", "Tokens of answers.", m->generation_tokens},
      {"vllm:spec_decode_num_drafts_total", "counter", "Steps of a target that verified draft tokens.",
       m->verifies},
      {"vllm:spec_decode_num_draft_tokens_total", "counter", "Draft tokens that were verified.",
       m->draft_tokens},
      {"vllm:spec_decode_num_accepted_tokens_total", "counter", "Draft tokens that were accepted.",
       m->accepted_tokens},
      {"tandem:verdicts_total", "counter", "Steps of a target with a draft.", m->verdicts},
      {"tandem:ahead_hits_total", "counter", "Of these, those that left draft tokens for the next one.",
       m->ahead_hits},
      {"tandem:survivors_total", "counter", "Draft tokens that were left.", m->survivors},
      {"tandem:slots", "gauge", "Answers at a time, at most.", (uint64_t)now->slots},
      {"tandem:wire_sent_bytes_total", "counter", "Bytes from here to workers.", now->wire_sent},
      {"tandem:wire_received_bytes_total", "counter", "Bytes from workers to here.", now->wire_received},
      {"tandem:target_ready", "gauge", "1 while there is a target, else 0.", now->ready},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) print_figure(to, now, &list[i]);
}

static void print_ends(FILE *to, const metrics *m, const metrics_now *now) {
  static const char *const reasons[METRICS_ENDS] = {"stop", "length", "abort", "error"};
  print_head(to, "vllm:request_success_total", "counter", "Answers that have ended, by reason.");
  for (int i = 0; i < METRICS_ENDS; i++) {
    fputs("vllm:request_success_total", to);
    print_labels(to, now);
    fprintf(to, ",finished_reason=\"%s\"} %" PRIu64 "\n", reasons[i], m->ends[i]);
  }
}

static void print_bucket(FILE *to, const char *name, const metrics_now *now, const char *bound,
                         uint64_t count) {
  fprintf(to, "%s_bucket", name);
  print_labels(to, now);
  fprintf(to, ",le=\"%s\"} %" PRIu64 "\n", bound, count);
}

static void print_histogram(FILE *to, const metrics_now *now, const char *name, const char *help,
                            const metrics_histogram *h, const double *bounds) {
  uint64_t count = 0;
  char bound[32];
  int32_t i = 0;
  print_head(to, name, "histogram", help);
  for (; i < METRICS_BUCKETS_MAX && bounds[i] > 0; i++) {
    count += h->counts[i];
    snprintf(bound, sizeof bound, "%g", bounds[i]);
    print_bucket(to, name, now, bound, count);
  }
  count += h->counts[i];
  print_bucket(to, name, now, "+Inf", count);
  fprintf(to, "%s_sum", name);
  print_labels(to, now);
  fprintf(to, "} %.9g\n%s_count", h->sum, name);
  print_labels(to, now);
  fprintf(to, "} %" PRIu64 "\n", count);
}

char *metrics_text(const metrics *m, const metrics_now *now) {
  char *text = NULL;
  size_t size;
  FILE *to = open_memstream(&text, &size);
  if (!to) return NULL;
  print_figures(to, m, now);
  print_ends(to, m, now);
  print_histogram(to, now, "vllm:request_queue_time_seconds", "From a request to its place.", &m->queue,
                  long_bounds);
  print_histogram(to, now, "vllm:time_to_first_token_seconds", "From a request to its first text.", &m->first,
                  short_bounds);
  print_histogram(to, now, "vllm:request_time_per_output_token_seconds",
                  "A token of an answer, after the first ones, on average.", &m->token, short_bounds);
  print_histogram(to, now, "vllm:e2e_request_latency_seconds", "From a request to the end of its answer.",
                  &m->whole, long_bounds);
  if (fclose(to) == 0) return text;
  free(text);
  return NULL;
}
