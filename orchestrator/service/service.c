#include "orchestrator/service/service.h"

#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/program.h"
#include "common/command_line/draft_methods.h"
#include "orchestrator/ledger/ledger_corpus.h"
#include "orchestrator/service/child_processes.h"
#include "orchestrator/service/cuda_mps.h"
#include "orchestrator/service/ledger_choice.h"
#include "orchestrator/service/model_hashing.h"
#include "orchestrator/service/socket_folder.h"
#include "orchestrator/service/worker_command_line.h"
#include "orchestrator/service/worker_restart.h"
#include "orchestrator/service/worker_wait.h"
#include "wire/machine_host.h"
#include "wire/wire_counters.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIGNALS       MODEL_HASHING_SIGNALS_MAX
#define CORPUS_TOKENS 1000000 /* of earlier sessions that a draft is given: nearly as many as it keeps */

enum { NO_CHILD = -1 };

struct service {
  service_options options;
  uv_loop_t loop;
  uv_async_t news;
  uv_timer_t draft_timer;   /* ends the wait for a draft that does not come */
  uv_timer_t second;        /* ticks while a worker is awaited */
  int32_t without_target_s; /* where others start them */
  worker_wait target_wait, draft_wait;
  uv_signal_t signals[SIGNALS];
  int signal;
  bool loop_open, news_open, over, listening, target_came, draft_came, draft_overdue;
  bool draft_gave_up; /* our own, and nobody else starts one */

  socket_folder folder;
  char orchestrator_at[WIRE_STRING_MAX + 1], target_at[SOCKET_ENDPOINT_MAX];
  char corpus[SOCKET_ENDPOINT_MAX]; /* the file of earlier answers */
  bool answers_there;               /* in that file */
  child_processes *children;
  int32_t target, draft; /* numbers of child_processes.h, or NO_CHILD */
  err trouble;
  bool explained;                     /* the target has said why it could not start */
  char no_draft[WIRE_STRING_MAX + 1]; /* why tandem-draft is not here; "": others start it */

  wire_id self;
  ledger_choice *ledger;
  sessions_machine *sessions;
  machine_host *host; /* there from the beginning, so that a worker finds it at its first try; steps when
                 there is an sessions_machine */
  actions actions;
  trace_file *trace; /* NULL: nothing is traced */
};

/* ---- earlier answers ---- */

/* The answers that the ledger keeps, for a draft that looks up what they repeat, in a file that is there
 * while the draft starts. Without them it goes on. */
static void hand_over_answers(service *s) {
  flag_values *w = &s->options.workers;
  if (!w->corpus_learn)
    unsetenv("TANDEM_CORPUS_LEARN"); /* the draft would inherit it, and a switch has no "no" */
  const char *named = s->options.ledger;
  char path[LEDGER_PATH_MAX];
  int64_t tokens = 0;
  err e = {0};
  bool none = named && strcmp(named, "none") == 0;
  if (w->corpus == s->corpus) w->corpus = NULL; /* of a draft that died */
  if (none || w->corpus || !w->corpus_learn || !draft_methods_name(w->draft, DRAFT_SUFFIX)) return;
  int rc = named ? ERR_OK : ledger_database_default_path(path, &e);
  char *model = realpath(w->model, NULL);
  socket_folder_corpus(s->corpus, s->folder.path);
  if (rc == ERR_OK && model)
    rc = ledger_corpus_write(named ? named : path, model, CORPUS_TOKENS, s->corpus, &tokens, &e);
  free(model);
  if (rc != ERR_OK && rc != ERR_GONE)
    log_line(s->options.log, LOG_WARNING, "%s. Earlier answers are not looked up", e.text);
  s->answers_there = rc == ERR_OK && tokens > 0;
  if (s->answers_there)
    w->corpus = s->corpus;
  else
    unlink(s->corpus);
}

/* The draft has read them, or none comes. */
static void take_back_answers(service *s) {
  if (s->answers_there) unlink(s->corpus);
  s->answers_there = false;
}

/* ---- news ---- */

static void tell_owner(service *s) {
  uv_async_send(&s->news);
}

static void on_draft_overdue(uv_timer_t *timer) {
  service *s = timer->data;
  s->draft_overdue = true;
  tell_owner(s);
}

