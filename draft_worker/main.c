/* tandem-draft: guesses ahead for the sessions that an orchestrator gives it. */
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include "draft_worker/worker.h"
#include "version.h"
#include "wire/host.h"
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of a session's tokens is reserved by it and used only as far as the session grows. */
#define DEFAULT_CONTEXT 32768
#define REPLAY_PREFIX   "replay:"

typedef struct flags {
  const char *orchestrator, *draft;
  uint64_t replay_seed;
  int32_t context;
  bool version;
  int64_t parent; /* 0: none */
  log_level log;
} flags;

/* --- the command line --- */

enum { KEY_ORCHESTRATOR = 256, KEY_DRAFT, KEY_SEED, KEY_CTX, KEY_PARENT, KEY_LOG };

static const struct argp_option option_table[] = {
    {"orchestrator", KEY_ORCHESTRATOR, "ENDPOINT", 0,
     "Orchestrator to register with, ipc://PATH or tcp://HOST:PORT (required)", 0},
    {"draft", KEY_DRAFT, "METHOD", 0,
     "ngram (default): what followed the last tokens when they occurred before, in prompt or answer. "
     "replay:FILE:RATE[:S], for tests and benchmarks: answers recorded by 'tandem batch' in FILE, where the "
     "first "
     "candidate is right with probability RATE, and if it is not, the right one is second with probability S",
     0},
    {"replay-seed", KEY_SEED, "N", 0, "Seed of the draws of replay; default 0", 0},
    {"ctx", KEY_CTX, "N", 0, "Longest session in tokens that is taken; default 32768", 0},
    {"log-level", KEY_LOG, "LEVEL", 0, "error, warning, info (default) or debug; the log goes to stderr", 1},
    {"parent", KEY_PARENT, "PID", 0, "End when this process, which must be the parent, ends", 1},
    {"version", 'V', NULL, 0, "Print version and commit, and leave", 1},
    {0}};

static const char *const log_names[] = {"error", "warning", "info", "debug"};

static int parse_value(int key, const char *text, flags *f, err *e) {
  int64_t value;
  int rc;
  switch (key) {
  case KEY_SEED:
    return program_u64("--replay-seed", text, &f->replay_seed, e);
  case KEY_CTX:
    rc = program_int("--ctx", text, 1, WIRE_CONTEXT_MAX, &value, e);
    if (rc == ERR_OK) f->context = (int32_t)value;
    return rc;
  case KEY_PARENT:
    return program_int("--parent", text, 1, INT32_MAX, &f->parent, e);
  case KEY_LOG:
    rc = program_choice("--log-level", text, log_names, 4, e);
    if (rc >= 0) f->log = (log_level)rc;
    return rc < 0 ? rc : ERR_OK;
  default:
    return ERR_UNSUPPORTED; /* not ours: argp's */
  }
}

