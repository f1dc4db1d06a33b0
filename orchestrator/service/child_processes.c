#include "orchestrator/service/child_processes.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXEC_FAILED 127 /* exit status of a child that could not become its program, as in a shell */

typedef struct child {
  const char *name;
  char *path;
  char *args[CHILD_PROCESSES_ARGS_MAX + 2]; /* path, args, NULL */
  pid_t pid;                                /* 0: not running */
  int starts;
  uint64_t started_ms;
  uv_timer_t restart_timer; /* active: it is started again when this goes off */
} child;

/* One life of a child: its end makes the descriptor readable. Lives until uv has closed its poll handle. */
typedef struct life {
  child_processes *owner;
  int32_t number;
  int pidfd;
  uv_poll_t poll;
} life;

struct child_processes {
  child_processes_options options;
  child list[CHILD_PROCESSES_MAX];
  int32_t count;
  bool stopping;
  uv_timer_t grace_timer;
  int handles; /* of libuv that are not closed yet */
};

/* ---- finding programs ---- */

static bool is_program(const char *path) {
  return access(path, X_OK) == 0;
}

static bool beside_us(const char *name, char path[PATH_MAX]) {
  ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
  if (n <= 0) return false;
  path[n] = 0;
  char *slash = strrchr(path, '/');
  size_t left = (size_t)(path + PATH_MAX - (slash + 1));
  return (size_t)snprintf(slash + 1, left, "%s", name) < left && is_program(path);
}

static bool in_path(const char *name, char path[PATH_MAX]) {
  const char *at = getenv("PATH");
  while (at && *at) {
    size_t size = strcspn(at, ":");
    int n = snprintf(path, PATH_MAX, "%.*s/%s", (int)size, at, name);
    if (size > 0 && n < PATH_MAX && is_program(path)) return true;
    at += size + (at[size] == ':');
  }
  return false;
}

int child_processes_find(const char *name, char path[PATH_MAX], err *e) {
  if (beside_us(name, path) || in_path(name, path)) return ERR_OK;
  return err_set(
      e, ERR_GONE,
      "the program %s is neither beside tandem nor in PATH: build it (scripts/run.sh does), or install "
      "all three programs together",
      name);
}

/* ---- starting; between fork and exec only async-signal-safe calls ---- */

static void reset_signals(void) {
  struct sigaction plain = {.sa_handler = SIG_DFL};
  sigset_t none;
  for (int number = 1; number < NSIG; number++) sigaction(number, &plain, NULL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void become(const char *path, char *const *args, pid_t parent, int null_fd, int out_fd) {
  static const char failed[] = "tandem: error: a worker program could not be started: is it damaged?\n";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXEC_FAILED); /* tandem died before the line above */
  setpgid(0, 0);
  reset_signals();
  if (dup2(null_fd, STDIN_FILENO) >= 0 && dup2(out_fd, STDOUT_FILENO) >= 0) execv(path, args);
  ssize_t written = write(STDERR_FILENO, failed, sizeof failed - 1);
  (void)written;
  _exit(EXEC_FAILED);
}

/* Returns the child, or -1 with errno. Signals are blocked meanwhile, so that no handler of ours runs in the
 * child. */
static pid_t spawn(const char *path, char *const *args, int out_fd) {
  int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0) return -1;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) become(path, args, parent, null_fd, out_fd);
  int code = errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  close(null_fd);
  errno = code;
  return pid;
}

static void on_death(uv_poll_t *poll, int status, int events);

/* A process file descriptor tells of this child's end and of nobody else's, and of every end: signals of the
 * same number are merged. */
static int watch(child_processes *p, int32_t number, pid_t pid, err *e) {
  life *l = calloc(1, sizeof *l);
  if (!l) return err_set(e, ERR_NOMEM, "out of memory");
  *l = (life){.owner = p, .number = number, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0)};
  if (l->pidfd >= 0 && uv_poll_init(p->options.loop, &l->poll, l->pidfd) == 0) {
    l->poll.data = l;
    p->handles++;
    uv_poll_start(&l->poll, UV_READABLE, on_death);
    return ERR_OK;
  }
  int code = errno;
  if (l->pidfd >= 0) close(l->pidfd);
  free(l);
  return err_set(e, ERR_IO, "cannot watch a child program: %s (this needs Linux 5.3 or later)",
                 strerror(code));
}

static void wait_for(pid_t pid, int *wait_status) {
  while (waitpid(pid, wait_status, 0) < 0 && errno == EINTR) {
  }
}

