#include "orchestrator/cli/flags.h"

#include "common/base/cpus.h"
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include "common/file/model_config.h"
#include "common/text/chat_template.h"
#include "common/text/utf8.h"
#include "orchestrator/cli/exit_status.h"
#include "wire/endpoint.h"
#include "wire/message.h"
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEED_BITS 53 /* of a random seed: every JSON reader keeps it exactly */

enum {
  KEY_PROMPT = 'p',
  KEY_DRAFT = 256,
  KEY_TEMP,
  KEY_TOP_K,
  KEY_TOP_P,
  KEY_MIN_P,
  KEY_PENALTY,
  KEY_SEED,
  KEY_MAX_TOKENS,
  KEY_STOP,
  KEY_RAW,
  KEY_NO_SPECIAL,
  KEY_SYSTEM,
  KEY_TEMPLATE,
  KEY_THREADS,
  KEY_CONTEXT,
  KEY_MATH,
  KEY_BUDGET,
  KEY_PACE,
  KEY_SELFCHECK,
  KEY_JSON,
  KEY_SESSIONS,
  KEY_REPACK_CACHE,
  KEY_PIN,
  KEY_KV,
  KEY_KV_BLOCKS,
  KEY_MODEL_DRAFT,
  KEY_DRAFT_LAYERS,
  KEY_DRAFT_THREADS,
  KEY_DRAFT_CONTEXT,
  KEY_LISTEN,
  KEY_WAIT,
  KEY_INSECURE,
  KEY_LEDGER,
  KEY_TO,
  KEY_WHOLE,
  KEY_DELETE,
  KEY_SINGLE,
  KEY_COMPARE,
  KEY_LIMIT,
  KEY_OLDER
};

/* ---- what each command takes ---- */

#define OPTION_MODEL                                                                                         \
  {                                                                                                          \
    "model", 'm', "FILE", 0,                                                                                 \
        "the model: a GGUF file (scripts/get_model.sh fetches one), or a folder with config.json and "       \
        "safetensors",                                                                                       \
        1                                                                                                    \
  }
#define OPTION_NO_SPECIAL                                                                                    \
  { "no-special", KEY_NO_SPECIAL, 0, 0, "special tokens written in the text are plain text", 1 }
#define OPTION_VERBOSE                                                                                       \
  { "verbose", 'v', 0, 0, "say more on stderr", 9 }
#define OPTIONS_LISTEN                                                                                       \
  {"listen",                                                                                                 \
   KEY_LISTEN,                                                                                               \
   "ENDPOINT",                                                                                               \
   0,                                                                                                        \
   "wait at ipc://PATH or tcp://HOST:PORT for workers that others start with --orchestrator ENDPOINT, "      \
   "instead of starting them",                                                                               \
   6},                                                                                                       \
      {"wait",                                                                                               \
       KEY_WAIT,                                                                                             \
       "SECONDS",                                                                                            \
       0,                                                                                                    \
       "give up when there has been no target for so long; 0 (default): wait for ever",                      \
       6},                                                                                                   \
  {                                                                                                          \
    "insecure-bind", KEY_INSECURE, 0, 0,                                                                     \
        "let --listen take an address that other machines can reach: neither encrypted nor authenticated", 6 \
  }
#define OPTION_LEDGER                                                                                        \
  {                                                                                                          \
    "ledger", KEY_LEDGER, "FILE|none", 0,                                                                    \
        "where prompts and answers are kept (default: batch none, else ~/.local/state/tandem)", 8            \
  }
#define OPTION_JSON                                                                                          \
  { "json", KEY_JSON, 0, 0, "JSON on stdout", 2 }
#define OPTIONS_MODEL_DRAFT                                                                                  \
  {"model-draft", KEY_MODEL_DRAFT, "FILE", 0, "-md FILE: a smaller model of the same family as draft", 4},   \
      {"draft-layers", KEY_DRAFT_LAYERS, "N", 0, "draft with the first N layers of it, or of the model", 4}, \
      {"draft-threads", KEY_DRAFT_THREADS, "N", 0, "of tandem-draft (default: one a physical core)", 4}, {   \
    "draft-ctx", KEY_DRAFT_CONTEXT, "N", 0, "longest session it drafts for (default: that of --ctx)", 4      \
  }
