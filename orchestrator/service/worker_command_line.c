#include "orchestrator/service/worker_command_line.h"

#include "wire/draft_methods.h"
#include "wire/message.h"
#include "wire/worker_arguments.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void add(worker_command_line *c, const char *text) {
  assert(c->count + 1 < WORKER_COMMAND_LINE_MAX);
  c->list[c->count++] = text;
}

/* A flag and its value; without a value nothing. */
static void add_flag(worker_command_line *c, const char *name, const char *value) {
  if (!value) return;
  add(c, name);
  add(c, value);
}

static void add_number(worker_command_line *c, const char *name, int64_t value) {
  assert(c->number_count < (int32_t)(sizeof c->numbers / sizeof *c->numbers));
  char *text = c->numbers[c->number_count++];
  snprintf(text, sizeof *c->numbers, "%" PRId64, value);
  add_flag(c, name, text);
}

/* A draft's head in a type of its own would not be the target's. */
static bool shares_head(const worker_settings *s) {
  return draft_methods_name(s->draft, DRAFT_EAGLE3) && !s->draft_type;
}

/* A file beside the orchestrator's. */
static void add_trace(worker_command_line *c, const worker_settings *s, const char *worker) {
  if (!s->trace) return;
  snprintf(c->trace, sizeof c->trace, "%s.%s", s->trace, worker);
  add_flag(c, "--trace", c->trace);
}

static void add_log(worker_command_line *c, const worker_settings *s) {
  add_flag(c, "--log-level", s->verbose ? "info" : "warning");
  if (s->log_format == LOG_AS_JSON) add_flag(c, "--log-format", log_format_words[s->log_format]);
}

void worker_command_line_target(worker_command_line *out, const worker_settings *s, const char *orchestrator,
                                const char *bind) {
  *out = (worker_command_line){0};
  add_flag(out, "-m", s->model);
  add_flag(out, "--orchestrator", orchestrator);
  add_flag(out, "--bind", bind);
  add_number(out, "--ctx", s->context);
  add_number(out, "--threads", s->threads);
  add_flag(out, "--pin", s->pin);
  add_number(out, "--sessions", s->sessions);
  add_flag(out, "--kv", s->kv);
  add_number(out, "--kv-blocks", s->kv_blocks);
  add_number(out, "--kv-memory", s->kv_memory);
  add_flag(out, "--math", s->math);
  add_log(out, s);
  if (s->verbose) add(out, "--counters");
  add_trace(out, s, "target");
  add_flag(out, "--repack-cache", s->repack_cache);
  add_flag(out, "--device", s->device);
  add_flag(out, "--record-steps", s->record_steps);
  if (shares_head(s)) add_flag(out, "--head", s->draft_model);
}

static const char *draft_device(const worker_settings *s) {
  return s->draft_device ? s->draft_device : WORKER_DEVICE_DEFAULT;
}

static bool target_is_on(const worker_settings *s, const char *device) {
  const char *target = s->device ? s->device : WORKER_DEVICE_DEFAULT;
  return msg_same_device(wire_text(target), wire_text(device));
}

/* In the environment, TANDEM_DEVICE and TANDEM_KV_MEMORY are the target's: the draft, which inherits them, is
 * given its own in any case. */
static void add_draft_model(worker_command_line *out, const worker_settings *s) {
  add_flag(out, "--model", s->model);
  add_flag(out, "--model-draft", s->draft_model);
  add_flag(out, "--draft-type", s->draft_type);
  if (s->draft_layers) add_number(out, "--draft-layers", s->draft_layers);
  if (s->draft_threads) add_number(out, "--threads", s->draft_threads);
  add_number(out, "--sessions", s->sessions);
  add_number(out, "--kv-memory", s->draft_kv_memory);
  add_flag(out, "--repack-cache", s->repack_cache);
  add_flag(out, "--device", draft_device(s));
  if (target_is_on(s, draft_device(s))) add(out, "--turns");
}

void worker_command_line_draft(worker_command_line *out, const worker_settings *s, const char *orchestrator) {
  *out = (worker_command_line){0};
  add_flag(out, "--orchestrator", orchestrator);
  add_flag(out, "--draft", s->draft);
  add_number(out, "--ctx", s->draft_context ? s->draft_context : s->context);
  add_log(out, s);
  add_trace(out, s, "draft");
  if (s->draft_candidates) add_number(out, "--candidates", s->draft_candidates);
  if (!target_is_on(s, WORKER_DEVICE_DEFAULT)) add_number(out, "--busy-poll", WORKER_BUSY_POLL_US);
  if (draft_methods_compute(s->draft)) add_draft_model(out, s);
  if (s->verbose) add(out, "--counters");
}
