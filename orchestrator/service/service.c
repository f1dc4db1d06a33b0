#include "orchestrator/service/service.h"

#include "common/base/clock.h"
#include "common/base/program.h"
#include "orchestrator/service/logbook.h"
#include "orchestrator/service/socket_folder.h"
#include "orchestrator/service/child_processes.h"
#include "wire/host.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIGNALS       3
#define NUMBER_MAX    16 /* bytes of a number as an argument */
#define ARGUMENTS_MAX 28 /* of a worker, with the NULL at their end */

enum { NO_CHILD = -1 };

struct service {
  service_options options;
  uv_loop_t loop;
  uv_async_t news;
  uv_timer_t patience; /* with a draft that does not come */
  uv_timer_t alone;    /* each second without a target, of those that others start */
  int32_t alone_s;
  uv_signal_t signals[SIGNALS];
  int signal;
  bool loop_open, news_open, over, listening, target_came, draft_came, draft_overdue;

  socket_folder folder;
  char orchestrator_at[WIRE_STRING_MAX + 1], target_at[SOCKET_ENDPOINT_MAX];
  child_processes *workers;
  int32_t target, draft; /* numbers of child_processes.h, or NO_CHILD */
  err trouble;

  wire_id self;
  logbook *book;
  sessions_machine *sessions;
  host *host; /* there from the beginning, so that a worker finds it at its first try; steps once there
                 are sessions */
  actions actions;
};

/* ---- news ---- */

static void tell_owner(service *p) {
  uv_async_send(&p->news);
}

static void on_overdue(uv_timer_t *timer) {
  service *p = timer->data;
  p->draft_overdue = true;
  tell_owner(p);
}

static void on_alone(uv_timer_t *timer) {
  service *p = timer->data;
  const flags *f = p->options.flags;
  p->alone_s++;
  if (p->alone_s == SERVICE_TELL_S)
    log_line(p->options.log, LOG_WARNING, "waiting for a target: start tandem-target -m %s --orchestrator %s",
             f->model, p->orchestrator_at);
  if (!f->wait || p->alone_s < f->wait || p->trouble.code) return;
  err_set(&p->trouble, ERR_TIMEOUT,
          "no target for %d s (--wait): start tandem-target -m %s --orchestrator %s", f->wait, f->model,
          p->orchestrator_at);
  tell_owner(p);
}

static void watch_targets(service *p) {
  bool alone = sessions_worker_count(p->sessions, WIRE_ROLE_TARGET) == 0;
  if (!p->listening || alone == (bool)uv_is_active((uv_handle_t *)&p->alone)) return;
  p->alone_s = 0;
  if (alone)
    uv_timer_start(&p->alone, on_alone, 1000, 1000);
  else
    uv_timer_stop(&p->alone);
}

static void note_arrivals(service *p) {
  if (!p->sessions) return;
  watch_targets(p);
  if (sessions_worker_count(p->sessions, WIRE_ROLE_DRAFT) > 0) p->draft_came = true;
  if (p->target_came || sessions_worker_count(p->sessions, WIRE_ROLE_TARGET) == 0) return;
  p->target_came = true;
  uv_timer_start(&p->patience, on_overdue, SERVICE_DRAFT_WAIT_MS, 0);
}

static void on_news(uv_async_t *async) {
  service *p = async->data;
  note_arrivals(p);
  p->options.on_news(p->options.owner);
}

static void after_step(void *context) {
  tell_owner(context);
}

/* ---- signals: the first ends the answers, the second everything ---- */

static void on_signal(uv_signal_t *handle, int number) {
  service *p = handle->data;
  if (number == SIGINT && p->options.on_interrupt) {
    p->options.on_interrupt(p->options.owner);
    return;
  }
  if (p->signal) { /* not even a reader that has stopped reading may hold us */
    if (p->options.on_abort) p->options.on_abort(p->options.owner);
    if (p->workers) child_processes_kill(p->workers);
    socket_folder_remove(&p->folder);
    _exit(128 + number);
  }
  p->signal = number;
  tell_owner(p);
}

static bool is_ignored(int number) {
  struct sigaction a;
  return sigaction(number, NULL, &a) == 0 && a.sa_handler == SIG_IGN;
}