#define OPTIONS_KV                                                                                           \
  {"kv", KEY_KV, "static|virtual", 0, "cache: a part a session, or shared blocks (default static)", 5}, {    \
    "kv-blocks", KEY_KV_BLOCKS, "N", 0, "16-token blocks of a virtual cache (default: memory as static)", 5  \
  }
#define OPTIONS_GENERATE                                                                                     \
  OPTION_MODEL, {"system", KEY_SYSTEM, "TEXT", 0, "system message (default: the template's own)", 1},        \
      {"chat-template", KEY_TEMPLATE, "NAME", 0, "instead of the file's own (a wrong NAME lists them)", 1},  \
      {"raw", KEY_RAW, 0, 0, "no chat template: the text itself is continued", 1}, OPTION_NO_SPECIAL,        \
      {0, 0, 0, 0, "The answer:", 2},                                                                        \
      {"max-tokens", KEY_MAX_TOKENS, "N", 0, "most tokens of an answer (default 256)", 2},                   \
      {"stop", KEY_STOP, "TEXT", 0, "ends the answer before TEXT; may be given up to 16 times", 2},          \
      {"json", KEY_JSON, 0, 0, "one JSON object on stdout instead of the text", 2},                          \
      {0, 0, 0, 0, "Sampling:", 3},                                                                          \
      {"temp", KEY_TEMP, "T", 0, "temperature; 0 (default): always the likeliest token", 3},                 \
      {"top-k", KEY_TOP_K, "K", 0, "among the K likeliest; 0 (default): off", 3},                            \
      {"top-p", KEY_TOP_P, "P", 0, "among the likeliest that reach P together; 1 (default): off", 3},        \
      {"min-p", KEY_MIN_P, "P", 0, "among those with P times the likeliest's chance; 0 (default): off", 3},  \
      {"repeat-penalty", KEY_PENALTY, "R", 0, "against tokens seen before; 1 (default): off", 3},            \
      {"seed", KEY_SEED, "N", 0, "of the random numbers (default: a random one, named in the result)", 3},   \
      {0, 0, 0, 0, "Speculation (never changes a token):", 4},                                               \
      {"draft",                                                                                              \
       KEY_DRAFT,                                                                                            \
       "METHOD",                                                                                             \
       0,                                                                                                    \
       "ngram (default), model, none, or replay:FILE:RATE[:S] - FILE an output of `tandem batch`, for "      \
       "tests",                                                                                              \
       4},                                                                                                   \
      OPTIONS_MODEL_DRAFT,                                                                                   \
      {"budget", KEY_BUDGET, "N", 0, "most draft tokens in one verification, 0 to 64 (default 15)", 4},      \
      {"pace", KEY_PACE, "free|lockstep", 0, "lockstep: wait for every draft, for tests (default free)", 4}, \
      {"selfcheck", KEY_SELFCHECK, "N", 0, "decode every Nth round again plainly and compare; 0: off", 4},   \
      {"force-single-token",                                                                                 \
       KEY_SINGLE,                                                                                           \
       0,                                                                                                    \
       0,                                                                                                    \
       "one token a forward: drafts are verified, none is accepted, to compare with",                        \
       4},                                                                                                   \
      {0, 0, 0, 0, "Work:", 5},                                                                              \
      {"threads", KEY_THREADS, "N", 0, "of tandem-target (default: one a physical core)", 5},                \
      {"pin", KEY_PIN, "none|auto|LIST", 0, "keep these threads on processors (default none)", 5},           \
      {"ctx", KEY_CONTEXT, "N", 0, "most tokens of prompt and answer (default 4096 or the model's)", 5},     \
      OPTIONS_KV, {"math", KEY_MATH, "int8|f32", 0, "activations of the forward pass (default int8)", 5},    \
      {"repack-cache",                                                                                       \
       KEY_REPACK_CACHE,                                                                                     \
       "DIR",                                                                                                \
       0,                                                                                                    \
       "keep the packed weights in DIR: later starts are faster and share them (default: no)",               \
       5},                                                                                                   \
      OPTION_LEDGER, OPTION_VERBOSE

static const struct argp_option run_options[] = {
    OPTIONS_GENERATE,
    OPTIONS_LISTEN,
    {"compare", KEY_COMPARE, 0, 0,
     "answer plainly and then with the draft: tell both speeds, and whether the tokens are the same", 4},
    {"prompt", KEY_PROMPT, "TEXT", OPTION_HIDDEN, "PROMPT, as llama.cpp takes it", 1},
    {0}};
