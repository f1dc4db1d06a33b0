/* tandem-target: loads the model, answers an orchestrator, verifies what drafts guess. */
#include "common/base/clock.h"
#include "common/base/host_id.h"
#include "common/base/min.h"
#include "common/base/program.h"
#include "target_worker/counters.h"
#include "target_worker/device_list.h"
#include "target_worker/engine.h"
#include "target_worker/job_trace.h"
#include "target_worker/recorder.h"
#include "target_worker/target_arguments.h"
#include "target_worker/target_model.h"
#include "target_worker/worker.h"
#include "wire/endpoint.h"
#include "wire/engine_host.h"
#include "wire/target_endpoint.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct program {
  target_arguments arguments;
  logger log;
  target_model model;
  engine *engine;
  target *target;
  recorder recorder;
  engine_host *host;
  trace_file *trace; /* NULL: nothing is traced */
  int64_t trace_lane;
  char bound[WIRE_STRING_MAX + 1], advertised[WIRE_STRING_MAX + 1]; /* where drafts connect; HELLO's words */
} program;

/* --- opening --- */

static int open_engine(program *p, err *e) {
  engine_options o = {.model = p->model.model,
                      .kv = p->model.kv,
                      .fusion = p->model.fusion,
                      .sequences = p->arguments.given.sessions,
                      .partial = p->model.has_partial ? &p->model.partial : NULL,
                      .context = p->arguments.given.context,
                      .log = &p->log};
  int rc = engine_fault_parse(&o.fault, getenv(TARGET_FAULT_VARIABLE), e);
  if (rc == ERR_OK) rc = engine_open(&p->engine, &o, e);
  return rc;
}

static uint64_t progress(void *context) {
  return model_progress(((program *)context)->model.model);
}

static int32_t width(void *context, int32_t rows) {
  return model_width(((program *)context)->model.model, rows);
}

static int open_machine(program *p, wire_id self, err *e) {
  const model_config *shape = model_shape(p->model.model);
  target_options o = {.incarnation = self,
                      .model_fingerprint = model_file_fingerprint(p->model.file),
                      .vocabulary_size = shape->vocab,
                      .numerics_id =
                          model_numerics(p->model.model, target_model_kv_type(p->arguments.given.math)),
                      .endpoint = p->advertised,
                      .host = host_id(""),
                      .device = model_device_name(p->model.model),
                      .sessions = p->arguments.given.sessions,
                      .context = p->arguments.given.context,
                      .kv_blocks = p->arguments.given.kv_blocks,
                      .verify_chunk = p->arguments.given.verify_chunk,
                      .partial = p->model.has_partial ? &p->model.partial.own : NULL,
                      .prompt_rows = target_model_prompt_rows(&p->model),
                      .taps = p->model.taps,
                      .progress = progress,
                      .width = width,
                      .engine_context = p,
                      .vocabulary = {target_model_vocabulary, &p->model},
                      .record = p->arguments.given.record_steps ? recorder_step : NULL,
                      .record_context = &p->recorder};
  model_file_read_hash(p->model.file, NULL, &o.model_hash);
  int rc = p->arguments.given.record_steps ? recorder_open(&p->recorder, p->arguments.given.record_steps, e)
                                           : ERR_OK;
  if (rc == ERR_OK) rc = model_file_vocabulary(p->model.file, &o.vocabulary_hash, e);
  if (rc == ERR_OK) rc = target_alloc(&p->target, &o, e);
  return rc;
}

static int open_endpoint(program *p, err *e) {
  const target_arguments *a = &p->arguments;
  int rc = a->given.advertise ? endpoint_check(a->given.advertise, e) : ERR_OK;
  if (rc == ERR_OK && a->given.advertise && endpoint_lacks_port(a->given.advertise))
    rc = err_set(e, ERR_ARG, "--advertise %s lacks the port: name that of --bind", a->given.advertise);
  if (rc != ERR_OK) return rc;
  char endpoint[ENDPOINT_MAX];
  transport *wire = engine_host_transport(p->host);
  if (a->given.bind)
    snprintf(endpoint, sizeof endpoint, "%s", a->given.bind);
  else
    target_endpoint_to_bind(a->given.orchestrator, (int64_t)getpid(), endpoint);
  rc = transport_bind(wire, endpoint, p->bound, sizeof p->bound, e);
  if (a->given.advertise)
    target_endpoint_insist(a->given.advertise, p->advertised);
  else
    memcpy(p->advertised, p->bound, sizeof p->advertised);
  if (rc == ERR_OK) transport_add_key(wire, p->advertised);
  return rc;
}

static int open_host(program *p, wire_id self, err *e) {
  const engine_host_options o = {.self = self,
                                 .role = WIRE_ROLE_TARGET,
                                 .keys = p->arguments.given.keys,
                                 .allow_plaintext = p->arguments.given.insecure_bind,
                                 .busy_poll_us = (uint32_t)p->arguments.given.busy_poll,
                                 .log = &p->log};
  int rc = engine_host_open(&p->host, &o, e);
  if (rc == ERR_OK) rc = endpoint_check(p->arguments.given.orchestrator, e);
  if (rc == ERR_OK)
    rc = transport_check_call(engine_host_transport(p->host), p->arguments.given.orchestrator, e);
  return rc ? rc : open_endpoint(p, e);
}

/* --- the machine and its engine --- */

