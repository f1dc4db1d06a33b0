#include "orchestrator/service/api/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Upper bounds, of seconds and of tokens; 0 ends a list. */
static const double short_bounds[METRICS_BUCKETS_MAX] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                                         0.1,   0.25,   0.5,   1,    2.5,   5,    10};
static const double long_bounds[METRICS_BUCKETS_MAX] = {0.3, 0.5, 0.8, 1,  1.5, 2,  2.5,
                                                        5,   10,  15,  20, 30,  40, 60};
static const double token_bounds[METRICS_BUCKETS_MAX] = {1,   2,    5,    10,   20,    50,    100,   200,
                                                         500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

/* ---- counting ---- */

static void observe(metrics_histogram *h, const double *bounds, double value) {
  int32_t i = 0;
  while (i < METRICS_BUCKETS_MAX && bounds[i] > 0 && value > bounds[i]) i++;
  h->counts[i]++;
  h->sum += value;
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

static void add_stats(metrics *m, const msg_stats *s) {
  m->verifies += s->rounds;
  m->draft_tokens += s->rows;
  m->accepted_tokens += s->accepted;
  m->verdicts += s->verdicts;
  m->ahead_hits += s->ahead_hits;
  m->survivors += s->survivors;
  m->rewound += s->rewound;
  m->plain_steps += s->plain_steps;
  m->wait_us += s->wait_us;
  m->resets += s->resets;
  m->dropped += s->dropped;
  for (int32_t i = 0; i < s->position_count; i++) m->accepted_per_pos[i] += s->accepted_per_pos[i];
}

/* The time before an answer's first token is its prompt's. */
static void add_times(metrics *m, const completion *c, double waited) {
  const int32_t timed = completion_timed_tokens(c);
  observe(&m->queue, long_bounds, waited);
  observe(&m->whole, long_bounds, seconds(c->start_us, c->end_us) + waited);
  observe(&m->inference, long_bounds, seconds(c->start_us, c->end_us));
  if (c->first_shown_us) observe(&m->first, short_bounds, seconds(c->start_us, c->first_shown_us) + waited);
  if (timed) observe(&m->token, short_bounds, (double)completion_timed_us(c) / 1e6 / timed);
  if (!c->first_token_us) return;
  observe(&m->prefill, long_bounds, seconds(c->start_us, c->first_token_us));
  observe(&m->decode, long_bounds, seconds(c->first_token_us, c->end_us));
}

void metrics_add(metrics *m, const completion *c, uint64_t waited_us) {
  m->ends[end_of(c)]++;
  m->prompt_tokens += c->prompt.count;
  m->generation_tokens += (uint64_t)c->count;
  observe(&m->prompts, token_bounds, (double)c->prompt.count);
  observe(&m->answers, token_bounds, (double)c->count);
  add_stats(m, &c->stats);
  add_times(m, c, (double)waited_us / 1e6);
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
      {"tandem:rewound_tokens_total", "counter", "Draft tokens that were verified and not accepted.",
       m->rewound},
      {"tandem:plain_steps_total", "counter", "Steps of a target without draft tokens.", m->plain_steps},
      {"tandem:tree_resets_total", "counter", "Times that a draft had to begin its tree anew.", m->resets},
      {"tandem:stale_frames_total", "counter", "Frames that targets dropped because they came too late.",
       m->dropped},
      {"tandem:slots", "gauge", "Answers at a time, at most.", (uint64_t)now->slots},
      {"tandem:wire_sent_bytes_total", "counter", "Bytes from here to workers.", now->wire_sent},
      {"tandem:wire_received_bytes_total", "counter", "Bytes from workers to here.", now->wire_received},
      {"tandem:target_ready", "gauge", "1 while there is a target, else 0.", now->ready},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) print_figure(to, now, &list[i]);
}

/* Of the positions that draft tokens have been accepted at, and the first one. */
static void print_positions(FILE *to, const metrics *m, const metrics_now *now) {
  const char *name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  print_head(to, name, "counter", "Verify steps that accepted the draft token of a position.");
  for (int i = 0; i < WIRE_POSITIONS_MAX && (i == 0 || m->accepted_per_pos[i] > 0); i++) {
    fputs(name, to);
    print_labels(to, now);
    fprintf(to, ",position=\"%d\"} %" PRIu64 "\n", i, m->accepted_per_pos[i]);
  }
}

static void print_wait(FILE *to, const metrics *m, const metrics_now *now) {
  const char *name = "tandem:target_wait_seconds_total";
  print_head(to, name, "counter", "Time that steps of targets waited for draft tokens.");
  fputs(name, to);
  print_labels(to, now);
  fprintf(to, "} %.9g\n", (double)m->wait_us / 1e6);
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

static void print_histograms(FILE *to, const metrics *m, const metrics_now *now) {
  const struct {
    const char *name, *help;
    const metrics_histogram *of;
    const double *bounds;
  } list[] = {
      {"vllm:request_queue_time_seconds", "From a request to its place.", &m->queue, long_bounds},
      {"vllm:time_to_first_token_seconds", "From a request to its first text.", &m->first, short_bounds},
      {"vllm:request_time_per_output_token_seconds",
       "A token of an answer, after the first ones, on average.", &m->token, short_bounds},
      {"vllm:e2e_request_latency_seconds", "From a request to the end of its answer.", &m->whole,
       long_bounds},
      {"vllm:request_prefill_time_seconds", "From a request's place to its first token.", &m->prefill,
       long_bounds},
      {"vllm:request_decode_time_seconds", "From an answer's first token to its end.", &m->decode,
       long_bounds},
      {"vllm:request_inference_time_seconds", "From a request's place to the end of its answer.",
       &m->inference, long_bounds},
      {"vllm:request_prompt_tokens", "Tokens of a prompt.", &m->prompts, token_bounds},
      {"vllm:request_generation_tokens", "Tokens of an answer.", &m->answers, token_bounds},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    print_histogram(to, now, list[i].name, list[i].help, list[i].of, list[i].bounds);
}

char *metrics_text(const metrics *m, const metrics_now *now) {
  char *text = NULL;
  size_t size;
  FILE *to = open_memstream(&text, &size);
  if (!to) return NULL;
  print_figures(to, m, now);
  print_positions(to, m, now);
  print_wait(to, m, now);
  print_ends(to, m, now);
  print_histograms(to, m, now);
  if (fclose(to) == 0) return text;
  free(text);
  return NULL;
}
