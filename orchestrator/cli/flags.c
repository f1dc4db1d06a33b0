#include "orchestrator/cli/flags.h"

#include "common/base/cpus.h"
#include "common/base/output_file.h"
#include "common/base/program.h"
#include "common/file/head_lookup.h"
#include "common/text/chat_template.h"
#include "common/base/utf8.h"
#include "orchestrator/cli/exit_status.h"
#include "orchestrator/cli/flags_table.h"
#include "orchestrator/cli/input_file.h"
#include "orchestrator/cli/show.h"
#include "orchestrator/ledger/ledger_database.h"
#include "wire/draft_methods.h"
#include "wire/endpoint.h"
#include "wire/keys.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEED_BITS 53 /* of a random seed: every JSON reader keeps it exactly */

/* ---- values ---- */

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

static int to_show(struct argp_state *state, const char *text) {
  static const char *const words[] = {"never", "auto", "always"}; /* as show_when counts */
  err e = {0};
  int at = text ? program_choice("--show", text, words, 3, &e) : SHOW_AUTO;
  if (at < 0) argp_error(state, "%s", e.text);
  return at;
}

static const char *to_template(struct argp_state *state, const char *text) {
  char names[CHAT_TEMPLATE_NAMES_MAX];
  chat_template_names(names);
  if (!chat_template_known(text)) argp_error(state, "unknown template '%s': those known are %s", text, names);
  return text;
}

static int check_replay(const char *draft, const char *file, err *e) {
  char path[PATH_MAX];
  if (!draft_methods_replay_file(file, path))
    return err_set(e, ERR_ARG, "--draft is '%s', but replay needs FILE:RATE[:S], with RATE and S from 0 to 1",
                   draft);
  output_file_spare(path);
  return access(path, R_OK) == 0
             ? ERR_OK
             : err_set(e, ERR_ARG, "--draft: cannot read '%s': %s; make it with `tandem batch'", path,
                       strerror(errno));
}