static const struct argp_option serve_options[] = {
    OPTIONS_GENERATE,
    OPTIONS_LISTEN,
    {"sessions", KEY_SESSIONS, "N", 0, "answers at a time (default 64, and never more than the targets take)",
     5},
    {0}};
static const struct argp_option batch_options[] = {
    OPTIONS_GENERATE,
    OPTIONS_LISTEN,
    {"sessions", KEY_SESSIONS, "N", 0, "answers at a time (default 4)", 5},
    {0}};
static const struct argp_option tokenize_options[] = {
    OPTION_MODEL, OPTION_NO_SPECIAL, {"json", KEY_JSON, 0, 0, "{token_ids, tokens}", 2}, {0}};
static const struct argp_option detokenize_options[] = {OPTION_MODEL, {0}};
static const struct argp_option doctor_options[] = {
    OPTION_MODEL,
    {"model-draft", KEY_MODEL_DRAFT, "FILE", 0, "-md FILE: a draft's model: does it fit the model of -m?", 1},
    OPTION_JSON,
    {0}};
static const struct argp_option status_options[] = {OPTION_LEDGER, OPTION_JSON, {0}};
static const struct argp_option list_options[] = {
    OPTION_LEDGER, OPTION_JSON, {"limit", KEY_LIMIT, "N", 0, "the N newest (default 20); 0: all", 2}, {0}};
static const struct argp_option show_options[] = {OPTION_MODEL, OPTION_LEDGER, OPTION_JSON, {0}};
static const struct argp_option export_options[] = {OPTION_MODEL, OPTION_LEDGER, {0}};
static const struct argp_option rollback_options[] = {
    OPTION_LEDGER, {"to", KEY_TO, "N", 0, "tokens of the answer that stay", 2}, {0}};
static const struct argp_option end_options[] = {
    OPTION_LEDGER,
    {"older-than", KEY_OLDER, "AGE", 0,
     "instead of an ID: all that nothing has changed for so long (30d, 12h, 45m, 0s) and that nobody serves",
     2},
    {"delete", KEY_DELETE, 0, 0, "and forget it: prompt, answer and all", 2},
    {0}};
static const struct argp_option resume_options[] = {
    OPTION_MODEL,
    OPTION_LEDGER,
    {"max-tokens", KEY_MAX_TOKENS, "N", 0, "N tokens more (default: what the request has left)", 2},
    {"whole", KEY_WHOLE, 0, 0, "print the answer from its beginning, not only the rest", 2},
    {"json", KEY_JSON, 0, 0, "one JSON object on stdout, with the whole answer", 2},
    {"draft", KEY_DRAFT, "METHOD", 0, "as in `tandem run' (default: as before, with the same model)", 4},
    OPTIONS_MODEL_DRAFT,
    {"budget", KEY_BUDGET, "N", 0, "as in `tandem run' (default: as before)", 4},
    {"threads", KEY_THREADS, "N", 0, "of tandem-target (default: one a physical core)", 5},
    {"pin", KEY_PIN, "none|auto|LIST", 0, "keep these threads on processors (default none)", 5},
    {"repack-cache", KEY_REPACK_CACHE, "DIR", 0, "keep the packed weights in DIR", 5},
    OPTIONS_KV,
    OPTIONS_LISTEN,
    OPTION_VERBOSE,
    {0}};

#define SEE_STATUSES "\vExit statuses: see `tandem --help'."

typedef struct command_shape {
  const char *name;
  const struct argp_option *options;
  const char *arguments, *text;
  int32_t arguments_min, arguments_max;
  const char *missing; /* what to do when there are fewer */
  bool without_model;
} command_shape;

#define SHAPE_SESSION(name, options, arguments, text, count)                                                 \
  {                                                                                                          \
    name, options, arguments, text SEE_STATUSES, count, count,                                               \
        "which session? Give the first digits of its id: `tandem session list' tells them", true             \
  }

