/* libs: file base */
#include "common/file/head_gguf.h"
#include "common/file/tensor_values.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/gguf_builder.h"
#include "tests/support/head_builder.h"
#include "tests/support/random.h"

typedef struct fixture {
  folder folder;
  gguf_builder target; /* a vocabulary */
  gguf *tokens;
  model_config config;
  head_file *head;
  char path[SCRATCH_MAX + 16]; /* of the GGUF */
} fixture;

static void open_fixture(fixture *x, head_builder *b, const head_shape *s, const char *keys) {
  err e;
  x->config = head_target(s);
  x->folder = head_folder(b, s, keys);
  x->target = gb_begin(3);
  gb_vocabulary(&x->target, 0);
  gb_end(&x->target);
  snprintf(x->path, sizeof x->path, "%s/out.gguf", x->folder.path);
  if (gguf_open_memory(&x->tokens, x->target.bytes, x->target.size, &e)) fail_msg("%s", e.text);
  if (head_file_open(&x->head, x->folder.path, &x->config, &e)) fail_msg("%s", e.text);
}

static void close_fixture(fixture *x) {
  head_file_close(x->head);
  gguf_close(x->tokens);
  gb_free(&x->target);
  unlink(x->path);
  folder_remove(&x->folder);
}

static head_file *write_and_open(fixture *x) {
  head_file *out;
  err e;
  if (head_gguf_write(x->head, x->tokens, x->path, &e)) fail_msg("%s", e.text);
  if (head_file_open(&out, x->path, &x->config, &e)) fail_msg("%s", e.text);
  return out;
}

static float value_at(const gguf_tensor *t, size_t i) {
  float v;
  tensor_values(t->type, t->data, i, 1, &v);
  return v;
}

/* Row r of a head of 16 stands at 2 r, or at 2 (r - 8) + 1, in interleaved order. */
static size_t interleaved(size_t row) {
  size_t in = row % 16;
  return row - in + (in < 8 ? 2 * in : 2 * (in - 8) + 1);
}

static void compare_values(const head_file *a, const head_file *b, bool reordered) {
  for (head_role role = 0; role < HEAD_ROLE_COUNT; role++) {
    const gguf_tensor *x = head_file_tensor(a, role), *y = head_file_tensor(b, role);
    assert_int_equal(x == NULL, y == NULL);
    if (!x) continue;
    size_t columns = (size_t)x->shape[0], rows = (size_t)x->shape[1];
    for (size_t r = 0; r < rows; r++) {
      bool moved = reordered && (role == HEAD_Q || role == HEAD_K);
      size_t to = moved ? interleaved(r) : r;
      for (size_t i = 0; i < columns; i++)
        assert_true(value_at(x, r * columns + i) == value_at(y, to * columns + i));
    }
  }
}

static void writes_a_head_that_is_read_again(void **state) {
  (void)state;
  const head_calibration measured = {true, {{1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1}}};
  static head_builder b;
  fixture x;
  b = (head_builder){0};
  open_fixture(&x, &b, &HEAD_SMALL, "\"norm_before_residual\":true,\"horizon\":5,");
  head_file_calibrate(x.head, &measured);
  head_file *out = write_and_open(&x);
  const head_config *c = head_file_config(out), *from = head_file_config(x.head);
  assert_false(c->layer.half_split);
  assert_true(c->norm_before_residual && !c->norm_before_fc && !c->norm_output);
  assert_true(c->layer.embed == 32 && c->layer.heads == 2 && c->layer.kv_heads == 1 &&
              c->layer.head_dim == 16);
  assert_true(c->layer.ffn == 64 && c->layer.vocab == 96 && c->draft_vocab == 24 && c->target_embed == 32);
  assert_true(c->layer.rope_base == from->layer.rope_base && c->layer.norm_eps == from->layer.norm_eps);
  assert_int_equal(c->layer.context, 2048);
  assert_int_equal(c->horizon, 5);
  assert_true(c->calibration.there);
  assert_memory_equal(c->calibration.weights, measured.weights, sizeof measured.weights);
  assert_memory_equal(c->taps, from->taps, sizeof c->taps);
  assert_memory_equal(head_file_ids(out), head_file_ids(x.head), 24 * sizeof(int32_t));
  compare_values(x.head, out, true);
  head_file_close(x.head); /* from a GGUF to a GGUF nothing is reordered */
  x.head = out;
  head_file *again = write_and_open(&x);
  compare_values(out, again, false);
  head_file_close(again);
  close_fixture(&x);
}

