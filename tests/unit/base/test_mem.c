/* libs: base */
#include "common/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/support/scratch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LARGE     ((size_t)20 << 20)
#define HUGE_PAGE ((uintptr_t)2 << 20)

static void is_zero_aligned_and_counted(void **state) {
  (void)state;
  mem m = {0};
  const size_t sizes[] = {1, 63, 64, 65, 4097, LARGE + 1};
  uint64_t bytes = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int tag = 0; tag < MEM_TAG_COUNT; tag++) {
      unsigned char *p = mem_alloc(&m, (mem_tag)tag, sizes[i]);
      assert_non_null(p);
      assert_int_equal((uintptr_t)p % 64, 0);
      for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(p[k], 0);
      memset(p, 0xa5, sizes[i]); /* so that memory given out again is not zero by itself */
      mem_free(p);
    }
    bytes += sizes[i];
    for (int tag = 0; tag < MEM_TAG_COUNT; tag++) {
      assert_int_equal(m.calls[tag], i + 1);
      assert_int_equal(m.bytes[tag], bytes);
    }
  }
  mem_free(NULL);
}

static void refuses_nothing_and_too_much(void **state) {
  (void)state;
  mem m = {0};
  for (int tag = 0; tag < MEM_TAG_COUNT; tag++) {
    assert_null(mem_alloc(&m, (mem_tag)tag, 0));
    assert_null(mem_alloc(&m, (mem_tag)tag, SIZE_MAX));
    assert_null(mem_alloc(&m, (mem_tag)tag, SIZE_MAX - 1)); /* rounded up it would be small */
    assert_int_equal(m.calls[tag], 0);
  }
  void *uncounted = mem_alloc(NULL, MEM_GENERAL, 10);
  assert_non_null(uncounted);
  mem_free(uncounted);
}

/* Whether the kernel has been asked for huge pages at p: flag "hg" of the mapping in /proc/self/smaps. */
static bool asked_for_huge_pages(const void *p) {
  char line[1024];
  bool here = false, asked = false;
  FILE *f = fopen("/proc/self/smaps", "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) {
    unsigned long first, last;
    if (sscanf(line, "%lx-%lx ", &first, &last) == 2) here = (uintptr_t)p >= first && (uintptr_t)p < last;
    if (here && strncmp(line, "VmFlags:", 8) == 0) asked = strstr(line, " hg") != NULL;
  }
  fclose(f);
  return asked;
}

static void large_weights_get_huge_pages(void **state) {
  (void)state;
  if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) != 0) {
    print_message("this kernel has no huge pages to ask for\n");
    skip();
  }
  void *weights = mem_alloc(NULL, MEM_WEIGHTS, LARGE), *other = mem_alloc(NULL, MEM_ACTIVATIONS, LARGE);
  assert_int_equal((uintptr_t)weights % HUGE_PAGE, 0);
  assert_true(asked_for_huge_pages(weights));
  assert_true(asked_for_huge_pages((char *)weights + LARGE - 1)); /* its last part too */
  assert_false(asked_for_huge_pages(other));
  mem_free(weights);
  mem_free(other);
}

/* --- what the system has left --- */

static char root[SCRATCH_MAX];

