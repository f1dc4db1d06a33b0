/* libs: file base */
#include "common/file/gguf.h"
#include "tests/support/gguf_builder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

#define MODEL "models/SmolLM2-135M-Instruct.Q4_1.gguf"

/* Opens a copy of exactly `size` bytes, so that a sanitizer sees a read past the end. */
static int open_copy(const uint8_t *bytes, size_t size, err *e) {
  uint8_t *copy = malloc(size ? size : 1);
  gguf *g = (gguf *)1;
  assert_non_null(copy);
  memcpy(copy, bytes, size);
  *e = (err){0};
  int rc = gguf_open_memory(&g, copy, size, e);
  if (rc) {
    assert_null(g);
    assert_int_equal(e->code, rc);
    assert_true(strlen(e->text) > 20 && !strchr(e->text, '\n'));
  }
  gguf_close(g);
  free(copy);
  return rc;
}

static void assert_refused(gguf_builder *b, int code, const char *part) {
  err e;
  int rc = open_copy(b->bytes, b->size, &e);
  if (rc != code || !strstr(e.text, part)) fail_msg("want %d '%s', got %d '%s'", code, part, rc, e.text);
  gb_free(b);
}

/* One value of every kind, arrays, and three tensors. */
static gguf_builder good_file(uint32_t version) {
  static const uint64_t shape[3] = {32, 3, 2};
  gguf_builder b = gb_begin(version);
  gb_key(&b, "z.u8", GB_U8), gb_number(&b, 200, 1);
  gb_key(&b, "i8", GB_I8), gb_number(&b, (uint64_t)-5, 1);
  gb_key(&b, "u16", GB_U16), gb_number(&b, 60000, 2);
  gb_key(&b, "i16", GB_I16), gb_number(&b, 1234, 2);
  gb_key_u32(&b, "u32", 4000000000u);
  gb_key(&b, "i32", GB_I32), gb_number(&b, (uint64_t)-7, 4);
  gb_key_f32(&b, "f32", 0.25f);
  gb_key_bool(&b, "bool", 1);
  gb_key(&b, "text", GB_STRING), gb_string(&b, "a\0b", 3);
  gb_key(&b, "u64", GB_U64), gb_number(&b, UINT64_MAX, 8);
  gb_key(&b, "i64", GB_I64), gb_number(&b, INT64_MAX, 8);
  gb_key(&b, "f64", GB_F64), gb_f64(&b, -1e300);
  gb_array(&b, "strings", GB_STRING, 3);
  gb_string(&b, "one", 3), gb_string(&b, "", 0), gb_string(&b, "three", 5);
  gb_array(&b, "numbers", GB_I16, 2), gb_number(&b, 3, 2), gb_number(&b, (uint64_t)-3, 2);
  gb_array(&b, "floats", GB_F32, 2), gb_f32(&b, 1.5f), gb_f32(&b, -2);
  gb_array(&b, "none", GB_STRING, 0);
  gb_array(&b, "nested", GB_ARRAY, 2);
  gb_number(&b, GB_U8, 4), gb_number(&b, 2, 8), gb_number(&b, 7, 1), gb_number(&b, 8, 1);
  gb_number(&b, GB_STRING, 4), gb_number(&b, 1, 8), gb_string(&b, "x", 1);
  gb_tensor(&b, "vector", 5, 0, GB_TYPE_F32);
  gb_tensor(&b, "nibbles", 96, 2, GB_TYPE_Q4_0);
  gb_tensor(&b, "matrix", 64, 3, GB_TYPE_Q8_0);
  b.data_size = (b.data_size + 31) / 32 * 32;
  gb_tensor_at(&b, "cube", 3, shape, GB_TYPE_Q4_1, b.data_size);
  b.data_size += 32 * 3 * 2 / 32 * 20;
  gb_end(&b);
  return b;
}

static gguf *open_good(gguf_builder *b) {
  gguf *g;
  err e;
  if (gguf_open_memory(&g, b->bytes, b->size, &e)) fail_msg("%s", e.text);
  return g;
}