static bool next_batch(void *self, uint64_t now_us, bool at_once, void *batch) {
  ((engine_batch *)batch)->at_once = at_once;
  return target_next_batch(self, now_us, batch);
}

static bool drained(const void *self) {
  return target_drained(self);
}

static void compute(void *context, const void *batch, void *results) {
  const program *p = context;
  uint64_t from_us = clock_us();
  engine_run(p->engine, batch, results);
  if (p->trace) job_trace_add(p->trace, p->trace_lane, batch, results, from_us, clock_us());
}

static void begin(void *context) {
  program *p = context;
  const flag_values *a = &p->arguments.given;
  const int32_t each = a->context / KV_BLOCK; /* of a sequence; a static cache is not made of blocks */
  if (!a->no_warmup) target_model_warmup(&p->model, a->kv_blocks ? min_i32(a->kv_blocks, each) : each);
}

static int open_trace(program *p, err *e) {
  const char *path = p->arguments.given.trace;
  int rc = path ? trace_file_open(&p->trace, path, p->log.program, e) : ERR_OK;
  if (p->trace && rc == ERR_OK) p->trace_lane = trace_file_lane(p->trace, "engine");
  return rc;
}

static void close_trace(program *p) {
  err e = {0};
  if (trace_file_close(p->trace, &e)) log_line(&p->log, LOG_WARNING, "%s", e.text);
}

static int start(program *p, err *e) {
  const engine_host_worker worker = {target_machine(p->target), next_batch, drained};
  const engine_host_engine computing = {.self = p,
                                        .batch_bytes = sizeof(engine_batch),
                                        .result_bytes = sizeof(engine_results),
                                        .begin = begin,
                                        .run = compute,
                                        .keeps_loop_away = true};
  return engine_host_start(p->host, &worker, &computing, e);
}

static void greet(program *p) {
  actions out;
  actions_init(&out);
  target_connect(p->target, p->arguments.given.orchestrator, &out);
  engine_host_perform(p->host, &out);
  actions_fini(&out);
  log_line(&p->log, LOG_INFO, "ready: %s on %s, %d sessions of %d tokens, drafts at %.*s",
           model_numerics(p->model.model, target_model_kv_type(p->arguments.given.math)),
           model_device_name(p->model.model), p->arguments.given.sessions, p->arguments.given.context,
           ENDPOINT_PLAIN(p->advertised));
  if (p->arguments.given.insecure_bind)
    log_line(&p->log, LOG_WARNING,
             "--insecure-bind: whoever reaches the address for drafts can read prompts and answers");
}

/* What fails first costs least: addresses before the model. The orchestrator is greeted when all is there. */
static int open_all(program *p, err *e) {
  wire_id self;
  int rc = program_random(&self, sizeof self, e);
  if (rc != ERR_OK) return STATUS_FAILED;
  if (open_host(p, self, e) != ERR_OK) return STATUS_ADDRESS;
  rc = target_model_open(&p->model, &p->arguments, &p->log, e);
  if (rc != ERR_OK) return rc == ERR_ARG ? STATUS_USAGE : program_exit_of_file(rc);
  rc = open_engine(p, e);
  if (rc != ERR_OK) return rc == ERR_ARG ? STATUS_USAGE : STATUS_FAILED;
  rc = open_machine(p, self, e);
  if (rc == ERR_OK) rc = open_trace(p, e);
  if (rc == ERR_OK) rc = start(p, e);
  return rc == ERR_OK ? STATUS_OK : program_exit_of_file(rc);
}

static void close_all(program *p) {
  engine_host_close(p->host);
  close_trace(p);
  engine_close(p->engine);
  recorder_close(&p->recorder);
  target_free(p->target);
  target_model_close(&p->model);
}

/* --- main --- */

static int print_version(const flag_values *a) {
  const ops_math math = model_math(a->math, NULL, a->device);
  worker_program_print_version("tandem-target");
  printf("numerics %s\n", model_numerics_id(math, target_model_kv_type(math)));
  return STATUS_OK;
}

static void print_counters(program *p) {
  const counters_source s = {.engine = p->engine,
                             .kv = p->model.kv,
                             .target = p->target,
                             .model = p->model.model,
                             .transport = engine_host_transport(p->host),
                             .memory = &p->model.memory};
  counters_print(&s);
}

static int run(program *p) {
  const int32_t parent = p->arguments.given.parent;
  err e = {0};
  int code = STATUS_OK;
  if (parent && program_follow_parent(parent, &e) != ERR_OK) code = STATUS_INTERRUPTED;
  if (code == STATUS_OK) code = open_all(p, &e);
  if (code != STATUS_OK) {
    log_line(&p->log, LOG_ERROR, "%s", e.text);
  } else {
    greet(p);
    code = engine_host_run(p->host);
  }
  return code;
}

int main(int argc, char **argv) {
  static program p; /* large; one a process */
  program_begin("tandem-target");
  p.arguments = target_arguments_parse(argc, argv);
  const flag_values *a = &p.arguments.given;
  p.log = (logger){"tandem-target", a->log};
  if (a->version) return print_version(a);
  if (p.arguments.given.list_devices || p.arguments.given.self_test) return device_list_print(&p.arguments);
  if (!worker_program_complete(a, true, &p.log)) return STATUS_USAGE;
  int code = run(&p);
  if (p.host) engine_host_stop(p.host);
  if (a->counters && p.engine) print_counters(&p);
  close_all(&p);
  return code;
}
