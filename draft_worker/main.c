/* tandem-draft: guesses ahead for the sessions that an orchestrator gives it. */
#include "common/base/clock.h"
#include "common/base/host_id.h"
#include "common/base/program.h"
#include "common/base/trace_file.h"
#include "common/command_line/draft_methods.h"
#include "draft_worker/draft_arguments.h"
#include "draft_worker/draft_corpus.h"
#include "draft_worker/draft_eagle3.h"
#include "draft_worker/draft_model.h"
#include "draft_worker/drafters/model_drafter.h"
#include "draft_worker/drafters/ngram.h"
#include "draft_worker/drafters/replay.h"
#include "draft_worker/worker.h"
#include "wire/endpoint.h"
#include "wire/engine_host.h"
#include "wire/wire_counters.h"

/* Memory of a session's tokens is reserved by it and used only as far as the session grows. */
#define DEFAULT_CONTEXT 32768

typedef struct program {
  flag_values arguments;
  logger log;
  drafter drafters[DRAFTERS_MAX];
  replay_recording *recording; /* of replay */
  draft_corpus corpus;         /* of "suffix" */
  draft_model model;           /* of the method "model" */
  draft_eagle3 head;           /* of "eagle3" */
  draft *draft;
  engine_host *host;
  trace_file *trace; /* NULL: nothing is traced */
  int64_t trace_lane;
} program;

/* --- the drafters --- */

static int open_model(program *p, drafter *to, draft_options *o, err *e) {
  int rc = draft_model_open(&p->model, &p->arguments, &p->log, o, e);
  return rc ? rc : model_drafter_open(to, p->arguments.rows, e);
}

static int open_replay(program *p, const char *argument, drafter *to, err *e) {
  int rc = replay_recording_open_argument(&p->recording, argument, p->arguments.replay_seed, e);
  return rc ? rc : immediate_open(to, &replay_kind, p->recording, e);
}

_Static_assert(DRAFT_METHODS_MAX - 1 <= DRAFTERS_MAX, "model and eagle3 exclude each other");

static int open_drafter(program *p, draft_method method, const char *replay, drafter *to, draft_options *o,
                        err *e) {
  switch (method) {
  case DRAFT_MODEL:
    return open_model(p, to, o, e);
  case DRAFT_EAGLE3:
    return draft_eagle3_open(&p->head, &p->arguments, &p->log, o, to, e);
  case DRAFT_SUFFIX:
    return draft_corpus_open(&p->corpus, &p->arguments, &p->log, o, to, e);
  case DRAFT_REPLAY:
    return open_replay(p, replay, to, e);
  default:
    return immediate_open(to, &ngram_kind, NULL, e);
  }
}

/* Opens all drafters, and fills what *o has of a model. */
static int open_drafters(program *p, draft_options *o, err *e) {
  draft_methods m;
  const flag_values *a = &p->arguments;
  int rc = draft_methods_parse(&m, a->draft, e);
  bool typed =
      a->from[FLAG_corpus] == FLAG_FROM_COMMAND_LINE || a->from[FLAG_corpus_learn] == FLAG_FROM_COMMAND_LINE;
  if (rc == ERR_OK) rc = draft_methods_check_corpus(&m, a->corpus, a->corpus_learn, typed, e);
  if (rc == ERR_OK && a->turns && a->beside)
    rc = err_set(e, ERR_ARG, "--turns and --beside exclude each other: give one of them");
  for (int32_t i = 0; i < m.count && rc == ERR_OK; i++) {
    drafter *to = &p->drafters[i];
    rc = open_drafter(p, m.list[i], m.replay, to, o, e);
    if (rc == ERR_OK) o->drafters[o->drafter_count++] = *to;
  }
  return rc;
}

/* --- the machine and its engine --- */

static bool next_batch(void *self, uint64_t now_us, bool at_once, void *batch) {
  (void)now_us, (void)at_once;
  return draft_next_batch(self, batch);
}

static bool drained(const void *self) {
  return draft_drained(self);
}

static void compute(void *context, const void *batch, void *results) {
  const program *p = context;
  const draft_batch *b = batch;
  uint64_t from_us = clock_us();
  if (p->head.engine)
    eagle3_engine_run(p->head.engine, batch, results);
  else
    model_engine_run(p->model.engine, batch, results);
  if (p->trace)
    trace_file_span(p->trace, p->trace_lane, b->query_count ? "draft" : "prefill", from_us, clock_us(),
                    json_pack("{s:i, s:i, s:i}", "sessions", b->job_count, "tokens", b->token_count,
                              "queries", b->query_count));
}

