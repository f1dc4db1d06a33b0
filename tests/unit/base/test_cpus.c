/* libs: base */
/* Processors: cores and quotas of machines that are written down here, and lists. */
#include "common/base/cpus.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

/* --- a machine on paper --- */

static char root[SCRATCH_MAX];

static void put(const char *path, const char *text) {
  char whole[256];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  for (char *c = whole + strlen(root) + 1; *c; c++) {
    if (*c != '/') continue;
    *c = 0;
    mkdir(whole, 0700);
    *c = '/';
  }
  FILE *f = fopen(whole, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

/* `siblings` may be NULL: not told. */
static void put_cpu(int cpu, const char *core, const char *siblings) {
  char path[128];
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
  put(path, core);
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_cpus_list", cpu);
  if (siblings) put(path, siblings);
}

static int make_root(void **state) {
  (void)state;
  strcpy(root, scratch_make_folder().text);
  return 0;
}

static int remove_root(void **state) {
  (void)state;
  scratch_remove(root);
  return 0;
}

/* Two dies of two cores with two processors each; the numbers of cores repeat in the dies. */
static void one_processor_a_core(void **state) {
  (void)state;
  static const char *const cores[] = {"0\n", "1\n"}, *const lists[] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n"};
  for (int i = 0; i < 8; i++) put_cpu(i, cores[i % 2], lists[i % 4]);
  int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7}, out[8];
  assert_int_equal(cpus_cores(root, all, 8, out), 4);
  assert_memory_equal(out, ((const int32_t[]){0, 1, 2, 3}), 4 * sizeof *out);
  int32_t some[] = {1, 3, 5, 6}; /* 5 is 1's sibling; 6 has its core alone here */
  assert_int_equal(cpus_cores(root, some, 4, out), 3);
  assert_memory_equal(out, ((const int32_t[]){1, 3, 6}), 3 * sizeof *out);
}

static void siblings_may_be_a_range_or_have_their_older_name(void **state) {
  (void)state;
  int32_t all[] = {0, 1, 2, 3}, out[4];
  for (int i = 0; i < 2; i++) put_cpu(i, "0\n", "0-1\n");
  put("/sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2-3\n");
  put("/sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "2-3\n");
  assert_int_equal(cpus_cores(root, all, 4, out), 2);
  assert_memory_equal(out, ((const int32_t[]){0, 2}), 2 * sizeof *out);
}

static void unknown_processors_are_cores(void **state) {
  (void)state;
  int32_t all[] = {0, 1, 2}, out[3];
  assert_int_equal(cpus_cores(root, all, 3, out), 3);
  for (int i = 0; i < 3; i++) put_cpu(i, "0\n", NULL); /* one number for all: some virtual machines */
  assert_int_equal(cpus_cores(root, all, 3, out), 3);
}

static void a_quota_is_rounded_up(void **state) {
  (void)state;
  assert_int_equal(cpus_quota(root), INT32_MAX);
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  assert_int_equal(cpus_quota(root), 3);
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  assert_int_equal(cpus_quota(root), INT32_MAX);
  put("/sys/fs/cgroup/cpu.max", "max 100000\n"); /* version 2 counts where both are there */
  assert_int_equal(cpus_quota(root), INT32_MAX);
  put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  assert_int_equal(cpus_quota(root), 1);
  put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  assert_int_equal(cpus_quota(root), 4);
}

/* Any group on the way up may have the least. */
static void a_quota_counts_wherever_it_stands_above(void **state) {
  (void)state;
  put("/proc/self/cgroup", "0::/user.slice/run.scope\n");
  put("/sys/fs/cgroup/user.slice/run.scope/cpu.max", "max 100000\n");
  assert_int_equal(cpus_quota(root), INT32_MAX);
  put("/sys/fs/cgroup/user.slice/cpu.max", "300000 100000\n");
  assert_int_equal(cpus_quota(root), 3);
  put("/sys/fs/cgroup/user.slice/run.scope/cpu.max", "150000 100000\n");
  assert_int_equal(cpus_quota(root), 2);
  put("/sys/fs/cgroup/user.slice/run.scope/below/cpu.max", "100000 100000\n"); /* not ours */
  put("/sys/fs/cgroup/other.slice/cpu.max", "100000 100000\n");
  assert_int_equal(cpus_quota(root), 2);
}

/* Mounted elsewhere, version 1 beside version 2; the first controller's mount begins at a container's group.
 */
static void groups_are_found_by_their_mounts(void **state) {
  (void)state;
  put("/proc/self/cgroup", "4:cpuset:/else\n3:cpu,cpuacct:/box/inner\n0::/unified\n");
  put("/proc/self/mountinfo", "20 1 0:2 / /mnt/cpuset rw - cgroup cgroup rw,cpuset\n"
                              "21 1 0:3 /box /mnt/cpu rw shared:3 - cgroup cgroup rw,cpu,cpuacct\n"
                              "22 1 0:4 / /mnt/two rw - cgroup2 cgroup rw\n");
  put("/mnt/cpu/box/inner/cpu.cfs_quota_us", "100000\n"); /* no such place: the mount has no box */
  put("/mnt/cpu/box/inner/cpu.cfs_period_us", "100000\n");
  put("/mnt/cpuset/else/cpu.cfs_quota_us", "100000\n");
  put("/mnt/cpuset/else/cpu.cfs_period_us", "100000\n");
  assert_int_equal(cpus_quota(root), INT32_MAX);
  put("/mnt/cpu/inner/cpu.cfs_quota_us", "500000\n");
  put("/mnt/cpu/inner/cpu.cfs_period_us", "100000\n");
  assert_int_equal(cpus_quota(root), 5);
  put("/mnt/two/unified/cpu.max", "400000 100000\n");
  assert_int_equal(cpus_quota(root), 4);
}

static void a_group_above_the_namespace_has_the_mount_alone(void **state) {
  (void)state;
  put("/proc/self/cgroup", "0::/../../elsewhere\n");
  put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  assert_int_equal(cpus_quota(root), 2);
}

/* --- this machine --- */

static void threads_are_no_more_than_processors(void **state) {
  (void)state;
  int32_t cpus[CPUS_MAX], count = cpus_allowed(cpus);
  assert_in_range(cpus_threads(), 1, count);
  cpu_set_t before, one;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(cpus[count - 1], &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(cpus_threads(), 1);
  assert_int_equal(cpus_allowed(cpus), 1);
  assert_true(CPU_ISSET(cpus[0], &one));
  sched_setaffinity(0, sizeof before, &before);
}

static void lists_are_parsed_strictly(void **state) {
  (void)state;
  int32_t cpus[CPUS_MAX], count = cpus_allowed(cpus), out[CPUS_MAX], n;
  char text[128];
  err e;
  assert_int_equal(cpus_parse("none", out, &n, &e), ERR_OK);
  assert_int_equal(n, 0);
  assert_int_equal(cpus_parse("auto", out, &n, &e), ERR_OK);
  assert_in_range(n, 1, count);
  snprintf(text, sizeof text, "%d", cpus[count - 1]);
  assert_int_equal(cpus_parse(text, out, &n, &e), ERR_OK);
  assert_int_equal(n, 1);
  assert_int_equal(out[0], cpus[count - 1]);
  if (count > 1 && cpus[1] == cpus[0] + 1) {
    snprintf(text, sizeof text, "%d-%d", cpus[0], cpus[1]);
    assert_int_equal(cpus_parse(text, out, &n, &e), ERR_OK);
    assert_int_equal(n, 2);
    snprintf(text, sizeof text, "%d,%d", cpus[1], cpus[0]); /* in this order */
    assert_int_equal(cpus_parse(text, out, &n, &e), ERR_OK);
    assert_int_equal(out[0], cpus[1]);
    snprintf(text, sizeof text, "%d,%d-%d", cpus[1], cpus[0], cpus[1]);
    assert_int_equal(cpus_parse(text, out, &n, &e), ERR_ARG);
  }
  static const char *const bad[] = {"",    ",",     "0,",   "x",           "0-",    "-0",
                                    "1-0", "0-0-0", "1023", "99999999999", "auto,0"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (cpus_parse(bad[i], out, &n, &e) != ERR_ARG) fail_msg("'%s' was taken", bad[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(one_processor_a_core, make_root, remove_root),
      cmocka_unit_test_setup_teardown(unknown_processors_are_cores, make_root, remove_root),
      cmocka_unit_test_setup_teardown(a_quota_is_rounded_up, make_root, remove_root),
      cmocka_unit_test_setup_teardown(siblings_may_be_a_range_or_have_their_older_name, make_root,
                                      remove_root),
      cmocka_unit_test_setup_teardown(a_quota_counts_wherever_it_stands_above, make_root, remove_root),
      cmocka_unit_test_setup_teardown(groups_are_found_by_their_mounts, make_root, remove_root),
      cmocka_unit_test_setup_teardown(a_group_above_the_namespace_has_the_mount_alone, make_root,
                                      remove_root),
      cmocka_unit_test(threads_are_no_more_than_processors),
      cmocka_unit_test(lists_are_parsed_strictly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