int flags_check_draft(const worker_settings *w, err *e) {
  draft_methods m = {.count = 0};
  bool none = strcmp(w->draft, "none") == 0;
  int rc = none ? ERR_OK : draft_methods_parse(&m, w->draft, e);
  if (rc == ERR_OK && m.replay) rc = check_replay(w->draft, m.replay, e);
  if (rc != ERR_OK) return rc;
  bool model = w->draft_model || w->draft_layers;
  bool named = draft_methods_have(&m, DRAFT_MODEL) || draft_methods_have(&m, DRAFT_EAGLE3);
  if (model && !named && !none)
    return err_set(e, ERR_ARG, "--draft %s is no model: leave it out, or -md and --draft-layers", w->draft);
  if (named && !model)
    return err_set(e, ERR_ARG, "--draft %s needs -md FILE%s", w->draft,
                   draft_methods_have(&m, DRAFT_MODEL) ? " or --draft-layers N" : ", the head");
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

/* TOKEN(+|-)VALUE */
static void add_bias(flags *f, struct argp_state *state, const char *text) {
  char digits[16] = "", *end;
  size_t size = strspn(text, "0123456789");
  const char *value = text + size;
  int64_t token = -1;
  err e = {0};
  if (size > 0 && size < sizeof digits) memcpy(digits, text, size);
  if ((*value != '+' && *value != '-') || program_int("TOKEN", digits, 0, INT32_MAX, &token, &e))
    argp_error(state, "--logit-bias is TOKEN+VALUE or TOKEN-VALUE, such as 15043-100, not '%s'", text);
  float x = strtof(value, &end);
  if (*end || end == value || !(x >= -SAMPLER_BIAS_VALUE_MAX && x <= SAMPLER_BIAS_VALUE_MAX))
    argp_error(state, "VALUE of --logit-bias %s must be a number from %g to %g", text,
               (double)-SAMPLER_BIAS_VALUE_MAX, (double)SAMPLER_BIAS_VALUE_MAX);
  if (request_add_bias(&f->request, (int32_t)token, x, &e)) argp_error(state, "--logit-bias: %s", e.text);
}

/* One of --grammar, --grammar-file, --json-schema and --json-schema-file. */
static void set_grammar(flags *f, int key, struct argp_state *state, const char *text) {
  bool file = key == KEY_GRAMMAR_FILE || key == KEY_JSON_SCHEMA_FILE;
  bool schema = key == KEY_JSON_SCHEMA || key == KEY_JSON_SCHEMA_FILE;
  input_file in = {0};
  err e = {0};
  if (f->request.grammar) argp_error(state, "--grammar and --json-schema: give one of them, once");
  int rc = file ? input_file_read(&in, text, FLAGS_GRAMMAR_FILE_MAX, &e) : ERR_OK;
  const char *content = file ? in.data : text;
  if (rc == ERR_OK && file && strlen(content) != in.size)
    rc = err_set(&e, ERR_FORMAT, "%s holds a NUL", text);
  if (rc == ERR_OK)
    rc = schema ? request_set_schema_text(&f->request, content, &e)
                : request_set_grammar(&f->request, content, &e);
  if (file) input_file_fini(&in);
  if (rc) argp_error(state, "%s", e.text);
}

static void set_system(flags *f, struct argp_state *state, const char *text) {
  err e = {0};
  if (request_set_system(&f->request, text, &e)) argp_error(state, "%s", e.text);
}

static bool is_model(const char *text) {
  const char *end = strrchr(text, '.');
  return end && strcmp(end, ".gguf") == 0;
}

/* A model's path among the arguments is there for want of -m; words of a prompt are, for want of quotes. */
static const char *missing_before(const flags *f, const char *text) {
  const char *first = f->argument_count > 0 ? f->arguments[0] : text;
  bool model = !f->workers.model && !flags_table_commands[f->command].without_model;
  if (model && (is_model(first) || is_model(text))) return ": -m goes before the model's path";
  return f->command == FLAGS_RUN ? ": put the prompt in quotes, or give - and the prompt on stdin" : "";
}

static void add_argument(flags *f, struct argp_state *state, const char *text) {
  const flags_table_command *shape = &flags_table_commands[f->command];
  if (f->argument_count == shape->arguments_max)
    argp_error(state, "'%s' is one argument too many%s", text, missing_before(f, text));
  f->arguments[f->argument_count++] = text;
}

/* -md and --draft-layers mean --draft model, or with a head eagle3,ngram. A list without it beside them is a
 * contradiction, unless one of the two comes from the environment only. */
static void check_draft(flags *f, struct argp_state *state) {
  err e = {0};
  bool has_model = f->workers.draft && draft_methods_compute(f->workers.draft);
  if (f->command == FLAGS_DOCTOR) return; /* reports what is wrong with it among its checks */
  if (f->draft_by_variable && f->workers.draft && !has_model)
    f->workers.draft_model = NULL, f->workers.draft_layers = 0;
  bool model = f->workers.draft_model || f->workers.draft_layers;
  if (f->method_by_variable && model) f->workers.draft = NULL;
  if (!f->workers.draft && !model && f->command == FLAGS_RESUME) return; /* the draft stays as it was */
  bool head = f->workers.draft_model && head_lookup_is_head(f->workers.draft_model);
  f->draft_by_default = !f->workers.draft && !model;
  if (!f->workers.draft) f->workers.draft = head ? FLAGS_HEAD_DRAFT : model ? "model" : "ngram";
  if (flags_check_draft(&f->workers, &e)) argp_error(state, "%s", e.text);
}

typedef struct worker_flag {
  int key;
  const char *name;
} worker_flag;

static const worker_flag worker_flags[] = {{KEY_THREADS, "--threads"},
                                           {KEY_PIN, "--pin"},
                                           {KEY_DEVICE, "--device"},
                                           {KEY_DRAFT_DEVICE, "--draft-device"},
                                           {KEY_MATH, "--math"},
                                           {KEY_KV, "--kv"},
                                           {KEY_KV_BLOCKS, "--kv-blocks"},
                                           {KEY_KV_MEMORY, "--kv-memory"},
                                           {KEY_DRAFT_KV_MEMORY, "--draft-kv-memory"},
                                           {KEY_MODEL_DRAFT, "-md"},
                                           {KEY_DRAFT_LAYERS, "--draft-layers"},
                                           {KEY_DRAFT_THREADS, "--draft-threads"},
                                           {KEY_DRAFT_CONTEXT, "--draft-ctx"},
                                           {KEY_REPACK_CACHE, "--repack-cache"},
                                           {KEY_TREE, "--tree"}};

/* Remembers flags that are meant for workers. Variables of the environment also reach workers that others
 * start, so they contradict nothing. */
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
  if (!f->listen && f->workers_from == FLAGS_WORKERS_WAIT)
    argp_error(state, "where do the workers register? Give --listen ENDPOINT, ipc://PATH or tcp://HOST:PORT");
  if (!f->listen) return;
  if (endpoint_check(f->listen, &e)) argp_error(state, "--listen: %s", e.text);
  if (f->for_workers)
    argp_error(state,
               "%s is for programs that tandem starts; with --listen give it to them where you start them",
               f->for_workers);
  if (f->workers.draft && strcmp(f->workers.draft, "none") != 0) f->workers.draft = "any";
}