static error_t parse(int key, char *text, struct argp_state *state) {
  flags *f = state->input;
  err e;
  switch (key) {
  case KEY_ORCHESTRATOR:
    f->orchestrator = text;
    return 0;
  case KEY_DRAFT:
    f->draft = text;
    return 0;
  case 'V':
    f->version = true;
    return 0;
  case ARGP_KEY_ARG:
    argp_error(state, "unexpected argument '%s'", text);
    return 0;
  default:
    break;
  }
  if (key < KEY_ORCHESTRATOR || key > KEY_LOG) return ARGP_ERR_UNKNOWN;
  if (parse_value(key, text, f, &e) != ERR_OK) argp_error(state, "%s", e.text);
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

static int open_replay(const flags *f, replay_book **book, err *e) {
  char *text = strdup(f->draft + strlen(REPLAY_PREFIX)), *rate = NULL, *sibling = NULL;
  double r = 0, s = 0;
  if (!text) return err_set(e, ERR_NOMEM, "out of memory");
  int rc = split_replay(text, &rate, &sibling, e);
  if (rc == ERR_OK) rc = program_double("RATE of --draft replay", rate, 0, 1, &r, e);
  if (rc == ERR_OK && sibling) rc = program_double("S of --draft replay", sibling, 0, 1, &s, e);
  if (rc == ERR_OK) rc = replay_book_open(book, text, r, s, f->replay_seed, e);
  free(text);
  return rc;
}

/* Fills kind and shared of *o. */
static int open_method(const flags *f, draft_options *o, replay_book **book, err *e) {
  if (strcmp(f->draft, drafter_ngram.method) == 0) {
    o->kind = &drafter_ngram;
    return ERR_OK;
  }
  if (strncmp(f->draft, REPLAY_PREFIX, strlen(REPLAY_PREFIX)) == 0) {
    int rc = open_replay(f, book, e);
    o->kind = &drafter_replay;
    o->shared = *book;
    return rc;
  }
  return err_set(e, ERR_ARG, "--draft must be ngram or replay:FILE:RATE[:S], not '%s'", f->draft);
}

/* --- the program --- */

typedef struct program {
  flags flags;
  logger log;
  replay_book *book;
  draft *draft;
  host *host;
  uv_loop_t loop;
  bool loop_open;
} program;

static void leave_if_drained(void *context) {
  program *p = context;
  if (p->draft && draft_drained(p->draft)) host_exit(p->host, PROGRAM_EXIT_OK);
}

static int open_host(program *p, wire_id self, err *e) {
  host_options o = {.machine = draft_machine(p->draft),
                    .self = self,
                    .log = &p->log,
                    .after_step = leave_if_drained,
                    .context = p};
  int rc = host_check_endpoint(p->flags.orchestrator, e);
  if (rc == ERR_OK) rc = host_open(&p->host, &p->loop, &o, e);
  return rc;
}

static int open_all(program *p, err *e) {
  draft_options o = {.context = p->flags.context};
  int rc = open_method(&p->flags, &o, &p->book, e);
  if (rc != ERR_OK) return rc == ERR_ARG ? PROGRAM_EXIT_USAGE : program_exit_of_file(rc);
  rc = program_random(&o.incarnation, sizeof o.incarnation, e);
  if (rc == ERR_OK) rc = draft_alloc(&p->draft, &o, e);
  if (rc == ERR_OK && uv_loop_init(&p->loop) != 0)
    rc = err_set(e, ERR_IO, "cannot make an event loop: too many open files?");
  if (rc != ERR_OK) return PROGRAM_EXIT_FAILED;
  p->loop_open = true;
  return open_host(p, o.incarnation, e) == ERR_OK ? PROGRAM_EXIT_OK : PROGRAM_EXIT_ADDRESS;
}

static void greet(program *p) {
  actions out;
  actions_init(&out);
  draft_connect(p->draft, p->flags.orchestrator, &out);
  host_perform(p->host, &out);
  actions_fini(&out);
  log_line(&p->log, LOG_INFO, "ready: %s", p->flags.draft);
}

static void close_all(program *p) {
  host_close(p->host);
  if (p->loop_open) {
    uv_run(&p->loop, UV_RUN_DEFAULT);
    uv_loop_close(&p->loop);
  }
  draft_free(p->draft);
  replay_book_close(p->book);
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
    uv_run(&p->loop, UV_RUN_DEFAULT);
    code = host_exit_code(p->host);
  }
  return code;
}

int main(int argc, char **argv) {
  const struct argp argp = {option_table, parse, NULL, doc, NULL, help_filter, NULL};
  program p = {.flags = {.draft = "ngram", .context = DEFAULT_CONTEXT, .log = LOG_INFO}};
  argp_err_exit_status = PROGRAM_EXIT_USAGE;
  program_parse_flags(&argp, argc, argv, &p.flags);
  p.log = (logger){"tandem-draft", p.flags.log};
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
  close_all(&p);
  return code;
}
