/* child_processes.h - finds, starts, watches and ends the programs that `tandem` starts itself.
 *
 * A child is a process group of its own (Ctrl-C is for tandem, which then ends it), its stdin is empty, its
 * stdout goes to stderr (stdout belongs to the completion), and the kernel kills it when tandem dies, for
 * whatever reason. All calls on the loop's thread, which must be the main thread. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stdint.h>
#include <limits.h>
#include <uv.h>

#define CHILD_PROCESSES_MAX       4
#define CHILD_PROCESSES_ARGS_MAX  64
#define CHILD_PROCESSES_GRACE_MS  2000  /* from SIGTERM to SIGKILL */
#define CHILD_PROCESSES_STEADY_MS 60000 /* one that ran for so long is counted anew */
#define CHILD_PROCESSES_ASK_MS    10000 /* for what a program knows at once */
#define CHILD_PROCESSES_TEST_MS   60000 /* for each line of what it has to compute */

typedef struct child_processes child_processes;

typedef struct child_processes_exit {
  int32_t child;
  const char *name;
  int code;   /* exit status, or -N: ended by signal N */
  int starts; /* how often it was started since it last ran for CHILD_PROCESSES_STEADY_MS, this time included
               */
  bool expected; /* child_processes_stop had been called */
  char text[96]; /* "exit status 3", "signal 9 (Killed)" */
} child_processes_exit;

typedef struct child_processes_options {
  uv_loop_t *loop;
  void (*on_exit)(void *context, const child_processes_exit *x); /* may start it again */
  void *context;
} child_processes_options;

int child_processes_open(child_processes **out, const child_processes_options *o, err *e);
/* Does what child_processes_kill does and frees it; the loop must run once more before the loop is closed.
 * NULL is allowed. */
void child_processes_close(child_processes *p);

/* Adds a program to start: args (NULL-terminated, without its name) are copied. Returns its number, or an
 * error. ERR_GONE: no such program beside this one or in PATH. */
int32_t child_processes_add(child_processes *p, const char *name, const char *const *args, err *e);
/* ERR_STATE while it runs, ERR_IO. */
int child_processes_start(child_processes *p, int32_t child, err *e);
/* The same after so many milliseconds; if that fails then, on_exit tells. */
int child_processes_start_after(child_processes *p, int32_t child, uint64_t ms, err *e);

/* Sends SIGTERM to all, and SIGKILL to those that take longer than CHILD_PROCESSES_GRACE_MS. */
void child_processes_stop(child_processes *p);
/* Ends what is left at once; on_exit is not called. */
void child_processes_kill(child_processes *p);
int32_t child_processes_alive(const child_processes *p);
/* What it has done since it was started: hundredths of a second of a processor, and MiB read from files.
 * False: it does not run. */
bool child_processes_work(const child_processes *p, int32_t child, uint64_t *work);

/* Finds a program of this name beside this executable, else in PATH. ERR_GONE. */
int child_processes_find(const char *name, char path[PATH_MAX], err *e);
/* Runs `name flag' and stores what it prints, NUL-terminated. ms: its longest silence. ERR_GONE, ERR_IO,
 * ERR_TIMEOUT. */
int child_processes_ask(const char *name, const char *flag, int32_t ms, char *out, size_t size, err *e);
