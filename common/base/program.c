#include "common/base/program.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- what a program lives by ---- */

static void hold_streams(void) {
  static const int modes[] = {O_WRONLY, O_RDONLY,
                              O_RDWR}; /* of the first two the wrong one, so that using them fails */
  for (int fd = 0; fd < 3; fd++)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", modes[fd]) != fd) _exit(STATUS_FAILED);
}

static void set_signals(void) {
  sigset_t none;
  sigemptyset(&none);
  signal(SIGCHLD, SIG_DFL); /* ignored, the system would take away the status of each child */
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

static void raise_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int32_t program_files_max(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT32_MAX) return INT32_MAX;
  return (int32_t)limit.rlim_cur;
}

/* glibc gives threads as much as the limit of the first thread's stack was when the program began. */
static void raise_stacks(const char *name) {
  struct rlimit limit;
  pthread_attr_t threads;
  if (pthread_attr_init(&threads) == 0) {
    if (pthread_attr_setstacksize(&threads, PROGRAM_STACK) == 0) pthread_setattr_default_np(&threads);
    pthread_attr_destroy(&threads);
  }
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= PROGRAM_STACK) return;
  limit.rlim_cur = limit.rlim_max < PROGRAM_STACK ? limit.rlim_max : PROGRAM_STACK;
  setrlimit(RLIMIT_STACK, &limit);
  if (limit.rlim_cur >= PROGRAM_STACK_MIN) return;
  fprintf(stderr, "%s: error: the limit of the stack (ulimit -s) is %llu KiB: set it to %d or more\n", name,
          (unsigned long long)limit.rlim_cur >> 10, PROGRAM_STACK_MIN >> 10);
  exit(STATUS_FAILED);
}

void program_begin(const char *name) {
  hold_streams();
  set_signals();
  raise_files();
  raise_stacks(name);
}

const char *program_exit_help(void) {
  return "Exit status:\n"
#define LINE(name, number, text) "  " #number "\t" text "\n"
#define NO_LINE(name, number, text)
      STATUS_LIST(LINE, NO_LINE, LINE);
#undef LINE
#undef NO_LINE
}

int program_exit_of_file(int code) {
  bool file = code == ERR_IO || code == ERR_FORMAT || code == ERR_UNSUPPORTED || code == ERR_LIMIT;
  return file ? STATUS_FILE : code == ERR_DEVICE ? STATUS_DEVICE : STATUS_FAILED;
}

/* strtoll and its like skip blanks and take less than the whole: a flag's value is all or nothing. */
static bool starts_number(const char *text) {
  return (*text >= '0' && *text <= '9') || ((*text == '-' || *text == '.') && text[1]);
}

int program_int(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out, err *e) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  bool whole = starts_number(text) && *end == 0 && errno == 0;
  if (!whole || value < low || value > high)
    return err_set(e, ERR_ARG, "%s must be a whole number from %lld to %lld, not '%s'", flag, (long long)low,
                   (long long)high, text);
  *out = value;
  return ERR_OK;
}

int program_u64(const char *flag, const char *text, uint64_t *out, err *e) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  bool whole = *text >= '0' && *text <= '9' && *end == 0 && errno == 0;
  if (!whole)
    return err_set(e, ERR_ARG, "%s must be a whole number from 0 to 2^64 - 1, not '%s'", flag, text);
  *out = value;
  return ERR_OK;
}

int program_double(const char *flag, const char *text, double low, double high, double *out, err *e) {
  char *end;
  errno = 0;
  double value = strtod(text, &end);
  bool whole = starts_number(text) && *end == 0 && errno == 0 && !isnan(value);
  if (!whole || value < low || value > high)
    return err_set(e, ERR_ARG, "%s must be a number from %g to %g, not '%s'", flag, low, high, text);
  *out = value;
  return ERR_OK;
}

static const char units[] = "KMGT"; /* of 1024 bytes, of 1024 of these, ... */

int program_size(const char *flag, const char *text, int64_t *out, err *e) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  bool number = *text >= '0' && *text <= '9' && errno == 0;
  const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
  int shift = unit ? 10 * (int)(unit - units + 1) : 0;
  bool whole = number && (unit ? !end[1] : !*end);
  if (!whole || value > (uint64_t)INT64_MAX >> shift)
    return err_set(e, ERR_ARG,
                   "%s must be a number of bytes with or without K, M, G or T, as in 512M, not '%s'", flag,
                   text);
  *out = (int64_t)value << shift;
  return ERR_OK;
}

void program_print_size(program_size_text *out, uint64_t bytes) {
  int i = -1;
  double value = (double)bytes;
  for (; value >= 1000 && units[i + 1]; i++)
    value /= 1024; /* never four digits, as long as there are units */
  if (i < 0)
    snprintf(out->text, sizeof out->text, "%d bytes", (int)bytes);
  else
    snprintf(out->text, sizeof out->text, "%.*f %ciB", value < 100, value, units[i]);
}

int program_choice(const char *flag, const char *text, const char *const *names, int count, err *e) {
  char list[200] = "";
  for (int i = 0; i < count; i++) {
    if (strcmp(text, names[i]) == 0) return i;
    size_t used = strlen(list);
    snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
  }
  return err_set(e, ERR_ARG, "%s must be one of %s, not '%s'", flag, list, text);
}

int program_random(void *out, size_t size, err *e) {
  char *at = out;
  while (size > 0) {
    ssize_t n = getrandom(at, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return err_set(e, ERR_IO, "the system gives no random numbers: %s", strerror(errno));
    at += n;
    size -= (size_t)n;
  }
  return ERR_OK;
}

int32_t program_processors(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int32_t)n : 1;
}

int program_follow_parent(int64_t parent, err *e) {
  if (prctl(PR_SET_PDEATHSIG, SIGHUP) != 0)
    return err_set(e, ERR_IO, "cannot ask to end with the parent: %s", strerror(errno));
  signal(SIGHUP, SIG_DFL);
  signal(SIGINT, SIG_IGN);
  if (getppid() != (pid_t)parent) /* it died before the request above */
    return err_set(e, ERR_STATE, "process %lld, which this one should follow, is not its parent",
                   (long long)parent);
  return ERR_OK;
}
