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

#include "tests/scratch.h"

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

static void put_cpu(int cpu, const char *package, const char *core) {
  char path[128];
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
  put(path, package);
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
  put(path, core);
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

/* Two packages of two cores with two processors each; the numbers of cores repeat in the packages. */
static void one_processor_a_core(void **state) {
  (void)state;
  static const char *const cores[] = {"0\n", "1\n"}, *const packages[] = {"0\n", "1\n"};
  for (int i = 0; i < 8; i++) put_cpu(i, packages[i / 2 % 2], cores[i % 2]);
  int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7}, out[8];
  assert_int_equal(cpus_cores(root, all, 8, out), 4);
  assert_memory_equal(out, ((const int32_t[]){0, 1, 2, 3}), 4 * sizeof *out);
  int32_t some[] = {1, 3, 5, 6}; /* 5 is 1's sibling; 6 has its core alone here */
  assert_int_equal(cpus_cores(root, some, 4, out), 3);
  assert_memory_equal(out, ((const int32_t[]){1, 3, 6}), 3 * sizeof *out);
}

static void unknown_processors_are_cores(void **state) {
  (void)state;
  int32_t all[] = {0, 1, 2}, out[3];
  assert_int_equal(cpus_cores(root, all, 3, out), 3);
  put_cpu(0, "-1\n", "0\n"); /* no package told: some virtual machines */
  put_cpu(1, "-1\n", "0\n");
  assert_int_equal(cpus_cores(root, all, 3, out), 2);
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
      cmocka_unit_test(threads_are_no_more_than_processors),
      cmocka_unit_test(lists_are_parsed_strictly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
