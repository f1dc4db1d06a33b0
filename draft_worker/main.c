/* tandem-draft: guesses ahead for the sessions that an orchestrator gives it. */
#include "common/base/cpus.h"
#include "common/base/host_id.h"
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include "common/base/program_variables.h"
#include "draft_worker/drafters/model_drafter.h"
#include "draft_worker/drafters/model_engine.h"
#include "draft_worker/drafters/ngram.h"
#include "draft_worker/drafters/replay.h"
#include "draft_worker/worker.h"
#include "version.h"
#include "wire/endpoint.h"
#include "wire/engine_host.h"
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of a session's tokens is reserved by it and used only as far as the session grows. */
#define DEFAULT_CONTEXT 32768
#define REPLAY_PREFIX   "replay:"

/* Of a model, whose sessions' caches are taken at the start: */
#define MODEL_CONTEXT  4096
#define MODEL_SESSIONS 4
#define MODEL_ROWS     4
#define THREADS_MAX    256

typedef struct flags {
  const char *orchestrator, *draft, *model, *model_draft, *repack_cache;
  uint64_t replay_seed;
  int32_t context, layers, threads, sessions, rows; /* context, threads 0: default; layers 0: all */
  bool turns, counters, version;
  int32_t parent; /* 0: none */
  log_level log;
} flags;

/* --- the command line --- */

enum {
  KEY_ORCHESTRATOR = 256,
  KEY_DRAFT,
  KEY_SEED,
  KEY_CTX,
  KEY_MODEL_DRAFT,
  KEY_LAYERS,
  KEY_THREADS,
  KEY_SESSIONS,
  KEY_ROWS,
  KEY_TURNS,
  KEY_REPACK_CACHE,
  KEY_COUNTERS,
  KEY_PARENT,
  KEY_LOG
};

static const struct argp_option option_table[] = {
    {"orchestrator", KEY_ORCHESTRATOR, "ENDPOINT", 0,
     "Orchestrator to register with, ipc://PATH or tcp://HOST:PORT (required)", 0},
    {"draft", KEY_DRAFT, "METHOD", 0,
     "ngram (default): what followed the last tokens when they occurred before, in prompt or answer. "
     "model: a smaller model of the same vocabulary (-md), or the first layers of the target's "
     "(--draft-layers). "
     "replay:FILE:RATE[:S], for tests and benchmarks: answers recorded by 'tandem batch' in FILE, where the "
     "first "
     "candidate is right with probability RATE, and if it is not, the right one is second with probability S",
     0},
    {"replay-seed", KEY_SEED, "N", 0, "Seed of the draws of replay; default 0", 0},
    {"ctx", KEY_CTX, "N", 0,
     "Longest session in tokens that is taken; default 32768; of a model its own, at most 4096", 0},
    {NULL, 0, NULL, 0, "A model as draft:", 1},
    {"model-draft", KEY_MODEL_DRAFT, "FILE", 0,
     "The draft's model (-md FILE): a GGUF file or a folder; default: that of -m", 1},
    {"draft-layers", KEY_LAYERS, "N", 0, "The first N layers of it alone", 1},
    {"model", 'm', "FILE", 0,
     "The target's model: gives its vocabulary, and its layers where there is no -md; without it the draft's "
     "model must have "
     "the target's vocabulary",
     1},
    {"threads", KEY_THREADS, "N", 0,
     "Threads of its forward pass; default: half of the physical cores, with --turns all", 1},
    {"sessions", KEY_SESSIONS, "N", 0, "Sessions that it has a cache for; default 4", 1},
    {"rows", KEY_ROWS, "N", 0, "Most places of the trees that one forward looks at; default 4", 1},
    {"turns", KEY_TURNS, NULL, 0,
     "Compute only while a target waits, as far as that is worth its time: for a target on the same "
     "processors",
     1},
    {"repack-cache", KEY_REPACK_CACHE, "DIR", 0, "Keep its packed weights in a file in DIR; default: no file",
     1},
    {"counters", KEY_COUNTERS, NULL, 0, "At the end, print one JSON line on stderr with what the model did",
     1},
    {NULL, 0, NULL, 0, "Running:", 2},
    {"log-level", KEY_LOG, "LEVEL", 0, "error, warning, info (default) or debug; the log goes to stderr", 2},
    {"parent", KEY_PARENT, "PID", 0, "End when this process, which must be the parent, ends", 2},
    {"version", 'V', NULL, 0, "Print version and commit, and leave", 2},
    {0}};

