/* libs: file base */
#include "common/file/gguf_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

static bool same(gguf_string a, const char *b) {
  return a.size == strlen(b) && memcmp(a.data, b, strlen(b)) == 0;
}

static const gguf_tensor SOME = {
    .name = "some", .type = GGUF_F32, .dims = 2, .shape = {3, 2, 1, 1}, .bytes = 24};
static const gguf_tensor OTHER = {
    .name = "other", .type = GGUF_I64, .dims = 1, .shape = {5, 1, 1, 1}, .bytes = 40};
static const float NUMBERS[6] = {1, 2, 3, -4, 5.5f, 6};
static const int64_t IDS[5] = {7, INT64_MIN, 9, -1, 11};

static gguf_writer *fill(void) {
  gguf_writer *w = gguf_writer_alloc();
  gguf_tensor some = SOME, other = OTHER;
  some.data = NUMBERS;
  other.data = IDS;
  gguf_write_text(w, "general.architecture", "some");
  gguf_write_u32(w, "count", 4000000000u);
  gguf_write_f32(w, "number", -0.125f);
  gguf_write_bool(w, "yes", true);
  gguf_write_i32s(w, "list", (const int32_t[]){2, -15, 27}, 3);
  gguf_write_tensor(w, &some);
  gguf_write_tensor(w, &other);
  return w;
}

static void writes_what_the_reader_reads(void **state) {
  (void)state;
  const scratch_path_text folder = scratch_make_folder();
  char path[SCRATCH_MAX + 10];
  uint64_t count;
  double number;
  bool yes = false;
  int64_t second;
  gguf_string text;
  gguf *g;
  err e;
  snprintf(path, sizeof path, "%s/out.gguf", folder.text);
  gguf_writer *w = fill();
  for (int i = 0; i < 2; i++) /* a file that is there is replaced */
    if (gguf_writer_save(w, path, &e)) fail_msg("%s", e.text);
  gguf_writer_free(w);
  if (gguf_open(&g, path, &e)) fail_msg("%s", e.text);
  assert_true(gguf_get_string(g, "general.architecture", &text) && same(text, "some"));
  assert_true(gguf_get_u64(g, "count", &count) && count == 4000000000u);
  assert_true(gguf_get_f64(g, "number", &number) && number == -0.125);
  assert_true(gguf_get_bool(g, "yes", &yes) && yes);
  assert_true(gguf_array_count(g, "list", &count) && count == 3);
  assert_true(gguf_array_i64(g, "list", 1, &second) && second == -15);
  const gguf_tensor *some = gguf_tensor_find(g, "some"), *other = gguf_tensor_find(g, "other");
  assert_true(some->type == GGUF_F32 && some->dims == 2 && some->shape[0] == 3 && some->shape[1] == 2);
  assert_memory_equal(some->data, NUMBERS, sizeof NUMBERS);
  assert_true(other->type == GGUF_I64 && other->dims == 1 && other->shape[0] == 5);
  assert_memory_equal(other->data, IDS, sizeof IDS);
  gguf_close(g);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder.text), 0); /* nothing is left beside the file */
}

static void copies_values_of_any_kind(void **state) {
  (void)state;
  static const char bytes[] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0" /* no tensor, one key: */
                              "\4\0\0\0\0\0\0\0list\11\0\0\0\10\0\0\0\2\0\0\0\0\0\0\0" /* of two texts */
                              "\3\0\0\0\0\0\0\0one\0\0\0\0\0\0\0\0";
  const scratch_path_text out = scratch_path("copy.gguf");
  gguf *from, *to;
  gguf_string key, value, text;
  err e;
  if (gguf_open_memory(&from, bytes, sizeof bytes - 1, &e)) fail_msg("%s", e.text);
  assert_true(gguf_key_at(from, 0, &key, &value) && same(key, "list"));
  assert_false(gguf_key_at(from, 1, &key, &value));
  gguf_writer *w = gguf_writer_alloc();
  gguf_write_value(w, key, value);
  if (gguf_writer_save(w, out.text, &e)) fail_msg("%s", e.text);
  gguf_writer_free(w);
  gguf_close(from);
  if (gguf_open(&to, out.text, &e)) fail_msg("%s", e.text);
  assert_true(gguf_array_string(to, "list", 0, &text) && same(text, "one"));
  assert_true(gguf_array_string(to, "list", 1, &text) && text.size == 0);
  gguf_close(to);
}

static void says_why_it_cannot_write(void **state) {
  (void)state;
  err e = {0};
  gguf_writer *w = fill();
  const scratch_path_text none = scratch_path("none/out.gguf");
  char text[SCRATCH_MAX + 20];
  snprintf(text, sizeof text, "%s: No such file", none.text);
  assert_int_equal(gguf_writer_save(w, none.text, &e), ERR_IO);
  assert_non_null(strstr(e.text, text));
  if (access("/dev/full", W_OK) == 0) assert_int_equal(gguf_writer_save(w, "/proc/out.gguf", &e), ERR_IO);
  gguf_writer_free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(writes_what_the_reader_reads),
      cmocka_unit_test(copies_values_of_any_kind),
      cmocka_unit_test(says_why_it_cannot_write),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