static void await_others(service *s) {
  int32_t most_s = s->options.target_wait_s;
  const char *model = s->options.workers.model;
  s->without_target_s++;
  if (s->without_target_s == SERVICE_NOTICE_S)
    log_line(s->options.log, LOG_WARNING, "waiting for a target: start tandem-target -m %s --orchestrator %s",
             model, s->orchestrator_at);
  if (!most_s || s->without_target_s < most_s || s->trouble.code) return;
  err_set(&s->trouble, ERR_TIMEOUT,
          "no target for %d s (--wait): start tandem-target -m %s --orchestrator %s", most_s, model,
          s->orchestrator_at);
  tell_owner(s);
}

static worker_wait_verdict await_own(service *s, worker_wait *w, wire_role role, int32_t child) {
  uint64_t work;
  if (child == NO_CHILD || sessions_worker_count(s->sessions, role) > 0 ||
      !child_processes_work(s->children, child, &work)) {
    *w = (worker_wait){.idle_s = 0};
    return WORKER_WAIT_ON;
  }
  return worker_wait_second(w, work);
}

/* Answers go on without a draft. */
static void await_own_workers(service *s) {
  const char *model = s->options.workers.model;
  worker_wait_verdict target = await_own(s, &s->target_wait, WIRE_ROLE_TARGET, s->target);
  if (await_own(s, &s->draft_wait, WIRE_ROLE_DRAFT, s->draft) == WORKER_WAIT_TELL)
    log_line(
        s->options.log, LOG_WARNING,
        "tandem-draft does not come: it has neither read nor computed for %d s; answers go on without it",
        WORKER_WAIT_NOTICE_S);
  if (target == WORKER_WAIT_TELL)
    log_line(
        s->options.log, LOG_WARNING,
        "waiting for tandem-target, which has neither read nor computed for %d s: does the file system of %s "
        "respond?",
        WORKER_WAIT_NOTICE_S, model);
  if (target != WORKER_WAIT_GIVE_UP || s->trouble.code) return;
  err_set(
      &s->trouble, ERR_TIMEOUT,
      "tandem-target does not come: it has neither read nor computed for %d s; does the file system of %s "
      "respond?",
      WORKER_WAIT_MAX_S, model);
  tell_owner(s);
}

static void on_second(uv_timer_t *timer) {
  service *s = timer->data;
  if (s->listening)
    await_others(s);
  else
    await_own_workers(s);
}

static bool awaits_workers(const service *s) {
  if (sessions_worker_count(s->sessions, WIRE_ROLE_TARGET) == 0) return true;
  return s->draft != NO_CHILD && sessions_worker_count(s->sessions, WIRE_ROLE_DRAFT) == 0;
}

static void watch_workers(service *s) {
  bool waits = awaits_workers(s);
  if (waits == (bool)uv_is_active((uv_handle_t *)&s->second)) return;
  s->without_target_s = 0;
  if (waits)
    uv_timer_start(&s->second, on_second, 1000, 1000);
  else
    uv_timer_stop(&s->second);
}

static void note_arrivals(service *s) {
  if (!s->sessions) return;
  watch_workers(s);
  if (sessions_worker_count(s->sessions, WIRE_ROLE_DRAFT) > 0) {
    s->draft_came = true;
    take_back_answers(s);
  }
  if (s->target_came || sessions_worker_count(s->sessions, WIRE_ROLE_TARGET) == 0) return;
  s->target_came = true;
  uv_timer_start(&s->draft_timer, on_draft_overdue, SERVICE_DRAFT_WAIT_MS, 0);
}

static void on_news(uv_async_t *async) {
  service *s = async->data;
  note_arrivals(s);
  s->options.on_news(s->options.owner);
}

static void after_step(void *context) {
  tell_owner(context);
}

/* ---- signals: the first one ends the completions, the second one the process ---- */

static void on_signal(uv_signal_t *handle, int number) {
  service *s = handle->data;
  if (number == SIGINT && s->options.on_interrupt) {
    s->options.on_interrupt(s->options.owner);
    return;
  }
  if (s->signal) { /* even if nobody reads the output any more, this ends the process */
    if (s->options.on_abort) s->options.on_abort(s->options.owner);
    if (s->children) child_processes_kill(s->children);
    socket_folder_remove(&s->folder);
    _exit(128 + number);
  }
  s->signal = number;
  tell_owner(s);
}