static void check_integers(const gguf *g) {
  static const struct {
    const char *key;
    uint64_t value;
  } rows[] = {{"z.u8", 200},        {"u16", 60000},      {"i16", 1234},
              {"u32", 4000000000u}, {"u64", UINT64_MAX}, {"i64", INT64_MAX}};
  uint64_t v;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_true(gguf_get_u64(g, rows[i].key, &v));
    assert_true(v == rows[i].value);
  }
  static const char *const not_unsigned[] = {"i8", "i32", "f32", "bool", "text", "strings", "absent", ""};
  for (size_t i = 0; i < sizeof not_unsigned / sizeof not_unsigned[0]; i++)
    assert_false(gguf_get_u64(g, not_unsigned[i], &v));
}

static void check_others(const gguf *g) {
  double f;
  bool flag;
  gguf_string s;
  assert_true(gguf_get_f64(g, "f32", &f) && f == 0.25);
  assert_true(gguf_get_f64(g, "f64", &f) && f == -1e300);
  assert_true(gguf_get_f64(g, "u32", &f) && f == 4000000000.0);
  assert_true(gguf_get_f64(g, "i8", &f) && f < 0);
  assert_false(gguf_get_f64(g, "bool", &f));
  assert_true(gguf_get_bool(g, "bool", &flag) && flag);
  assert_false(gguf_get_bool(g, "z.u8", &flag));
  assert_true(gguf_get_string(g, "text", &s) && s.size == 3 && memcmp(s.data, "a\0b", 3) == 0);
  assert_false(gguf_get_string(g, "bool", &s));
  assert_true(gguf_has(g, "nested"));
  assert_false(gguf_has(g, "neste"));
}

static void check_arrays(const gguf *g) {
  uint64_t n;
  int64_t v;
  double f;
  gguf_string s;
  assert_true(gguf_array_count(g, "strings", &n) && n == 3);
  assert_true(gguf_array_string(g, "strings", 2, &s) && s.size == 5 && memcmp(s.data, "three", 5) == 0);
  assert_true(gguf_array_string(g, "strings", 1, &s) && s.size == 0);
  assert_false(gguf_array_string(g, "strings", 3, &s));
  assert_false(gguf_array_string(g, "numbers", 0, &s));
  assert_true(gguf_array_i64(g, "numbers", 1, &v) && v == -3);
  assert_false(gguf_array_i64(g, "numbers", 2, &v));
  assert_false(gguf_array_i64(g, "floats", 0, &v));
  assert_true(gguf_array_f64(g, "floats", 1, &f) && f == -2);
  assert_true(gguf_array_f64(g, "numbers", 1, &f) && f == -3);
  assert_true(gguf_array_count(g, "none", &n) && n == 0);
  assert_false(gguf_array_string(g, "none", 0, &s));
  assert_true(gguf_array_count(g, "nested", &n) && n == 2);
  assert_false(gguf_array_i64(g, "nested", 0, &v));
  assert_false(gguf_array_count(g, "text", &n));
}

static void check_tensors(const gguf *g, const uint8_t *bytes, size_t size) {
  const gguf_tensor *t = gguf_tensor_find(g, "cube");
  assert_int_equal(gguf_tensor_count(g), 4);
  assert_ptr_equal(t, gguf_tensor_at(g, 3));
  assert_int_equal(t->type, GGUF_Q4_1);
  assert_int_equal(t->dims, 3);
  assert_true(t->shape[0] == 32 && t->shape[1] == 3 && t->shape[2] == 2 && t->shape[3] == 1);
  assert_int_equal(t->bytes, 120);
  assert_ptr_equal((const uint8_t *)t->data + t->bytes, bytes + size);
  assert_int_equal(gguf_tensor_find(g, "matrix")->bytes, 64 * 3 / 32 * 34);
  assert_int_equal(gguf_tensor_find(g, "nibbles")->type, GGUF_Q4_0);
  assert_int_equal(gguf_tensor_find(g, "nibbles")->bytes, 96 * 2 / 32 * 18);
  assert_int_equal(((const uint8_t *)gguf_tensor_find(g, "vector")->data - bytes) % 32, 0);
  assert_string_equal(gguf_type_name(t->type), "Q4_1");
  assert_null(gguf_tensor_find(g, "cub"));
}