static const command_shape shapes[] = {
    [FLAGS_RUN] = {"run", run_options, "PROMPT\n-\n",
                   "Answers one prompt (-: from stdin); without one, on a terminal, a conversation. stdout "
                   "gets the answer alone, as it comes; a last line on "
                   "stderr tells how fast it was." SEE_STATUSES,
                   1, 1, "no prompt: give one in quotes, or - to read it from stdin"},
    [FLAGS_BATCH] =
        {"batch", batch_options, "IN.jsonl OUT.jsonl",
         "Answers a file of prompts (-: stdin, stdout), several at a time.\n\nA line of IN is an object "
         "with \"id\" and one of \"prompt\" (text), \"prompt_ids\" (token ids) or \"messages\" "
         "([{\"role\", \"content\"}]); it may have options of its own: \"max_tokens\", \"stop\", "
         "\"temperature\", \"top_k\", \"top_p\", \"min_p\", \"repeat_penalty\", \"seed\", \"draft\": false, "
         "\"budget\", "
         "\"force_single_token\": true. IN is read whole; OUT gets the answers in "
         "the order of IN. A bad line gives an object with finish_reason \"error\", and the others go "
         "on." SEE_STATUSES,
         2, 2, "two files are needed: IN.jsonl and OUT.jsonl (- for stdin, stdout)"},
    [FLAGS_SERVE] = {"serve-workers", serve_options, "[IN.jsonl]",
                     "Answers request lines (of IN or stdin, as `tandem batch' takes them) with "
                     "tandem-target and tandem-draft "
                     "programs that others start with --orchestrator ENDPOINT, as many as there are; they "
                     "may come and go. Results go to "
                     "stdout as they finish, until the end of IN." SEE_STATUSES,
                     0, 1, NULL},
    [FLAGS_TOKENIZE] = {"tokenize", tokenize_options, "",
                        "Text on stdin to token ids on stdout." SEE_STATUSES, 0, 0, NULL},
    [FLAGS_DETOKENIZE] = {"detokenize", detokenize_options, "",
                          "Token ids on stdin, by blanks or as a JSON array, to text on stdout." SEE_STATUSES,
                          0, 0, NULL},
    [FLAGS_DOCTOR] = {"doctor", doctor_options, "",
                      "Looks at what tandem needs: processor, memory, sockets, worker programs, their "
                      "instruction set and, with -m "
                      "and -md, models. The exit status is 0 when all is well, else 1." SEE_STATUSES,
                      0, 0, NULL, true},
    [FLAGS_STATUS] =
        {"status", status_options, "",
         "What runs now on this machine, by the ledger: orchestrators, their workers, sessions and "
         "speed." SEE_STATUSES,
         0, 0, NULL, true},
    [FLAGS_LIST] = SHAPE_SESSION("session list", list_options, "",
                                 "The sessions that the ledger keeps, newest first.", 0),
    [FLAGS_SHOW] =
        SHAPE_SESSION("session show", show_options, "ID", "One session: prompt, answer and figures.", 1),
    [FLAGS_RESUME] = SHAPE_SESSION(
        "session resume", resume_options, "ID",
        "Goes on with a session that was interrupted, with the tokens that it would have had, and "
        "prints the rest.",
        1),
    [FLAGS_ROLLBACK] =
        SHAPE_SESSION("session rollback", rollback_options, "ID",
                      "Drops the end of an answer; `tandem session resume' goes on from there.", 1),
    [FLAGS_EXPORT] = SHAPE_SESSION(
        "session export", export_options, "ID",
        "All that is needed to repeat a session, as one JSON object: a line that `tandem batch' takes.", 1),
    [FLAGS_END] = SHAPE_SESSION("session end", end_options, "ID\n--older-than AGE",
                                "Ends a session that was interrupted, or all that are old.", 1),
};

/* ---- values ---- */

