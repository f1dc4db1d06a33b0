/* libs: file base */
#include "common/file/safetensors.h"
#include "common/file/json.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/folder_builder.h"

static int open_text(const char *header, size_t data, safetensors **s, uint8_t **bytes, err *e) {
  size_t size;
  *e = (err){0};
  *bytes = safetensors_bytes(header, data, &size);
  return safetensors_open_memory(s, *bytes, size, e);
}

static void reads_tensors(void **state) {
  (void)state;
  safetensors *s;
  uint8_t *bytes;
  err e;
  const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]},"
                       "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                       "\"c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[24,26]}}  ";
  if (open_text(header, 26, &s, &bytes, &e)) fail_msg("%s", e.text);
  assert_int_equal(safetensors_count(s), 3);
  const gguf_tensor *a = safetensors_find(s, "a"), *b = safetensors_find(s, "b"),
                    *c = safetensors_find(s, "c");
  assert_true(a == safetensors_at(s, 0) && b && c);
  assert_null(safetensors_find(s, "d"));
  assert_true(a->type == GGUF_BF16 && a->dims == 2 && a->shape[0] == 3 && a->shape[1] == 2 && a->bytes == 12);
  assert_true(b->type == GGUF_F32 && b->dims == 1 && b->shape[0] == 3 && b->shape[1] == 1 && b->bytes == 12);
  assert_true(c->type == GGUF_F16 && c->dims == 1 && c->shape[0] == 1 && c->bytes == 2);
  assert_ptr_equal(a->data, bytes + 8 + strlen(header));
  assert_ptr_equal(b->data, (const uint8_t *)a->data + 12);
  safetensors_close(s);
  free(bytes);
}

static void reads_integers(void **state) {
  (void)state;
  safetensors *s;
  uint8_t *bytes;
  err e;
  const char *header = "{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                       "\"b\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[16,28]},"
                       "\"c\":{\"dtype\":\"BOOL\",\"shape\":[5],\"data_offsets\":[28,33]}}";
  if (open_text(header, 33, &s, &bytes, &e)) fail_msg("%s", e.text);
  const gguf_tensor *a = safetensors_find(s, "a"), *b = safetensors_find(s, "b"),
                    *c = safetensors_find(s, "c");
  assert_true(a->type == GGUF_I64 && a->shape[0] == 2 && a->bytes == 16);
  assert_true(b->type == GGUF_I32 && b->shape[0] == 3 && b->bytes == 12);
  assert_true(c->type == GGUF_I8 && c->shape[0] == 5 && c->bytes == 5);
  safetensors_close(s);
  free(bytes);
}