static void test_reads_what_was_written(void **state) {
  (void)state;
  for (uint32_t version = 2; version <= 3; version++) {
    gguf_builder b = good_file(version);
    gguf *g = open_good(&b);
    check_integers(g);
    check_others(g);
    check_arrays(g);
    check_tensors(g, b.bytes, b.size);
    gguf_close(g);
    gb_free(&b);
  }
}

static void put_u8(gguf_builder *b, const char *key, uint8_t v) {
  gb_key(b, key, GB_U8);
  gb_number(b, v, 1);
}

static void expect_told(const gguf *g, const char *part) {
  err e = {0};
  assert_int_equal(gguf_check_read(g, &e), part ? ERR_FORMAT : ERR_OK);
  if (part) assert_non_null(strstr(e.text, part));
}

/* What is there, and of no kind that was asked for, is told; what is converted, or never asked for, is not.
 */
static void test_nothing_that_was_asked_for_is_passed_over(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gguf *g;
  err e;
  bool flag = false;
  uint64_t u;
  int64_t i;
  double f;
  gguf_string s;
  put_u8(&b, "flag", 1), put_u8(&b, "two", 2);
  gb_key_text(&b, "number", "12"), gb_key_text(&b, "unasked", "x");
  gb_key_f32(&b, "float", 2);
  gb_end(&b);
  assert_int_equal(gguf_open_memory(&g, b.bytes, b.size, &e), ERR_OK);
  assert_true(gguf_get_bool(g, "flag", &flag) && flag);
  assert_true(gguf_get_i64(g, "two", &i) && i == 2);
  assert_false(gguf_get_string(g, "flag", &s)); /* somebody else has read it */
  assert_false(gguf_get_u64(g, "absent", &u));
  expect_told(g, NULL);
  assert_false(gguf_get_u64(g, "number", &u));
  expect_told(g, "the value of number, of type string");
  assert_true(gguf_get_string(g, "number", &s));
  expect_told(g, NULL);
  assert_false(gguf_get_u64(g, "float", &u));
  expect_told(g, "the value of float, of type f32");
  assert_true(gguf_get_f64(g, "float", &f) && f == 2);
  gguf_close(g);
  gb_free(&b);
}

static void test_a_shape_may_end_in_ones(void **state) {
  (void)state;
  const gguf_tensor vector = {.dims = 1, .shape = {64, 1, 1, 1}},
                    column = {.dims = 2, .shape = {64, 1, 1, 1}}, row = {.dims = 2, .shape = {1, 64, 1, 1}},
                    matrix = {.dims = 4, .shape = {64, 8, 1, 1}}, cube = {.dims = 3, .shape = {64, 8, 2, 1}};
  assert_true(gguf_has_shape(&vector, 64, 0));
  assert_true(gguf_has_shape(&column, 64, 0));
  assert_true(gguf_has_shape(&matrix, 64, 8));
  assert_false(gguf_has_shape(&row, 64, 0));
  assert_false(gguf_has_shape(&matrix, 64, 0));
  assert_false(gguf_has_shape(&cube, 64, 8));
}

static void test_refuses_every_truncation(void **state) {
  (void)state;
  gguf_builder b = good_file(3);
  for (size_t size = 0; size < b.size; size++) {
    err e;
    int rc = open_copy(b.bytes, size, &e);
    if (rc != ERR_FORMAT || !strstr(e.text, "download it again"))
      fail_msg("%zu bytes: %d %s", size, rc, e.text);
  }
  gb_free(&b);
}

/* Any byte may be anything: never a crash, and what opens can be read to its end. */
static void test_survives_every_changed_byte(void **state) {
  (void)state;
  static const uint8_t masks[] = {0xff, 0x01, 0x80, 0x08};
  gguf_builder b = good_file(3);
  int refused = 0;
  for (size_t at = 0; at < b.size; at++) {
    for (size_t m = 0; m < sizeof masks; m++) {
      uint8_t *copy = malloc(b.size);
      gguf *g;
      assert_non_null(copy);
      memcpy(copy, b.bytes, b.size);
      copy[at] ^= masks[m];
      if (gguf_open_memory(&g, copy, b.size, NULL)) {
        refused++;
      } else {
        gguf_fingerprint(g);
        for (int32_t i = 0; i < gguf_tensor_count(g); i++) {
          const gguf_tensor *t = gguf_tensor_at(g, i);
          const uint8_t *end = (const uint8_t *)t->data + t->bytes;
          assert_true((const uint8_t *)t->data >= copy && end <= copy + b.size);
        }
        gguf_close(g);
      }
      free(copy);
    }
  }
  assert_true(refused > 500);
  gb_free(&b);
}