/* Before a target waits for it. */
static void warm_up(program *p) {
  if (p->arguments.no_warmup) return;
  if (p->head.engine) draft_eagle3_warmup(&p->head, p->arguments.rows);
  if (p->model.engine) draft_model_warmup(&p->model, p->arguments.rows);
}

static int open_trace(program *p, err *e) {
  const char *path = p->arguments.trace;
  int rc = path ? trace_file_open(&p->trace, path, p->log.program, e) : ERR_OK;
  if (p->trace && rc == ERR_OK) p->trace_lane = trace_file_lane(p->trace, "engine");
  return rc;
}

static void close_trace(program *p) {
  err e = {0};
  if (trace_file_close(p->trace, &e)) log_line(&p->log, LOG_WARNING, "%s", e.text);
}

static int start(program *p, err *e) {
  const engine_host_worker worker = {draft_machine(p->draft), next_batch, drained};
  const engine_host_engine computing = {
      .self = p, .batch_bytes = sizeof(draft_batch), .result_bytes = sizeof(draft_results), .run = compute};
  return engine_host_start(p->host, &worker, p->model.engine || p->head.engine ? &computing : NULL, e);
}

/* --- starting and ending --- */

static int open_host(program *p, wire_id self, err *e) {
  const engine_host_options o = {.self = self,
                                 .role = WIRE_ROLE_DRAFT,
                                 .keys = p->arguments.keys,
                                 .allow_plaintext = p->arguments.insecure_bind,
                                 .busy_poll_us = (uint32_t)p->arguments.busy_poll,
                                 .log = &p->log};
  int rc = endpoint_check(p->arguments.orchestrator, e);
  if (rc == ERR_OK) rc = engine_host_open(&p->host, &o, e);
  return rc ? rc : transport_check_call(engine_host_transport(p->host), p->arguments.orchestrator, e);
}

static int exit_of(int rc) {
  return rc == ERR_ARG ? STATUS_USAGE : rc == ERR_MISMATCH ? STATUS_REFUSED : program_exit_of_file(rc);
}

static int open_all(program *p, err *e) {
  const int32_t context = p->arguments.context;
  draft_options o = {.host = host_id(""),
                     .context = context ? context : DEFAULT_CONTEXT,
                     .candidates = p->arguments.candidates,
                     .beside = p->arguments.beside};
  int rc = open_drafters(p, &o, e);
  if (rc != ERR_OK) return exit_of(rc);
  rc = program_random(&o.incarnation, sizeof o.incarnation, e);
  if (rc == ERR_OK) rc = draft_alloc(&p->draft, &o, e);
  if (rc != ERR_OK) return STATUS_FAILED;
  if (open_host(p, o.incarnation, e) != ERR_OK) return STATUS_ADDRESS;
  rc = open_trace(p, e);
  if (rc != ERR_OK) return exit_of(rc);
  warm_up(p);
  return start(p, e) == ERR_OK ? STATUS_OK : STATUS_FAILED;
}

static void greet(program *p) {
  actions out;
  actions_init(&out);
  draft_connect(p->draft, p->arguments.orchestrator, &out);
  engine_host_perform(p->host, &out);
  actions_fini(&out);
  log_line(&p->log, LOG_INFO, "ready: %s", p->arguments.draft);
}

static void close_all(program *p) {
  engine_host_close(p->host);
  close_trace(p);
  draft_free(p->draft);
  for (int32_t i = 0; i < DRAFTERS_MAX; i++) drafter_free(&p->drafters[i]);
  replay_recording_close(p->recording);
  draft_corpus_close(&p->corpus);
  draft_model_close(&p->model);
  draft_eagle3_close(&p->head);
}

static int run(program *p) {
  const int32_t parent = p->arguments.parent;
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
  program_begin("tandem-draft");
  p.arguments = draft_arguments_parse(argc, argv);
  const flag_values *a = &p.arguments;
  p.log = (logger){"tandem-draft", a->log};
  if (a->version) {
    worker_program_print_version(p.log.program);
    return STATUS_OK;
  }
  if (!worker_program_complete(a, false, &p.log)) return STATUS_USAGE;
  int code = run(&p);
  if (p.host) engine_host_stop(p.host);
  if (a->counters && p.host) wire_counters_print(p.log.program, engine_host_transport(p.host));
  if (a->counters && p.draft) draft_times_print(draft_count_times(p.draft));
  if (a->counters && p.model.engine) draft_model_print_counters(&p.model);
  if (a->counters && p.head.drafter) draft_eagle3_print_counters(&p.head);
  close_all(&p);
  return code;
}