int child_processes_start(child_processes *p, int32_t number, err *e) {
  assert(number >= 0 && number < p->count);
  child *c = &p->list[number];
  if (c->pid) return err_set(e, ERR_STATE, "%s runs already", c->name);
  pid_t pid = spawn(c->path, c->args, STDERR_FILENO);
  if (pid < 0) return err_set(e, ERR_IO, "cannot start %s: %s", c->path, strerror(errno));
  int rc = watch(p, number, pid, e);
  if (rc != ERR_OK) {
    kill(pid, SIGKILL);
    wait_for(pid, NULL);
    return rc;
  }
  c->pid = pid;
  c->starts++;
  c->started_ms = uv_now(p->options.loop);
  return ERR_OK;
}

int32_t child_processes_add(child_processes *p, const char *name, const char *const *args, err *e) {
  char path[PATH_MAX];
  assert(p->count < CHILD_PROCESSES_MAX);
  int rc = child_processes_find(name, path, e);
  if (rc) return rc;
  child *c = &p->list[p->count];
  uv_timer_init(p->options.loop, &c->restart_timer);
  c->restart_timer.data = p;
  p->handles++;
  c->name = name;
  c->path = strdup(path);
  int n = 0;
  bool ok = c->path != NULL;
  c->args[n++] = c->path;
  for (; ok && *args; args++) {
    assert(n <= CHILD_PROCESSES_ARGS_MAX);
    ok = (c->args[n++] = strdup(*args)) != NULL;
  }
  p->count++; /* child_processes_close frees what there is */
  return ok ? p->count - 1 : err_set(e, ERR_NOMEM, "out of memory");
}

/* ---- ends ---- */

static void describe(int wait_status, child_processes_exit *x) {
  if (WIFEXITED(wait_status)) {
    x->code = WEXITSTATUS(wait_status);
    snprintf(x->text, sizeof x->text, "exit status %d", x->code);
  } else {
    x->code = -WTERMSIG(wait_status);
    snprintf(x->text, sizeof x->text, "signal %d (%s)", WTERMSIG(wait_status),
             strsignal(WTERMSIG(wait_status)));
  }
}

static child_processes_exit exit_of(const child_processes *p, int32_t number) {
  const child *c = &p->list[number];
  return (child_processes_exit){
      .child = number, .name = c->name, .starts = c->starts, .expected = p->stopping};
}

static void on_closed(uv_handle_t *handle);

static void on_life_closed(uv_handle_t *handle) {
  life *l = handle->data;
  handle->data = l->owner;
  close(l->pidfd);
  on_closed(handle);
  free(l);
}

/* No zombie stays. */
static void on_death(uv_poll_t *poll, int status, int events) {
  (void)status;
  (void)events;
  life *l = poll->data;
  child_processes *p = l->owner;
  child *c = &p->list[l->number];
  int wait_status;
  if (c->pid && waitpid(c->pid, &wait_status, WNOHANG) != c->pid) return;
  uv_close((uv_handle_t *)poll, on_life_closed);
  if (!c->pid) return; /* child_processes_kill was faster */
  c->pid = 0;
  if (uv_now(p->options.loop) - c->started_ms >= CHILD_PROCESSES_STEADY_MS) c->starts = 1;
  child_processes_exit x = exit_of(p, l->number);
  describe(wait_status, &x);
  p->options.on_exit(p->options.context, &x);
}

static void on_restart(uv_timer_t *timer) {
  child_processes *p = timer->data;
  int32_t number = 0;
  err e;
  while (&p->list[number].restart_timer != timer) number++;
  if (child_processes_start(p, number, &e) == ERR_OK) return;
  p->list[number].starts++;
  child_processes_exit x = exit_of(p, number);
  x.code = -1;
  snprintf(x.text, sizeof x.text, "%.*s", (int)sizeof x.text - 1, e.text);
  p->options.on_exit(p->options.context, &x);
}

int child_processes_start_after(child_processes *p, int32_t number, uint64_t ms, err *e) {
  if (ms == 0) return child_processes_start(p, number, e);
  uv_timer_start(&p->list[number].restart_timer, on_restart, ms, 0);
  return ERR_OK;
}

static void signal_all(child_processes *p, int number) {
  for (int32_t i = 0; i < p->count; i++)
    if (p->list[i].pid) kill(p->list[i].pid, number);
}

static void on_grace_over(uv_timer_t *timer) {
  signal_all(timer->data, SIGKILL);
}

