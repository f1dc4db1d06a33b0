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

enum { LINKS_MAX = 40 }; /* as Linux follows */

typedef struct input {
  char *path; /* real_name of it */
  bool exists;
  dev_t device;
  ino_t number;
} input;

static struct {
  pthread_mutex_t lock;
  input *list;
  size_t count, capacity;
} spared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- names ---- */

/* The folder of `path`, without links, and the last part of `path`: false where there is no such folder. */
static bool in_real_folder(char out[PATH_MAX], const char *path) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
  if (!realpath(folder, out)) return false;
  size_t n = strlen(out);
  return snprintf(out + n, PATH_MAX - n, "/%s", last) < (int)(PATH_MAX - n);
}

/* Where opening `path` leads, also if nothing is there yet: links are followed as open would. */
static bool real_name(char out[PATH_MAX], const char *path) {
  char next[PATH_MAX], to[PATH_MAX];
  snprintf(next, sizeof next, "%s", path);
  for (int i = 0; i < LINKS_MAX; i++) {
    if (!in_real_folder(out, next)) return false;
    ssize_t n = readlink(out, to, sizeof to - 1);
    if (n < 0) return true;
    to[n] = 0;
    bool fits = snprintf(next, sizeof next, "%.*s%s", *to == '/' ? 0 : (int)(strrchr(out, '/') - out + 1),
                         out, to) < (int)sizeof next;
    if (!fits) return false;
  }
  return false;
}

/* ---- what is read ---- */

/* A number may be another file's by now: only what still has its name is that input. */
static bool is_input(const input *x, const char *name, const struct stat *s) {
  struct stat now;
  if (name && strcmp(x->path, name) == 0) return true;
  return s && x->exists && x->device == s->st_dev && x->number == s->st_ino && stat(x->path, &now) == 0 &&
         now.st_dev == s->st_dev && now.st_ino == s->st_ino;
}

static bool is_spared(const char *name, const struct stat *s) {
  bool found = false;
  pthread_mutex_lock(&spared.lock);
  for (size_t i = 0; i < spared.count && !found; i++) found = is_input(&spared.list[i], name, s);
  pthread_mutex_unlock(&spared.lock);
  return found;
}

/* Without memory nothing is spared that was not before: the program is about to say so anyway. */
static void add(const char *path, const struct stat *s) {
  char name[PATH_MAX];
  if (!real_name(name, path) || is_spared(name, NULL)) return;
  pthread_mutex_lock(&spared.lock);
  if (spared.count == spared.capacity) {
    size_t capacity = spared.capacity ? 2 * spared.capacity : 16;
    input *p = realloc(spared.list, capacity * sizeof *p);
    if (p) spared.list = p, spared.capacity = capacity;
  }
  char *copy = spared.count < spared.capacity ? strdup(name) : NULL;
  if (copy)
    spared.list[spared.count++] = s ? (input){copy, true, s->st_dev, s->st_ino} : (input){.path = copy};
  pthread_mutex_unlock(&spared.lock);
}

/* A model's folder holds no GGUF file that is read: one may be made there. */
static void add_folder(const char *path) {
  char name[PATH_MAX];
  DIR *folder = opendir(path);
  struct stat s;
  for (const struct dirent *d; folder && (d = readdir(folder));) {
    const char *end = strrchr(d->d_name, '.');
    if (end && strcmp(end, ".gguf") == 0) continue;
    bool fits = snprintf(name, sizeof name, "%s/%s", path, d->d_name) < (int)sizeof name;
    if (fits && stat(name, &s) == 0 && S_ISREG(s.st_mode)) add(name, &s);
  }
  if (folder) closedir(folder);
}

void output_file_spare(const char *path) {
  struct stat s;
  if (!path || strcmp(path, "-") == 0) return;
  if (stat(path, &s) != 0)
    add(path, NULL);
  else if (S_ISDIR(s.st_mode))
    add_folder(path);
  else if (S_ISREG(s.st_mode))
    add(path, &s);
}

static int refuse(const char *name, err *e) {
  return err_set(e, ERR_ARG, "%s is a file that this command reads: name another one to write to", name);
}

int output_file_check(const char *path, err *e) {
  char name[PATH_MAX];
  struct stat s;
  bool named = real_name(name, path), exists = stat(path, &s) == 0;
  return is_spared(named ? name : NULL, exists ? &s : NULL) ? refuse(path, e) : ERR_OK;
}

int output_file_check_fd(int fd, const char *name, err *e) {
  struct stat s;
  return fstat(fd, &s) == 0 && is_spared(NULL, &s) ? refuse(name, e) : ERR_OK;
}

/* ---- what is written ---- */

/* Looked at once it is open, so that no other file can take the name in between; only then is it emptied. */
static int open_checked(const char *path, bool append, err *e) {
  if (output_file_check(path, e)) return -1;
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : 0), 0666);
  struct stat s;
  if (fd < 0 || fstat(fd, &s) != 0) {
    err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
  } else if (output_file_check_fd(fd, path, e) == ERR_OK) {
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
