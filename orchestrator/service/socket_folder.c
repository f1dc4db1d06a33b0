#include "orchestrator/service/socket_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "tandem-"
#define SUFFIX 6 /* characters that mkdtemp puts behind it */
#define LOCK   "lock"
#define LOCK_MADE                                                                                            \
  "lock.new" /* its name until it is locked, so that a file named LOCK is locked, or its owner is dead */

/* Removes sockets, locks and the corpus only: whatever else somebody has put there stays, and so does the
 * folder then. */
static void empty(int folder) {
  int again = dup(folder);
  DIR *d = again >= 0 ? fdopendir(again) : NULL;
  struct stat s;
  for (struct dirent *entry; d && (entry = readdir(d));) {
    const char *name = entry->d_name;
    bool ours =
        strcmp(name, LOCK) == 0 || strcmp(name, LOCK_MADE) == 0 || strcmp(name, SOCKET_FOLDER_CORPUS) == 0;
    if (ours || (fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(s.st_mode)))
      unlinkat(folder, name, 0);
  }
  if (d)
    closedir(d);
  else if (again >= 0)
    close(again);
}

/* --- what others have left behind --- */

/* True if it is this user's and nobody holds its lock: its owner is dead. One without a lock may be about to
 * get it. */
static bool is_left_behind(int folder) {
  struct stat s;
  if (fstat(folder, &s) != 0 || s.st_uid != geteuid()) return false;
  int lock = openat(folder, LOCK, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  bool free = lock >= 0 && fstat(lock, &s) == 0 && S_ISREG(s.st_mode) && flock(lock, LOCK_EX | LOCK_NB) == 0;
  if (lock >= 0) close(lock);
  return free;
}

static void tidy(const char *parent) {
  DIR *d = opendir(parent);
  for (struct dirent *entry; d && (entry = readdir(d));) {
    const char *name = entry->d_name;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || strlen(name) != strlen(PREFIX) + SUFFIX) continue;
    int folder = openat(dirfd(d), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool dead = folder >= 0 && is_left_behind(folder);
    if (dead) empty(folder);
    if (folder >= 0) close(folder);
    if (dead) unlinkat(dirfd(d), name, AT_REMOVEDIR);
  }
  if (d) closedir(d);
}

/* --- our own --- */

/* On a file system without locks the folder stays behind if this process is killed, which does no other harm:
 * by then a draft has read the corpus.
 */
static int make_lock(const char *path) {
  int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int lock = folder < 0 ? -1 : openat(folder, LOCK_MADE, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0) renameat(folder, LOCK_MADE, folder, LOCK);
  if (folder >= 0) close(folder);
  return lock;
}

static bool try_parent(socket_folder *f, const char *parent) {
  int n = snprintf(f->path, sizeof f->path, "%s/" PREFIX "XXXXXX", parent);
  if (parent[0] == '/' && n < SOCKET_FOLDER_MAX) {
    tidy(parent);
    if (mkdtemp(f->path)) {
      f->lock = make_lock(f->path);
      return true;
    }
  }
  f->path[0] = 0;
  return false;
}

int socket_folder_make(socket_folder *f, err *e) {
  const char *wanted = getenv("TMPDIR");
  if ((wanted && try_parent(f, wanted)) || try_parent(f, "/tmp")) return ERR_OK;
  return err_set(e, ERR_IO,
                 "cannot make a directory for sockets in /tmp: %s; set TMPDIR to a short path that "
                 "can be written",
                 strerror(errno));
}

void socket_folder_remove(socket_folder *f) {
  if (!f->path[0]) return;
  int folder = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    empty(folder);
    close(folder);
  }
  rmdir(f->path);
  if (f->lock >= 0) close(f->lock);
  f->path[0] = 0;
}

void socket_folder_endpoint(char out[SOCKET_ENDPOINT_MAX], const char *folder, const char *name) {
  snprintf(out, SOCKET_ENDPOINT_MAX, "ipc://%s/%s", folder, name);
}

void socket_folder_corpus(char out[SOCKET_ENDPOINT_MAX], const char *folder) {
  snprintf(out, SOCKET_ENDPOINT_MAX, "%s/%s", folder, SOCKET_FOLDER_CORPUS);
}