static void copies_the_tokenizer_and_nothing_else_of_the_target(void **state) {
  (void)state;
  static head_builder b;
  fixture x;
  gguf *g;
  gguf_string key, value, other;
  uint64_t count;
  int copied = 0;
  err e;
  b = (head_builder){0};
  open_fixture(&x, &b, &HEAD_SMALL, "");
  head_file_close(write_and_open(&x));
  if (gguf_open(&g, x.path, &e)) fail_msg("%s", e.text);
  for (size_t i = 0; gguf_key_at(g, i, &key, &value); i++) {
    if (memcmp(key.data, "tokenizer.", 10) != 0) continue;
    for (size_t k = 0; gguf_key_at(x.tokens, k, &other, &value); k++)
      copied += key.size == other.size && memcmp(key.data, other.data, key.size) == 0;
  }
  assert_true(gguf_array_count(g, "tokenizer.ggml.tokens", &count) && count > 256);
  assert_int_equal(copied, 8);
  assert_true(gguf_tensor_find(g, "d2t")->type == GGUF_I64);
  assert_true(gguf_tensor_find(g, "blk.0.attn_norm_2.weight")->type == GGUF_F32);
  gguf_close(g);
  close_fixture(&x);
}

static void writes_quantised_matrices(void **state) {
  (void)state;
  static head_builder b;
  fixture x;
  err e;
  b = (head_builder){0};
  open_fixture(&x, &b, &HEAD_SMALL, "");
  assert_int_equal(head_file_quantise(x.head, GGUF_Q8_0, GGUF_Q4_1, &e), ERR_OK);
  assert_int_equal(head_file_keep_rows(x.head, 7, &e), ERR_OK);
  assert_int_equal(head_file_narrow(x.head, 100, &e), ERR_OK);
  head_file *out = write_and_open(&x);
  const gguf_tensor *k = head_file_tensor(out, HEAD_K), *output = head_file_tensor(out, HEAD_OUTPUT);
  const uint8_t *from = head_file_tensor(x.head, HEAD_K)->data, *to = k->data;
  assert_true(k->type == GGUF_Q8_0 && output->type == GGUF_Q4_1 && output->shape[1] == 7);
  assert_int_equal(head_file_config(out)->draft_vocab, 7);
  assert_int_equal(head_config_window(head_file_config(out)), 100);
  for (size_t r = 0; r < 16; r++) assert_memory_equal(from + r * 68, to + interleaved(r) * 68, 68);
  assert_memory_equal(output->data, head_file_tensor(x.head, HEAD_OUTPUT)->data, 7 * 20);
  head_file_close(out);
  close_fixture(&x);
}

static void writes_llama3_scaling_as_factors(void **state) {
  (void)state;
  static head_builder b;
  fixture x;
  b = (head_builder){0};
  open_fixture(&x, &b, &HEAD_SMALL,
               "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
               "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":16384},");
  head_file *out = write_and_open(&x);
  const gguf_tensor *t = head_file_tensor(out, HEAD_ROPE_FACTORS);
  assert_true(t && t->shape[0] == 8 && head_file_config(out)->layer.scaling.kind == ROPE_PLAIN);
  assert_true(value_at(t, 0) == 1 && value_at(t, 4) == 1); /* 16384 / (2 pi 1e5^.5) = 8.2 turns */
  float between = value_at(t, 5), most = value_at(t, 6);
  assert_true(between > 1 && between < 8 && most == 8);
  head_file_close(out);
  close_fixture(&x);
}

/* ---- the map of rows ---- */

enum { MAP_VOCAB = 200, MAP_ROWS = 160, MAP_EMBED = 32 };

static float target_rows[MAP_VOCAB][MAP_EMBED], head_rows[MAP_VOCAB][MAP_EMBED];

static const gguf_tensor TARGET_ROWS = {.name = "rows",
                                        .type = GGUF_F32,
                                        .dims = 2,
                                        .shape = {MAP_EMBED, MAP_VOCAB, 1, 1},
                                        .data = target_rows,
                                        .bytes = sizeof target_rows};

/* The head's rows are an affine function of the target's. */
static void make_rows(void) {
  uint64_t random = 1;
  for (int t = 0; t < MAP_VOCAB; t++)
    for (int i = 0; i < MAP_EMBED; i++) target_rows[t][i] = (float)random_below(&random, 65536) / 32768 - 1;
  for (int t = 0; t < MAP_VOCAB; t++)
    for (int o = 0; o < MAP_EMBED; o++) {
      head_rows[t][o] = head_value("constant", (size_t)o);
      for (int i = 0; i < MAP_EMBED; i++)
        head_rows[t][o] += target_rows[t][i] * head_value("map", (size_t)(o * MAP_EMBED + i));
    }
}