/* ---- one wrong field at a time ---- */

/* A file with one key and one tensor, whose fields stand at known offsets. */
enum {
  AT_VERSION = 4,
  AT_TENSORS = 8,
  AT_KEYS = 16,
  AT_KEY_SIZE = 24, /* then "k", then the kind */
  AT_KEY = 32,
  AT_KIND = 33,
  AT_ELEMENT = 37,
  AT_COUNT = 41, /* then two u32 */
  AT_NAME_SIZE = 57,
  AT_NAME = 65,
  AT_DIMS = 66,
  AT_COLUMNS = 70,
  AT_ROWS = 78,
  AT_TYPE = 86,
  AT_OFFSET = 90 /* to 98 */
};

static void test_refuses_every_wrong_field(void **state) {
  (void)state;
  static const struct {
    size_t at;
    int bytes;
    uint64_t value;
    int code;
    const char *part;
  } rows[] = {
      {0, 4, 0x46554748, ERR_FORMAT, "not a GGUF"},
      {0, 4, 0x47475546, ERR_FORMAT, "not a GGUF"},
      {AT_VERSION, 4, 0, ERR_UNSUPPORTED, "version 0"},
      {AT_VERSION, 4, 1, ERR_UNSUPPORTED, "version 1"},
      {AT_VERSION, 4, 4, ERR_UNSUPPORTED, "version 4"},
      {AT_VERSION, 4, 0x03000000, ERR_UNSUPPORTED, "big-endian"},
      {AT_TENSORS, 8, 2, ERR_FORMAT, "a name in the tensor table"},
      {AT_TENSORS, 8, UINT64_MAX, ERR_FORMAT, "do not fit"},
      {AT_KEYS, 8, 1u << 30, ERR_FORMAT, "do not fit"},
      {AT_KEYS, 8, UINT64_MAX, ERR_FORMAT, "do not fit"},
      {AT_KEY_SIZE, 8, 0, ERR_FORMAT, "empty"},
      {AT_KEY_SIZE, 8, UINT64_MAX, ERR_FORMAT, "ends at byte"},
      {AT_KEY_SIZE, 8, UINT64_MAX - 31, ERR_FORMAT, "ends at byte"},
      {AT_KEY, 1, 0, ERR_FORMAT, "zero byte"},
      {AT_KIND, 4, 13, ERR_FORMAT, "kind 13"},
      {AT_KIND, 4, UINT32_MAX, ERR_FORMAT, "kind 4294967295"},
      {AT_ELEMENT, 4, 13, ERR_FORMAT, "kind 13"},
      {AT_COUNT, 8, UINT64_MAX, ERR_FORMAT, "does not fit"},
      {AT_COUNT, 8, UINT64_MAX / 4 + 1, ERR_FORMAT, "does not fit"},
      {AT_NAME_SIZE, 8, 0, ERR_FORMAT, "empty"},
      {AT_NAME_SIZE, 8, 1u << 31, ERR_FORMAT, "ends at byte"},
      {AT_NAME, 1, '\n', ERR_FORMAT, "printable"},
      {AT_DIMS, 4, 0, ERR_FORMAT, "dimensions"},
      {AT_DIMS, 4, 5, ERR_FORMAT, "dimensions"},
      {AT_DIMS, 4, UINT32_MAX, ERR_FORMAT, "dimensions"},
      {AT_COLUMNS, 8, 0, ERR_FORMAT, "impossible shape"},
      {AT_COLUMNS, 8, 33, ERR_FORMAT, "whole number of blocks"},
      {AT_COLUMNS, 8, UINT64_MAX, ERR_FORMAT, "impossible shape"},
      {AT_COLUMNS, 8, (uint64_t)1 << 62, ERR_FORMAT, "impossible shape"},
      {AT_COLUMNS, 8, (uint64_t)1 << 61, ERR_FORMAT, "impossible"},
      {AT_COLUMNS, 8, 64, ERR_FORMAT, "cut short"},
      {AT_ROWS, 8, 0, ERR_FORMAT, "impossible shape"},
      {AT_ROWS, 8, 9, ERR_FORMAT, "cut short"},
      {AT_ROWS, 8, (uint64_t)1 << 63, ERR_FORMAT, "impossible shape"},
      {AT_TYPE, 4, 16, ERR_UNSUPPORTED, "IQ2_XXS"},
      {AT_TYPE, 4, 12, ERR_FORMAT, "no whole number of blocks"},
      {AT_TYPE, 4, 999, ERR_UNSUPPORTED, "number 999"},
      {AT_OFFSET, 8, 8, ERR_FORMAT, "not aligned"},
      {AT_OFFSET, 8, 32, ERR_FORMAT, "cut short"},
      {AT_OFFSET, 8, UINT64_MAX - 31, ERR_FORMAT, "impossible offset"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    gguf_builder b = gb_begin(3);
    gb_array(&b, "k", GB_U32, 2), gb_number(&b, 1, 4), gb_number(&b, 2, 4);
    gb_tensor(&b, "t", 32, 8, GB_TYPE_Q8_0);
    gb_end(&b);
    gguf_close(open_good(&b));
    for (int k = 0; k < rows[i].bytes; k++)
      b.bytes[rows[i].at + (size_t)k] = (uint8_t)(rows[i].value >> (8 * k));
    assert_refused(&b, rows[i].code, rows[i].part);
  }
}

/* In whatever order they stand in the table. */
static void test_refuses_overlaps(void **state) {
  (void)state;
  static const uint64_t shape[] = {16}; /* of F32: 64 bytes */
  static const struct {
    uint64_t first, second;
    bool good;
  } rows[] = {{0, 64, true}, {64, 0, true}, {0, 32, false}, {32, 0, false}, {64, 64, false}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    gguf_builder b = gb_begin(3);
    gb_tensor_at(&b, "a", 1, shape, GB_TYPE_F32, rows[i].first);
    gb_tensor_at(&b, "b", 1, shape, GB_TYPE_F32, rows[i].second);
    b.data_size = 128;
    gb_end(&b);
    if (!rows[i].good) {
      assert_refused(&b, ERR_FORMAT, "overlaps");
      continue;
    }
    gguf_close(open_good(&b));
    gb_free(&b);
  }
}

static void test_names_the_type_it_cannot_read(void **state) {
  (void)state;
  static const struct {
    const char *name;
    size_t bytes; /* of 256 weights */
  } readable[] = {[0] = {"F32", 1024},    [1] = {"F16", 512},   [2] = {"Q4_0", 144},  [3] = {"Q4_1", 160},
                  [6] = {"Q5_0", 176},    [7] = {"Q5_1", 192},  [8] = {"Q8_0", 272},  [10] = {"Q2_K", 84},
                  [11] = {"Q3_K", 110},   [12] = {"Q4_K", 144}, [13] = {"Q5_K", 176}, [14] = {"Q6_K", 210},
                  [20] = {"IQ4_NL", 144}, [24] = {"I8", 256},   [26] = {"I32", 1024}, [27] = {"I64", 2048},
                  [30] = {"BF16", 512}};
  static const struct {
    uint32_t type;
    const char *name;
  } some[] = {{9, "Q8_1"},    {15, "Q8_K"}, {16, "IQ2_XXS"}, {19, "IQ1_S"},
              {23, "IQ4_XS"}, {28, "F64"},  {35, "TQ2_0"},   {39, "MXFP4"}};
  static const uint64_t shape[] = {256};
  for (uint32_t type = 0; type < 64; type++) {
    gguf_builder b = gb_begin(3);
    gb_tensor_at(&b, "blk.0.some", 1, shape, type, 0);
    b.data_size = 2048;
    gb_end(&b);
    if (type <= 30 && readable[type].name) {
      gguf *g = open_good(&b);
      assert_string_equal(gguf_type_name(gguf_tensor_at(g, 0)->type), readable[type].name);
      assert_int_equal(gguf_tensor_at(g, 0)->bytes, readable[type].bytes);
      gguf_close(g);
      gb_free(&b);
      continue;
    }
    const char *name = "type";
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
      if (some[i].type == type) name = some[i].name;
    err e;
    assert_int_equal(open_copy(b.bytes, b.size, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "blk.0.some"));
    assert_refused(&b, ERR_UNSUPPORTED, name);
  }
}

static void test_refuses_duplicates(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gb_key_u32(&b, "same", 1), gb_key_u32(&b, "other", 1), gb_key_bool(&b, "same", 1);
  gb_end(&b);
  assert_refused(&b, ERR_FORMAT, "key same");
  b = gb_begin(3);
  gb_tensor(&b, "w", 4, 0, GB_TYPE_F32), gb_tensor(&b, "v", 4, 0, GB_TYPE_F32),
      gb_tensor(&b, "w", 4, 0, GB_TYPE_F32);
  gb_end(&b);
  assert_refused(&b, ERR_FORMAT, "two tensors w");
}

static gguf_builder nested_file(int depth) {
  gguf_builder b = gb_begin(3);
  gb_key(&b, "deep", GB_ARRAY);
  for (int i = 1; i < depth; i++) gb_number(&b, GB_ARRAY, 4), gb_number(&b, 1, 8);
  gb_number(&b, GB_U8, 4), gb_number(&b, 1, 8), gb_number(&b, 9, 1);
  gb_end(&b);
  return b;
}

static void test_limits_nesting(void **state) {
  (void)state;
  gguf_builder b = nested_file(4);
  gguf_close(open_good(&b));
  gb_free(&b);
  b = nested_file(5);
  assert_refused(&b, ERR_LIMIT, "nested");
  b = nested_file(100000);
  assert_refused(&b, ERR_LIMIT, "nested");
}

static void test_limits_counts(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  char key[16];
  for (int i = 0; i <= 65536; i++) {
    snprintf(key, sizeof key, "k%d", i);
    gb_key_bool(&b, key, 0);
  }
  gb_end(&b);
  assert_refused(&b, ERR_LIMIT, "at most");
  char name[300];
  memset(name, 'n', sizeof name);
  for (size_t size = 255; size <= 256; size++) {
    name[size] = 0;
    b = gb_begin(3);
    gb_tensor(&b, name, 4, 0, GB_TYPE_F32);
    gb_end(&b);
    if (size == 256)
      assert_refused(&b, ERR_FORMAT, "longer than 255");
    else
      gguf_close(open_good(&b)), gb_free(&b);
    name[size] = 'n';
  }
}

static void test_alignment(void **state) {
  (void)state;
  static const uint32_t bad[] = {0, 4, 12, 48, 1u << 21, 1u << 31};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    gguf_builder b = gb_begin(3);
    gb_key_u32(&b, "general.alignment", bad[i]);
    gb_end(&b);
    assert_refused(&b, ERR_FORMAT, "alignment");
  }
  gguf_builder b = gb_begin(3);
  gb_key_text(&b, "general.alignment", "32");
  gb_end(&b);
  assert_refused(&b, ERR_FORMAT, "alignment");
  b = gb_begin(3);
  b.alignment = 256;
  gb_key_u32(&b, "general.alignment", 256);
  gb_tensor(&b, "a", 4, 0, GB_TYPE_F32), gb_tensor(&b, "b", 4, 0, GB_TYPE_F32);
  gb_end(&b);
  gguf *g = open_good(&b);
  assert_int_equal((const uint8_t *)gguf_tensor_at(g, 0)->data - b.bytes, 256);
  assert_int_equal((const uint8_t *)gguf_tensor_at(g, 1)->data - b.bytes, 512);
  gguf_close(g);
  gb_free(&b);
}

