#include "orchestrator/operate/top_sample.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

double top_sample_metric(const char *metrics, const char *name, const char *label) {
  double sum = 0;
  size_t size = strlen(name);
  for (const char *line = metrics; *line;) {
    const char *end = strchrnul(line, '\n'), *value = memrchr(line, ' ', (size_t)(end - line));
    bool same = strncmp(line, name, size) == 0 && (line[size] == '{' || line[size] == ' ');
    bool fits = !label || memmem(line, (size_t)(end - line), label, strlen(label));
    if (same && fits && value) sum += strtod(value, NULL);
    line = *end ? end + 1 : end;
  }
  return sum;
}

static double decoded(const json_t *slots) {
  double sum = 0;
  size_t i;
  const json_t *slot;
  json_array_foreach(slots, i, slot) sum +=
      (double)json_integer_value(json_object_get(json_object_get(slot, "next_token"), "n_decoded"));
  return sum;
}

void top_sample_read(top_sample *s, const char *metrics, const json_t *slots, uint64_t now_us) {
  const struct {
    double *to;
    const char *name, *label;
  } figures[] = {
      {&s->running, "vllm:num_requests_running", NULL},
      {&s->waiting, "vllm:num_requests_waiting", NULL},
      {&s->slots, "tandem:slots", NULL},
      {&s->ended, "vllm:request_success_total", NULL},
      {&s->failed, "vllm:request_success_total", "finished_reason=\"error\""},
      {&s->tokens, "vllm:generation_tokens_total", NULL},
      {&s->verifies, "vllm:spec_decode_num_drafts_total", NULL},
      {&s->drafted, "vllm:spec_decode_num_draft_tokens_total", NULL},
      {&s->accepted, "vllm:spec_decode_num_accepted_tokens_total", NULL},
      {&s->sent_bytes, "tandem:wire_sent_bytes_total", NULL},
      {&s->received_bytes, "tandem:wire_received_bytes_total", NULL},
  };
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    *figures[i].to = top_sample_metric(metrics, figures[i].name, figures[i].label);
  s->tokens += decoded(slots);
  s->time_us = now_us;
}

double top_sample_rate(double before, double after, const top_sample *from, const top_sample *to) {
  if (after <= before || to->time_us <= from->time_us) return 0;
  return (after - before) * 1e6 / (double)(to->time_us - from->time_us);
}
