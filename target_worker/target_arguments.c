#include "target_worker/target_arguments.h"

#include "common/base/output_file.h"
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include "wire/message.h"
#include <stdio.h>
#include <string.h>

#define SESSIONS_MAX 1024

enum {
  KEY_BIND = WORKER_KEY_OWN,
  KEY_HEAD,
  KEY_ADVERTISE,
  KEY_KV,
  KEY_KV_BLOCKS,
  KEY_PIN,
  KEY_MATH,
  KEY_ISA,
  KEY_LIST_DEVICES,
  KEY_SELF_TEST,
  KEY_RECORD
};

static const struct argp_option option_table[] = {
    {NULL, WORKER_KEY_MODEL, "MODEL", 0,
     "Model: a GGUF file, or a folder with config.json and safetensors (required)", 0},
    {"model", 0, NULL, OPTION_ALIAS, NULL, 0},
    {"head", KEY_HEAD, "FILE", 0,
     "The EAGLE-3 head that drafts read this model's states with (their -md): its first linear is applied "
     "here, so that a third of the bytes or less travel; drafts with another head get the states themselves",
     0},
    {"orchestrator", WORKER_KEY_ORCHESTRATOR, "ENDPOINT", 0,
     "Orchestrator to register with, ipc://PATH or tcp://HOST:PORT (required)", 0},
    {"bind", KEY_BIND, "ENDPOINT", 0,
     "Where drafts connect; default: a socket beside the orchestrator's, where that is ipc; else a free "
     "port, "
     "of this machine alone, or, with an orchestrator on another machine, of all addresses",
     0},
    {"advertise", KEY_ADVERTISE, "ENDPOINT", 0,
     "Address that drafts are told; default: the one that is bound, of all addresses that at which the "
     "orchestrator sees "
     "this target",
     0},
    WORKER_OPTIONS_KEYS(0),
    PROGRAM_OPTION_CONFIG(0),
    {NULL, 0, NULL, 0, "Resources:", 1},
    {"device", WORKER_KEY_DEVICE, "NAME", 0,
     "What computes: cpu (the default), which is its best instruction set, or another of --list-devices", 1},
    {"isa", KEY_ISA, "auto|c|avx2|avx-vnni|avx512", 0,
     "An instruction set: --isa avx2 is --device cpu:avx2, and --isa auto is --device cpu", 1},
    {"list-devices", KEY_LIST_DEVICES, NULL, 0,
     "Print the devices, the better ones first, each chosen, available or missing, with what it is and what "
     "it lacks; and leave",
     1},
    {"self-test", KEY_SELF_TEST, NULL, 0,
     "Print the same, compare each op of each device with the C reference, and tell how long that took; a "
     "device "
     "that gives other bits is refused, as at every start",
     1},
    {"threads", WORKER_KEY_THREADS, "N", 0,
     "Threads of the forward pass; default: one for each physical core that this process may use, within its "
     "container's "
     "share of time",
     1},
    {"pin", KEY_PIN, "none|auto|LIST", 0,
     "Keep these threads on processors: one of each core (auto) or a list such as 0,2-3; default none", 1},
    {"ctx", WORKER_KEY_CONTEXT, "N", 0,
     "Context of one session in tokens; default 0: the model's, at most 4096", 1},
    {"sessions", WORKER_KEY_SESSIONS, "N", 0, "Sessions open at once; default 4", 1},
    {"kv", KEY_KV, "static|virtual", 0,
     "Cache: a part for each session (static, the default), or blocks of 16 tokens from one pool, where "
     "sessions share what "
     "their prompts have in common",
     1},
    {"kv-blocks", KEY_KV_BLOCKS, "N", 0,
     "Blocks of the virtual cache's pool; default 0: as much memory as static, --sessions x --ctx / 16", 1},
    {"kv-memory", WORKER_KEY_KV_MEMORY, "SIZE", 0,
     "Most memory of the cache, such as 800M or 2G: the size of a virtual cache's pool; bounds the context "
     "of "
     "a static one unless --ctx is given; default: what --sessions and --ctx need",
     1},
    {"repack-cache", WORKER_KEY_REPACK_CACHE, "DIR", 0,
     "Keep the packed weights in a file in DIR, which later starts map instead of packing again, and share; "
     "default: no file",
     1},
    {NULL, 0, NULL, 0, "Arithmetic (part of the numerics id, so of what an answer depends on):", 2},
    {"math", KEY_MATH, "f32|int8", 0,
     "int8 (default): int8 activations, f16 cache; f32: dequantised weights, f32 cache, slow and exact", 2},
    {NULL, 0, NULL, 0, "Running:", 3},
    {"log-level", WORKER_KEY_LOG, "LEVEL", 0,
     "error, warning, info (default) or debug; the log goes to stderr", 3},
    {"trace", WORKER_KEY_TRACE, "FILE", 0,
     "Write when it computed what, for Chrome's about:tracing or Perfetto", 3},
    {"log-format", WORKER_KEY_LOG_FORMAT, "text|json", 0, "json: an object a line; default: text", 3},
    {"counters", WORKER_KEY_COUNTERS, NULL, 0,
     "At the end, print one JSON line on stderr with what the cache, the model and the allocator counted", 3},
    {"record-steps", KEY_RECORD, "FILE", 0,
     "Write what speculation saw and did to FILE, a line of JSON for each step, for policy_replay", 3},
    {"busy-poll", WORKER_KEY_BUSY_POLL, "US", 0,
     "Look for the next message for so many microseconds before sleeping, where there are 4 processors or "
     "more; "
     "default: 2000 on a GPU, else 0",
     3},
    {"parent", WORKER_KEY_PARENT, "PID", 0, "End when this process, which must be the parent, ends", 3},
    {"version", WORKER_KEY_VERSION, NULL, 0, "Print version, commit and numerics id (of --math), and leave",
     3},
    {0}};

