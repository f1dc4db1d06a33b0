/* tandem-target: loads the model, answers an orchestrator, verifies what drafts guess. */
#include "common/base/cpus.h"
#include "common/base/host_id.h"
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include "common/base/program_variables.h"
#include "target_worker/engine.h"
#include "target_worker/recorder.h"
#include "target_worker/worker.h"
#include "version.h"
#include "wire/engine_host.h"
#include "wire/endpoint.h"
#include "wire/target_endpoint.h"
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SESSIONS 4
#define DEFAULT_CONTEXT  4096
#define SESSIONS_MAX     1024
#define THREADS_MAX      256
#define FAULT_VARIABLE   "TANDEM_FAULT"

typedef struct flags {
  const char *model, *orchestrator, *bind, *advertise, *repack_cache, *record_steps;
  int32_t threads, context, sessions, kv_blocks;
  int32_t kv_virtual; /* 0, 1 */
  model_math math;
  model_isa isa;
  bool insecure_bind, counters, version, list_isa;
  int32_t pin[CPUS_MAX], pin_count;
  int32_t parent; /* 0: none */
  log_level log;
} flags;

/* --- the command line --- */

enum {
  KEY_ORCHESTRATOR = 256,
  KEY_BIND,
  KEY_ADVERTISE,
  KEY_THREADS,
  KEY_CTX,
  KEY_SESSIONS,
  KEY_KV,
  KEY_KV_BLOCKS,
  KEY_PIN,
  KEY_REPACK_CACHE,
  KEY_MATH,
  KEY_ISA,
  KEY_LIST_ISA,
  KEY_INSECURE,
  KEY_COUNTERS,
  KEY_RECORD,
  KEY_PARENT,
  KEY_LOG
};

static const struct argp_option option_table[] = {
    {NULL, 'm', "MODEL", 0, "Model: a GGUF file, or a folder with config.json and safetensors (required)", 0},
    {"model", 0, NULL, OPTION_ALIAS, NULL, 0},
    {"orchestrator", KEY_ORCHESTRATOR, "ENDPOINT", 0,
     "Orchestrator to register with, ipc://PATH or tcp://HOST:PORT (required)", 0},
    {"bind", KEY_BIND, "ENDPOINT", 0,
     "Where drafts connect; default: a free port of this machine alone, or, with --insecure-bind and an "
     "orchestrator on "
     "another machine, of all addresses",
     0},
    {"advertise", KEY_ADVERTISE, "ENDPOINT", 0,
     "Address that drafts are told; default: the one that is bound, of all addresses that at which the "
     "orchestrator sees "
     "this target",
     0},
    {"insecure-bind", KEY_INSECURE, NULL, 0,
     "Allow drafts of other machines, and --bind to an address that other machines reach: there is no "
     "encryption, and "
     "whoever reaches it can read prompts and answers",
     0},
    {NULL, 0, NULL, 0, "Resources:", 1},
    {"threads", KEY_THREADS, "N", 0,
     "Threads of the forward pass; default: one for each physical core that this process may use, within its "
     "container's "
     "share of time",
     1},
    {"pin", KEY_PIN, "none|auto|LIST", 0,
     "Keep these threads on processors: one of each core (auto) or a list such as 0,2-3; default none", 1},
    {"ctx", KEY_CTX, "N", 0, "Context of one session in tokens; default 0: the model's, at most 4096", 1},
    {"sessions", KEY_SESSIONS, "N", 0, "Sessions open at once; default 4", 1},
    {"kv", KEY_KV, "static|virtual", 0,
     "Cache: a part for each session (static, the default), or blocks of 16 tokens from one pool, where "
     "sessions share what "
     "their prompts have in common",
     1},
    {"kv-blocks", KEY_KV_BLOCKS, "N", 0,
     "Blocks of the virtual cache's pool; default 0: as much memory as static, --sessions x --ctx / 16", 1},
    {"repack-cache", KEY_REPACK_CACHE, "DIR", 0,
     "Keep the packed weights in a file in DIR, which later starts map instead of packing again, and share; "
     "default: no file",
     1},
    {NULL, 0, NULL, 0, "Arithmetic (part of the numerics id, so of what an answer depends on):", 2},
    {"math", KEY_MATH, "f32|int8", 0,
     "int8 (default): int8 activations, f16 cache; f32: dequantised weights, f32 cache, slow and exact", 2},
    {"isa", KEY_ISA, "auto|c|avx2|avx-vnni|avx512", 0,
     "Instruction set; default auto: the best that this processor has", 2},
    {"list-isa", KEY_LIST_ISA, NULL, 0,
     "Print the instruction sets, the better ones first, each chosen, available or missing, with what this "
     "processor has not; and leave",
     2},
    {NULL, 0, NULL, 0, "Running:", 3},
    {"log-level", KEY_LOG, "LEVEL", 0, "error, warning, info (default) or debug; the log goes to stderr", 3},
    {"counters", KEY_COUNTERS, NULL, 0,
     "At the end, print one JSON line on stderr with what the cache, the model and the allocator counted", 3},
    {"record-steps", KEY_RECORD, "FILE", 0,
     "Write what speculation saw and did to FILE, a line of JSON for each step, for policy_replay", 3},
    {"parent", KEY_PARENT, "PID", 0, "End when this process, which must be the parent, ends", 3},
    {"version", 'V', NULL, 0, "Print version, commit and numerics id (of --math), and leave", 3},
    {0}};

