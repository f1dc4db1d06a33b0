/* libs: model : far emulated */
/* Rows of single sequences behind a head's common ones, as they lie on the device. */
#include "common/model/head_rows.h"
#include "tests/support/models.h"

#include "tests/support/head_builder.h"
#include "tests/support/random.h"

enum {
  COMMON = 32,
  OUTPUTS = 400,
  VOCAB = 500,
  EMBED = 32,
  SEQUENCES = 2,
  ALL = COMMON + SEQUENCES * HEAD_ROWS_OWN
};

typedef struct fixture {
  folder folder;
  head_file *file;
  device *d;
  device_memory *matrix, *tokens;
  head_rows *r;
} fixture;

static int32_t token_of(int32_t output) {
  return (output * 7 + 3) % VOCAB;
}

static size_t bytes_of(const fixture *f, int32_t rows) {
  return f->d->table->packed_bytes(OPS_Q8_0, rows, EMBED);
}

static size_t row_bytes(const fixture *f) {
  const gguf_tensor *t = head_file_tensor(f->file, HEAD_OUTPUT);
  return t->bytes / (size_t)t->shape[1];
}

static float target_values[VOCAB][EMBED];

static const gguf_tensor TARGET = {.name = "rows",
                                   .type = GGUF_F32,
                                   .dims = 2,
                                   .shape = {EMBED, VOCAB, 1, 1},
                                   .data = target_values,
                                   .bytes = sizeof target_values};

static void fit_map(head_file *f) {
  uint64_t random = 3;
  double cosine;
  err e = {0};
  for (size_t i = 0; i < VOCAB * EMBED; i++)
    target_values[i / EMBED][i % EMBED] = (float)(random_below(&random, 2001)) / 1000.0f - 1.0f;
  if (head_file_fit_map(f, &TARGET, &cosine, &e)) fail_msg("%s", e.text);
}

/* kept > 0: the file has so many rows alone, and a map that was fitted with all of them. */
static void open_rows(fixture *f, const char *name, int32_t kept) {
  const head_shape shape = {EMBED, EMBED, 2, 1, 16, 64, VOCAB, OUTPUTS, {1, 2, 3}, 3};
  const model_config target = head_target(&shape);
  head_builder *b = calloc(1, sizeof *b);
  int64_t ids[OUTPUTS];
  err e = {0};
  for (int32_t i = 0; i < OUTPUTS; i++) ids[i] = token_of(i) - i;
  b->ids = ids;
  f->folder = head_folder(b, &shape, "");
  free(b);
  if (head_file_open(&f->file, f->folder.path, &target, &e)) fail_msg("%s", e.text);
  if (kept > 0) fit_map(f->file);
  if (kept > 0 && head_file_keep_rows(f->file, kept, &e)) fail_msg("%s", e.text);
  if (head_file_quantise(f->file, GGUF_Q8_0, GGUF_Q8_0, &e)) fail_msg("%s", e.text);
  f->d = support_open_device(name, OPS_MATH_INT8, 1, NULL);
  f->matrix = f->d->table->take(f->d, MEM_WEIGHTS, bytes_of(f, ALL));
  f->tokens = f->d->table->take(f->d, MEM_WEIGHTS, ALL * sizeof(int32_t));
  f->r = head_rows_open(f->file, kept > 0 ? &TARGET : NULL, OPS_Q8_0, COMMON, SEQUENCES, f->d);
  assert_true(f->matrix && f->tokens && f->r);
  memset(f->d->table->fill(f->d, f->tokens, 0, ALL * sizeof(int32_t)), 0xff, ALL * sizeof(int32_t));
  assert_int_equal(f->d->table->filled(f->d), OPS_OK);
}

static void close_rows(fixture *f) {
  head_rows_close(f->r);
  f->d->table->drop(f->d, f->matrix);
  f->d->table->drop(f->d, f->tokens);
  f->d->table->close(f->d);
  head_file_close(f->file);
  folder_remove(&f->folder);
}

/* The row of this output's token in the file's form. */
static void put_row(const fixture *f, int32_t output, uint8_t *to) {
  const gguf_tensor *t = head_file_tensor(f->file, HEAD_OUTPUT);
  float scratch[3 * EMBED + 2];
  if (output < t->shape[1])
    memcpy(to, (const uint8_t *)t->data + (size_t)output * row_bytes(f), row_bytes(f));
  else
    assert_true(head_file_map_row(f->file, &TARGET, token_of(output), scratch, to));
}