static const char *const kv_words[] = {"static", "virtual"};
static const char *const math_words[] = {[OPS_MATH_F32] = "f32", [OPS_MATH_INT8] = "int8"};
static const char *const isa_words[] = {"auto", "c", "avx2", "avx-vnni", "avx512"};
static const char *const isa_devices[] = {"cpu", "cpu:c", "cpu:avx2", "cpu:avx-vnni", "cpu:avx512"};

static const program_flag flag_table[] = {
    PROGRAM_FLAG_TEXT(KEY_BIND, target_arguments, bind),
    PROGRAM_FLAG_TEXT(KEY_HEAD, target_arguments, head),
    PROGRAM_FLAG_TEXT(KEY_ADVERTISE, target_arguments, advertise),
    PROGRAM_FLAG_TEXT(KEY_RECORD, target_arguments, record_steps),
    PROGRAM_FLAG_SWITCH(KEY_LIST_DEVICES, target_arguments, list_devices),
    PROGRAM_FLAG_SWITCH(KEY_SELF_TEST, target_arguments, self_test),
    PROGRAM_FLAG_INT(KEY_KV_BLOCKS, target_arguments, kv_blocks, "--kv-blocks", 0, KV_BLOCKS_MAX),
    PROGRAM_FLAG_CHOICE(KEY_KV, target_arguments, kv_virtual, "--kv", kv_words),
    PROGRAM_FLAG_CHOICE(KEY_MATH, target_arguments, math, "--math", math_words),
    PROGRAM_FLAG_CHOICE(KEY_ISA, target_arguments, isa, "--isa", isa_words),
};

/* After all flags: one device, by whichever name. */
static error_t settle_device(target_arguments *a, const struct argp_state *state) {
  const char *named = a->worker.device, *by_isa = a->isa < 0 ? NULL : isa_devices[a->isa];
  if (named && by_isa && strcmp(named, by_isa) != 0)
    argp_error(state, "--device %s and --isa %s (which is --device %s) are two devices: give one of them",
               named, isa_words[a->isa], by_isa);
  if (!named) a->worker.device = by_isa ? by_isa : WORKER_DEVICE_DEFAULT;
  bool processors = msg_same_device(wire_text(a->worker.device), wire_text(WORKER_DEVICE_DEFAULT));
  if (a->worker.busy_poll < 0) a->worker.busy_poll = processors ? 0 : WORKER_BUSY_POLL_US;
  return 0;
}

static error_t take(int key, char *text, struct argp_state *state) {
  static const worker_limits limits = {0, MODEL_CONTEXT_MAX, SESSIONS_MAX};
  target_arguments *a = state->input;
  error_t rc = worker_arguments_take(&limits, key, text, state);
  err e;
  if (rc != ARGP_ERR_UNKNOWN) return rc;
  if (key == ARGP_KEY_END) return settle_device(a, state);
  if (key != KEY_PIN)
    return program_take_flag(flag_table, sizeof flag_table / sizeof *flag_table, key, text, state);
  if (cpus_parse(text, a->pin, &a->pin_count, &e) != ERR_OK) argp_error(state, "%s", e.text);
  return 0;
}

/* The part of --help below the options. */
static char *help_filter(int key, const char *text, void *input) {
  (void)input;
  if (key != ARGP_KEY_HELP_EXTRA) return (char *)text;
  char *all = NULL;
  if (asprintf(&all,
               "%s\nFor tests: the environment variable " TARGET_FAULT_VARIABLE " makes something go wrong. "
               "kv-rollback:AFTER:BY drops BY rows of the cache before the AFTER-th decode job, behind the "
               "session's back; step-error:AFTER lets it and all later ones fail; "
               "verify-error:AFTER lets the AFTER-th verify with tree nodes fail; "
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

target_arguments target_arguments_parse(int argc, char **argv) {
  const struct argp parser = {option_table, take, NULL, doc, NULL, help_filter, NULL};
  target_arguments a = {.worker = {.threads = cpus_threads(),
                                   .sessions = TARGET_DEFAULT_SESSIONS,
                                   .busy_poll = -1,
                                   .log = LOG_INFO},
                        .math = OPS_MATH_INT8,
                        .isa = -1};
  worker_arguments_parse(&parser, "tandem-target", argc, argv, &a.worker);
  output_file_spare(a.head);
  return a;
}
