#include "orchestrator/cli/flags.h"

#include "common/base/cpus.h"
#include "common/base/exit_status.h"
#include "common/base/log.h"
#include "common/base/output_file.h"
#include "common/base/program.h"
#include "common/base/utf8.h"
#include "common/command_line/draft_methods.h"
#include "common/command_line/flag_reader.h"
#include "common/file/head_lookup.h"
#include "common/file/synthetic.h"
#include "common/text/chat_template.h"
#include "orchestrator/cli/input_file.h"
#include "orchestrator/cli/show.h"
#include "orchestrator/ledger/ledger_database.h"
#include "wire/endpoint.h"
#include "wire/keys.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEED_BITS              53        /* of a random seed: every JSON reader keeps it exactly */
#define GRAMMAR_FILE_MAX       (1 << 20) /* bytes of a grammar or a schema */
#define SESSIONS_DEFAULT       4         /* of batch and serve */
#define SESSIONS_SERVE_WORKERS 64

/* ---- values that are read here ---- */

static int set_show(flags *f, const char *text, err *e) {
  static const char *const words[] = {"never", "auto", "always"}; /* as show_when counts */
  int at = text ? program_choice("--show", text, words, 3, e) : SHOW_AUTO;
  if (at >= 0) f->show = at;
  return at < 0 ? at : ERR_OK;
}

static int check_template(const char *text, err *e) {
  char names[CHAT_TEMPLATE_NAMES_MAX];
  chat_template_names(names);
  return chat_template_known(text)
             ? ERR_OK
             : err_set(e, ERR_ARG, "unknown template '%s': those known are %s", text, names);
}

/* Microseconds of "30d", "12h", "45m" or "10s". */
static int set_age(flags *f, const char *text, err *e) {
  static const char units[] = "smhd";
  static const int64_t seconds[] = {1, 60, 3600, 86400};
  char *end;
  errno = 0;
  int64_t n = strtoll(text, &end, 10), second = 1000000;
  const char *unit = *end ? strchr(units, *end) : NULL;
  if (*text < '0' || *text > '9' || !unit || end[1] || errno ||
      n > INT64_MAX / second / seconds[unit - units])
    return err_set(e, ERR_ARG,
                   "--older-than is '%s', but must be a number and its unit: 30d, 12h, 45m or 10s", text);
  f->older_us = n * seconds[unit - units] * second;
  return ERR_OK;
}

static int check_ledger(const flags *f, const char *text, err *e) {
  if (!*text) return err_set(e, ERR_ARG, "--ledger is empty: give a FILE, or none");
  if (f->command >= COMMAND_STATUS && strcmp(text, "none") == 0)
    return err_set(e, ERR_ARG, "--ledger none has no sessions: give a FILE, or leave it out");
  return ERR_OK;
}

/* TOKEN(+|-)VALUE */
static int add_bias(flags *f, const char *text, err *e) {
  char digits[16] = "", *end;
  size_t size = strspn(text, "0123456789");
  const char *value = text + size;
  int64_t token = -1;
  if (size > 0 && size < sizeof digits) memcpy(digits, text, size);
  if ((*value != '+' && *value != '-') || program_int("TOKEN", digits, 0, INT32_MAX, &token, e))
    return err_set(e, ERR_ARG, "--logit-bias is TOKEN+VALUE or TOKEN-VALUE, such as 15043-100, not '%s'",
                   text);
  float x = strtof(value, &end);
  if (*end || end == value || !(x >= -SAMPLER_BIAS_VALUE_MAX && x <= SAMPLER_BIAS_VALUE_MAX))
    return err_set(e, ERR_ARG, "VALUE of --logit-bias %s must be a number from %g to %g", text,
                   (double)-SAMPLER_BIAS_VALUE_MAX, (double)SAMPLER_BIAS_VALUE_MAX);
  err why = {0};
  int rc = request_add_bias(&f->request, (int32_t)token, x, &why);
  return rc ? err_set(e, rc, "--logit-bias: %s", why.text) : ERR_OK;
}

/* One of --grammar, --grammar-file, --json-schema and --json-schema-file. */
static int set_grammar(flags *f, flag_id id, const char *text, err *e) {
  bool file = id == FLAG_grammar_file || id == FLAG_json_schema_file;
  bool schema = id == FLAG_json_schema || id == FLAG_json_schema_file;
  input_file in = {0};
  if (f->request.grammar) return err_set(e, ERR_ARG, "--grammar and --json-schema: give one of them, once");
  int rc = file ? input_file_read(&in, text, GRAMMAR_FILE_MAX, e) : ERR_OK;
  const char *content = file ? in.data : text;
  if (rc == ERR_OK && file && strlen(content) != in.size) rc = err_set(e, ERR_FORMAT, "%s holds a NUL", text);
  if (rc == ERR_OK)
    rc = schema ? request_set_schema_text(&f->request, content, e)
                : request_set_grammar(&f->request, content, e);
  if (file) input_file_fini(&in);
  return rc;
}