/* The sequence's piece on the device has these outputs, as a matrix of them would be packed. */
static void check_piece(fixture *f, int32_t sequence, const int32_t *outputs, int32_t count) {
  size_t bytes = bytes_of(f, HEAD_ROWS_OWN);
  uint8_t *rows = calloc(HEAD_ROWS_OWN, row_bytes(f)), *want = aligned_alloc(64, bytes), *got = malloc(bytes);
  int32_t tokens[HEAD_ROWS_OWN];
  int32_t first = COMMON + sequence * HEAD_ROWS_OWN;
  for (int32_t i = 0; i < count; i++) put_row(f, outputs[i], rows + (size_t)i * row_bytes(f));
  f->d->table->pack(OPS_Q8_0, HEAD_ROWS_OWN, EMBED, rows, want, 0, HEAD_ROWS_OWN / OPS_GROUP);
  assert_int_equal(head_rows_flush(f->r, f->matrix, f->tokens), ERR_OK);
  assert_int_equal(f->d->table->read(f->d, f->matrix, bytes_of(f, first), bytes, got), OPS_OK);
  assert_int_equal(f->d->table->read(f->d, f->tokens, (size_t)first * 4, sizeof tokens, tokens), OPS_OK);
  for (int32_t i = 0; i < HEAD_ROWS_OWN; i++)
    assert_int_equal(tokens[i], i < count ? token_of(outputs[i]) : -1);
  assert_memory_equal(got, want, bytes_of(f, count / OPS_GROUP * OPS_GROUP));
  assert_int_equal(head_rows_own(f->r, sequence).count, count);
  if (count > 0) assert_int_equal(head_rows_own(f->r, sequence).first, first);
  free(rows);
  free(want);
  free(got);
}

static void add_outputs(fixture *f, int32_t sequence, int32_t from, int32_t to) {
  for (int32_t i = from; i < to; i++) {
    const int32_t text[] = {token_of(i), token_of(i % COMMON), token_of(i), token_of(OUTPUTS + i % 50)};
    head_rows_add(f->r, sequence, text, 4); /* once; a common one; again; one without an output */
  }
}

static void the_rare_tokens_of_a_text_get_rows_and_the_oldest_gives_way(void **state) {
  (void)state;
  int32_t outputs[HEAD_ROWS_OWN];
  const char *name;
  for (int32_t d = 0; (name = support_device_at(d)); d++) {
    fixture f = {0};
    open_rows(&f, name, 0);
    for (int32_t i = 0; i < HEAD_ROWS_OWN; i++) outputs[i] = COMMON + i;
    add_outputs(&f, 1, COMMON, COMMON + 40);
    check_piece(&f, 1, outputs, 40);
    add_outputs(&f, 1, COMMON, COMMON + HEAD_ROWS_OWN);
    add_outputs(&f, 0, COMMON, COMMON + 3);
    check_piece(&f, 1, outputs, HEAD_ROWS_OWN);
    check_piece(&f, 0, outputs, 3);
    add_outputs(&f, 1, COMMON + HEAD_ROWS_OWN, COMMON + HEAD_ROWS_OWN + 5);
    for (int32_t i = 0; i < 5; i++) outputs[i] = COMMON + HEAD_ROWS_OWN + i;
    check_piece(&f, 1, outputs, HEAD_ROWS_OWN);
    head_rows_clear(f.r, 1);
    check_piece(&f, 1, outputs, 0);
    add_outputs(&f, 1, COMMON + HEAD_ROWS_OWN, COMMON + HEAD_ROWS_OWN + 5);
    check_piece(&f, 1, outputs, 5);
    close_rows(&f);
  }
}

/* Of a file that has the common rows alone. */
static void the_map_makes_rows_that_the_file_lacks(void **state) {
  (void)state;
  int32_t outputs[HEAD_ROWS_OWN];
  const char *name;
  for (int32_t i = 0; i < HEAD_ROWS_OWN; i++) outputs[i] = COMMON + i;
  for (int32_t d = 0; (name = support_device_at(d)); d++) {
    fixture f = {0};
    open_rows(&f, name, COMMON);
    for (int32_t i = 0; i < COMMON + 20; i++) head_rows_add(f.r, 1, (int32_t[]){token_of(i), VOCAB, -1}, 3);
    check_piece(&f, 1, outputs, 20);
    check_piece(&f, 0, outputs, 0);
    head_rows_clear(f.r, 1);
    for (int32_t i = 0; i < 40; i++) head_rows_add(f.r, 1, (int32_t[]){token_of(COMMON + 7 + i)}, 1);
    check_piece(&f, 1, outputs + 7, 40);
    close_rows(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_rare_tokens_of_a_text_get_rows_and_the_oldest_gives_way),
      cmocka_unit_test(the_map_makes_rows_that_the_file_lacks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