static void in_root(const char *command) {
  char line[SCRATCH_MAX + 300];
  snprintf(line, sizeof line, "cd %s && %s", root, command);
  assert_int_equal(system(line), 0);
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

static void what_is_left_is_within_the_machine_and_the_container(void **state) {
  (void)state;
  assert_int_equal(mem_left(root), SIZE_MAX); /* nobody says */
  in_root(
      "mkdir -p proc sys/fs/cgroup; cd proc; "
      "printf 'MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\nSwapTotal: 900 kB\n' > meminfo");
  assert_int_equal(mem_left(root), (size_t)4000 << 10);
  in_root("echo 'SwapFree: 500 kB' >> proc/meminfo");
  assert_int_equal(mem_left(root), (size_t)4500 << 10);
  assert_int_equal(mem_left_locked(root), (size_t)4000 << 10); /* no swap */
  in_root("cd sys/fs/cgroup; echo max > memory.max; echo 1000000 > memory.current");
  assert_int_equal(mem_left(root), (size_t)4500 << 10);
  in_root("echo 3000000 > sys/fs/cgroup/memory.max");
  assert_int_equal(mem_left(root), 2000000);
  in_root("cd sys/fs/cgroup; printf 'anon 1\ninactive_file 400000\nactive_file 50000\n' > memory.stat");
  assert_int_equal(mem_left(root), 2450000);
  in_root("echo 3500000 > sys/fs/cgroup/memory.current");
  assert_int_equal(mem_left(root), 0); /* 3,050,000 of 3,000,000 */
  in_root("rm sys/fs/cgroup/memory.*; mkdir sys/fs/cgroup/memory; cd sys/fs/cgroup/memory; " /* version 1 */
          "echo 3000000 > memory.limit_in_bytes; echo 1000000 > memory.usage_in_bytes; "
          "echo 'total_inactive_file 100000' > memory.stat");
  assert_int_equal(mem_left(root), 2100000);
}

/* The least of all groups on the way up counts, and memory.high as memory.max does. */
static void memory_is_within_each_group_above(void **state) {
  (void)state;
  in_root("mkdir -p proc/self sys/fs/cgroup/a/b; echo '0::/a/b' > proc/self/cgroup; cd sys/fs/cgroup; "
          "echo max > a/b/memory.max; echo 100000 > a/b/memory.current; "
          "echo 5000000 > a/memory.max; echo 1000000 > a/memory.current");
  assert_int_equal(mem_left(root), 4000000);
  in_root("echo 600000 > sys/fs/cgroup/a/b/memory.high");
  assert_int_equal(mem_left(root), 500000);
  in_root("rm -r sys/fs/cgroup; mkdir -p sys/fs/cgroup/memory/job; echo '7:memory:/job' > proc/self/cgroup; "
          "cd sys/fs/cgroup/memory/job; echo 900000 > memory.limit_in_bytes; echo 200000 > "
          "memory.usage_in_bytes; "
          "cd ..; echo 9223372036854771712 > memory.limit_in_bytes; echo 5 > memory.usage_in_bytes");
  assert_int_equal(mem_left(root), 700000);
}

/* ulimit -v and -d */
static void addresses_may_be_limited(void **state) {
  (void)state;
  const size_t most = (size_t)1 << 46; /* more than a sanitizer maps */
  const struct {
    int resource;
    size_t left;
  } limits[] = {{RLIMIT_AS, most - (4000 << 10)}, {RLIMIT_DATA, most - (900 << 10)}};
  in_root("mkdir -p proc/self; printf 'VmSize:\t    4000 kB\nVmData:\t     900 kB\n' > proc/self/status");
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    struct rlimit before, limit;
    assert_int_equal(mem_left(root), SIZE_MAX);
    getrlimit(limits[i].resource, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)most;
    assert_int_equal(setrlimit(limits[i].resource, &limit), 0);
    assert_int_equal(mem_left(root), limits[i].left);
    setrlimit(limits[i].resource, &before);
  }
}

static void this_machine_has_memory_left(void **state) {
  (void)state;
  size_t left = mem_left("");
  assert_true(left > 0 && left < SIZE_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(is_zero_aligned_and_counted),
      cmocka_unit_test(refuses_nothing_and_too_much),
      cmocka_unit_test(large_weights_get_huge_pages),
      cmocka_unit_test_setup_teardown(what_is_left_is_within_the_machine_and_the_container, make_root,
                                      remove_root),
      cmocka_unit_test_setup_teardown(memory_is_within_each_group_above, make_root, remove_root),
      cmocka_unit_test_setup_teardown(addresses_may_be_limited, make_root, remove_root),
      cmocka_unit_test(this_machine_has_memory_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