static void check_whole(flags *f, struct argp_state *state) {
  const flags_table_command *shape = &flags_table_commands[f->command];
  err e = {0};
  check_draft(f, state);
  check_listening(f, state);
  bool own = f->command == FLAGS_CONVERT; /* its arguments are such files themselves */
  if (!f->workers.model && !shape->without_model && !own && f->argument_count > 0 &&
      is_model(f->arguments[0]))
    argp_error(state, "no model: -m goes before the model's path, %s", f->arguments[0]);
  if (!f->workers.model && !shape->without_model)
    argp_error(state, "no model: give one with -m FILE.gguf (scripts/get_model.sh fetches the default one)");
  if (f->blocks_by_variable && strcmp(f->workers.kv, "virtual") != 0) f->workers.kv_blocks = 0;
  if (f->workers.kv_blocks && strcmp(f->workers.kv, "virtual") != 0)
    argp_error(state, "--kv-blocks is the size of a virtual cache: give --kv virtual too");
  bool chat = f->command == FLAGS_RUN && f->argument_count == 0 && isatty(STDIN_FILENO);
  if (!f->certificate_file != !f->key_file)
    argp_error(state, "--ssl-cert-file and --ssl-key-file go together: give both, or neither");
  if (f->show < 0) f->show = chat ? SHOW_AUTO : SHOW_NEVER;
  bool by_age = f->older_us >= 0;
  if (by_age && f->argument_count > 0) argp_error(state, "an ID and --older-than: give one of them");
  if (f->all && f->argument_count > 0) argp_error(state, "an ID and --all: give one of them");
  if (f->argument_count < shape->arguments_min && !chat && !by_age && !f->all)
    argp_error(state, "%s", shape->missing);
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

/* Flags whose value is one of a few words. */
static error_t take_word(flags *f, int key, char *text, struct argp_state *state) {
  if (key == KEY_MATH)
    f->workers.math = to_word(state, "--math", text, "int8", "f32");
  else if (key == KEY_KV)
    f->workers.kv = to_word(state, "--kv", text, "static", "virtual");
  else if (key == KEY_PACE)
    f->request.lockstep = *to_word(state, "--pace", text, "free", "lockstep") == 'l';
  else if (key == KEY_TREE)
    f->tree = text ? text : "";
  else if (key == KEY_SHOW)
    f->show = to_show(state, text);
  else
    return program_take_flag(flags_table_values, flags_table_value_count, key, text, state);
  return 0;
}

/* As llama.cpp has it: to the end of the context. */
static bool is_endless(int key, const char *text) {
  return key == KEY_MAX_TOKENS && strcmp(text, "-1") == 0;
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
  case KEY_BIAS:
    add_bias(f, state, text);
    break;
  case KEY_GRAMMAR:
  case KEY_GRAMMAR_FILE:
  case KEY_JSON_SCHEMA:
  case KEY_JSON_SCHEMA_FILE:
    set_grammar(f, key, state, text);
    break;
  case KEY_SYSTEM:
    set_system(f, state, text);
    break;
  case KEY_TEMPLATE:
    f->template = to_template(state, text);
    break;
  case KEY_OLDER:
    f->older_us = to_age(state, text);
    break;
  case KEY_LEDGER:
    f->ledger = to_ledger(f, state, text);
    break;
  case KEY_PROMPT:
  case ARGP_KEY_ARG:
    add_argument(f, state, text);
    break;
  case ARGP_KEY_END:
    check_whole(f, state);
    break;
  default:
    if (!is_endless(key, text)) return take_word(f, key, text, state);
    f->request.max_tokens = WIRE_CONTEXT_MAX;
  }
  return 0;
}