static const char *const kv_words[] = {"static", "virtual"};
static const char *const math_words[] = {[MODEL_MATH_F32] = "f32", [MODEL_MATH_INT8] = "int8"};
static const char *const isa_words[] = {[MODEL_ISA_AUTO] = "auto",
                                        [MODEL_ISA_C] = "c",
                                        [MODEL_ISA_AVX2] = "avx2",
                                        [MODEL_ISA_AVX_VNNI] = "avx-vnni",
                                        [MODEL_ISA_AVX512] = "avx512"};

static const program_flag flag_table[] = {
    PROGRAM_FLAG_TEXT('m', flags, model),
    PROGRAM_FLAG_TEXT(KEY_ORCHESTRATOR, flags, orchestrator),
    PROGRAM_FLAG_TEXT(KEY_BIND, flags, bind),
    PROGRAM_FLAG_TEXT(KEY_ADVERTISE, flags, advertise),
    PROGRAM_FLAG_TEXT(KEY_REPACK_CACHE, flags, repack_cache),
    PROGRAM_FLAG_TEXT(KEY_RECORD, flags, record_steps),
    PROGRAM_FLAG_SWITCH(KEY_INSECURE, flags, insecure_bind),
    PROGRAM_FLAG_SWITCH(KEY_COUNTERS, flags, counters),
    PROGRAM_FLAG_SWITCH('V', flags, version),
    PROGRAM_FLAG_SWITCH(KEY_LIST_ISA, flags, list_isa),
    PROGRAM_FLAG_INT(KEY_THREADS, flags, threads, "--threads", 1, THREADS_MAX),
    PROGRAM_FLAG_INT(KEY_CTX, flags, context, "--ctx", 0, MODEL_CONTEXT_MAX),
    PROGRAM_FLAG_INT(KEY_SESSIONS, flags, sessions, "--sessions", 1, SESSIONS_MAX),
    PROGRAM_FLAG_INT(KEY_KV_BLOCKS, flags, kv_blocks, "--kv-blocks", 0, KV_BLOCKS_MAX),
    PROGRAM_FLAG_INT(KEY_PARENT, flags, parent, "--parent", 1, INT32_MAX),
    PROGRAM_FLAG_CHOICE(KEY_KV, flags, kv_virtual, "--kv", kv_words),
    PROGRAM_FLAG_CHOICE(KEY_MATH, flags, math, "--math", math_words),
    PROGRAM_FLAG_CHOICE(KEY_ISA, flags, isa, "--isa", isa_words),
    PROGRAM_FLAG_CHOICE(KEY_LOG, flags, log, "--log-level", log_level_words),
};

