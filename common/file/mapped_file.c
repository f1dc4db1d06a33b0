#include "common/file/mapped_file.h"

#include "common/base/program.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* --- SIGBUS --- */

typedef struct watched {
  _Atomic(const char *) begin; /* NULL: a free entry. Written last, so that the handler sees no half of one */
  const char *end;
  char path[PATH_MAX];
} watched;

static watched files[MAPPED_FILE_WATCH_MAX];
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;

static void say(const char *text) {
  ssize_t written = write(STDERR_FILENO, text, strlen(text));
  (void)written;
}

/* In the handler: only what is safe there. */
static void on_sigbus(int number, siginfo_t *info, void *context) {
  (void)context;
  for (int i = 0; i < MAPPED_FILE_WATCH_MAX; i++) {
    const char *begin = atomic_load(&files[i].begin), *at = info->si_addr;
    if (!begin || at < begin || at >= files[i].end) continue;
    say(program_invocation_short_name);
    say(": error: the file ");
    say(files[i].path);
    say(" was cut, or cannot be read any more, while it was in use: put it back whole and start again\n");
    _exit(STATUS_FILE);
  }
  sigaction(number, &before, NULL); /* the same instruction faults once more */
}

static void install(void) {
  struct sigaction a = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
  sigemptyset(&a.sa_mask);
  sigaction(SIGBUS, &a, &before);
}

void mapped_file_watch(const void *data, size_t size, const char *path) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
  pthread_mutex_lock(&files_lock);
  watched *w = files;
  while (w < files + MAPPED_FILE_WATCH_MAX && atomic_load(&w->begin)) w++;
  if (w < files + MAPPED_FILE_WATCH_MAX) {
    size_t length = strnlen(path, sizeof w->path - 1);
    memcpy(w->path, path, length);
    w->path[length] = 0;
    w->end = (const char *)data + size;
    atomic_store(&w->begin, data);
  }
  pthread_mutex_unlock(&files_lock);
}

void mapped_file_forget(const void *data) {
  pthread_mutex_lock(&files_lock);
  for (watched *w = files; data && w < files + MAPPED_FILE_WATCH_MAX; w++)
    if (atomic_load(&w->begin) == data) {
      atomic_store(&w->begin, NULL);
      break;
    }
  pthread_mutex_unlock(&files_lock);
}

/* --- files --- */

static int64_t nanoseconds(struct timespec t) {
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static mapped_stamp stamp_of(const struct stat *s) {
  return (mapped_stamp){.device = s->st_dev,
                        .number = s->st_ino,
                        .size = (uint64_t)s->st_size,
                        .modified_ns = nanoseconds(s->st_mtim),
                        .changed_ns = nanoseconds(s->st_ctim)};
}

static bool tells_of_writes(int fd) {
  struct statfs s;
  return fstatfs(fd, &s) == 0 && s.f_type != TMPFS_MAGIC && s.f_type != RAMFS_MAGIC;
}

static int map(mapped_file *m, int fd, const char *path, const char *what, err *e) {
  struct stat s;
  if (fstat(fd, &s)) return err_set(e, ERR_IO, "cannot read %s %s: %s", what, path, strerror(errno));
  if (!S_ISREG(s.st_mode))
    return err_set(e, ERR_IO,
                   "%s is not a file: give a .gguf model, or a folder with config.json and model.safetensors",
                   path);
  if (s.st_size == 0) return err_set(e, ERR_FORMAT, "%s is empty: download it again", path);
  void *data = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return err_set(e, ERR_IO, "cannot map %s %s: %s", what, path, strerror(errno));
  *m = (mapped_file){data, (size_t)s.st_size, tells_of_writes(fd) ? stamp_of(&s) : (mapped_stamp){0}};
  mapped_file_watch(data, m->size, path);
  return ERR_OK;
}

/* NONBLOCK: a named pipe is refused, not waited for. */
int mapped_file_open(mapped_file *m, const char *path, const char *what, err *e) {
  *m = (mapped_file){0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return err_set(e, ERR_IO, "cannot open %s %s: %s", what, path, strerror(errno));
  int rc = map(m, fd, path, what, e);
  close(fd);
  return rc;
}

void mapped_file_close(mapped_file *m) {
  mapped_file_forget(m->data);
  if (m->data) munmap((void *)m->data, m->size);
  *m = (mapped_file){0};
}