static bool watch_signals(service *p) {
  static const int numbers[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
  for (int i = 0; i < SIGNALS; i++) {
    if (uv_signal_init(&p->loop, &p->signals[i]) != 0) return false;
    p->signals[i].data = p;
    if (!is_ignored(numbers[i]) && uv_signal_start(&p->signals[i], on_signal, numbers[i]) != 0) return false;
  }
  return true;
}

/* ---- the programs ---- */

static void set_trouble(service *p, const char *name, const child_processes_exit *x) {
  if (p->trouble.code) return;
  err_set(&p->trouble, ERR_GONE, "%s %s (%s): see its message above", name,
          x->code < 0 || x->starts > SERVICE_RESTARTS_MAX ? "kept dying" : "could not start", x->text);
}

/* A program that leaves by itself before it has registered would do so again: its flags or files are bad. */
static bool worth_restarting(const service *p, const child_processes_exit *x) {
  bool came = x->child == p->target ? p->target_came : p->draft_came;
  return x->starts <= SERVICE_RESTARTS_MAX && (came || x->code < 0);
}

/* Only our own programs know the address, so the worker of that role is the one that died. */
static void say_goodbye(service *p, wire_role role) {
  if (!p->sessions) return;
  while (sessions_worker_count(p->sessions, role) > 0)
    sessions_worker_died(p->sessions, sessions_worker(p->sessions, role, 0)->incarnation, clock_us(),
                         &p->actions);
  host_perform(p->host, &p->actions);
}

static void on_worker_exit(void *context, const child_processes_exit *x) {
  service *p = context;
  note_arrivals(p);
  say_goodbye(p, x->child == p->target ? WIRE_ROLE_TARGET : WIRE_ROLE_DRAFT);
  tell_owner(p);
  if (x->expected) {
    p->over = child_processes_alive(p->workers) == 0;
    if (p->over) uv_stop(&p->loop);
    return;
  }
  const logger *log = p->options.log;
  err e = {0};
  if (worth_restarting(p, x) && child_processes_start(p->workers, x->child, &e) == ERR_OK) {
    log_line(log, LOG_WARNING, "%s died: %s; started again (%d of %d)", x->name, x->text, x->starts,
             SERVICE_RESTARTS_MAX);
    return;
  }
  if (e.code) log_line(log, LOG_ERROR, "%s", e.text);
  bool draft = x->child == p->draft; /* answers go on without one */
  if (draft && p->draft_came)
    log_line(log, LOG_WARNING, "%s died again: %s; no more drafts", x->name, x->text);
  else if (draft && x->code == PROGRAM_EXIT_REFUSED)
    log_line(log, LOG_WARNING,
             "the draft does not fit the target: see its message above; answers come without one");
  else
    set_trouble(p, x->name, x);
  p->draft_overdue = true;
}

static const char *number(char text[NUMBER_MAX], int32_t value) {
  snprintf(text, NUMBER_MAX, "%d", value);
  return text;
}

static int add_target(service *p, err *e) {
  const flags *f = p->options.flags;
  char ctx[NUMBER_MAX], threads[NUMBER_MAX], sessions[NUMBER_MAX], blocks[NUMBER_MAX];
  const char *args[ARGUMENTS_MAX] = {"-m",
                                     f->model,
                                     "--orchestrator",
                                     p->orchestrator_at,
                                     "--bind",
                                     p->target_at,
                                     "--ctx",
                                     number(ctx, p->options.context),
                                     "--threads",
                                     number(threads, f->threads),
                                     "--pin",
                                     f->pin,
                                     "--sessions",
                                     number(sessions, f->sessions),
                                     "--kv",
                                     f->kv,
                                     "--kv-blocks",
                                     number(blocks, f->kv_blocks),
                                     "--math",
                                     f->math,
                                     "--log-level",
                                     f->verbose ? "info" : "warning"};
  int n = 0;
  while (args[n]) n++;
  if (f->verbose) args[n++] = "--counters";
  if (f->repack_cache) {
    args[n++] = "--repack-cache";
    args[n++] = f->repack_cache;
  }
  p->target = child_processes_add(p->workers, "tandem-target", args, e);
  return p->target < 0 ? p->target : child_processes_start(p->workers, p->target, e);
}

static void append(const char **args, const char *text) {
  while (*args) args++;
  *args = text;
}

/* Name and value; no value: nothing. */
static void put(const char **args, const char *name, const char *value) {
  if (!value) return;
  append(args, name);
  append(args, value);
}

static int add_draft(service *p, err *e) {
  const flags *f = p->options.flags;
  char ctx[NUMBER_MAX], threads[NUMBER_MAX], sessions[NUMBER_MAX], layers[NUMBER_MAX];
  bool model = strcmp(f->draft, "model") == 0;
  const char *args[ARGUMENTS_MAX] = {NULL};
  put(args, "--orchestrator", p->orchestrator_at);
  put(args, "--draft", f->draft);
  put(args, "--ctx", number(ctx, f->draft_context ? f->draft_context : p->options.context));
  put(args, "--log-level", f->verbose ? "info" : "warning");
  if (model) {
    put(args, "--model", f->model);
    put(args, "--model-draft", f->model_draft);
    put(args, "--draft-layers", f->draft_layers ? number(layers, f->draft_layers) : NULL);
    put(args, "--threads", f->draft_threads ? number(threads, f->draft_threads) : NULL);
    put(args, "--sessions", number(sessions, f->sessions));
    put(args, "--repack-cache", f->repack_cache);
    append(args, "--turns"); /* it sits on the target's processors */
    if (f->verbose) append(args, "--counters");
  }
  p->draft = child_processes_add(p->workers, "tandem-draft", args, e);
  return p->draft < 0 ? p->draft : child_processes_start(p->workers, p->draft, e);
}

static int open_host(service *p, err *e) {
  if (program_random(&p->self, sizeof p->self, e) != ERR_OK) return e->code;
  host_options h = {.self = p->self,
                    .allow_plaintext = p->options.flags->insecure_bind,
                    .log = p->options.log,
                    .after_step = after_step,
                    .context = p};
  return host_open(&p->host, &p->loop, &h, e);
}

static int listen_at(service *p, err *e) {
  const char *endpoint = p->listening ? p->options.flags->listen : p->orchestrator_at;
  char bound[WIRE_STRING_MAX + 1];
  int rc = transport_bind(host_transport(p->host), endpoint, bound, sizeof bound, e);
  if (rc != ERR_OK || !p->listening) return rc;
  snprintf(p->orchestrator_at, sizeof p->orchestrator_at, "%s", bound);
  log_line(p->options.log, LOG_INFO, "listening at %s", bound);
  return ERR_OK;
}

static int start_programs(service *p, err *e) {
  int rc = socket_folder_make(&p->folder, e);
  if (rc != ERR_OK) return rc;
  socket_folder_endpoint(p->orchestrator_at, p->folder.path, "orchestrator");
  socket_folder_endpoint(p->target_at, p->folder.path, "target");
  rc = listen_at(p, e);
  if (rc != ERR_OK) return rc;
  child_processes_options w = {.loop = &p->loop, .on_exit = on_worker_exit, .context = p};
  rc = child_processes_open(&p->workers, &w, e);
  if (rc == ERR_OK) rc = add_target(p, e);
  if (rc == ERR_OK && flags_wants_draft(p->options.flags)) rc = add_draft(p, e);
  return rc;
}

/* ---- life ---- */

static int open_loop(service *p, err *e) {
  static const char why[] = "cannot make an event loop: is the limit of open files (ulimit -n) too low?";
  if (uv_loop_init(&p->loop) != 0) return err_set(e, ERR_IO, "%s", why);
  p->loop_open = true;
  uv_timer_init(&p->loop, &p->patience);
  uv_timer_init(&p->loop, &p->alone);
  p->patience.data = p->alone.data = p->news.data = p;
  p->news_open = uv_async_init(&p->loop, &p->news, on_news) == 0;
  return p->news_open && watch_signals(p) ? ERR_OK : err_set(e, ERR_IO, "%s", why);
}

int service_open(service **out, const service_options *o, err *e) {
  service *p = *out = calloc(1, sizeof *p);
  if (!p) return err_set(e, ERR_NOMEM, "out of memory");
  p->options = *o;
  p->target = p->draft = NO_CHILD;
  actions_init(&p->actions);
  int rc = open_loop(p, e);
  if (rc == ERR_OK) rc = open_host(p, e);
  p->listening = o->flags->listen != NULL;
  return rc == ERR_OK && !p->listening ? start_programs(p, e) : rc;
}

/* Ids, tickets and seeds of hashes. The system cannot fail here: it has given random numbers before. */
static uint64_t draw(void *context) {
  (void)context;
  uint64_t x = 0;
  program_random(&x, sizeof x, NULL);
  return x;
}

/* Those that others start may take their time, unless the user has said how long. */
static uint64_t target_wait_us(const service *p) {
  const flags *f = p->options.flags;
  if (!p->listening) return 0;
  return f->wait ? (uint64_t)f->wait * 1000000 : MACHINE_NEVER;
}

/* What waited for the ledger goes on, what is logged is shown. */
static void on_logged(void *context) {
  service *p = context;
  if (p->host) host_step(p->host, &(event){.kind = EVENT_TICK});
}

static int open_ledger(service *p, const text_model *m, err *e) {
  const flags *f = p->options.flags;
  const ledger_session *resume = p->options.resume;
  char *model = realpath(f->model, NULL);
  logbook_options o = {.loop = &p->loop,
                       .ledger = f->ledger,
                       .command = flags_command_name(f->command),
                       .model = model ? model : f->model,
                       .fingerprint = m->fingerprint,
                       .resume = resume ? resume->id : 0,
                       .resume_updated = resume ? resume->updated : 0,
                       .log = p->options.log,
                       .on_logged = on_logged,
                       .context = p};
  int rc = logbook_open(&p->book, &o, e);
  free(model);
  return rc;
}

int service_serve(service *p, const text_model *m, err *e) {
  sessions_options o = {.incarnation = p->self,
                        .model_fingerprint = m->fingerprint,
                        .vocabulary_hash = text_model_vocabulary(m),
                        .vocabulary_size = m->config.vocab,
                        .target_wait_us = target_wait_us(p),
                        .random = draw};
  int rc = open_ledger(p, m, e);
  if (rc == ERR_OK) o.ledger = logbook_ledger(p->book);
  if (rc == ERR_OK) rc = sessions_alloc(&p->sessions, &o, e);
  if (rc != ERR_OK) return rc;
  logbook_watch(p->book, p->sessions);
  host_set_machine(p->host, sessions_as_machine(p->sessions));
  if (p->listening) rc = listen_at(p, e);
  note_arrivals(p);
  return rc;
}

void service_run(service *p) {
  while (!p->over) uv_run(&p->loop, UV_RUN_DEFAULT);
}

void service_finish(service *p) {
  if (p->workers) child_processes_stop(p->workers);
  if (p->workers && child_processes_alive(p->workers) > 0) return;
  p->over = true;
  uv_stop(&p->loop);
}

static void close_loop(service *p) {
  uv_close((uv_handle_t *)&p->patience, NULL);
  uv_close((uv_handle_t *)&p->alone, NULL);
  if (p->news_open) uv_close((uv_handle_t *)&p->news, NULL);
  for (int i = 0; i < SIGNALS; i++)
    if (p->signals[i].data) uv_close((uv_handle_t *)&p->signals[i], NULL);
  uv_run(&p->loop, UV_RUN_DEFAULT);
  uv_loop_close(&p->loop);
}

void service_close(service *p) {
  if (!p) return;
  child_processes_close(p->workers);
  host_close(p->host);
  logbook_close(p->book);
  if (p->loop_open) close_loop(p);
  sessions_free(p->sessions);
  actions_fini(&p->actions);
  socket_folder_remove(&p->folder);
  free(p);
}

/* ---- state ---- */

uv_loop_t *service_loop(service *p) {
  return &p->loop;
}

static bool draft_awaited(const service *p) {
  bool later = p->options.flags->command ==
               FLAGS_SERVE; /* drafts may come at any time: requests do not wait for them */
  bool comes = p->listening ? flags_wants_draft(p->options.flags) && !later : p->draft != NO_CHILD;
  return comes && !p->draft_came && !p->draft_overdue;
}

bool service_ready(const service *p) {
  return p->target_came && !draft_awaited(p);
}

int32_t service_capacity(const service *p) {
  return p->sessions ? sessions_capacity(p->sessions) : 0;
}

int service_trouble(const service *p, err *e) {
  if (e && p->trouble.code) *e = p->trouble;
  return p->trouble.code;
}

int service_signal(const service *p) {
  return p->signal;
}

bool service_keeps(const service *p) {
  return p->book && logbook_is_file(p->book);
}

bool service_kept(const service *p) {
  return !p->book || !logbook_failed(p->book);
}

/* ---- sessions ---- */

uint64_t service_start(service *p, const sessions_request *r, err *e) {
  uint64_t session = sessions_start(p->sessions, r, clock_us(), &p->actions, e);
  host_perform(p->host, &p->actions);
  return session;
}

void service_cancel(service *p, uint64_t session) {
  sessions_cancel(p->sessions, session, clock_us(), &p->actions);
  host_perform(p->host, &p->actions);
}

void service_release(service *p, uint64_t session) {
  sessions_release(p->sessions, session, clock_us(), &p->actions);
  ledger l = logbook_ledger(p->book);
  l.forget(l.self, session);
  host_perform(p->host, &p->actions);
}

bool service_look(const service *p, uint64_t session, sessions_view *out) {
  return sessions_get(p->sessions, session, out);
}