static const program_flag flag_table[] = {
    PROGRAM_FLAG_TEXT(KEY_ORCHESTRATOR, flags, orchestrator),
    PROGRAM_FLAG_TEXT(KEY_DRAFT, flags, draft),
    PROGRAM_FLAG_TEXT('m', flags, model),
    PROGRAM_FLAG_TEXT(KEY_MODEL_DRAFT, flags, model_draft),
    PROGRAM_FLAG_TEXT(KEY_REPACK_CACHE, flags, repack_cache),
    PROGRAM_FLAG_SWITCH(KEY_TURNS, flags, turns),
    PROGRAM_FLAG_SWITCH(KEY_COUNTERS, flags, counters),
    PROGRAM_FLAG_SWITCH('V', flags, version),
    PROGRAM_FLAG_INT(KEY_CTX, flags, context, "--ctx", 1, WIRE_CONTEXT_MAX),
    PROGRAM_FLAG_INT(KEY_LAYERS, flags, layers, "--draft-layers", 1, MODEL_LAYERS_MAX),
    PROGRAM_FLAG_INT(KEY_THREADS, flags, threads, "--threads", 1, THREADS_MAX),
    PROGRAM_FLAG_INT(KEY_SESSIONS, flags, sessions, "--sessions", 1, DRAFT_SESSIONS_MAX),
    PROGRAM_FLAG_INT(KEY_ROWS, flags, rows, "--rows", 1, DRAFT_QUERIES_MAX),
    PROGRAM_FLAG_INT(KEY_PARENT, flags, parent, "--parent", 1, INT32_MAX),
    PROGRAM_FLAG_CHOICE(KEY_LOG, flags, log, "--log-level", log_level_words),
};

static error_t parse(int key, char *text, struct argp_state *state) {
  flags *f = state->input;
  err e;
  if (key == ARGP_KEY_ARG) argp_error(state, "unexpected argument '%s'", text);
  if (key != KEY_SEED)
    return program_take_flag(flag_table, sizeof flag_table / sizeof *flag_table, key, text, state);
  if (program_u64("--replay-seed", text, &f->replay_seed, &e) != ERR_OK) argp_error(state, "%s", e.text);
  return 0;
}

/* The part of --help below the options. */
static char *help_filter(int key, const char *text, void *input) {
  (void)input;
  return key == ARGP_KEY_HELP_EXTRA ? strdup(program_exit_help()) : (char *)text;
}

static const char doc[] =
    "Draft worker of tandem: guesses the next tokens of an answer and streams them to the target "
    "worker that verifies them. What it sends can change the speed of an answer, never a token.";

/* --- the method --- */

/* FILE may hold colons: RATE and S are taken from the end. S is there when what follows both of the last two
 * colons is a number and something is left for FILE. */
static int split_replay(char *text, char **rate, char **sibling, err *e) {
  char *last = strrchr(text, ':');
  if (last) *last = 0;
  char *before = last ? strrchr(text, ':') : NULL;
  double number;
  if (before && before > text && program_double("RATE", before + 1, 0, 1, &number, NULL) == ERR_OK) {
    *before = 0;
    *rate = before + 1;
    *sibling = last + 1;
  } else if (last && last > text) {
    *rate = last + 1;
  } else {
    return err_set(e, ERR_ARG, "--draft replay is replay:FILE:RATE or replay:FILE:RATE:S");
  }
  return ERR_OK;
}

static int open_replay(const flags *f, replay_recording **recording, err *e) {
  char *text = strdup(f->draft + strlen(REPLAY_PREFIX)), *rate = NULL, *sibling = NULL;
  double r = 0, s = 0;
  if (!text) return err_set(e, ERR_NOMEM, "out of memory");
  int rc = split_replay(text, &rate, &sibling, e);
  if (rc == ERR_OK) rc = program_double("RATE of --draft replay", rate, 0, 1, &r, e);
  if (rc == ERR_OK && sibling) rc = program_double("S of --draft replay", sibling, 0, 1, &s, e);
  if (rc == ERR_OK) rc = replay_recording_open(recording, text, r, s, f->replay_seed, e);
  free(text);
  return rc;
}

/* --- the program --- */

typedef struct program {
  flags flags;
  logger log;
  drafter drafter;
  replay_recording *recording; /* of replay */
  /* Of a model: */
  mem mem;
  model_file *target_file, *file; /* the first may be NULL */
  model *model;
  kv_cache *kv;
  vocabulary_map bridge;
  model_engine *engine;
  draft *draft;
  engine_host *host;
} program;

static bool wants_model(const flags *f) {
  return strcmp(f->draft, MODEL_DRAFTER_METHOD) == 0;
}