static const program_flag plain_flags[] = {
    PROGRAM_FLAG_TEXT('m', flags, workers.model),
    PROGRAM_FLAG_TEXT(KEY_DRAFT, flags, workers.draft),
    PROGRAM_FLAG_TEXT(KEY_MODEL_DRAFT, flags, workers.draft_model),
    PROGRAM_FLAG_TEXT(KEY_PIN, flags, workers.pin),
    PROGRAM_FLAG_TEXT(KEY_REPACK_CACHE, flags, workers.repack_cache),
    PROGRAM_FLAG_TEXT(KEY_LISTEN, flags, listen),
    PROGRAM_FLAG_SWITCH('v', flags, workers.verbose),
    PROGRAM_FLAG_SWITCH(KEY_RAW, flags, request.raw),
    PROGRAM_FLAG_SWITCH(KEY_NO_SPECIAL, flags, request.no_special),
    PROGRAM_FLAG_SWITCH(KEY_WHOLE, flags, whole),
    PROGRAM_FLAG_SWITCH(KEY_DELETE, flags, forget),
    PROGRAM_FLAG_SWITCH(KEY_SINGLE, flags, request.single_token),
    PROGRAM_FLAG_SWITCH(KEY_INSECURE, flags, insecure_bind),
    PROGRAM_FLAG_SWITCH(KEY_JSON, flags, json),
    PROGRAM_FLAG_SWITCH(KEY_COMPARE, flags, compare),
    PROGRAM_FLAG_INT(KEY_TOP_K, flags, request.sampling.top_k, "--top-k", 0, SAMPLER_VOCAB_MAX),
    PROGRAM_FLAG_INT(KEY_MAX_TOKENS, flags, request.max_tokens, "--max-tokens", 1, WIRE_CONTEXT_MAX),
    PROGRAM_FLAG_INT(KEY_THREADS, flags, workers.threads, "--threads", 1, WORKER_SETTINGS_THREADS_MAX),
    PROGRAM_FLAG_INT(KEY_CONTEXT, flags, request.context, "--ctx", 2, WIRE_CONTEXT_MAX),
    PROGRAM_FLAG_INT(KEY_BUDGET, flags, request.budget, "--budget", 0, WIRE_BUDGET_MAX),
    PROGRAM_FLAG_INT(KEY_SELFCHECK, flags, request.selfcheck, "--selfcheck", 0, INT32_MAX),
    PROGRAM_FLAG_INT(KEY_DRAFT_LAYERS, flags, workers.draft_layers, "--draft-layers", 1, MODEL_LAYERS_MAX),
    PROGRAM_FLAG_INT(KEY_DRAFT_THREADS, flags, workers.draft_threads, "--draft-threads", 1,
                     WORKER_SETTINGS_THREADS_MAX),
    PROGRAM_FLAG_INT(KEY_DRAFT_CONTEXT, flags, workers.draft_context, "--draft-ctx", 2, WIRE_CONTEXT_MAX),
    PROGRAM_FLAG_INT(KEY_WAIT, flags, wait, "--wait", 0, INT32_MAX),
    PROGRAM_FLAG_INT(KEY_TO, flags, to, "--to", 0, WIRE_CONTEXT_MAX),
    PROGRAM_FLAG_INT(KEY_LIMIT, flags, limit, "--limit", 0, INT32_MAX),
    PROGRAM_FLAG_INT(KEY_SESSIONS, flags, workers.sessions, "--sessions", 1, FLAGS_SESSIONS_MAX),
    PROGRAM_FLAG_INT(KEY_KV_BLOCKS, flags, workers.kv_blocks, "--kv-blocks", 0, FLAGS_KV_BLOCKS_MAX),
    /* sampler_check knows which of these are outside: */
    PROGRAM_FLAG_FLOAT(KEY_TEMP, flags, request.sampling.temperature, "--temp", 0, SAMPLER_TEMPERATURE_MAX),
    PROGRAM_FLAG_FLOAT(KEY_TOP_P, flags, request.sampling.top_p, "--top-p", 0, 1),
    PROGRAM_FLAG_FLOAT(KEY_MIN_P, flags, request.sampling.min_p, "--min-p", 0, 1),
    PROGRAM_FLAG_FLOAT(KEY_PENALTY, flags, request.sampling.repeat_penalty, "--repeat-penalty", 0,
                       SAMPLER_PENALTY_MAX),
};

static uint64_t to_seed(struct argp_state *state, const char *text) {
  int64_t value;
  err e = {0};
  if (program_int("--seed", text, 0, INT64_MAX, &value, &e)) argp_error(state, "%s", e.text);
  return (uint64_t)value;
}

static const char *to_word(struct argp_state *state, const char *name, const char *text, const char *a,
                           const char *b) {
  err e = {0};
  if (program_choice(name, text, (const char *[]){a, b}, 2, &e) < 0) argp_error(state, "%s", e.text);
  return text;
}

static bool is_one_of(const char *text, const char *a, const char *b) {
  return strcmp(text, a) == 0 || strcmp(text, b) == 0;
}

static bool is_probability(const char *text, const char *end) {
  char *stop;
  double value = strtod(text, &stop);
  return stop == end && end > text && value >= 0 && value <= 1;
}

