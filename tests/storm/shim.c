/* shim - what a storm does to a program from within its libc, by LD_PRELOAD: the ledger's disk is full, and
 * the wall clock is wrong. The file that STORM_CONTROL names says what holds now; the storm writes it. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct control { /* as struct.pack("<qq") of storm_control.py writes it */
  _Atomic int64_t disk_full;
  _Atomic int64_t clock_offset_s;
} control;

static const control calm;
static const control *now_holds = &calm;

__attribute__((constructor)) static void open_control(void) {
  const char *path = getenv("STORM_CONTROL");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *at = mmap(NULL, sizeof(control), PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) now_holds = at;
  close(fd);
}

static int is_full(int fd) {
  char link[64], path[512];
  if (!now_holds->disk_full) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return strstr(path, "/ledger.sqlite") != NULL;
}

#define REAL(name, type)                                                                                     \
  static type real;                                                                                          \
  if (!real) real = (type)dlsym(RTLD_NEXT, name)

typedef ssize_t (*pwrite_function)(int, const void *, size_t, off_t);
typedef ssize_t (*write_function)(int, const void *, size_t);
typedef int (*allocate_function)(int, off_t, off_t);
typedef int (*clock_function)(clockid_t, struct timespec *);
typedef int (*day_function)(struct timeval *, void *);

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  REAL("pwrite", pwrite_function);
  if (is_full(fd)) return errno = ENOSPC, -1;
  return real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
  return pwrite(fd, data, size, at);
}

ssize_t write(int fd, const void *data, size_t size) {
  REAL("write", write_function);
  if (is_full(fd)) return errno = ENOSPC, -1;
  return real(fd, data, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
  REAL("posix_fallocate", allocate_function);
  return is_full(fd) ? ENOSPC : real(fd, at, size);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  REAL("clock_gettime", clock_function);
  int rc = real(clock, t);
  if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    t->tv_sec += now_holds->clock_offset_s;
  return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  REAL("gettimeofday", day_function);
  int rc = real(t, zone);
  if (rc == 0) t->tv_sec += now_holds->clock_offset_s;
  return rc;
}

time_t time(time_t *out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}