static void test_refuses_a_boolean_of_two(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gb_key_bool(&b, "flag", 2);
  gb_end(&b);
  assert_refused(&b, ERR_FORMAT, "flag");
}

/* ---- files ---- */

static void assert_file_refused(const char *path, int code, const char *part) {
  gguf *g = (gguf *)1;
  err e;
  int rc = gguf_open(&g, path, &e);
  if (rc != code || !strstr(e.text, part)) fail_msg("%s: %d %s", path, rc, rc ? e.text : "");
  assert_null(g);
}

static void test_files(void **state) {
  (void)state;
  const scratch_path_text file = scratch_path("m.gguf");
  const char *path = file.text;
  assert_file_refused(scratch_folder(), ERR_IO, "not a file");
  assert_file_refused(path, ERR_IO, "No such file");
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_file_refused(path, ERR_IO, "not a file"); /* and does not wait for a writer */
  unlink(path);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  fflush(f);
  assert_file_refused(path, ERR_FORMAT, "empty");
  gguf_builder b = good_file(3);
  assert_int_equal(fwrite(b.bytes, 1, b.size, f), b.size);
  fclose(f);
  gguf *g;
  err e;
  if (gguf_open(&g, path, &e)) fail_msg("%s", e.text);
  check_arrays(g);
  gguf_close(g);
  assert_int_equal(truncate(path, (off_t)b.size - 1), 0);
  assert_file_refused(path, ERR_FORMAT, "tensor cube needs bytes up to");
  gb_free(&b);
}

