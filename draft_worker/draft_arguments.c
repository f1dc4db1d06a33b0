#include "draft_worker/draft_arguments.h"

#include "common/base/cpus.h"
#include "common/base/output_file.h"
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include "common/file/head_lookup.h"
#include "common/model/model.h"
#include "draft_worker/drafters/model_drafter.h"
#include "draft_worker/drafters/ngram.h"
#include "draft_worker/worker.h"
#include "wire/draft_methods.h"
#include "wire/message.h"
#include <string.h>

#define DEFAULT_SESSIONS 4
#define DEFAULT_ROWS     4
#define EAGLE3_DEFAULT   "eagle3,ngram" /* prompt lookup adds tokens and costs nothing beside a head */

enum {
  KEY_DRAFT = WORKER_KEY_OWN,
  KEY_SEED,
  KEY_MODEL_DRAFT,
  KEY_LAYERS,
  KEY_ROWS,
  KEY_TURNS,
  KEY_TYPE,
  KEY_OUTPUTS,
  KEY_CANDIDATES
};

static const struct argp_option option_table[] = {
    {"orchestrator", WORKER_KEY_ORCHESTRATOR, "ENDPOINT", 0,
     "Orchestrator to register with, ipc://PATH or tcp://HOST:PORT (required)", 0},
    {"draft", KEY_DRAFT, "METHOD", 0,
     "ngram (default): what followed the last tokens when they occurred before, in prompt or answer. "
     "model: a smaller model of the same vocabulary (-md), or the first layers of the target's "
     "(--draft-layers). eagle3: a head (-md) that reads the target's own states. "
     "replay:FILE:RATE[:S], for tests and benchmarks: answers recorded by 'tandem batch' in FILE, where the "
     "first "
     "candidate is right with probability RATE, and if it is not, the right one is second with probability "
     "S. Several, such as eagle3,ngram, feed one tree",
     0},
    {"replay-seed", KEY_SEED, "N", 0, "Seed of the draws of replay; default 0", 0},
    {"candidates", KEY_CANDIDATES, "N", 0,
     "Most candidates of a node that a drafter adds to the tree, for benchmarks; 1: chains; default: all", 0},
    {"ctx", WORKER_KEY_CONTEXT, "N", 0,
     "Longest session in tokens that is taken; default 32768; of a model its own, at most 4096", 0},
    WORKER_OPTIONS_KEYS(0),
    PROGRAM_OPTION_CONFIG(0),
    {NULL, 0, NULL, 0, "A model as draft:", 1},
    {"model-draft", KEY_MODEL_DRAFT, "FILE", 0,
     "The draft's model (-md FILE): a GGUF file or a folder; default: that of -m. An EAGLE-3 head means "
     "--draft " EAGLE3_DEFAULT,
     1},
    {"draft-type", KEY_TYPE, "TYPE", 0,
     "What a head's weights become: q8_0, q4_1 or bf16; default: q8_0, or what its file has if it is "
     "quantised",
     1},
    {"draft-outputs", KEY_OUTPUTS, "N", 0,
     "How many of a head's outputs every session reads, beside those of the tokens of its own text; default: "
     "4096 on a CPU, all on another device",
     1},
    {"draft-layers", KEY_LAYERS, "N", 0, "The first N layers of it alone", 1},
    {"model", WORKER_KEY_MODEL, "FILE", 0,
     "The target's model: gives its vocabulary, and its layers where there is no -md; without it the draft's "
     "model must have "
     "the target's vocabulary",
     1},
    {"threads", WORKER_KEY_THREADS, "N", 0,
     "Threads of its forward pass; default: half of the physical cores, with --turns all", 1},
    {"device", WORKER_KEY_DEVICE, "NAME", 0,
     "What its model computes on: cpu (the default) or another of 'tandem --list-devices'", 1},
    {"sessions", WORKER_KEY_SESSIONS, "N", 0, "Sessions that it has a cache for; default 4", 1},
    {"kv-memory", WORKER_KEY_KV_MEMORY, "SIZE", 0,
     "Most memory of that cache, such as 800M or 2G, which bounds --ctx; default: what both need", 1},
    {"rows", KEY_ROWS, "N", 0, "Most places of the trees that one forward looks at; default 4", 1},
    {"turns", KEY_TURNS, NULL, 0,
     "Compute only while a target waits, as far as that is worth its time: for a target on the same "
     "device",
     1},
    {"repack-cache", WORKER_KEY_REPACK_CACHE, "DIR", 0,
     "Keep its packed weights in a file in DIR; default: no file", 1},
    {"counters", WORKER_KEY_COUNTERS, NULL, 0,
     "At the end, print lines of JSON on stderr with what its links carried and its model did", 1},
    {NULL, 0, NULL, 0, "Running:", 2},
    {"log-level", WORKER_KEY_LOG, "LEVEL", 0,
     "error, warning, info (default) or debug; the log goes to stderr", 2},
    {"trace", WORKER_KEY_TRACE, "FILE", 0,
     "Write when it computed what, for Chrome's about:tracing or Perfetto", 2},
    {"log-format", WORKER_KEY_LOG_FORMAT, "text|json", 0, "json: an object a line; default: text", 2},
    {"busy-poll", WORKER_KEY_BUSY_POLL, "US", 0,
     "Look for the next message for so many microseconds before sleeping, where there are 4 processors or "
     "more; "
     "default: 0",
     2},
    {"parent", WORKER_KEY_PARENT, "PID", 0, "End when this process, which must be the parent, ends", 2},
    {"version", WORKER_KEY_VERSION, NULL, 0, "Print version and commit, and leave", 2},
    {0}};