static int take_own(void *context, flag_id id, const char *text, err *e) {
  flags *f = context;
  switch (id) {
  case FLAG_stop:
    return request_add_stop(&f->request, "--stop", text, strlen(text), e);
  case FLAG_logit_bias:
    return add_bias(f, text, e);
  case FLAG_system:
    return request_set_system(&f->request, text, e);
  case FLAG_template:
    return check_template(text, e);
  case FLAG_older:
    return set_age(f, text, e);
  case FLAG_ledger:
    return check_ledger(f, text, e);
  case FLAG_show:
    return set_show(f, text, e);
  case FLAG_tree:
    if (!text) f->given.tree = "";
    return ERR_OK;
  case FLAG_prompt: /* an argument */
  case FLAG_pin:    /* the target reads it */
    return ERR_OK;
  default:
    return set_grammar(f, id, text, e);
  }
}

/* ---- the draft ---- */

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

/* A bench has a list of its own, whose methods are checked one by one. */
static int check_corpus(const flag_values *v, const draft_methods *m, err *e) {
  bool typed =
      v->from[FLAG_corpus] == FLAG_FROM_COMMAND_LINE || v->from[FLAG_corpus_learn] == FLAG_FROM_COMMAND_LINE;
  struct stat s;
  if (v->corpus && draft_methods_have(m, DRAFT_SUFFIX) && stat(v->corpus, &s) != 0)
    return err_set(e, ERR_ARG, "--corpus: cannot read '%s': %s", v->corpus, strerror(errno));
  return draft_methods_check_corpus(m, v->corpus, v->corpus_learn, typed && !v->methods, e);
}

int flags_check_draft(const flag_values *v, err *e) {
  draft_methods m = {.count = 0};
  bool none = strcmp(v->draft, "none") == 0;
  int rc = none ? ERR_OK : draft_methods_parse(&m, v->draft, e);
  if (rc == ERR_OK && m.replay) rc = check_replay(v->draft, m.replay, e);
  if (rc != ERR_OK) return rc;
  rc = check_corpus(v, &m, e);
  if (rc != ERR_OK) return rc;
  bool model = v->draft_model || v->draft_layers;
  bool named = draft_methods_have(&m, DRAFT_MODEL) || draft_methods_have(&m, DRAFT_EAGLE3);
  if (model && !named && !none)
    return err_set(e, ERR_ARG, "--draft %s is no model: leave it out, or -md and --draft-layers", v->draft);
  if (named && !model)
    return err_set(e, ERR_ARG, "--draft %s needs -md FILE%s", v->draft,
                   draft_methods_have(&m, DRAFT_MODEL) ? " or --draft-layers N" : ", the head");
  if (v->draft_model && !synthetic_is(v->draft_model) && access(v->draft_model, R_OK) != 0)
    return err_set(e, ERR_ARG, "-md: cannot read '%s': %s", v->draft_model, strerror(errno));
  return ERR_OK;
}

/* A bench would look up its own answers. */
static bool is_of_one_user(flag_command c) {
  return c == COMMAND_RUN || c == COMMAND_BATCH || c == COMMAND_RESUME;
}

/* -md and --draft-layers mean --draft model,ngram, or with a head eagle3,ngram. A list without it beside them
 * is a contradiction, unless one of the two comes from the environment or a file only. */
static int settle_draft(flags *f, err *e) {
  flag_values *v = &f->given;
  bool model_typed = v->from[FLAG_draft_model] == FLAG_FROM_COMMAND_LINE ||
                     v->from[FLAG_draft_layers] == FLAG_FROM_COMMAND_LINE;
  bool named = v->draft && draft_methods_compute(v->draft);
  if (is_of_one_user(f->command)) v->corpus_learn = true;
  if (f->command == COMMAND_DOCTOR) return ERR_OK; /* reports what is wrong with it among its checks */
  if (!model_typed && v->draft && !named) v->draft_model = NULL, v->draft_layers = 0;
  bool model = v->draft_model || v->draft_layers;
  if (model && v->from[FLAG_draft] != FLAG_FROM_COMMAND_LINE) v->draft = NULL;
  if (!v->draft && !model && f->command == COMMAND_RESUME) return ERR_OK; /* the draft stays as it was */
  bool head = v->draft_model && head_lookup_is_head(v->draft_model);
  f->draft_by_default = !v->draft && !model;
  if (!v->draft) v->draft = head ? FLAGS_HEAD_DRAFT : model ? FLAGS_MODEL_DRAFT : "ngram";
  return flags_check_draft(v, e);
}