/* --- a model --- */

static int open_files(program *p, err *e) {
  const flags *f = &p->flags;
  const char *own = f->model_draft ? f->model_draft : f->model;
  if (!own || (!f->model_draft && !f->layers))
    return err_set(e, ERR_ARG, "--draft model needs -md FILE, or -m FILE and --draft-layers N");
  int rc = model_file_open(&p->file, own, e);
  if (rc == ERR_OK && f->layers) rc = model_file_keep_layers(p->file, f->layers, e);
  if (rc == ERR_OK && f->model) rc = model_file_open(&p->target_file, f->model, e);
  return rc ? rc : vocabulary_map_open(&p->bridge, p->target_file ? p->target_file : p->file, p->file, e);
}

static int open_cache(program *p, err *e) {
  flags *f = &p->flags;
  int32_t own = model_shape(p->model)->context;
  if (f->context == 0) f->context = MODEL_CONTEXT;
  if (f->context > own) f->context = own; /* longer sessions are refused with that reason */
  kv_options o = {.sequences = f->sessions, .context = f->context, .type = KV_F16};
  return kv_open(&p->kv, model_shape(p->model), &o, &p->mem, e);
}

static int open_engine(program *p, err *e) {
  const model_engine_options o = {.model = p->model,
                                  .kv = p->kv,
                                  .bridge = &p->bridge,
                                  .sequences = p->flags.sessions,
                                  .length_max = p->flags.context,
                                  .log = &p->log};
  return model_engine_open(&p->engine, &o, e);
}

/* Fills what *o has of a model. */
static int open_model(program *p, draft_options *o, err *e) {
  const model_options m = {.math = MODEL_MATH_INT8,
                           .isa = MODEL_ISA_AUTO,
                           .threads = p->flags.threads,
                           .repack_cache = p->flags.repack_cache,
                           .log = &p->log};
  int rc = open_files(p, e);
  if (rc == ERR_OK) rc = model_open(&p->model, p->file, &m, &p->mem, e);
  if (rc == ERR_OK) rc = open_cache(p, e);
  if (rc == ERR_OK) rc = model_drafter_open(&p->drafter, p->flags.rows, e);
  if (rc == ERR_OK) rc = open_engine(p, e);
  if (rc != ERR_OK) return rc;
  const model_file *target = p->target_file ? p->target_file : p->file;
  o->shorter = true;
  o->session_max = p->flags.sessions;
  o->colocated = p->flags.turns;
  o->numerics_id = model_numerics(p->model, KV_F16);
  o->device = MODEL_DEVICE;
  o->vocabulary_size = model_file_config(target)->vocab;
  return model_file_vocabulary(target, &o->vocabulary_hash, e);
}

/* --- starting and ending --- */

/* Opens the drafter, and fills what *o has of a model. */
static int open_drafter(program *p, draft_options *o, err *e) {
  const flags *f = &p->flags;
  if (wants_model(f)) return open_model(p, o, e);
  if (strcmp(f->draft, ngram_kind.method) == 0) return immediate_open(&p->drafter, &ngram_kind, NULL, e);
  if (strncmp(f->draft, REPLAY_PREFIX, strlen(REPLAY_PREFIX)) == 0) {
    int rc = open_replay(f, &p->recording, e);
    return rc ? rc : immediate_open(&p->drafter, &replay_kind, p->recording, e);
  }
  return err_set(e, ERR_ARG, "--draft must be ngram, model or replay:FILE:RATE[:S], not '%s'", f->draft);
}

static bool next_batch(void *self, uint64_t now_us, bool at_once, void *batch) {
  (void)now_us, (void)at_once;
  return draft_next_batch(self, batch);
}

static bool drained(const void *self) {
  return draft_drained(self);
}

static void compute(void *context, const void *batch, void *results) {
  model_engine_run(context, batch, results);
}

static int start(program *p, err *e) {
  const engine_host_worker worker = {draft_machine(p->draft), next_batch, drained};
  const engine_host_engine computing = {.self = p->engine,
                                        .batch_bytes = sizeof(draft_batch),
                                        .result_bytes = sizeof(draft_results),
                                        .run = compute};
  return engine_host_start(p->host, &worker, p->engine ? &computing : NULL, e);
}

static int open_host(program *p, wire_id self, err *e) {
  const engine_host_options o = {.self = self, .log = &p->log};
  int rc = endpoint_check(p->flags.orchestrator, e);
  if (rc == ERR_OK) rc = engine_host_open(&p->host, &o, e);
  return rc;
}