/* The last ':' of text[0, end), or NULL. */
static const char *last_colon(const char *text, const char *end) {
  while (end > text)
    if (*--end == ':') return end;
  return NULL;
}

/* FILE:RATE[:S]; FILE may hold colons. Returns FILE's end, or NULL. */
static const char *replay_file_end(const char *text) {
  const char *end = text + strlen(text), *second = last_colon(text, end);
  if (!second || !is_probability(second + 1, end)) return NULL;
  const char *first = last_colon(text, second);
  return first && is_probability(first + 1, second) ? first : second;
}

static const char *to_template(struct argp_state *state, const char *text) {
  char names[CHAT_TEMPLATE_NAMES_MAX];
  chat_template_names(names);
  if (!chat_template_known(text)) argp_error(state, "unknown template '%s': those known are %s", text, names);
  return text;
}

static int check_replay(const char *draft, const char *file, err *e) {
  const char *end = replay_file_end(file);
  if (!end || end == file)
    return err_set(e, ERR_ARG, "--draft is '%s', but replay needs FILE:RATE[:S], with RATE and S from 0 to 1",
                   draft);
  char *path = strndup(file, (size_t)(end - file));
  int rc = path && access(path, R_OK) != 0
               ? err_set(e, ERR_ARG, "--draft: cannot read '%s': %s; make it with `tandem batch'", path,
                         strerror(errno))
               : ERR_OK;
  free(path);
  return rc;
}

int flags_check_draft(const worker_settings *w, err *e) {
  static const char replay[] = "replay:";
  bool model = w->draft_model || w->draft_layers, named = strcmp(w->draft, "model") == 0;
  if (strncmp(w->draft, replay, sizeof replay - 1) == 0) {
    int rc = check_replay(w->draft, w->draft + sizeof replay - 1, e);
    if (rc) return rc;
  } else if (!named && !is_one_of(w->draft, "none", "ngram"))
    return err_set(e, ERR_ARG,
                   "--draft is '%s', but must be ngram, model, none or replay:FILE:RATE[:S]; how many tokens "
                   "it drafts is --budget N",
                   w->draft);
  if (model && !named && strcmp(w->draft, "none") != 0)
    return err_set(e, ERR_ARG, "--draft %s is no model: leave it out, or -md and --draft-layers", w->draft);
  if (named && !model) return err_set(e, ERR_ARG, "--draft model needs -md FILE or --draft-layers N");
  if (w->draft_model && access(w->draft_model, R_OK) != 0)
    return err_set(e, ERR_ARG, "-md: cannot read '%s': %s", w->draft_model, strerror(errno));
  return ERR_OK;
}

/* Microseconds of "30d", "12h", "45m" or "10s". */
static int64_t to_age(struct argp_state *state, const char *text) {
  static const char units[] = "smhd";
  static const int64_t seconds[] = {1, 60, 3600, 86400};
  char *end;
  errno = 0;
  int64_t n = strtoll(text, &end, 10), second = 1000000;
  const char *unit = *end ? strchr(units, *end) : NULL;
  if (*text < '0' || *text > '9' || !unit || end[1] || errno ||
      n > INT64_MAX / second / seconds[unit - units])
    argp_error(state, "--older-than is '%s', but must be a number and its unit: 30d, 12h, 45m or 10s", text);
  return n * seconds[unit - units] * second;
}

static const char *to_ledger(const flags *f, struct argp_state *state, const char *text) {
  if (!*text) argp_error(state, "--ledger is empty: give a FILE, or none");
  if (f->command >= FLAGS_STATUS && strcmp(text, "none") == 0)
    argp_error(state, "--ledger none has no sessions: give a FILE, or leave it out");
  return text;
}

/* ---- the parser ---- */

static void add_stop(flags *f, struct argp_state *state, const char *text) {
  err e = {0};
  if (request_add_stop(&f->request, "--stop", text, strlen(text), &e)) argp_error(state, "%s", e.text);
}

static void set_system(flags *f, struct argp_state *state, const char *text) {
  err e = {0};
  if (request_set_system(&f->request, text, &e)) argp_error(state, "%s", e.text);
}

static void add_argument(flags *f, struct argp_state *state, const char *text) {
  const command_shape *shape = &shapes[f->command];
  if (f->argument_count == shape->arguments_max)
    argp_error(state, "'%s' is one argument too many%s", text,
               f->command == FLAGS_RUN ? ": put the prompt in quotes" : "");
  f->arguments[f->argument_count++] = text;
}