static error_t parse(int key, char *text, struct argp_state *state) {
  flags *f = state->input;
  err e;
  if (key == ARGP_KEY_ARG) argp_error(state, "unexpected argument '%s'", text);
  if (key != KEY_PIN)
    return program_take_flag(flag_table, sizeof flag_table / sizeof *flag_table, key, text, state);
  if (cpus_parse(text, f->pin, &f->pin_count, &e) != ERR_OK) argp_error(state, "%s", e.text);
  return 0;
}

/* The part of --help below the options. */
static char *help_filter(int key, const char *text, void *input) {
  (void)input;
  if (key != ARGP_KEY_HELP_EXTRA) return (char *)text;
  char *all = NULL;
  if (asprintf(&all,
               "%s\nFor tests: the environment variable " FAULT_VARIABLE " makes something go wrong once. "
               "kv-rollback:AFTER:BY drops BY rows of the cache before the AFTER-th decode job, behind the "
               "session's back; verify-error:AFTER lets the AFTER-th verify with tree nodes fail; "
               "wrong-token:AFTER "
               "gives it a wrong token, which only --selfcheck finds.",
               program_exit_help()) < 0)
    return NULL;
  return all;
}

static const char doc[] =
    "Target worker of tandem: owns the model, gives every token, and verifies many guessed "
    "tokens in one forward. Started by 'tandem run' itself, or by hand for an orchestrator "
    "that waits for workers.";

/* --- the program --- */

typedef struct program {
  flags flags;
  logger log;
  mem mem;
  model_file *file;
  model *model;
  kv_cache *kv;
  engine *engine;
  target *target;
  recorder recorder;
  engine_host *host;
  char bound[WIRE_STRING_MAX + 1],
      told[WIRE_STRING_MAX + 1]; /* the door for drafts, and what HELLO says of it */
} program;

/* A percentage, on a terminal alone. */
static void show_progress(void *context, double done) {
  int *shown = context, now = (int)(done * 100);
  if (now == *shown) return;
  *shown = now;
  fprintf(stderr, "\rtandem-target: loading the model: %3d %%%s", now, now >= 100 ? "\r\033[K" : "");
}

static kv_type kv_type_of(model_math math) {
  return math == MODEL_MATH_F32 ? KV_F32 : KV_F16;
}

static int open_model(program *p, err *e) {
  int shown = -1;
  model_options o = {.math = p->flags.math,
                     .isa = p->flags.isa,
                     .threads = p->flags.threads,
                     .repack_cache = p->flags.repack_cache,
                     .log = &p->log};
  if (isatty(STDERR_FILENO) && p->flags.log >= LOG_INFO) {
    o.progress = show_progress;
    o.progress_context = &shown;
  }
  int rc = model_file_open(&p->file, p->flags.model, e);
  if (rc == ERR_OK) rc = model_open(&p->model, p->file, &o, &p->mem, e);
  if (shown >= 0 && shown < 100) fprintf(stderr, "\n");
  return rc;
}

static int open_cache(program *p, err *e) {
  int32_t own = model_shape(p->model)->context;
  if (p->flags.context > own)
    return err_set(e, ERR_ARG, "--ctx %d is more than the model's context of %d tokens", p->flags.context,
                   own);
  if (p->flags.context == 0) p->flags.context = own < DEFAULT_CONTEXT ? own : DEFAULT_CONTEXT;
  flags *f = &p->flags;
  if (f->kv_blocks && !f->kv_virtual)
    return err_set(e, ERR_ARG, "--kv-blocks is the size of a virtual cache: give --kv virtual too");
  if (f->kv_virtual && f->kv_blocks == 0)
    f->kv_blocks = f->sessions * ((f->context + KV_BLOCK - 1) / KV_BLOCK);
  kv_options o = {
      .sequences = f->sessions, .context = f->context, .type = kv_type_of(f->math), .blocks = f->kv_blocks};
  return kv_open(&p->kv, model_shape(p->model), &o, &p->mem, e);
}

static int open_engine(program *p, err *e) {
  engine_options o = {.model = p->model,
                      .kv = p->kv,
                      .sequences = p->flags.sessions,
                      .log = &p->log,
                      .pin = p->flags.pin,
                      .pin_count = p->flags.pin_count};
  int rc = engine_fault_parse(&o.fault, getenv(FAULT_VARIABLE), e);
  if (rc == ERR_OK) rc = engine_open(&p->engine, &o, e);
  return rc;
}