void child_processes_stop(child_processes *p) {
  if (p->stopping) return;
  p->stopping = true;
  for (int32_t i = 0; i < p->count; i++) uv_timer_stop(&p->list[i].restart_timer);
  signal_all(p, SIGTERM);
  signal_all(p, SIGCONT); /* a stopped program must wake up to see SIGTERM */
  uv_timer_start(&p->grace_timer, on_grace_over, CHILD_PROCESSES_GRACE_MS, 0);
}

int32_t child_processes_alive(const child_processes *p) {
  int32_t n = 0;
  for (int32_t i = 0; i < p->count; i++) n += p->list[i].pid != 0;
  return n;
}

/* ---- what they do ---- */

static uint64_t ticks_of(pid_t pid) {
  char path[64], text[1024] = "";
  unsigned long user = 0, kernel = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *f = fopen(path, "re");
  if (!f) return 0;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[n] = 0;
  const char *rest = strrchr(text, ')'); /* of the name, which may hold anything */
  if (!rest || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
    return 0;
  return (uint64_t)(user + kernel) * 100 / (uint64_t)sysconf(_SC_CLK_TCK);
}

static uint64_t mib_read_by(pid_t pid) {
  char path[64], line[128];
  unsigned long long bytes = 0;
  snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
  FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "read_bytes: %llu", &bytes) == 1) break;
  if (f) fclose(f);
  return bytes >> 20;
}

bool child_processes_work(const child_processes *p, int32_t number, uint64_t *work) {
  pid_t pid = p->list[number].pid;
  if (!pid) return false;
  *work = ticks_of(pid) + mib_read_by(pid);
  return true;
}

/* ---- life ---- */

int child_processes_open(child_processes **out, const child_processes_options *o, err *e) {
  child_processes *p = *out = calloc(1, sizeof *p);
  if (!p) return err_set(e, ERR_NOMEM, "out of memory");
  p->options = *o;
  p->grace_timer.data = p;
  uv_timer_init(o->loop, &p->grace_timer);
  p->handles = 1;
  return ERR_OK;
}

static void processes_free(child_processes *p) {
  for (int32_t i = 0; i < p->count; i++)
    for (char **arg = p->list[i].args; *arg; arg++) free(*arg);
  free(p);
}

static void on_closed(uv_handle_t *handle) {
  child_processes *p = handle->data;
  if (--p->handles == 0) processes_free(p);
}

void child_processes_kill(child_processes *p) {
  signal_all(p, SIGKILL);
  for (int32_t i = 0; i < p->count; i++) {
    if (p->list[i].pid) wait_for(p->list[i].pid, NULL);
    p->list[i].pid = 0;
  }
}

/* What watches a child closes itself when the loop runs, because the child has ended. */
void child_processes_close(child_processes *p) {
  if (!p) return;
  child_processes_kill(p);
  for (int32_t i = 0; i < p->count; i++) uv_close((uv_handle_t *)&p->list[i].restart_timer, on_closed);
  uv_close((uv_handle_t *)&p->grace_timer, on_closed);
}

/* ---- what they say of themselves ---- */

/* Reads until the stream ends, `size` is full or the time is over. */
static int read_all(int fd, int32_t ms, char *out, size_t size, const char *name, const char *flag, err *e) {
  size_t used = 0;
  for (;;) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, ms) <= 0)
      return err_set(e, ERR_TIMEOUT, "%s %s gave no answer within %g s", name, flag, ms / 1000.0);
    ssize_t n = used + 1 < size ? read(fd, out + used, size - 1 - used) : 0;
    if (n <= 0) break;
    used += (size_t)n;
  }
  out[used] = 0;
  return ERR_OK;
}

int child_processes_ask(const char *name, const char *flag, int32_t ms, char *out, size_t size, err *e) {
  char path[PATH_MAX], *args[] = {path, (char *)flag, NULL};
  int ends[2];
  *out = 0;
  int rc = child_processes_find(name, path, e);
  if (rc) return rc;
  if (pipe2(ends, O_CLOEXEC) != 0) return err_set(e, ERR_IO, "cannot make a pipe: %s", strerror(errno));
  pid_t pid = spawn(path, args, ends[1]);
  close(ends[1]);
  if (pid < 0)
    rc = err_set(e, ERR_IO, "cannot start %s: %s", path, strerror(errno));
  else
    rc = read_all(ends[0], ms, out, size, name, flag, e);
  close(ends[0]);
  if (pid < 0) return rc;
  int wait_status = 0;
  if (rc) kill(pid, SIGKILL);
  wait_for(pid, &wait_status);
  if (rc == ERR_OK && !(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0))
    rc = err_set(e, ERR_IO, "%s %s failed: is it damaged, or of another tandem?", path, flag);
  return rc;
}