/* -md and --draft-layers mean --draft model; which draft was named otherwise is a contradiction, unless one
 * of them is only the environment's. */
static void check_draft(flags *f, struct argp_state *state) {
  err e = {0};
  bool other = f->workers.draft && strcmp(f->workers.draft, "model") != 0;
  if (f->command == FLAGS_DOCTOR) return; /* says what is wrong with it among the rest */
  if (f->draft_by_variable && other) f->workers.draft_model = NULL, f->workers.draft_layers = 0;
  bool model = f->workers.draft_model || f->workers.draft_layers;
  if (f->method_by_variable && model) f->workers.draft = NULL;
  if (!f->workers.draft && !model && f->command == FLAGS_RESUME) return; /* as it was */
  if (!f->workers.draft) f->workers.draft = model ? "model" : "ngram";
  if (flags_check_draft(&f->workers, &e)) argp_error(state, "%s", e.text);
}

typedef struct worker_flag {
  int key;
  const char *name;
} worker_flag;

static const worker_flag worker_flags[] = {{KEY_THREADS, "--threads"},
                                           {KEY_PIN, "--pin"},
                                           {KEY_MATH, "--math"},
                                           {KEY_KV, "--kv"},
                                           {KEY_KV_BLOCKS, "--kv-blocks"},
                                           {KEY_MODEL_DRAFT, "-md"},
                                           {KEY_DRAFT_LAYERS, "--draft-layers"},
                                           {KEY_DRAFT_THREADS, "--draft-threads"},
                                           {KEY_DRAFT_CONTEXT, "--draft-ctx"},
                                           {KEY_REPACK_CACHE, "--repack-cache"}};

/* What the environment says of workers is for those that are started with it too: it contradicts nothing. */
static void note_worker_flag(flags *f, int key, const char *text, bool by_variable) {
  if (key == KEY_MODEL_DRAFT || key == KEY_DRAFT_LAYERS) f->draft_by_variable = by_variable;
  if (key == KEY_DRAFT) f->method_by_variable = by_variable;
  if (key == KEY_KV_BLOCKS) f->blocks_by_variable = by_variable;
  if (by_variable) return;
  for (size_t i = 0; i < sizeof worker_flags / sizeof *worker_flags; i++)
    if (worker_flags[i].key == key) f->for_workers = worker_flags[i].name;
  if (key == KEY_DRAFT && strcmp(text, "none") != 0) f->for_workers = "--draft METHOD";
}

static void check_listening(flags *f, struct argp_state *state) {
  err e = {0};
  if (!f->listen && f->command == FLAGS_SERVE)
    argp_error(state, "where do the workers register? Give --listen ENDPOINT, ipc://PATH or tcp://HOST:PORT");
  if (!f->listen && (f->wait || f->insecure_bind))
    argp_error(state, "--wait and --insecure-bind go with --listen ENDPOINT: give that too, or drop them");
  if (!f->listen) return;
  if (endpoint_check(f->listen, &e)) argp_error(state, "--listen: %s", e.text);
  if (f->for_workers)
    argp_error(state,
               "%s is for programs that tandem starts; with --listen give it to them where you start them",
               f->for_workers);
  if (f->workers.draft && strcmp(f->workers.draft, "none") != 0) f->workers.draft = "any";
}

static void check_whole(flags *f, struct argp_state *state) {
  const command_shape *shape = &shapes[f->command];
  err e = {0};
  check_draft(f, state);
  check_listening(f, state);
  if (!f->workers.model && !shape->without_model)
    argp_error(state, "no model: give one with -m FILE.gguf (scripts/get_model.sh fetches the default one)");
  if (f->blocks_by_variable && strcmp(f->workers.kv, "virtual") != 0) f->workers.kv_blocks = 0;
  if (f->workers.kv_blocks && strcmp(f->workers.kv, "virtual") != 0)
    argp_error(state, "--kv-blocks is the size of a virtual cache: give --kv virtual too");
  bool chat = f->command == FLAGS_RUN && f->argument_count == 0 && isatty(STDIN_FILENO);
  bool by_age = f->older_us >= 0;
  if (by_age && f->argument_count > 0) argp_error(state, "an ID and --older-than: give one of them");
  if (f->argument_count < shape->arguments_min && !chat && !by_age) argp_error(state, "%s", shape->missing);
  if (f->command == FLAGS_ROLLBACK && f->to < 0)
    argp_error(state, "how much stays? Give --to N, in tokens of the answer");
  if (chat && (f->request.raw || f->json))
    argp_error(state, "a conversation takes neither --raw nor --json: give a prompt, or drop them");
  if (chat && f->compare) argp_error(state, "--compare answers one prompt twice: give it");
  if (f->compare && !flags_wants_draft(f))
    argp_error(state, "--compare needs a draft to compare with: drop --draft none, or --budget 0");
  if (f->request.raw && f->request.system)
    argp_error(state, "--system goes into the chat template, which --raw leaves out: drop one of them");
  if (f->request.raw && f->template)
    argp_error(state, "--chat-template names what --raw leaves out: drop one of them");
  if (sampler_check(&f->request.sampling, &e)) argp_error(state, "%s", e.text);
}