static uint64_t progress(void *context) {
  return model_progress(((program *)context)->model);
}

static int open_machine(program *p, wire_id self, err *e) {
  target_options o = {.incarnation = self,
                      .model_fingerprint = model_file_fingerprint(p->file),
                      .vocabulary_size = model_shape(p->model)->vocab,
                      .numerics_id = model_numerics(p->model, kv_type_of(p->flags.math)),
                      .endpoint = p->told,
                      .host = host_id(""),
                      .device = MODEL_DEVICE,
                      .sessions = p->flags.sessions,
                      .context = p->flags.context,
                      .kv_blocks = p->flags.kv_blocks,
                      .progress = progress,
                      .progress_context = p,
                      .record = p->flags.record_steps ? recorder_step : NULL,
                      .record_context = &p->recorder};
  int rc = p->flags.record_steps ? recorder_open(&p->recorder, p->flags.record_steps, e) : ERR_OK;
  if (rc == ERR_OK) rc = model_file_vocabulary(p->file, &o.vocabulary_hash, e);
  if (rc == ERR_OK) rc = target_alloc(&p->target, &o, e);
  return rc;
}

static int open_door(program *p, err *e) {
  const flags *f = &p->flags;
  int rc = f->advertise ? endpoint_check(f->advertise, e) : ERR_OK;
  if (rc == ERR_OK && f->advertise && endpoint_lacks_port(f->advertise))
    rc = err_set(e, ERR_ARG, "--advertise %s lacks the port: name that of --bind", f->advertise);
  if (rc != ERR_OK) return rc;
  const char *door = f->bind ? f->bind : target_endpoint_to_bind(f->orchestrator, f->insecure_bind);
  rc = transport_bind(engine_host_transport(p->host), door, p->bound, sizeof p->bound, e);
  if (f->advertise)
    target_endpoint_insist(f->advertise, p->told);
  else
    memcpy(p->told, p->bound, sizeof p->told);
  return rc;
}

static int open_host(program *p, wire_id self, err *e) {
  const engine_host_options o = {.self = self, .allow_plaintext = p->flags.insecure_bind, .log = &p->log};
  int rc = engine_host_open(&p->host, &o, e);
  if (rc == ERR_OK) rc = endpoint_check(p->flags.orchestrator, e);
  return rc ? rc : open_door(p, e);
}

/* --- the machine and its engine --- */

static bool next_batch(void *self, uint64_t now_us, bool at_once, void *batch) {
  ((engine_batch *)batch)->at_once = at_once;
  return target_next_batch(self, now_us, batch);
}

static bool drained(const void *self) {
  return target_drained(self);
}

static void begin(void *context) {
  engine_begin(context);
}

static void compute(void *context, const void *batch, void *results) {
  engine_run(context, batch, results);
}

static void end(void *context) {
  engine_end(context);
}

static int start(program *p, err *e) {
  const engine_host_worker worker = {target_machine(p->target), next_batch, drained};
  const engine_host_engine computing = {.self = p->engine,
                                        .batch_bytes = sizeof(engine_batch),
                                        .result_bytes = sizeof(engine_results),
                                        .begin = begin,
                                        .run = compute,
                                        .end = end,
                                        .keeps_loop_away = true};
  return engine_host_start(p->host, &worker, &computing, e);
}

static void greet(program *p) {
  actions out;
  actions_init(&out);
  target_connect(p->target, p->flags.orchestrator, &out);
  engine_host_perform(p->host, &out);
  actions_fini(&out);
  log_line(&p->log, LOG_INFO, "ready: %s, %d sessions of %d tokens, drafts at %s",
           model_numerics(p->model, kv_type_of(p->flags.math)), p->flags.sessions, p->flags.context, p->told);
  bool asked = p->flags.bind || p->flags.advertise || p->flags.insecure_bind;
  if (!asked && endpoint_leads_elsewhere(p->flags.orchestrator))
    log_line(&p->log, LOG_WARNING,
             "drafts of this machine alone reach this target: for those of others add --insecure-bind (there "
             "is no encryption)");
}