/* ---- what fits together ---- */

/* A flag that was typed and is meant for workers that tandem starts; NULL: none. Variables and files may be
 * meant for workers that others start as well, so they contradict nothing. */
static const char *worker_flag(const flags *f) {
  for (int i = 0; i < flag_row_count; i++) {
    const flag_row *r = &flag_rows[i];
    bool both = r->id == FLAG_model || r->id == FLAG_sessions || r->id == FLAG_log_format;
    bool plain = r->id == FLAG_draft && f->given.draft && strcmp(f->given.draft, "none") == 0;
    if ((r->target || r->draft) && !both && !plain && f->given.from[r->id] == FLAG_FROM_COMMAND_LINE)
      return r->name;
  }
  return NULL;
}

static int check_listening(flags *f, err *e) {
  static const char where[] =
      "where do the workers register? Give --listen ENDPOINT, ipc://PATH or tcp://HOST:PORT";
  const flag_values *v = &f->given;
  const char *for_workers = worker_flag(f);
  if (!v->listen && (f->command == COMMAND_SERVE_WORKERS || v->workers_from))
    return err_set(e, ERR_ARG, "%s", where);
  if (!v->listen && (v->wait || v->insecure_bind))
    return err_set(e, ERR_ARG,
                   "--wait and --insecure-bind go with --listen ENDPOINT: give that too, or drop them");
  if (!v->listen) return ERR_OK;
  err why = {0};
  int rc = endpoint_check(v->listen, &why);
  if (rc) return err_set(e, rc, "--listen: %s", why.text);
  if (for_workers)
    return err_set(
        e, ERR_ARG,
        "--%s is for programs that tandem starts; with --listen give it to them where you start them",
        for_workers);
  if (v->draft && strcmp(v->draft, "none") != 0) f->given.draft = "any";
  return ERR_OK;
}

/* What is there and cannot be, or is missing. */
static int check_rules(const flags *f, bool chat, err *e) {
  const flag_values *v = &f->given;
  const flag_command_row *shape = &flag_command_rows[f->command];
  bool named = v->argument_count > 0, no_model = !v->model && shape->needs_model;
  bool own = f->command == COMMAND_CONVERT_HEAD; /* its arguments are models themselves */
  const struct {
    bool wrong;
    const char *why;
  } rules[] = {
      {no_model, "no model: give one with -m FILE.gguf (scripts/get_model.sh fetches the default one)"},
      {v->kv_blocks && v->kv == 0, "--kv-blocks is the size of a virtual cache: give --kv virtual too"},
      {!v->certificate_file != !v->key_file,
       "--ssl-cert-file and --ssl-key-file go together: give both, or neither"},
      {f->older_us >= 0 && named, "an ID and --older-than: give one of them"},
      {v->all && named, "an ID and --all: give one of them"},
      {v->argument_count < shape->least_arguments && !chat && f->older_us < 0 && !v->all, shape->missing},
      {f->command == COMMAND_ROLLBACK && v->to < 0, "how much stays? Give --to N, in tokens of the answer"},
      {chat && (v->raw || v->json),
       "a conversation takes neither --raw nor --json: give a prompt, or drop them"},
      {chat && v->compare, "--compare answers one prompt twice: give it"},
      {v->compare && !flags_wants_draft(f),
       "--compare needs a draft to compare with: drop --draft none, or --budget 0"},
      {v->partial_lossy && !v->partial_kv, "--partial-kv-lossy says how --partial-kv goes on: give that too"},
      {v->partial_lossy && (v->compare || f->command == COMMAND_BENCH_SPECULATION),
       "--partial-kv-lossy changes answers, so there is nothing to compare: drop it"},
      {v->raw && f->request.system,
       "--system goes into the chat template, which --raw leaves out: drop one of them"},
      {v->raw && v->template, "--chat-template names what --raw leaves out: drop one of them"},
  };
  if (no_model && !own && named && flag_is_model_path(f->given.arguments[0]))
    return err_set(e, ERR_ARG, "no model: -m goes before the model's path, %s", f->given.arguments[0]);
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i].wrong) return err_set(e, ERR_ARG, "%s", rules[i].why);
  return ERR_OK;
}

/* ---- the request ---- */

