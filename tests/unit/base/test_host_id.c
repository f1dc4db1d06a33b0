/* libs: base */
/* The name of a host: equal for all its programs, another one on every other host. */
#include "common/base/host_id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

#define BOOT_ID    "/proc/sys/kernel/random/boot_id"
#define MACHINE_ID "/etc/machine-id"

static const char first[] = "21c2ff6d-4d82-487e-a6fe-65d5e90a0960\n",
                  second[] = "0c0ffee0-4d82-487e-a6fe-65d5e90a0960\n",
                  machine[] = "3d1219c7c4c5404aaa1f6d2a48adfda4\n";

/* A system's files that are written down here. */
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

static void test_one_kernel_is_one_host(void **state) {
  (void)state;
  put(BOOT_ID, first);
  hash16 id = host_id(root);
  assert_false(hash_is_zero(id));
  assert_true(hash_equal(id, host_id(root)));
  put(BOOT_ID, second);
  assert_false(hash_equal(id, host_id(root)));
}

/* Every container has a machine-id of its own, but its processors are those of the others. */
static void test_the_kernel_decides_not_the_container(void **state) {
  (void)state;
  put(BOOT_ID, first);
  hash16 id = host_id(root);
  put(MACHINE_ID, machine);
  assert_true(hash_equal(id, host_id(root)));
}

static void test_without_a_boot_id_the_machine_id_serves(void **state) {
  (void)state;
  put(MACHINE_ID, machine);
  hash16 id = host_id(root);
  assert_false(hash_is_zero(id));
  put(BOOT_ID, "");
  assert_true(hash_equal(id, host_id(root)));
}

static void test_a_host_without_an_id_has_none(void **state) {
  (void)state;
  assert_true(hash_is_zero(host_id(root)));
  put(BOOT_ID, "unknown\n");
  put(MACHINE_ID, "");
  assert_true(hash_is_zero(host_id(root)));
}

static void test_this_host_has_an_id(void **state) {
  (void)state;
  assert_false(hash_is_zero(host_id("")));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_one_kernel_is_one_host),
      CASE(test_the_kernel_decides_not_the_container),
      CASE(test_without_a_boot_id_the_machine_id_serves),
      CASE(test_a_host_without_an_id_has_none),
      cmocka_unit_test(test_this_host_has_an_id),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
