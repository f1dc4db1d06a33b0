/* libs: file base */
/* The hash of a file, and what programs remember of it. */
#include "common/file/file_hash.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/user_folder.h"
#include "tests/support/scratch.h"
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char content[] = "what all programs read";
#define SIZE (sizeof content - 1)

static hash16 right(void) {
  return hash_bytes(content, SIZE);
}

static int set_up(void **state) {
  (void)state;
  setenv("XDG_CACHE_HOME", scratch_make_folder().text, 1);
  return 0;
}

/* As it lay there for an hour. */
static mapped_file settled(void) {
  int64_t then = (clock_wall_us() - INT64_C(3600000000)) * 1000;
  return (mapped_file){content, SIZE, {.device = 7, .number = 0xabc, .size = SIZE, then, then}};
}

static void memory_path(char out[PATH_MAX]) {
  assert_int_equal(user_folder_path(USER_FOLDER_CACHE, "hashes/7-abc", out), ERR_OK);
}

static void is_read(const mapped_file *m) {
  hash16 h = {{0}};
  assert_true(file_hash_read(m, NULL, &h));
  assert_true(hash_equal(h, right()));
}

static bool is_recalled(const mapped_file *m) {
  hash16 h = {{0}};
  bool known = file_hash_recall(m, &h);
  assert_int_equal(known, !hash_is_zero(h));
  if (known) assert_true(hash_equal(h, right()));
  return known;
}

static void test_what_was_read_is_remembered(void **state) {
  (void)state;
  const mapped_file m = settled();
  assert_false(is_recalled(&m));
  is_read(&m);
  assert_true(is_recalled(&m));
  is_read(&m); /* once more: what is remembered is written anew */
  assert_true(is_recalled(&m));
}

static void test_a_file_that_was_changed_is_another_one(void **state) {
  (void)state;
  const mapped_file m = settled();
  is_read(&m);
  mapped_file other[] = {m, m, m, m, m};
  other[0].stamp.device++;
  other[1].stamp.number++;
  other[2].stamp.size++;
  other[3].stamp.modified_ns++;
  other[4].stamp.changed_ns++;
  for (int i = 0; i < 5; i++) assert_false(is_recalled(&other[i]));
  assert_true(is_recalled(&m));
  is_read(&other[4]); /* takes the place of the first one, which had its inode */
  assert_true(is_recalled(&other[4]));
  assert_false(is_recalled(&m));
}

/* Another change just afterwards might leave the same times. */
static void test_what_was_changed_just_now_is_not_remembered(void **state) {
  (void)state;
  int64_t now = clock_wall_us() * 1000;
  for (int i = 0; i < 3; i++) {
    mapped_file m = settled();
    m.stamp.number += (uint64_t)i;
    if (i < 2) m.stamp.modified_ns = now + i * INT64_C(3600000000000); /* a clock that is ahead, too */
    if (i == 2) m.stamp.changed_ns = now;
    is_read(&m);
    assert_false(is_recalled(&m));
  }
}

static void test_what_is_no_file_is_not_remembered(void **state) {
  (void)state;
  mapped_file m = settled();
  m.stamp = (mapped_stamp){0};
  is_read(&m);
  assert_false(is_recalled(&m));
}

static void test_a_damaged_memory_counts_for_nothing(void **state) {
  (void)state;
  const mapped_file m = settled();
  char path[PATH_MAX], line[512];
  is_read(&m);
  memory_path(path);
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  size_t size = fread(line, 1, sizeof line, f);
  fclose(f);
  assert_true(size > 64 && size < sizeof line && line[size - 1] == '\n');
  for (size_t i = 0; i <= size; i++) { /* each byte changed, and the line cut before it */
    for (int cut = 0; cut < 2; cut++) {
      if (i == size && !cut) continue;
      f = fopen(path, "w");
      line[i] ^= 1;
      assert_int_equal(fwrite(line, 1, cut ? i : size, f), cut ? i : size);
      line[i] ^= 1;
      fclose(f);
      assert_int_equal(is_recalled(&m), i == size);
    }
  }
  f = fopen(path, "w");
  fprintf(f, "%.*sx", (int)size, line); /* and longer */
  fclose(f);
  assert_false(is_recalled(&m));
}