#define T(name, dtype, shape, begin, end)                                                                    \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void refuses(void **state) {
  (void)state;
  const struct {
    const char *header;
    size_t data;
    int code;
    const char *part;
  } rows[] = {
      {"", 0, ERR_FORMAT, "JSON"},
      {"[]", 0, ERR_FORMAT, "object"},
      {"{\"a\":", 0, ERR_FORMAT, "JSON"},
      {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 0, 4) "}", 4, ERR_FORMAT, "duplicate"},
      {"{\"a\":[]}", 0, ERR_FORMAT, "dtype"},
      {"{\"a\":{\"dtype\":7}}", 0, ERR_FORMAT, "dtype"},
      {"{" T("a", "I16", "[1]", 0, 2) "}", 2, ERR_UNSUPPORTED, "I16"},
      {"{" T("a", "F8_E4M3", "[1]", 0, 1) "}", 1, ERR_UNSUPPORTED, "F8_E4M3"},
      {"{" T("a", "F32", "7", 0, 4) "}", 4, ERR_FORMAT, "shape"},
      {"{" T("a", "F32", "[1,1,1,1,1]", 0, 4) "}", 4, ERR_FORMAT, "shape"},
      {"{" T("a", "F32", "[0]", 0, 0) "}", 0, ERR_FORMAT, "shape"},
      {"{" T("a", "F32", "[-1]", 0, 4) "}", 4, ERR_FORMAT, "shape"},
      {"{" T("a", "F32", "[1.5]", 0, 4) "}", 4, ERR_FORMAT, "shape"},
      {"{" T("a", "F32", "[4611686018427387904,2]", 0, 4) "}", 4, ERR_FORMAT, "shape"},
      {"{" T("a", "F32", "[99999999999999999999]", 0, 4) "}", 4, ERR_FORMAT, "shape"},
      {"{" T("a", "F32", "[2]", 0, 4) "}", 4, ERR_FORMAT, "data_offsets"},
      {"{" T("a", "F32", "[1]", 4, 0) "}", 4, ERR_FORMAT, "data_offsets"},
      {"{" T("a", "F32", "[1]", -4, 0) "}", 4, ERR_FORMAT, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, ERR_FORMAT, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ERR_FORMAT, "data_offsets"},
      {"{" T("a", "F32", "[1]", 0, 4) "}", 3, ERR_FORMAT, "cut short"},
      {"{" T("a", "F32", "[1]", 9223372036854775803, 9223372036854775807) "}", 4, ERR_FORMAT, "cut short"},
      {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[1]", 4, 8) "}", 8, ERR_FORMAT, "overlaps"},
      {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 8, 12) "}", 12, ERR_FORMAT, "hole"},
      {"{" T("a", "F32", "[1]", 4, 8) "}", 8, ERR_FORMAT, "hole"},
      {"{" T("a", "F32", "[1]", 0, 4) "}", 9, ERR_FORMAT, "5 bytes follow"},
      {"{}", 3, ERR_FORMAT, "3 bytes follow"},
      {"{" T("a b", "F32", "[1]", 0, 4) "}", 4, ERR_FORMAT, "name"},
      {"{" T("", "F32", "[1]", 0, 4) "}", 4, ERR_FORMAT, "name"},
      {"{\"a\":[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}", 0, ERR_LIMIT, "levels"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    safetensors *s;
    uint8_t *bytes;
    err e;
    int rc = open_text(rows[i].header, rows[i].data, &s, &bytes, &e);
    if (rc != rows[i].code || !strstr(e.text, rows[i].part) || s)
      fail_msg("%s: want %d '%s', got %d '%s'", rows[i].header, rows[i].code, rows[i].part, rc, e.text);
    free(bytes);
  }
}

/* Every beginning of a right file is one clear error. */
static void refuses_what_is_cut(void **state) {
  (void)state;
  size_t size;
  uint8_t *bytes = safetensors_bytes("{" T("a", "F32", "[2]", 0, 8) "}", 8, &size);
  for (size_t n = 0; n <= size; n++) {
    safetensors *s;
    err e = {0};
    uint8_t *part = malloc(n + 1);
    memcpy(part, bytes, n);
    int rc = safetensors_open_memory(&s, part, n, &e);
    assert_int_equal(rc, n == size ? ERR_OK : ERR_FORMAT);
    safetensors_close(s);
    free(part);
  }
  free(bytes);
}

/* A header of many small values must not become gigabytes. */
static void refuses_many_values(void **state) {
  (void)state;
  size_t count = JSON_VALUES_MAX + 10, size;
  char *header = malloc(3 * count + 16), *at = header;
  safetensors *s;
  err e = {0};
  at += sprintf(at, "{\"a\":[");
  for (size_t i = 0; i < count; i++) at += sprintf(at, "{},");
  sprintf(at, "{}]}");
  uint8_t *bytes = safetensors_bytes(header, 0, &size);
  assert_int_equal(safetensors_open_memory(&s, bytes, size, &e), ERR_LIMIT);
  free(bytes);
  uint8_t *large = calloc(1, JSON_FILE_MAX + 100);
  uint64_t length = JSON_FILE_MAX + 1;
  for (int i = 0; i < 8; i++) large[i] = (uint8_t)(length >> (8 * i));
  assert_int_equal(safetensors_open_memory(&s, large, JSON_FILE_MAX + 100, &e), ERR_LIMIT);
  free(large);
  free(header);
}

/* --- shards --- */

static void put_tensors(folder *f, const char *name, const char *header, size_t data) {
  size_t size;
  uint8_t *bytes = safetensors_bytes(header, data, &size);
  folder_put(f, name, bytes, size);
  free(bytes);
}

