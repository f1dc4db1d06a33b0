#include "common/base/cpus.h"

#include "common/base/control_group.h"
#include "common/base/program.h"
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_ROOM (4 * PATH_MAX)
#define LIST_ROOM 4096

int32_t cpus_allowed(int32_t *out) {
  cpu_set_t set;
  int32_t count = 0;
  _Static_assert(CPUS_MAX <= CPU_SETSIZE, "a set holds them all");
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int32_t i = 0; i < CPUS_MAX; i++)
      if (CPU_ISSET(i, &set)) out[count++] = i;
  if (count == 0) out[count++] = 0;
  return count;
}

/* --- the system's files --- */

/* The first number of a file of the system, or -1. */
static int64_t read_number(const char *path) {
  long long value = -1;
  FILE *f = fopen(path, "r");
  if (!f) return -1;
  if (fscanf(f, "%lld", &value) != 1) value = -1;
  fclose(f);
  return value;
}

static int64_t topology(const char *root, int32_t cpu, const char *what) {
  char path[PATH_ROOM];
  snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root, cpu, what);
  return read_number(path);
}

/* The first processor of the core that has this one, or -1: the system does not tell. Numbers of cores are
 * unique in a package at best, in a cluster or die at worst; the list of a core's processors is the core
 * itself. */
static int64_t first_of_core(const char *root, int32_t cpu) {
  int64_t first = topology(root, cpu, "core_cpus_list");
  return first >= 0 ? first : topology(root, cpu, "thread_siblings_list"); /* its name before Linux 5.3 */
}

int32_t cpus_cores(const char *root, const int32_t *cpus, int32_t count, int32_t *out) {
  int64_t seen[CPUS_MAX];
  int32_t found = 0;
  for (int32_t i = 0; i < count; i++) {
    int64_t core = first_of_core(root, cpus[i]);
    int32_t k = 0;
    while (k < found && (core < 0 || seen[k] != core)) k++;
    if (k < found) continue;
    seen[found] = core;
    out[found++] = cpus[i];
  }
  return found;
}

static int32_t processors_of(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return INT32_MAX;
  int64_t whole = (quota + period - 1) / period;
  return whole < INT32_MAX ? (int32_t)whole : INT32_MAX;
}

static void lower(int32_t *least, int32_t count) {
  if (count < *least) *least = count;
}

/* "QUOTA PERIOD" or "max PERIOD" */
static void look_second(void *least, const char *folder) {
  char path[PATH_ROOM];
  long long quota = 0, period = 0;
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  FILE *f = fopen(path, "re");
  if (f && fscanf(f, "%lld %lld", &quota, &period) == 2) lower(least, processors_of(quota, period));
  if (f) fclose(f);
}

static void look_first(void *least, const char *folder) {
  char path[PATH_ROOM];
  snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
  int64_t quota = read_number(path);
  snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
  lower(least, processors_of(quota, read_number(path)));
}

int32_t cpus_quota(const char *root) {
  int32_t least = INT32_MAX;
  control_group_each(root, NULL, look_second, &least);
  control_group_each(root, "cpu", look_first, &least);
  return least;
}

int32_t cpus_threads(void) {
  int32_t cpus[CPUS_MAX], cores[CPUS_MAX];
  int32_t count = cpus_cores("", cpus, cpus_allowed(cpus), cores), quota = cpus_quota("");
  return count < quota ? count : quota;
}

int32_t cpus_spin_us(int32_t threads) {
  return threads >= CPUS_MANY ? CPUS_SPIN_LONG_US : CPUS_SPIN_US;
}

/* --- a list --- */

static bool is_among(const int32_t *list, int32_t count, int32_t cpu) {
  for (int32_t i = 0; i < count; i++)
    if (list[i] == cpu) return true;
  return false;
}

/* "3" or "2-5" */
static int parse_part(char *part, int32_t *out, int32_t *count, err *e) {
  int32_t allowed[CPUS_MAX], allowed_count = cpus_allowed(allowed);
  char *dash = strchr(part, '-');
  int64_t first, last;
  if (dash) *dash++ = 0;
  int rc = program_int("a processor of --pin", part, 0, CPUS_MAX - 1, &first, e);
  if (rc == ERR_OK)
    rc = program_int("a processor of --pin", dash ? dash : part, first, CPUS_MAX - 1, &last, e);
  if (rc != ERR_OK) return rc;
  for (int32_t cpu = (int32_t)first; cpu <= (int32_t)last; cpu++) {
    if (!is_among(allowed, allowed_count, cpu))
      return err_set(e, ERR_ARG, "processor %d of --pin does not exist here, or this program may not use it",
                     cpu);
    if (is_among(out, *count, cpu)) return err_set(e, ERR_ARG, "processor %d stands twice in --pin", cpu);
    out[(*count)++] = cpu;
  }
  return ERR_OK;
}

int cpus_parse(const char *text, int32_t *out, int32_t *count, err *e) {
  char copy[LIST_ROOM], *rest = copy;
  *count = 0;
  if (strcmp(text, "none") == 0) return ERR_OK;
  if (strcmp(text, "auto") == 0) {
    int32_t cpus[CPUS_MAX];
    *count = cpus_cores("", cpus, cpus_allowed(cpus), out);
    return ERR_OK;
  }
  if (strlen(text) >= sizeof copy) return err_set(e, ERR_ARG, "the list of --pin is too long");
  strcpy(copy, text);
  int rc = ERR_OK;
  while (rc == ERR_OK && rest) rc = parse_part(strsep(&rest, ","), out, count, e);
  return rc;
}