/* What fails first costs least: addresses before the model. The orchestrator is greeted when all is there. */
static int open_all(program *p, err *e) {
  wire_id self;
  int rc = program_random(&self, sizeof self, e);
  if (rc != ERR_OK) return PROGRAM_EXIT_FAILED;
  if (open_host(p, self, e) != ERR_OK) return PROGRAM_EXIT_ADDRESS;
  rc = open_model(p, e);
  if (rc != ERR_OK) return program_exit_of_file(rc);
  rc = open_cache(p, e);
  if (rc != ERR_OK) return rc == ERR_ARG ? PROGRAM_EXIT_USAGE : PROGRAM_EXIT_FAILED;
  rc = open_engine(p, e);
  if (rc != ERR_OK) return rc == ERR_ARG ? PROGRAM_EXIT_USAGE : PROGRAM_EXIT_FAILED;
  rc = open_machine(p, self, e);
  if (rc == ERR_OK) rc = start(p, e);
  return rc == ERR_OK ? PROGRAM_EXIT_OK : program_exit_of_file(rc);
}

static void close_all(program *p) {
  engine_host_close(p->host);
  engine_close(p->engine);
  recorder_close(&p->recorder);
  target_free(p->target);
  kv_close(p->kv);
  model_close(p->model);
  model_file_close(p->file);
}

/* --- counters --- */

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

static uint32_t gap_at(const engine_counters *n, size_t percent) {
  uint32_t sorted[ENGINE_GAPS_MAX];
  size_t count = n->gaps < ENGINE_GAPS_MAX ? (size_t)n->gaps : ENGINE_GAPS_MAX;
  if (count == 0) return 0;
  memcpy(sorted, n->gap_us, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, by_value);
  return sorted[count * percent / 100];
}

typedef struct named {
  const char *name;
  uint64_t value;
} named;

static void print_group(FILE *out, const char *group, const named *list, size_t count) {
  fprintf(out, "\"%s\": {", group);
  for (size_t i = 0; i < count; i++)
    fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", list[i].name, list[i].value);
  fprintf(out, "}");
}
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void print_engine(FILE *out, const engine_counters *n) {
  const named list[] = {{"batches", n->batches},
                        {"prefills", n->prefills},
                        {"verifies", n->verifies},
                        {"forwards", n->forwards},
                        {"accepted", n->accepted},
                        {"tokens", n->tokens},
                        {"selfchecks", n->selfchecks},
                        {"failures", n->failures},
                        {"measured_rows", n->measured_rows},
                        {"gaps", n->gaps},
                        {"gap_us_median", gap_at(n, 50)},
                        {"gap_us_p90", gap_at(n, 90)}};
  print_group(out, "engine", list, COUNT(list));
}

static void print_kv(FILE *out, kv_counters k) {
  const named list[] = {{"stage_operations", k.stage_operations}, {"staged_rows", k.staged_rows},
                        {"appended_rows", k.appended_rows},       {"committed_rows", k.committed_rows},
                        {"rejected_rows", k.rejected_rows},       {"rewound_rows", k.rewound_rows},
                        {"bytes_written", k.bytes_written},       {"refusals", k.refusals}};
  print_group(out, "kv", list, COUNT(list));
}

static void print_sessions(FILE *out, const session_store *s) {
  const block_pool *b = &s->blocks;
  const named list[] = {{"reused_rows", s->reused_rows},
                        {"longest_step_us", s->longest_step_us},
                        {"blocks", (uint64_t)b->count},
                        {"blocks_free", (uint64_t)b->free_count},
                        {"blocks_kept", (uint64_t)b->cached_count},
                        {"blocks_shared", b->shared},
                        {"blocks_evicted", b->evicted}};
  print_group(out, "sessions", list, COUNT(list));
}

static void print_model(FILE *out, model_counters m) {
  const named list[] = {{"forwards", m.forwards},
                        {"rows", m.rows},
                        {"logit_rows", m.logit_rows},
                        {"staged_rows", m.staged_rows},
                        {"commit_copies", m.commit_copies}};
  print_group(out, "model", list, COUNT(list));
}

