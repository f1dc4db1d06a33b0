/* libs: base */
/* What is read is not written over, under any name. */
#include "common/base/output_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

static void put(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void expect(const char *path, const char *text) {
  char found[64] = "";
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  size_t size = fread(found, 1, sizeof found - 1, f);
  fclose(f);
  found[size] = 0;
  assert_string_equal(found, text);
}

static void refuses(const char *path) {
  err e = {0};
  assert_null(output_file_open(path, "w", &e));
  assert_int_equal(e.code, ERR_ARG);
  assert_non_null(strstr(e.text, path));
  assert_non_null(strstr(e.text, "a file that this command reads"));
  e.code = ERR_OK;
  assert_null(output_file_open(path, "a", &e));
  assert_int_equal(e.code, ERR_ARG);
  assert_true(output_file_open_fd(path, &e) < 0);
  assert_int_equal(output_file_check(path, &e), ERR_ARG);
}

static void no_name_of_an_input_is_written_to(void **state) {
  (void)state;
  const scratch_path_text in = scratch_path("in"), soft = scratch_path("soft"), hard = scratch_path("hard"),
                          far = scratch_path("far");
  char by_number[64];
  put(in.text, "weights");
  assert_int_equal(symlink(in.text, soft.text), 0);
  assert_int_equal(symlink(soft.text, far.text), 0);
  assert_int_equal(link(in.text, hard.text), 0);
  int fd = open(in.text, O_RDONLY);
  snprintf(by_number, sizeof by_number, "/proc/self/fd/%d", fd);
  output_file_spare(soft.text);
  const char *const names[] = {in.text, soft.text, hard.text, far.text, by_number};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) refuses(names[i]);
  err e = {0};
  assert_int_equal(output_file_check_fd(fd, "stdout", &e), ERR_ARG);
  expect(in.text, "weights");
  close(fd);
}

/* The system gives the number of a file that is gone to another one. */
static void a_file_that_is_gone_is_no_input(void **state) {
  (void)state;
  const scratch_path_text in = scratch_path("gone"), out = scratch_path("other");
  err e = {0};
  put(in.text, "x");
  output_file_spare(in.text);
  assert_int_equal(rename(in.text, out.text), 0); /* its number, and another name */
  assert_int_equal(output_file_check(out.text, &e), ERR_OK);
}

static void each_file_of_a_folder_is_spared(void **state) {
  (void)state;
  const scratch_path_text folder = scratch_make_folder();
  char shard[SCRATCH_MAX + 16], fresh[SCRATCH_MAX + 16], made[SCRATCH_MAX + 16];
  snprintf(made, sizeof made, "%s/out.gguf", folder.text);
  put(made, "a head that was converted into its folder");
  snprintf(shard, sizeof shard, "%s/shard-2", folder.text);
  snprintf(fresh, sizeof fresh, "%s/fresh", folder.text);
  put(shard, "x");
  output_file_spare(folder.text);
  output_file_spare(NULL);
  output_file_spare("-");
  refuses(shard);
  err e = {0};
  assert_int_equal(output_file_check(made, &e), ERR_OK);
  FILE *f = output_file_open(fresh, "w", &e); /* it was not there */
  assert_non_null(f);
  fclose(f);
}

/* A ledger and its journal may be made later. */
static void what_is_not_there_yet_is_spared_by_its_name(void **state) {
  (void)state;
  const scratch_path_text folder = scratch_make_folder();
  char here[SCRATCH_MAX + 16], around[SCRATCH_MAX + 64], soft[SCRATCH_MAX + 16], beside[SCRATCH_MAX + 16];
  snprintf(here, sizeof here, "%s/ledger", folder.text);
  snprintf(around, sizeof around, "%s/./../%s/ledger", folder.text, strrchr(folder.text, '/') + 1);
  snprintf(soft, sizeof soft, "%s/soft", folder.text);
  snprintf(beside, sizeof beside, "%s/ledger2", folder.text);
  assert_int_equal(symlink("ledger", soft), 0); /* leads nowhere yet */
  output_file_spare(here);
  refuses(here);
  refuses(around);
  refuses(soft);
  assert_int_equal(access(here, F_OK), -1);
  put(here, "kept");
  refuses(here);
  refuses(soft);
  expect(here, "kept");
  err e = {0};
  assert_int_equal(output_file_check(beside, &e), ERR_OK);
  output_file_spare(soft); /* a second time, by another name */
  assert_int_equal(output_file_check("/nowhere/at/all", &e), ERR_OK);
}

static void other_files_are_emptied_or_added_to(void **state) {
  (void)state;
  const scratch_path_text out = scratch_path("out");
  err e = {0};
  put(out.text, "before");
  FILE *f = output_file_open(out.text, "a", &e);
  fputs(" and after", f);
  fclose(f);
  expect(out.text, "before and after");
  f = output_file_open(out.text, "w", &e);
  fclose(f);
  expect(out.text, "");
  int fd = output_file_open_fd("/dev/null", &e);
  assert_true(fd >= 0);
  close(fd);
  assert_null(output_file_open(scratch_path("no/folder").text, "w", &e));
  assert_int_equal(e.code, ERR_IO);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_name_of_an_input_is_written_to),
      cmocka_unit_test(a_file_that_is_gone_is_no_input),
      cmocka_unit_test(each_file_of_a_folder_is_spared),
      cmocka_unit_test(what_is_not_there_yet_is_spared_by_its_name),
      cmocka_unit_test(other_files_are_emptied_or_added_to),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