static error_t parse_flag(int key, char *text, struct argp_state *state) {
  flags *f = state->input;
  note_worker_flag(f, key, text, !state->argv);
  switch (key) {
  case KEY_SEED:
    f->request.sampling.seed = to_seed(state, text), f->request.seed_given = true;
    break;
  case KEY_STOP:
    add_stop(f, state, text);
    break;
  case KEY_SYSTEM:
    set_system(f, state, text);
    break;
  case KEY_TEMPLATE:
    f->template = to_template(state, text);
    break;
  case KEY_MATH:
    f->workers.math = to_word(state, "--math", text, "int8", "f32");
    break;
  case KEY_KV:
    f->workers.kv = to_word(state, "--kv", text, "static", "virtual");
    break;
  case KEY_OLDER:
    f->older_us = to_age(state, text);
    break;
  case KEY_LEDGER:
    f->ledger = to_ledger(f, state, text);
    break;
  case KEY_PACE:
    f->request.lockstep = *to_word(state, "--pace", text, "free", "lockstep") == 'l';
    break;
  case KEY_PROMPT:
  case ARGP_KEY_ARG:
    add_argument(f, state, text);
    break;
  case ARGP_KEY_END:
    check_whole(f, state);
    break;
  default:
    return program_take_flag(plain_flags, sizeof plain_flags / sizeof *plain_flags, key, text, state);
  }
  return 0;
}

static int32_t sessions_of(flags_command command) {
  return command == FLAGS_BATCH ? FLAGS_SESSIONS_DEFAULT : command == FLAGS_SERVE ? FLAGS_SESSIONS_MAX : 1;
}

static void set_defaults(flags *f, flags_command command) {
  *f = (flags){.command = command,
               .workers = {.math = "int8",
                           .kv = "static",
                           .pin = "none",
                           .threads = cpus_threads(),
                           .sessions = sessions_of(command)},
               .ledger = command == FLAGS_BATCH ? "none" : NULL,
               .to = -1,
               .limit = FLAGS_LIST_DEFAULT,
               .older_us = -1};
  request_init(&f->request);
  if (command != FLAGS_RESUME) return;
  f->workers.math = NULL;
  f->request.max_tokens = 0;
  f->request.budget = -1;
}

/* One that nobody gives is drawn, so that it can be named in the result. */
static void draw_seed(uint64_t *seed, const char *program) {
  err e = {0};
  if (program_random(seed, sizeof *seed, &e)) {
    fprintf(stderr, "%s: %s; give a --seed\n", program, e.text);
    exit(STATUS_FAILED);
  }
  *seed >>= 64 - SEED_BITS;
}

void flags_parse(flags *f, flags_command command, int argc, char **argv) {
  set_defaults(f, command);
  draw_seed(&f->request.sampling.seed, argv[0]);
  const command_shape *shape = &shapes[command];
  struct argp parser = {
      .options = shape->options, .parser = parse_flag, .args_doc = shape->arguments, .doc = shape->text};
  argp_err_exit_status = STATUS_USAGE;
  program_parse_flags(&parser, argc, argv, f);
  f->request.speculate = f->workers.draft && strcmp(f->workers.draft, "none") != 0;
}

void flags_fini(flags *f) {
  request_fini(&f->request);
}

const char *flags_command_name(flags_command command) {
  return shapes[command].name;
}

bool flags_wants_draft(const flags *f) {
  return strcmp(f->workers.draft, "none") != 0 && f->request.budget > 0;
}