static void print_wire(FILE *out, transport_counters t) {
  const named list[] = {
      {"sent", t.sent}, {"received", t.received}, {"dropped", t.dropped}, {"bad_frames", t.bad_frames}};
  print_group(out, "wire", list, COUNT(list));
}

static void print_memory(FILE *out, const mem *m) {
  static const char *const tags[MEM_TAG_COUNT] = {"general", "weights", "kv", "activations", "speculation"};
  named calls[MEM_TAG_COUNT], bytes[MEM_TAG_COUNT];
  for (int i = 0; i < MEM_TAG_COUNT; i++) {
    calls[i] = (named){tags[i], atomic_load(&m->calls[i])};
    bytes[i] = (named){tags[i], atomic_load(&m->bytes[i])};
  }
  print_group(out, "memory_calls", calls, MEM_TAG_COUNT);
  fprintf(out, ", ");
  print_group(out, "memory_bytes", bytes, MEM_TAG_COUNT);
}

/* One line in one write, which no other program's line can cut. */
static void print_counters(const program *p) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return;
  fprintf(out, "{");
  print_engine(out, engine_count(p->engine));
  fprintf(out, ", ");
  print_kv(out, kv_count(p->kv));
  fprintf(out, ", ");
  print_sessions(out, target_sessions(p->target));
  fprintf(out, ", ");
  print_model(out, model_count(p->model));
  fprintf(out, ", ");
  print_wire(out, transport_count(engine_host_transport(p->host)));
  fprintf(out, ", ");
  print_memory(out, &p->mem);
  fprintf(out, "}\n");
  if (fclose(out) == 0) {
    ssize_t written = write(STDERR_FILENO, text, size);
    (void)written;
  }
  free(text);
}

/* --- main --- */

static int print_version(const program *p) {
  printf("tandem-target %s (%s), wire protocol %d to %d\nnumerics %s\n", TANDEM_VERSION, TANDEM_COMMIT,
         WIRE_VERSION_MIN, WIRE_VERSION_MAX, model_numerics_id(p->flags.math, kv_type_of(p->flags.math)));
  return PROGRAM_EXIT_OK;
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

/* For people, and for `tandem doctor'. */
static int print_isas(model_isa wanted) {
  model_isa chosen = model_isa_chosen(wanted);
  for (model_isa isa = MODEL_ISA_AVX512; isa >= MODEL_ISA_C; isa--) {
    const char *lacking = model_isa_lacks(isa);
    printf("%s %s%s%s\n", isa_words[isa],
           isa == chosen ? "chosen"
           : lacking     ? "missing"
                         : "available",
           lacking ? ": this processor has no " : "", lacking ? lacking : "");
  }
  return model_isa_lacks(chosen) ? PROGRAM_EXIT_FAILED : PROGRAM_EXIT_OK;
}

int main(int argc, char **argv) {
  const struct argp argp = {option_table, parse, NULL, doc, NULL, help_filter, NULL};
  static program p; /* large; one a process */
  program_hold_streams();
  p.flags = (flags){
      .threads = cpus_threads(), .sessions = DEFAULT_SESSIONS, .math = MODEL_MATH_INT8, .log = LOG_INFO};
  argp_err_exit_status = PROGRAM_EXIT_USAGE;
  program_parse_flags(&argp, argc, argv, &p.flags);
  program_check_variables("tandem-target");
  p.log = (logger){"tandem-target", p.flags.log};
  if (p.flags.version) {
    int status = print_version(&p);
    close_all(&p);
    return status;
  }
  if (p.flags.list_isa) return print_isas(p.flags.isa);
  const char *missing = !p.flags.model          ? "-m MODEL"
                        : !p.flags.orchestrator ? "--orchestrator ENDPOINT"
                                                : NULL;
  if (missing) {
    log_line(&p.log, LOG_ERROR, "%s is missing; see tandem-target --help", missing);
    return PROGRAM_EXIT_USAGE;
  }
  int code = run(&p);
  if (p.host) engine_host_stop(p.host);
  if (p.flags.counters && p.engine) print_counters(&p);
  close_all(&p);
  return code;
}