/* ---- identity ---- */

static hash16 fingerprint(const gguf_builder *b) {
  gguf *g;
  assert_int_equal(gguf_open_memory(&g, b->bytes, b->size, NULL), ERR_OK);
  hash16 h = gguf_fingerprint(g);
  gguf_close(g);
  return h;
}

static void test_fingerprint(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gb_key_u32(&b, "key", 1);
  gb_tensor(&b, "big", 2048, 0, GB_TYPE_F32); /* 8 KiB */
  gb_end(&b);
  hash16 before = fingerprint(&b);
  size_t data = b.size - 8192;
  assert_true(hash_equal(before, fingerprint(&b)));
  const size_t seen[] = {36 - 1 + 4, data, data + 4095}; /* the key's value; first and last byte that count */
  for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
    b.bytes[seen[i]] ^= 1;
    assert_false(hash_equal(before, fingerprint(&b)));
    b.bytes[seen[i]] ^= 1;
  }
  b.bytes[data + 4096] ^= 1;
  assert_true(hash_equal(before, fingerprint(&b)));
  gb_put(&b, "", 1);
  assert_false(hash_equal(before, fingerprint(&b)));
  gb_free(&b);
}

/* Figures of the PyPI package `gguf` 0.19.0 for the default model. */
static void test_default_model(void **state) {
  (void)state;
  gguf *g;
  err e;
  uint64_t n;
  if (gguf_open(&g, MODEL, &e)) fail_msg("%s (run scripts/get_model.sh)", e.text);
  assert_int_equal(gguf_tensor_count(g), 272);
  assert_true(gguf_array_count(g, "tokenizer.ggml.merges", &n) && n == 48900);
  const gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
  assert_true(t && t->type == GGUF_Q8_0 && t->bytes == 30081024 && t->shape[0] == 576 &&
              t->shape[1] == 49152);
  uint64_t bytes = 0;
  for (int32_t i = 0; i < gguf_tensor_count(g); i++) bytes += gguf_tensor_at(g, i)->bytes;
  assert_true(bytes == 96576768);
  gguf_close(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reads_what_was_written),
      cmocka_unit_test(test_nothing_that_was_asked_for_is_passed_over),
      cmocka_unit_test(test_a_shape_may_end_in_ones),
      cmocka_unit_test(test_refuses_every_truncation),
      cmocka_unit_test(test_survives_every_changed_byte),
      cmocka_unit_test(test_refuses_every_wrong_field),
      cmocka_unit_test(test_names_the_type_it_cannot_read),
      cmocka_unit_test(test_refuses_duplicates),
      cmocka_unit_test(test_limits_nesting),
      cmocka_unit_test(test_limits_counts),
      cmocka_unit_test(test_refuses_overlaps),
      cmocka_unit_test(test_alignment),
      cmocka_unit_test(test_refuses_a_boolean_of_two),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_fingerprint),
      cmocka_unit_test(test_default_model),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