static void fill_request(flags *f) {
  const flag_values *v = &f->given;
  request *r = &f->request;
  r->raw = v->raw, r->no_special = v->no_special, r->single_token = v->single_token;
  r->max_tokens = v->max_tokens == -1 ? WIRE_CONTEXT_MAX : v->max_tokens; /* to the end of the context */
  r->context = v->context, r->budget = v->budget, r->selfcheck = v->selfcheck, r->lockstep = v->pace;
  r->partial_kv = v->partial_kv;
  r->lossy = v->partial_lossy;
  r->partial = (msg_partial){.block = v->partial_block,
                             .sink = v->partial_sink,
                             .retrieval = v->partial_retrieval,
                             .window = v->partial_window,
                             .buffer = v->partial_buffer,
                             .threshold = v->partial_threshold,
                             .refresh = v->partial_refresh};
  r->sampling.temperature = v->temperature, r->sampling.top_k = v->top_k, r->sampling.top_p = v->top_p;
  r->sampling.min_p = v->min_p, r->sampling.repeat_penalty = v->repeat_penalty;
  r->sampling.presence_penalty = v->presence_penalty, r->sampling.frequency_penalty = v->frequency_penalty;
  r->seed_given = v->from[FLAG_seed] != FLAG_FROM_DEFAULT;
  if (r->seed_given) r->sampling.seed = v->seed;
}

static int check_whole(void *context, err *e) {
  flags *f = context;
  bool chat = f->command == COMMAND_RUN && f->given.argument_count == 0 && isatty(STDIN_FILENO);
  bool blocks_typed = f->given.from[FLAG_kv_blocks] == FLAG_FROM_COMMAND_LINE;
  if (!blocks_typed && f->given.kv == 0) f->given.kv_blocks = 0;
  if (f->show < 0) f->show = chat ? SHOW_AUTO : SHOW_NEVER;
  fill_request(f);
  int rc = settle_draft(f, e);
  if (rc == ERR_OK) rc = check_listening(f, e);
  if (rc == ERR_OK) rc = check_rules(f, chat, e);
  return rc ? rc : sampler_check(&f->request.sampling, e);
}

/* ---- all of it ---- */

void flags_default(flags *f, flag_command command) {
  *f = (flags){.command = command, .given = flag_defaults, .show = -1, .older_us = -1};
  flag_values *v = &f->given;
  request_init(&f->request);
  v->threads = cpus_threads();
  if (command == COMMAND_BATCH || command == COMMAND_SERVE) v->sessions = SESSIONS_DEFAULT;
  if (command == COMMAND_SERVE_WORKERS) v->sessions = SESSIONS_SERVE_WORKERS;
  if (command == COMMAND_BATCH || command == COMMAND_BENCH_SPECULATION) v->ledger = "none";
  if (command == COMMAND_SERVE) v->max_tokens = 0, v->temperature = 1; /* all that the context has room for */
  if (command == COMMAND_RESUME) v->math = -1, v->max_tokens = 0, v->budget = -1;
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
  if (f->given.ledger && strcmp(f->given.ledger, "none") != 0) ledger_database_spare(f->given.ledger);
}

/* What the command reads, itself or in its workers: nothing is written over it. */
static void spare_inputs(const flags *f, const char *program) {
  err e = {0};
  char folder[PATH_MAX];
  const char *const paths[] = {f->given.model,       f->given.draft_model,  f->given.corpus,
                               f->given.calibration, f->given.api_key_file, f->given.certificate_file,
                               f->given.key_file,    "/dev/stdin"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) output_file_spare(paths[i]);
  if (keys_folder(f->given.keys, folder, NULL) == ERR_OK) output_file_spare(folder);
  spare_ledgers(f);
  bool reads_first = f->command == COMMAND_BATCH || f->command == COMMAND_SERVE_WORKERS ||
                     f->command == COMMAND_CONVERT_HEAD || f->command == COMMAND_BENCH_SPECULATION ||
                     f->command == COMMAND_IMPORT;
  if (reads_first && f->given.argument_count > 0) output_file_spare(f->given.arguments[0]);
  const char *trace = f->given.trace;
  if (output_file_check_fd(STDOUT_FILENO, "stdout", &e) || (trace && output_file_check(trace, &e))) {
    fprintf(stderr, "%s: error: %s\n", program, e.text);
    exit(STATUS_USAGE);
  }
}

void flags_parse(flags *f, flag_command command, int argc, char **argv) {
  flags_default(f, command);
  draw_seed(&f->request.sampling.seed, argv[0]);
  const flag_program reader = {.command = command,
                               .more = "Exit statuses: see `tandem --help'.",
                               .values = &f->given,
                               .context = f,
                               .own = take_own,
                               .whole = check_whole};
  flag_read_all(&reader, argc, argv);
  log_use_format((log_format)f->given.log_format);
  spare_inputs(f, argv[0]);
  f->request.speculate = f->given.draft && strcmp(f->given.draft, "none") != 0;
}

void flags_fini(flags *f) {
  request_fini(&f->request);
}

const char *flags_command_name(flag_command command) {
  return flag_command_rows[command].name;
}

bool flags_wants_draft(const flags *f) {
  return strcmp(f->given.draft, "none") != 0 && f->request.budget > 0;
}