static const program_flag flag_table[] = {
    PROGRAM_FLAG_TEXT(KEY_DRAFT, draft_arguments, draft),
    PROGRAM_FLAG_TEXT(KEY_MODEL_DRAFT, draft_arguments, model_draft),
    PROGRAM_FLAG_SWITCH(KEY_TURNS, draft_arguments, turns),
    PROGRAM_FLAG_INT(KEY_LAYERS, draft_arguments, layers, "--draft-layers", 1, MODEL_LAYERS_MAX),
    PROGRAM_FLAG_INT(KEY_OUTPUTS, draft_arguments, outputs, "--draft-outputs", 1, SAMPLER_VOCAB_MAX),
    PROGRAM_FLAG_INT(KEY_CANDIDATES, draft_arguments, candidates, "--candidates", 1, DRAFTER_CANDIDATES_MAX),
    PROGRAM_FLAG_INT(KEY_ROWS, draft_arguments, rows, "--rows", 1, DRAFT_QUERIES_MAX),
};

static gguf_type to_type(struct argp_state *state, const char *text) {
  static const gguf_type types[] = {GGUF_Q8_0, GGUF_Q4_1, GGUF_BF16};
  err e = {0};
  int i = program_choice("--draft-type", text, (const char *[]){"q8_0", "q4_1", "bf16"}, 3, &e);
  if (i < 0) argp_error(state, "%s", e.text);
  return types[i];
}

static error_t take(int key, char *text, struct argp_state *state) {
  static const worker_limits limits = {1, WIRE_CONTEXT_MAX, DRAFT_SESSIONS_MAX};
  draft_arguments *a = state->input;
  error_t rc = worker_arguments_take(&limits, key, text, state);
  err e;
  if (rc != ARGP_ERR_UNKNOWN) return rc;
  if (key == KEY_TYPE) {
    a->type = to_type(state, text);
    return 0;
  }
  if (key != KEY_SEED)
    return program_take_flag(flag_table, sizeof flag_table / sizeof *flag_table, key, text, state);
  if (program_u64("--replay-seed", text, &a->replay_seed, &e) != ERR_OK) argp_error(state, "%s", e.text);
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

/* What depends on other flags. */
static void fill(draft_arguments *a) {
  int32_t cores = cpus_threads();
  if (!a->worker.threads) a->worker.threads = a->turns || cores == 1 ? cores : cores / 2;
  if (!a->worker.device) a->worker.device = WORKER_DEVICE_DEFAULT;
  bool head = a->model_draft && head_lookup_is_head(a->model_draft);
  if (!a->draft && head) a->draft = EAGLE3_DEFAULT;
  if (!a->draft) a->draft = a->model_draft || a->layers ? MODEL_DRAFTER_METHOD : ngram_kind.method;
}

/* What the draft replays is read; a list that is none is told of later. */
static void spare_replay(const char *methods) {
  draft_methods m;
  char path[PATH_MAX];
  if (draft_methods_parse(&m, methods, NULL) == ERR_OK && m.replay &&
      draft_methods_replay_file(m.replay, path))
    output_file_spare(path);
}

draft_arguments draft_arguments_parse(int argc, char **argv) {
  const struct argp parser = {option_table, take, NULL, doc, NULL, help_filter, NULL};
  draft_arguments a = {.worker = {.sessions = DEFAULT_SESSIONS, .log = LOG_INFO}, .rows = DEFAULT_ROWS};
  worker_arguments_parse(&parser, "tandem-draft", argc, argv, &a.worker);
  output_file_spare(a.model_draft);
  fill(&a);
  spare_replay(a.draft);
  return a;
}