static int exit_of(int rc) {
  return rc == ERR_ARG        ? PROGRAM_EXIT_USAGE
         : rc == ERR_MISMATCH ? PROGRAM_EXIT_REFUSED
                              : program_exit_of_file(rc);
}

static int open_all(program *p, err *e) {
  draft_options o = {.host = host_id("")};
  int rc = open_drafter(p, &o, e);
  if (rc != ERR_OK) return exit_of(rc);
  o.drafters[o.drafter_count++] = p->drafter;
  o.context = p->flags.context ? p->flags.context : DEFAULT_CONTEXT;
  rc = program_random(&o.incarnation, sizeof o.incarnation, e);
  if (rc == ERR_OK) rc = draft_alloc(&p->draft, &o, e);
  if (rc != ERR_OK) return PROGRAM_EXIT_FAILED;
  if (open_host(p, o.incarnation, e) != ERR_OK) return PROGRAM_EXIT_ADDRESS;
  return start(p, e) == ERR_OK ? PROGRAM_EXIT_OK : PROGRAM_EXIT_FAILED;
}

static void greet(program *p) {
  actions out;
  actions_init(&out);
  draft_connect(p->draft, p->flags.orchestrator, &out);
  engine_host_perform(p->host, &out);
  actions_fini(&out);
  log_line(&p->log, LOG_INFO, "ready: %s", p->flags.draft);
}

static void print_counters(const program *p) {
  const model_engine_counters *n = model_engine_count(p->engine);
  fprintf(stderr,
          "{\"draft\": {\"batches\": %" PRIu64 ", \"forwards\": %" PRIu64 ", \"told_rows\": %" PRIu64
          ", \"asked_rows\": %" PRIu64 ", \"kept_rows\": %" PRIu64 ", \"forward_us\": %" PRIu64
          ", \"rank_us\": %" PRIu64 ", \"failures\": %" PRIu64 "}}\n",
          n->batches, n->forwards, n->prefilled_rows, n->queried_rows, n->kept_rows, n->forward_us,
          n->rank_us, n->failures);
}

static void close_all(program *p) {
  engine_host_close(p->host);
  model_engine_close(p->engine);
  draft_free(p->draft);
  drafter_free(&p->drafter);
  replay_recording_close(p->recording);
  kv_close(p->kv);
  model_close(p->model);
  vocabulary_map_fini(&p->bridge);
  model_file_close(p->target_file);
  model_file_close(p->file);
}

static int run(program *p) {
  err e = {0};
  int code = PROGRAM_EXIT_OK;
  if (p->flags.parent && program_follow_parent(p->flags.parent, &e) != ERR_OK) code = PROGRAM_EXIT_SIGNAL;
  if (code == PROGRAM_EXIT_OK) code = open_all(p, &e);
  if (code != PROGRAM_EXIT_OK) {
    log_line(&p->log, LOG_ERROR, "%s", e.text);
  } else {
    greet(p);
    code = engine_host_run(p->host);
  }
  return code;
}

int main(int argc, char **argv) {
  const struct argp argp = {option_table, parse, NULL, doc, NULL, help_filter, NULL};
  static program p; /* large; one a process */
  program_hold_streams();
  int32_t cores = cpus_threads();
  p.flags = (flags){.sessions = MODEL_SESSIONS, .rows = MODEL_ROWS, .log = LOG_INFO};
  argp_err_exit_status = PROGRAM_EXIT_USAGE;
  program_parse_flags(&argp, argc, argv, &p.flags);
  program_check_variables("tandem-draft");
  if (!p.flags.threads) p.flags.threads = p.flags.turns || cores == 1 ? cores : cores / 2;
  p.log = (logger){"tandem-draft", p.flags.log};
  if (!p.flags.draft)
    p.flags.draft = p.flags.model_draft || p.flags.layers ? MODEL_DRAFTER_METHOD : ngram_kind.method;
  if (p.flags.version) {
    printf("tandem-draft %s (%s), wire protocol %d to %d\n", TANDEM_VERSION, TANDEM_COMMIT, WIRE_VERSION_MIN,
           WIRE_VERSION_MAX);
    return PROGRAM_EXIT_OK;
  }
  if (!p.flags.orchestrator) {
    log_line(&p.log, LOG_ERROR, "--orchestrator ENDPOINT is missing; see tandem-draft --help");
    return PROGRAM_EXIT_USAGE;
  }
  int code = run(&p);
  if (p.host) engine_host_stop(p.host);
  if (p.flags.counters && p.engine) print_counters(&p);
  close_all(&p);
  return code;
}