static int32_t sessions_of(flags_command command) {
  if (command == FLAGS_BATCH || command == FLAGS_API) return FLAGS_SESSIONS_DEFAULT;
  return command == FLAGS_SERVE ? FLAGS_SESSIONS_MAX : 1;
}

static void set_defaults(flags *f, flags_command command) {
  *f = (flags){.command = command,
               .workers = {.math = "int8",
                           .kv = "static",
                           .pin = "none",
                           .threads = cpus_threads(),
                           .sessions = sessions_of(command)},
               .ledger = command == FLAGS_BATCH || command == FLAGS_BENCH ? "none" : NULL,
               .host = "127.0.0.1",
               .port = FLAGS_PORT_DEFAULT,
               .url = FLAGS_URL_DEFAULT,
               .waiting_max = FLAGS_WAITING_DEFAULT,
               .repeat = 1,
               .to = -1,
               .show = -1,
               .limit = FLAGS_LIST_DEFAULT,
               .type = FLAGS_TYPE_Q8_0,
               .output_type = FLAGS_TYPE_SAME,
               .older_us = -1};
  request_init(&f->request);
  if (command == FLAGS_API) {
    f->request.max_tokens = 0; /* all that the context has room for */
    f->request.sampling.temperature = 1;
  }
  if (command != FLAGS_RESUME) return;
  f->workers.math = NULL;
  f->request.max_tokens = 0;
  f->request.budget = -1;
}

/* A seed that nobody gives is drawn, so that the result can name it. */
static void draw_seed(uint64_t *seed, const char *program) {
  err e = {0};
  if (program_random(seed, sizeof *seed, &e)) {
    fprintf(stderr, "%s: %s; give a --seed\n", program, e.text);
    exit(STATUS_FAILED);
  }
  *seed >>= 64 - SEED_BITS;
}

/* The ledger of --ledger, and the default one, which nobody wants to lose to a command that keeps nothing. */
static void spare_ledgers(const flags *f) {
  char path[LEDGER_PATH_MAX];
  if (ledger_database_default_path(path, NULL) == ERR_OK) ledger_database_spare(path);
  if (f->ledger && strcmp(f->ledger, "none") != 0) ledger_database_spare(f->ledger);
}

/* What the command reads, itself or in its workers: nothing is written over it. */
static void spare_inputs(const flags *f, const char *program) {
  err e = {0};
  char folder[PATH_MAX];
  const char *const paths[] = {f->workers.model, f->workers.draft_model, f->calibration,
                               f->api_key_file,  f->certificate_file,    f->key_file,
                               "/dev/stdin"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) output_file_spare(paths[i]);
  if (keys_folder(f->keys, folder, NULL) == ERR_OK) output_file_spare(folder);
  spare_ledgers(f);
  bool reads_first = f->command == FLAGS_BATCH || f->command == FLAGS_SERVE || f->command == FLAGS_CONVERT ||
                     f->command == FLAGS_BENCH || f->command == FLAGS_IMPORT;
  if (reads_first && f->argument_count > 0) output_file_spare(f->arguments[0]);
  const char *trace = f->workers.trace;
  if (output_file_check_fd(STDOUT_FILENO, "stdout", &e) || (trace && output_file_check(trace, &e))) {
    fprintf(stderr, "%s: error: %s\n", program, e.text);
    exit(STATUS_USAGE);
  }
}

void flags_parse(flags *f, flags_command command, int argc, char **argv) {
  set_defaults(f, command);
  draw_seed(&f->request.sampling.seed, argv[0]);
  const flags_table_command *shape = &flags_table_commands[command];
  struct argp parser = {
      .options = shape->options, .parser = parse_flag, .args_doc = shape->arguments, .doc = shape->text};
  argp_err_exit_status = STATUS_USAGE;
  program_parse_flags(&parser, argc, argv, f);
  log_use_format(f->workers.log_format);
  spare_inputs(f, argv[0]);
  f->request.speculate = f->workers.draft && strcmp(f->workers.draft, "none") != 0;
}

void flags_fini(flags *f) {
  request_fini(&f->request);
}

const char *flags_command_name(flags_command command) {
  return flags_table_commands[command].name;
}

bool flags_wants_draft(const flags *f) {
  return strcmp(f->workers.draft, "none") != 0 && f->request.budget > 0;
}
