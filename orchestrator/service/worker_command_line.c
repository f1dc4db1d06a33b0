#include "orchestrator/service/worker_command_line.h"

#include "common/base/cpus.h"
#include "common/base/log.h"
#include "common/command_line/draft_methods.h"
#include "common/command_line/flag_value.h"
#include "wire/message.h"
#include "wire/worker_program.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* When draft and target share a device, instead of taking turns (docs/decisions/colocated.md). */
#define SHARED_MODEL_MAX    (INT64_C(512) << 20) /* bytes: the step of a larger one fills the device */
#define SHARED_SESSIONS_MAX 4                    /* on processors: many rows at once want all threads */
#define DRAFT_SHARE         4                    /* a draft has a quarter of the processors */

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

static void add_number(worker_command_line *c, const char *name, int32_t value) {
  assert(c->text_count < WORKER_COMMAND_LINE_TEXTS);
  char *text = c->texts[c->text_count++];
  snprintf(text, sizeof *c->texts, "%d", value);
  add_flag(c, name, text);
}

/* A row of the table whose value is there, also where it is the default: the worker inherits variables. */
static void add_row(worker_command_line *c, const flag_row *row, const char *name, const flag_values *v) {
  const void *at = (const char *)v + row->offset;
  if (row->type == FLAG_TEXT || row->type == FLAG_OWN) {
    add_flag(c, name, *(const char *const *)at);
  } else if (row->type == FLAG_SWITCH) {
    if (*(const bool *)at) add(c, name);
  } else {
    assert(c->text_count < WORKER_COMMAND_LINE_TEXTS);
    char *text = c->texts[c->text_count];
    if (!flag_print(row, v, text, sizeof *c->texts)) return;
    c->text_count++;
    add_flag(c, name, text);
  }
}

/* What every worker has. The trace is a file beside the orchestrator's. */
static void begin(worker_command_line *c, const flag_values *v, const char *orchestrator,
                  const char *worker) {
  *c = (worker_command_line){0};
  add_flag(c, "--orchestrator", orchestrator);
  add_flag(c, "--log-level", v->verbose ? "info" : "warning");
  if (v->verbose) add(c, "--counters");
  if (v->trace) snprintf(c->trace, sizeof c->trace, "%s.%s", v->trace, worker);
  add_flag(c, "--trace", v->trace ? c->trace : NULL);
}

static bool target_is_on(const flag_values *v, const char *device) {
  return msg_same_device(wire_text(v->device ? v->device : WORKER_DEVICE_DEFAULT), wire_text(device));
}

/* Do target and draft compute on the processors, one after the other? */
static bool takes_turns(const flag_values *v) {
  const char *device = v->draft_device ? v->draft_device : WORKER_DEVICE_DEFAULT;
  bool on_processors = target_is_on(v, WORKER_DEVICE_DEFAULT) && target_is_on(v, device);
  return on_processors && draft_methods_compute(v->draft) && !v->beside;
}

void worker_command_line_target(worker_command_line *out, const flag_values *v, const char *orchestrator,
                                const char *bind) {
  begin(out, v, orchestrator, "target");
  add_flag(out, "--bind", bind);
  add_number(out, "--ctx", v->context);
  for (int i = 0; i < flag_row_count; i++)
    if (flag_rows[i].target && *flag_rows[i].target) add_row(out, &flag_rows[i], flag_rows[i].target, v);
  if (v->threads_beside) add_number(out, "--threads-beside", v->threads_beside);
  if (takes_turns(v)) add_number(out, "--spin", CPUS_SPIN_US); /* its turn begins when they sleep */
  bool plain = v->draft && strcmp(v->draft, "none") == 0;      /* it takes no memory for verifies then */
  if (plain && !v->no_warmup) add(out, "--no-warmup");
  bool shares_head = draft_methods_name(v->draft, DRAFT_EAGLE3) && v->draft_type < 0; /* of the same type */
  if (shares_head) add_flag(out, "--head", v->draft_model);
}

static void share_processors(flag_values *v, const worker_machine *m) {
  bool pays =
      m->cores >= CPUS_MANY && m->model_bytes <= SHARED_MODEL_MAX && v->sessions <= SHARED_SESSIONS_MAX;
  int32_t given = v->from[FLAG_threads] == FLAG_FROM_DEFAULT ? 0 : v->threads;
  int32_t rest = m->cores - given, most = m->cores / DRAFT_SHARE;
  int32_t draft = v->draft_threads ? v->draft_threads : rest < most ? rest : most;
  int32_t target = given ? given : m->cores - draft;
  if (!pays || draft < 1 || target < 1 || draft + target > m->cores) return;
  v->threads = given ? given : m->cores; /* all of them while the draft is quiet */
  v->threads_beside = given ? 0 : target;
  v->draft_threads = draft;
  v->beside = true;
}

void worker_command_line_share(flag_values *v, const worker_machine *m) {
  const char *device = v->draft_device ? v->draft_device : WORKER_DEVICE_DEFAULT;
  if (!target_is_on(v, device) || !draft_methods_compute(v->draft)) return;
  if (msg_same_device(wire_text(device), wire_text(WORKER_DEVICE_DEFAULT)))
    share_processors(v, m);
  else
    v->beside = m->mps && m->model_bytes <= SHARED_MODEL_MAX;
}

/* In the environment, TANDEM_DEVICE is the target's: a draft that computes is given its own in any case. */
void worker_command_line_draft(worker_command_line *out, const flag_values *v, const char *orchestrator) {
  const char *device = v->draft_device ? v->draft_device : WORKER_DEVICE_DEFAULT;
  bool has_model = draft_methods_compute(v->draft), suffix = draft_methods_name(v->draft, DRAFT_SUFFIX);
  begin(out, v, orchestrator, "draft");
  add_number(out, "--ctx", v->draft_context ? v->draft_context : v->context);
  for (int i = 0; i < flag_row_count; i++) {
    const flag_row *row = &flag_rows[i];
    bool plain = row->id == FLAG_draft || row->id == FLAG_candidates || row->id == FLAG_log_format;
    bool of_suffix = row->id == FLAG_corpus || row->id == FLAG_corpus_learn;
    bool needed = of_suffix ? suffix : plain || has_model || (suffix && row->id == FLAG_model);
    if (row->draft && *row->draft && needed) add_row(out, row, row->draft, v);
  }
  if (!target_is_on(v, WORKER_DEVICE_DEFAULT)) add_number(out, "--busy-poll", WORKER_BUSY_POLL_US);
  if (!has_model) return;
  add_number(out, "--sessions", v->sessions);
  add_flag(out, "--device", device);
  if (target_is_on(v, device)) add(out, v->beside ? "--beside" : "--turns");
}