/* A head that has the rows of the last tokens. */
static void open_mapped(fixture *x) {
  static head_builder b;
  static int64_t ids[MAP_ROWS];
  head_shape shape = HEAD_SMALL;
  make_rows();
  for (int r = 0; r < MAP_ROWS; r++) ids[r] = MAP_VOCAB - MAP_ROWS;
  b = (head_builder){.skip = "lm_head.weight", .ids = ids};
  head_put(&b, "lm_head.weight", "F32", MAP_ROWS, MAP_EMBED, head_rows[MAP_VOCAB - MAP_ROWS],
           MAP_ROWS * sizeof head_rows[0]);
  shape.vocab = MAP_VOCAB, shape.draft_vocab = MAP_ROWS;
  open_fixture(x, &b, &shape, "");
}

static void maps_rows_of_the_target_to_rows_of_the_head(void **state) {
  (void)state;
  fixture x;
  double cosine = 0;
  err e;
  open_mapped(&x);
  assert_null(head_file_map(x.head));
  if (head_file_fit_map(x.head, &TARGET_ROWS, &cosine, &e)) fail_msg("%s", e.text);
  assert_true(cosine > 0.999 && cosine < 1.001);
  head_file *out = write_and_open(&x);
  const gguf_tensor *map = head_file_map(out);
  assert_true(map->type == GGUF_BF16 && map->shape[0] == MAP_EMBED + 1 && map->shape[1] == MAP_EMBED);
  for (int t = 0; t < MAP_VOCAB - MAP_ROWS; t++) { /* those that the head lacks */
    float scratch[3 * MAP_EMBED + 2], row[MAP_EMBED];
    assert_true(head_file_map_row(x.head, &TARGET_ROWS, t, scratch, row));
    for (int o = 0; o < MAP_EMBED; o++) {
      float made = value_at(map, (size_t)(o * (MAP_EMBED + 1) + MAP_EMBED));
      for (int i = 0; i < MAP_EMBED; i++)
        made += target_rows[t][i] * value_at(map, (size_t)(o * (MAP_EMBED + 1) + i));
      assert_true(made > head_rows[t][o] - 0.02f && made < head_rows[t][o] + 0.02f);
      assert_true(row[o] > made - 1e-4f && row[o] < made + 1e-4f);
    }
  }
  head_file_close(out);
  assert_int_equal(head_file_keep_rows(x.head, 65, &e), ERR_OK);
  assert_int_equal(head_file_fit_map(x.head, &TARGET_ROWS, &cosine, &e), ERR_UNSUPPORTED);
  assert_non_null(strstr(e.text, "needs 66 tokens with a row in the head, but it has 65"));
  close_fixture(&x);
}

/* The file with bytes of its map changed, `at` from the end of the key's name. */
static void expect_bad_map(const fixture *x, size_t at, const char *change, const char *part) {
  static char bytes[1 << 20];
  FILE *f = fopen(x->path, "rb");
  size_t size = fread(bytes, 1, sizeof bytes, f);
  head_file *h;
  err e;
  fclose(f);
  char *name = memmem(bytes, size, HEAD_MAP_NAME, strlen(HEAD_MAP_NAME));
  memcpy(name + strlen(HEAD_MAP_NAME) + at, change, 2);
  assert_int_equal(head_file_open_memory(&h, bytes, size, &x->config, &e), ERR_FORMAT);
  if (!strstr(e.text, part)) fail_msg("%s: %s", part, e.text);
}

static void refuses_a_wrong_map_of_rows(void **state) {
  (void)state;
  fixture x;
  double cosine;
  err e;
  open_mapped(&x);
  assert_int_equal(head_file_fit_map(x.head, &TARGET_ROWS, &cosine, &e), ERR_OK);
  head_file_close(write_and_open(&x));
  expect_bad_map(&x, 4, "\3", "is no array of 1056 u16 numbers"); /* i16 */
  expect_bad_map(&x, 4 + 4 + 8 + 2 * 77, "\xc0\x7f", "value that is no number");
  close_fixture(&x);
}

static void refuses_a_scaling_without_keys(void **state) {
  (void)state;
  static head_builder b;
  fixture x;
  err e;
  b = (head_builder){0};
  open_fixture(&x, &b, &HEAD_SMALL, "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0},");
  assert_int_equal(head_gguf_write(x.head, x.tokens, x.path, &e), ERR_UNSUPPORTED);
  assert_non_null(strstr(e.text, "yarn"));
  close_fixture(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(writes_a_head_that_is_read_again),
      cmocka_unit_test(copies_the_tokenizer_and_nothing_else_of_the_target),
      cmocka_unit_test(writes_quantised_matrices),
      cmocka_unit_test(writes_llama3_scaling_as_factors),
      cmocka_unit_test(maps_rows_of_the_target_to_rows_of_the_head),
      cmocka_unit_test(refuses_a_wrong_map_of_rows),
      cmocka_unit_test(refuses_a_scaling_without_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