static void test_who_is_told_to_stop_gives_nothing(void **state) {
  (void)state;
  const mapped_file m = settled();
  const atomic_bool go = false, stop = true;
  hash16 h = {{1}};
  assert_false(file_hash_read(&m, &stop, &h));
  assert_true(hash_equal(h, (hash16){{1}}));
  assert_false(is_recalled(&m));
  assert_true(file_hash_read(&m, &go, &h));
  assert_true(hash_equal(h, right()));
}

/* More than one piece, and not a whole number of them. */
static void test_a_large_file_is_hashed_as_one(void **state) {
  (void)state;
  mapped_file m = settled();
  m.size = m.stamp.size = (9u << 20) + 3;
  char *data = malloc(m.size);
  for (size_t i = 0; i < m.size; i++) data[i] = (char)(i * 7 + (i >> 11));
  m.data = data;
  hash16 h;
  assert_true(file_hash_read(&m, NULL, &h));
  assert_true(hash_equal(h, hash_bytes(data, m.size)));
  free(data);
}

static void test_without_a_place_every_program_reads(void **state) {
  (void)state;
  const mapped_file m = settled();
  setenv("XDG_CACHE_HOME", "/dev/null", 1); /* where nothing can be made */
  is_read(&m);
  assert_false(is_recalled(&m));
}

/* The stamp of a real file is that of the system. */
static void test_a_mapped_file_has_its_stamp(void **state) {
  (void)state;
  char path[SCRATCH_MAX];
  struct stat s;
  mapped_file m;
  snprintf(path, sizeof path, "%s/f", getenv("XDG_CACHE_HOME"));
  FILE *f = fopen(path, "w");
  fputs(content, f);
  fclose(f);
  assert_int_equal(mapped_file_open(&m, path, "the file", NULL), ERR_OK);
  assert_int_equal(stat(path, &s), 0);
  assert_true(m.stamp.device == s.st_dev && m.stamp.number == s.st_ino && m.stamp.size == SIZE);
  assert_true(m.stamp.modified_ns == s.st_mtim.tv_sec * INT64_C(1000000000) + s.st_mtim.tv_nsec);
  assert_true(m.stamp.changed_ns == s.st_ctim.tv_sec * INT64_C(1000000000) + s.st_ctim.tv_nsec);
  is_read(&m);
  mapped_file_close(&m);
}

#define CASE(f) cmocka_unit_test_setup(f, set_up)

/* A write through a mapping changes no stamp there. Such files lie in /dev/shm. */
static void test_a_file_in_memory_has_no_stamp(void **state) {
  (void)state;
  char path[64];
  err e;
  mapped_file m;
  int fd = memfd_create("model", MFD_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, content, SIZE), SIZE);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  assert_int_equal(mapped_file_open(&m, path, "the model file", &e), ERR_OK);
  assert_true(m.size == SIZE && m.stamp.size == 0);
  is_read(&m);
  assert_false(is_recalled(&m));
  mapped_file_close(&m);
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_file_in_memory_has_no_stamp),
      CASE(test_what_was_read_is_remembered),
      CASE(test_a_file_that_was_changed_is_another_one),
      CASE(test_what_was_changed_just_now_is_not_remembered),
      CASE(test_what_is_no_file_is_not_remembered),
      CASE(test_a_damaged_memory_counts_for_nothing),
      CASE(test_who_is_told_to_stop_gives_nothing),
      CASE(test_a_large_file_is_hashed_as_one),
      CASE(test_without_a_place_every_program_reads),
      CASE(test_a_mapped_file_has_its_stamp),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
