#include "common/base/mem.h"

#include "common/base/control_group.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_MIN  (4 * HUGE_PAGE) /* below that a whole huge page more would weigh too much */

static size_t round_up(size_t size, size_t to) {
  return (size + to - 1) / to * to;
}

/* A step reads all weights, a fifth faster with huge pages, and the keys and values of its sequences. They
 * are asked for before anything is touched; where the system has none, nothing changes. */
static void *take_huge(size_t size) {
  size = round_up(size, HUGE_PAGE);
  void *p = aligned_alloc(HUGE_PAGE, size);
  if (p) madvise(p, size, MADV_HUGEPAGE);
  return p;
}

void *mem_alloc(mem *m, mem_tag tag, size_t size) {
  if (size == 0 || size > SIZE_MAX - HUGE_PAGE) return NULL;
  bool huge = (tag == MEM_WEIGHTS || tag == MEM_KV) && size >= HUGE_MIN;
  void *p = huge ? take_huge(size) : aligned_alloc(ALIGNMENT, round_up(size, ALIGNMENT));
  if (!p) return NULL;
  memset(p, 0, size);
  mem_count(m, tag, size);
  return p;
}

void mem_count(mem *m, mem_tag tag, size_t size) {
  if (!m) return;
  atomic_fetch_add_explicit(&m->calls[tag], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&m->bytes[tag], size, memory_order_relaxed);
}

void mem_free(void *p) {
  free(p);
}

/* --- what the system has left --- */

#define PATH_ROOM (4 * PATH_MAX)
#define LINE_ROOM 256

/* The number in the line "NAME NUMBER" or "NAME: NUMBER kB" of a file, in its unit, or -1. */
static long long read_line(const char *root, const char *file, const char *name) {
  char path[PATH_ROOM], line[LINE_ROOM];
  long long value = -1;
  snprintf(path, sizeof path, "%s%s", root, file);
  FILE *f = fopen(path, "re");
  while (f && value < 0 && fgets(line, sizeof line, f))
    if (strncmp(line, name, strlen(name)) == 0) sscanf(line + strlen(name), " %lld", &value);
  if (f) fclose(f);
  return value;
}

typedef struct group_files {                          /* of one version of control groups */
  const char *limits[2], *used, *details, *cached[2]; /* cached: lines of details */
} group_files;

typedef struct group_look {
  const group_files *files;
  size_t left;
} group_look;

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

/* What is cached of files counts as used, but is given back. */
static void look_at_group(void *context, const char *folder) {
  group_look *look = context;
  const group_files *g = look->files;
  long long used = read_line(folder, g->used, "");
  if (used < 0) return;
  for (size_t i = 0; i < sizeof g->cached / sizeof *g->cached; i++) {
    long long cached = read_line(folder, g->details, g->cached[i]);
    if (cached > 0) used -= cached < used ? cached : used;
  }
  for (size_t i = 0; i < sizeof g->limits / sizeof *g->limits && g->limits[i]; i++) {
    long long limit = read_line(folder, g->limits[i], ""); /* a limit of "max" is no number */
    if (limit >= 0) look->left = least(look->left, used < limit ? (size_t)(limit - used) : 0);
  }
}

/* Beyond memory.high a process is not killed, but stands nearly still. */
static size_t group_left(const char *root) {
  static const group_files second = {
      {"/memory.max", "/memory.high"}, "/memory.current", "/memory.stat", {"inactive_file ", "active_file "}};
  static const group_files first = {{"/memory.limit_in_bytes"},
                                    "/memory.usage_in_bytes",
                                    "/memory.stat",
                                    {"total_inactive_file ", "total_active_file "}};
  group_look two = {&second, SIZE_MAX}, one = {&first, SIZE_MAX};
  control_group_each(root, NULL, look_at_group, &two);
  control_group_each(root, "memory", look_at_group, &one);
  return least(two.left, one.left);
}

static size_t limit_left(int resource, const char *root, const char *counted) {
  struct rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  long long kib = read_line(root, "/proc/self/status", counted);
  size_t used = kib > 0 ? (size_t)kib << 10 : 0;
  return used < limit.rlim_cur ? (size_t)limit.rlim_cur - used : 0;
}

/* ulimit -v counts addresses, used or not; ulimit -d those that may be written. */
static size_t limits_left(const char *root) {
  return least(limit_left(RLIMIT_AS, root, "VmSize:"), limit_left(RLIMIT_DATA, root, "VmData:"));
}

static size_t left_with(const char *root, long long swap) {
  long long available = read_line(root, "/proc/meminfo", "MemAvailable:");
  size_t machine = available < 0 ? SIZE_MAX : (size_t)(available + (swap > 0 ? swap : 0)) << 10;
  return least(least(machine, group_left(root)), limits_left(root));
}

size_t mem_left(const char *root) {
  return left_with(root, read_line(root, "/proc/meminfo", "SwapFree:"));
}

size_t mem_left_locked(const char *root) {
  return left_with(root, 0);
}
