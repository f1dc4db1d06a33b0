#include "common/base/output_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct input {
  char *path;
  dev_t device;
  ino_t number;
} input;

static struct {
  pthread_mutex_t lock;
  input *list;
  size_t count, capacity;
} spared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A number may be another file's by now: only what still has its name is that input. */
static bool is_input(const input *x, const struct stat *s) {
  struct stat now;
  return x->device == s->st_dev && x->number == s->st_ino && stat(x->path, &now) == 0 &&
         now.st_dev == s->st_dev && now.st_ino == s->st_ino;
}

static bool is_spared(const struct stat *s) {
  bool found = false;
  pthread_mutex_lock(&spared.lock);
  for (size_t i = 0; i < spared.count && !found; i++) found = is_input(&spared.list[i], s);
  pthread_mutex_unlock(&spared.lock);
  return found;
}

/* Without memory nothing is spared that was not before: the program is about to say so anyway. */
static void add(const char *path, const struct stat *s) {
  if (!S_ISREG(s->st_mode) || is_spared(s)) return;
  pthread_mutex_lock(&spared.lock);
  if (spared.count == spared.capacity) {
    size_t capacity = spared.capacity ? 2 * spared.capacity : 16;
    input *p = realloc(spared.list, capacity * sizeof *p);
    if (p) spared.list = p, spared.capacity = capacity;
  }
  char *copy = spared.count < spared.capacity ? strdup(path) : NULL;
  if (copy) spared.list[spared.count++] = (input){copy, s->st_dev, s->st_ino};
  pthread_mutex_unlock(&spared.lock);
}

static void add_folder(const char *path) {
  char name[PATH_MAX];
  DIR *folder = opendir(path);
  struct stat s;
  for (const struct dirent *d; folder && (d = readdir(folder));)
    if (snprintf(name, sizeof name, "%s/%s", path, d->d_name) < (int)sizeof name && stat(name, &s) == 0)
      add(name, &s);
  if (folder) closedir(folder);
}

void output_file_spare(const char *path) {
  struct stat s;
  if (!path || stat(path, &s) != 0) return;
  if (S_ISDIR(s.st_mode))
    add_folder(path);
  else
    add(path, &s);
}

static int check(const struct stat *s, const char *name, err *e) {
  if (!is_spared(s)) return ERR_OK;
  return err_set(e, ERR_ARG, "%s is a file that this command reads: name another one to write to", name);
}

int output_file_check(const char *path, err *e) {
  struct stat s;
  return stat(path, &s) == 0 ? check(&s, path, e) : ERR_OK;
}

int output_file_check_fd(int fd, const char *name, err *e) {
  struct stat s;
  return fstat(fd, &s) == 0 ? check(&s, name, e) : ERR_OK;
}

/* Looked at once it is open, so that no other file can take the name in between; only then is it emptied. */
static int open_checked(const char *path, bool append, err *e) {
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : 0), 0666);
  struct stat s;
  if (fd < 0 || fstat(fd, &s) != 0) {
    err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
  } else if (check(&s, path, e) == ERR_OK) {
    if (append || !S_ISREG(s.st_mode) || ftruncate(fd, 0) == 0) return fd;
    err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
  }
  if (fd >= 0) close(fd);
  return -1;
}

int output_file_open_fd(const char *path, err *e) {
  return open_checked(path, false, e);
}

FILE *output_file_open(const char *path, const char *mode, err *e) {
  int fd = open_checked(path, mode[0] == 'a', e);
  FILE *f = fd < 0 ? NULL : fdopen(fd, mode);
  if (fd >= 0 && !f) {
    err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    close(fd);
  }
  return f;
}