static bool is_ignored(int number) {
  struct sigaction a;
  return sigaction(number, NULL, &a) == 0 && a.sa_handler == SIG_IGN;
}

static const int watched_signals[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

static bool watch_signals(service *s) {
  for (int i = 0; i < SIGNALS; i++) {
    if (uv_signal_init(&s->loop, &s->signals[i]) != 0) return false;
    s->signals[i].data = s;
    int number = watched_signals[i];
    if (!is_ignored(number) && uv_signal_start(&s->signals[i], on_signal, number) != 0) return false;
  }
  return true;
}

/* ---- the programs ---- */

static void set_trouble(service *s, const char *name, const child_processes_exit *x) {
  if (s->trouble.code) return;
  s->explained = x->child == s->target && x->code > 0;
  err_set(&s->trouble, ERR_GONE, "%s %s (%s): %s", name, worker_restart_verdict(x), x->text,
          worker_restart_remedy(x));
}

/* A draft costs speed alone. */
static void go_on_without_draft(service *s, const child_processes_exit *x) {
  if (x->code == STATUS_REFUSED)
    snprintf(s->no_draft, sizeof s->no_draft, "the draft does not fit the target");
  else
    snprintf(s->no_draft, sizeof s->no_draft, "%s %s (%s)", x->name, worker_restart_verdict(x), x->text);
  log_line(s->options.log, LOG_WARNING, "%s: %s; answers come without a draft", s->no_draft,
           worker_restart_remedy(x));
  s->draft_gave_up = true;
  take_back_answers(s);
  if (!s->sessions) return;
  sessions_no_draft_comes(s->sessions, clock_us(), &s->actions);
  machine_host_perform(s->host, &s->actions);
}

static bool has_registered(const service *s, const child_processes_exit *x) {
  return x->child == s->target ? s->target_came : s->draft_came;
}

/* Only our own programs know the address, so the registered worker of that role is the one that died. */
static void say_goodbye(service *s, wire_role role) {
  if (!s->sessions) return;
  while (sessions_worker_count(s->sessions, role) > 0)
    sessions_worker_died(s->sessions, sessions_worker(s->sessions, role, 0)->incarnation, clock_us(),
                         &s->actions);
  machine_host_perform(s->host, &s->actions);
}

static void on_worker_exit(void *context, const child_processes_exit *x) {
  service *s = context;
  note_arrivals(s);
  say_goodbye(s, x->child == s->target ? WIRE_ROLE_TARGET : WIRE_ROLE_DRAFT);
  tell_owner(s);
  if (x->expected) {
    s->over = child_processes_alive(s->children) == 0;
    if (s->over) uv_stop(&s->loop);
    return;
  }
  const logger *log = s->options.log;
  err e = {0};
  uint64_t wait_ms = worker_restart_delay_ms(x);
  if (x->child == s->draft) hand_over_answers(s);
  if (worker_restart_helps(x, has_registered(s, x)) &&
      child_processes_start_after(s->children, x->child, wait_ms, &e) == ERR_OK) {
    char when[32] = "";
    if (wait_ms > 0) snprintf(when, sizeof when, " after %.1f s", (double)wait_ms / 1e3);
    log_line(log, LOG_WARNING, "%s died: %s; started again%s (%d of %d)", x->name, x->text, when, x->starts,
             WORKER_RESTART_MAX);
    return;
  }
  if (e.code) log_line(log, LOG_ERROR, "%s", e.text);
  bool may_lack = x->child == s->draft && !s->options.draft_needed && x->code != STATUS_USAGE;
  if (may_lack)
    go_on_without_draft(s, x);
  else
    set_trouble(s, x->name, x);
  s->draft_overdue = true;
}

_Static_assert(WORKER_COMMAND_LINE_MAX <= CHILD_PROCESSES_ARGS_MAX, "whatever is handed on fits");

static int start_program(service *s, const char *name, const worker_command_line *line, int32_t *child,
                         err *e) {
  *child = child_processes_add(s->children, name, line->list, e);
  return *child < 0 ? *child : child_processes_start(s->children, *child, e);
}

static flag_values worker_flags(const service *s) {
  struct stat model;
  flag_values given = s->options.workers;
  bool is_file = stat(given.model, &model) == 0 && S_ISREG(model.st_mode);
  if (s->options.draft_left_out) given.draft = "none";
  worker_command_line_share(&given, &(worker_machine){.cores = cpus_threads(),
                                                      .model_bytes = is_file ? model.st_size : INT64_MAX,
                                                      .mps = cuda_mps_runs()});
  return given;
}

static int start_target(service *s, err *e) {
  worker_command_line line;
  flag_values given = worker_flags(s);
  worker_command_line_target(&line, &given, s->orchestrator_at, s->target_at);
  return start_program(s, "tandem-target", &line, &s->target, e);
}

/* One that the system does not start now, as where no more processes may be, costs speed alone. */
static int start_draft(service *s, err *e) {
  worker_command_line line;
  hand_over_answers(s);
  flag_values given = worker_flags(s);
  worker_command_line_draft(&line, &given, s->orchestrator_at);
  int rc = start_program(s, "tandem-draft", &line, &s->draft, e);
  if (rc == ERR_OK || s->draft < 0 || s->options.draft_needed) return rc;
  log_line(s->options.log, LOG_WARNING, "%s: it is tried again", e->text);
  return child_processes_start_after(s->children, s->draft, WORKER_RESTART_MS, e);
}

static int start_or_leave_out_draft(service *s, err *e) {
  const char *why = s->options.draft_left_out;
  snprintf(s->no_draft, sizeof s->no_draft, "%s", why ? why : "tandem-draft had not come yet");
  s->draft_gave_up = why != NULL;
  return why ? ERR_OK : start_draft(s, e);
}

static int open_host(service *s, err *e) {
  if (program_random(&s->self, sizeof s->self, e) != ERR_OK) return e->code;
  machine_host_options h = {.self = s->self,
                            .role = WIRE_ROLE_ORCHESTRATOR,
                            .keys = s->options.keys,
                            .allow_plaintext = s->options.allow_plaintext,
                            .log = s->options.log,
                            .after_step = after_step,
                            .context = s};
  return machine_host_open(&s->host, &s->loop, &h, e);
}

static int listen_at(service *s, err *e) {
  const char *endpoint = s->listening ? s->options.listen : s->orchestrator_at;
  char bound[WIRE_STRING_MAX + 1];
  int rc = transport_bind(machine_host_transport(s->host), endpoint, bound, sizeof bound, e);
  if (rc != ERR_OK || !s->listening) return rc;
  snprintf(s->orchestrator_at, sizeof s->orchestrator_at, "%s", bound);
  log_line(s->options.log, LOG_INFO, "listening at %s", bound);
  if (s->options.allow_plaintext)
    log_line(s->options.log, LOG_WARNING,
             "--insecure-bind: whoever reaches %s can read prompts and answers, and give answers", bound);
  return ERR_OK;
}

static int start_programs(service *s, err *e) {
  int rc = socket_folder_make(&s->folder, e);
  if (rc != ERR_OK) return rc;
  socket_folder_endpoint(s->orchestrator_at, s->folder.path, "orchestrator");
  socket_folder_endpoint(s->target_at, s->folder.path, "target");
  rc = listen_at(s, e);
  if (rc != ERR_OK) return rc;
  child_processes_options w = {.loop = &s->loop, .on_exit = on_worker_exit, .context = s};
  rc = child_processes_open(&s->children, &w, e);
  if (rc == ERR_OK) rc = start_target(s, e);
  if (rc == ERR_OK && s->options.with_draft) rc = start_or_leave_out_draft(s, e);
  return rc;
}

/* ---- life ---- */

static int open_loop(service *s, err *e) {
  static const char why[] = "cannot make an event loop: is the limit of open files (ulimit -n) too low?";
  if (uv_loop_init(&s->loop) != 0) return err_set(e, ERR_IO, "%s", why);
  s->loop_open = true;
  uv_timer_init(&s->loop, &s->draft_timer);
  uv_timer_init(&s->loop, &s->second);
  s->draft_timer.data = s->second.data = s->news.data = s;
  s->news_open = uv_async_init(&s->loop, &s->news, on_news) == 0;
  return s->news_open && watch_signals(s) ? ERR_OK : err_set(e, ERR_IO, "%s", why);
}

int service_open(service **out, const service_options *o, err *e) {
  service *s = *out = calloc(1, sizeof *s);
  if (!s) return err_set(e, ERR_NOMEM, "out of memory");
  s->options = *o;
  s->target = s->draft = NO_CHILD;
  actions_init(&s->actions);
  int rc = o->workers.trace ? trace_file_open(&s->trace, o->workers.trace, o->log->program, e) : ERR_OK;
  if (rc == ERR_OK) rc = open_loop(s, e);
  if (rc == ERR_OK) rc = open_host(s, e);
  s->listening = o->listen != NULL;
  return rc == ERR_OK && !s->listening ? start_programs(s, e) : rc;
}

/* Draws ids, tickets and seeds of hashes. It cannot fail: the system has given random numbers before. */
static uint64_t draw(void *context) {
  (void)context;
  uint64_t x = 0;
  program_random(&x, sizeof x, NULL);
  return x;
}

/* Workers that others start may take any time, unless the options say how long. */
static uint64_t target_wait_us(const service *s) {
  int32_t most_s = s->options.target_wait_s;
  if (!s->listening) return 0;
  return most_s ? (uint64_t)most_s * 1000000 : MACHINE_NEVER;
}

/* What waited for the ledger goes on now, and what it has may be shown. */
static void on_logged(void *context) {
  service *s = context;
  if (s->host) machine_host_step(s->host, &(event){.kind = EVENT_TICK});
}

static void on_new_ledger(void *context, const char *path) {
  service *s = context;
  if (s->options.on_new_ledger) s->options.on_new_ledger(s->options.owner, path);
}

static int open_ledger(service *s, const text_model *m, err *e) {
  const service_options *o = &s->options;
  const ledger_session *resume = o->resume;
  char *model = realpath(o->workers.model, NULL);
  ledger_choice_options choice = {.loop = &s->loop,
                                  .ledger = o->ledger,
                                  .mode = o->ledger_mode,
                                  .command = o->command,
                                  .model = model ? model : o->workers.model,
                                  .fingerprint = hash_is_zero(m->hash) ? m->fingerprint : m->hash,
                                  .resume = resume ? resume->id : 0,
                                  .resume_updated = resume ? resume->updated : 0,
                                  .log = o->log,
                                  .on_logged = on_logged,
                                  .on_new_file = on_new_ledger,
                                  .context = s};
  int rc = ledger_choice_open(&s->ledger, &choice, e);
  free(model);
  return rc;
}

/* Ctrl-C ends the wait, where it ends the program. */
static void learn_hash(const service *s, text_model *m) {
  int numbers[SIGNALS], count = 0;
  for (int i = 0; i < SIGNALS; i++) {
    bool ends = watched_signals[i] != SIGINT || !s->options.on_interrupt;
    if (ends && !is_ignored(watched_signals[i])) numbers[count++] = watched_signals[i];
  }
  model_hashing_learn(m, numbers, count);
}

int service_serve(service *s, text_model *m, err *e) {
  learn_hash(s, m);
  sessions_options o = {.incarnation = s->self,
                        .model_fingerprint = m->fingerprint,
                        .model_hash = m->hash,
                        .vocabulary_hash = text_model_vocabulary(m),
                        .vocabulary_size = m->config.vocab,
                        .target_wait_us = target_wait_us(s),
                        .targets_return = !s->listening,
                        .random = draw};
  const char *const doubts[] = {m->tokens ? tokenizer_doubt(m->tokens) : "", model_file_doubt(m->file)};
  for (int i = 0; i < 2; i++)
    if (doubts[i][0]) log_line(s->options.log, LOG_WARNING, "%s", doubts[i]);
  int rc = open_ledger(s, m, e);
  if (rc == ERR_OK) o.ledger = ledger_choice_ledger(s->ledger);
  if (rc == ERR_OK) rc = sessions_alloc(&s->sessions, &o, e);
  if (rc != ERR_OK) return rc;
  if (s->no_draft[0]) sessions_explain_no_draft(s->sessions, s->no_draft);
  if (s->draft_gave_up) sessions_no_draft_comes(s->sessions, clock_us(), &s->actions);
  ledger_choice_watch(s->ledger, s->sessions);
  machine_host_set_machine(s->host, sessions_as_machine(s->sessions));
  if (s->listening) rc = listen_at(s, e);
  note_arrivals(s);
  return rc;
}

void service_run(service *s) {
  while (!s->over) uv_run(&s->loop, UV_RUN_DEFAULT);
}

void service_finish(service *s) {
  if (s->children) child_processes_stop(s->children);
  if (s->children && child_processes_alive(s->children) > 0) return;
  s->over = true;
  uv_stop(&s->loop);
}

static void close_loop(service *s) {
  uv_close((uv_handle_t *)&s->draft_timer, NULL);
  uv_close((uv_handle_t *)&s->second, NULL);
  if (s->news_open) uv_close((uv_handle_t *)&s->news, NULL);
  for (int i = 0; i < SIGNALS; i++)
    if (s->signals[i].data) uv_close((uv_handle_t *)&s->signals[i], NULL);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  uv_loop_close(&s->loop);
}

void service_close(service *s) {
  if (!s) return;
  child_processes_close(s->children);
  if (s->host && s->options.workers.verbose)
    wire_counters_print(s->options.log->program, machine_host_transport(s->host));
  machine_host_close(s->host);
  ledger_choice_close(s->ledger);
  if (s->loop_open) close_loop(s);
  sessions_free(s->sessions);
  actions_fini(&s->actions);
  socket_folder_remove(&s->folder);
  err e = {0};
  if (trace_file_close(s->trace, &e)) log_line(s->options.log, LOG_WARNING, "%s", e.text);
  free(s);
}

/* ---- state ---- */

uv_loop_t *service_loop(service *s) {
  return &s->loop;
}

const flag_values *service_flags(const service *s) {
  return &s->options.workers;
}

const char *service_address(const service *s) {
  return s->orchestrator_at;
}

static bool draft_awaited(const service *s) {
  const service_options *o = &s->options;
  bool comes = s->listening ? o->with_draft && !o->draft_may_follow : s->draft != NO_CHILD;
  return comes && !s->draft_came && !s->draft_overdue;
}

bool service_ready(const service *s) {
  return s->target_came && !draft_awaited(s);
}

int32_t service_capacity(const service *s) {
  return s->sessions ? sessions_capacity(s->sessions) : 0;
}

trace_file *service_trace(const service *s) {
  return s->trace;
}

transport_counters service_wire(const service *s) {
  return transport_count(machine_host_transport(s->host));
}

const sessions_machine *service_sessions(const service *s) {
  return s->sessions;
}

int service_drain(service *s, wire_id worker, bool drained, err *e) {
  if (!s->sessions || !sessions_drain(s->sessions, worker, drained, clock_us(), &s->actions))
    return err_set(e, ERR_GONE, "there is no such worker now: GET /v1/workers tells those that there are");
  machine_host_perform(s->host, &s->actions);
  tell_owner(s);
  return ERR_OK;
}

int service_trouble(const service *s, err *e) {
  if (e && s->trouble.code) *e = s->trouble;
  return s->trouble.code;
}

bool service_trouble_explained(const service *s) {
  return s->explained;
}

int service_signal(const service *s) {
  return s->signal;
}

bool service_keeps(const service *s) {
  return s->ledger && ledger_choice_keeps(s->ledger);
}

bool service_kept(const service *s) {
  return !s->ledger || !ledger_choice_failed(s->ledger);
}

/* ---- sessions ---- */

uint64_t service_start(service *s, const sessions_request *r, err *e) {
  uint64_t session = sessions_start(s->sessions, r, clock_us(), &s->actions, e);
  machine_host_perform(s->host, &s->actions);
  return session;
}

void service_cancel(service *s, uint64_t session) {
  sessions_cancel(s->sessions, session, clock_us(), &s->actions);
  machine_host_perform(s->host, &s->actions);
}

void service_release(service *s, uint64_t session) {
  sessions_release(s->sessions, session, clock_us(), &s->actions);
  ledger l = ledger_choice_ledger(s->ledger);
  l.forget(l.self, session);
  machine_host_perform(s->host, &s->actions);
}

bool service_look(const service *s, uint64_t session, sessions_view *out) {
  return sessions_get(s->sessions, session, out);
}