static void reads_shards(void **state) {
  (void)state;
  folder f = folder_make();
  safetensors *s, *again;
  err e = {0};
  put_tensors(&f, "one.safetensors", "{" T("b", "F32", "[1]", 0, 4) "," T("d", "F32", "[1]", 4, 8) "}", 8);
  put_tensors(&f, "two.safetensors", "{" T("c", "F16", "[2]", 0, 4) "}", 4);
  folder_put_text(
      &f, "model.safetensors.index.json",
      "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"b\":\"one.safetensors\",\"c\":\"two.safetensors\","
      "\"d\":\"one.safetensors\"}}");
  if (safetensors_open(&s, f.path, &e)) fail_msg("%s", e.text);
  assert_int_equal(safetensors_count(s), 3);
  assert_string_equal(safetensors_at(s, 1)->name, "c");
  hash16 h = safetensors_fingerprint(s);
  safetensors_close(s);
  put_tensors(&f, "two.safetensors", "{" T("c", "BF16", "[2]", 0, 4) "}", 4);
  if (safetensors_open(&again, f.path, &e)) fail_msg("%s", e.text);
  assert_false(hash_equal(h, safetensors_fingerprint(again)));
  safetensors_close(again);
  put_tensors(&f, "model.safetensors", "{" T("x", "F32", "[1]", 0, 4) "}",
              4); /* one file goes before an index */
  if (safetensors_open(&s, f.path, &e)) fail_msg("%s", e.text);
  assert_int_equal(safetensors_count(s), 1);
  safetensors_close(s);
  folder_remove(&f);
}

static void refuses_bad_shards(void **state) {
  (void)state;
  const struct {
    const char *index;
    int code;
    const char *part;
  } rows[] = {
      {"[]", ERR_FORMAT, "object"},
      {"{}", ERR_FORMAT, "weight_map"},
      {"{\"weight_map\":{}}", ERR_FORMAT, "weight_map"},
      {"{\"weight_map\":[\"b\"]}", ERR_FORMAT, "weight_map"},
      {"{\"weight_map\":{\"b\":7}}", ERR_FORMAT, "no file of the folder"},
      {"{\"weight_map\":{\"b\":\"../one.safetensors\"}}", ERR_FORMAT, "no file of the folder"},
      {"{\"weight_map\":{\"b\":\"/etc/passwd\"}}", ERR_FORMAT, "no file of the folder"},
      {"{\"weight_map\":{\"b\":\"\"}}", ERR_FORMAT, "no file of the folder"},
      {"{\"weight_map\":{\"b\":\"three.safetensors\"}}", ERR_IO, "three.safetensors"},
      {"{\"weight_map\":{\"b\":\"one.safetensors\",\"z\":\"one.safetensors\"}}", ERR_FORMAT, "tensor z"},
      {"{\"weight_map\":{\"b\":\"one.safetensors\",\"c\":\"two.safetensors\"}}", ERR_FORMAT, "two files"},
  };
  folder f = folder_make();
  put_tensors(&f, "one.safetensors", "{" T("b", "F32", "[1]", 0, 4) "}", 4);
  put_tensors(&f, "two.safetensors", "{" T("b", "F16", "[2]", 0, 4) "," T("c", "F16", "[2]", 4, 8) "}", 8);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    safetensors *s;
    err e = {0};
    folder_put_text(&f, "model.safetensors.index.json", rows[i].index);
    int rc = safetensors_open(&s, f.path, &e);
    if (rc != rows[i].code || !strstr(e.text, rows[i].part) || s)
      fail_msg("%s: want %d '%s', got %d '%s'", rows[i].index, rows[i].code, rows[i].part, rc, e.text);
  }
  folder_remove(&f);
}

static void names_what_is_missing(void **state) {
  (void)state;
  folder f = folder_make();
  safetensors *s;
  err e = {0};
  assert_int_equal(safetensors_open(&s, f.path, &e), ERR_IO);
  assert_non_null(strstr(e.text, "model.safetensors"));
  folder_remove(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_tensors),
      cmocka_unit_test(reads_integers),
      cmocka_unit_test(refuses),
      cmocka_unit_test(refuses_what_is_cut),
      cmocka_unit_test(refuses_many_values),
      cmocka_unit_test(reads_shards),
      cmocka_unit_test(refuses_bad_shards),
      cmocka_unit_test(names_what_is_missing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
