/* libs: ledger file base */
#include "orchestrator/ledger/ledger_corpus.h"

#include "common/base/token_file.h"
#include "common/file/mapped_file.h"
#include "tests/support/ledger_folder.h"

#define MODEL "/some/model.gguf"

static char *corpus_path(const own_folder *p, char out[SCRATCH_MAX + 20]) {
  snprintf(out, SCRATCH_MAX + 20, "%s/corpus", p->name);
  return out;
}

/* Sessions 1 to `count`, each of the prompt 1 2 3 and an answer of as many tokens as its number says. */
static void keep(const char *path, int32_t count) {
  ledger l = opened(path);
  for (int32_t i = 1; i <= count; i++) {
    begin(&l, (uint64_t)i);
    append(&l, (uint64_t)i, 0, i);
    assert_true(comes_to(&l, (uint64_t)i, 3 + i));
    if (i % 2 == 0) l.end(l.self, (uint64_t)i, 3 + i, WIRE_FINISH_STOP, NULL);
  }
  l.close(l.self);
}

static int64_t write_corpus(const own_folder *p, const char *model, int64_t tokens_max) {
  char to[SCRATCH_MAX + 20];
  int64_t tokens = -1;
  err e = {0};
  if (ledger_corpus_write(p->path, model, tokens_max, corpus_path(p, to), &tokens, &e))
    fail_msg("%s", e.text);
  return tokens;
}

static void expect_ids(const own_folder *p, const int32_t *ids, size_t count) {
  char path[SCRATCH_MAX + 20];
  mapped_file m;
  err e = {0};
  const int32_t *have;
  size_t have_count;
  assert_int_equal(mapped_file_open(&m, corpus_path(p, path), "the corpus", &e), ERR_OK);
  assert_true(token_file_is(m.data, m.size));
  assert_int_equal(token_file_ids(m.data, m.size, path, &have, &have_count, &e), ERR_OK);
  assert_int_equal(have_count, count);
  assert_memory_equal(have, ids, count * sizeof *ids);
  mapped_file_close(&m);
}

static void test_sessions_come_whole_the_newest_last(void **state) {
  const own_folder *p = *state;
  static const int32_t all[] = {1, 2, 3, 10, -1, 1, 2, 3, 10, 11, -1, 1, 2, 3, 10, 11, 12};
  struct stat s;
  char path[SCRATCH_MAX + 20];
  keep(p->path, 3);
  assert_int_equal(write_corpus(p, MODEL, 1000), 15);
  expect_ids(p, all, sizeof all / sizeof *all);
  assert_int_equal(stat(corpus_path(p, path), &s), 0);
  assert_int_equal(s.st_mode & 0777, 0600);
}

static void test_of_many_the_newest_come(void **state) {
  const own_folder *p = *state;
  static const int32_t newest[] = {1, 2, 3, 10, 11, -1, 1, 2, 3, 10, 11, 12};
  keep(p->path, 3);
  assert_int_equal(write_corpus(p, MODEL, 14), 11);
  expect_ids(p, newest, sizeof newest / sizeof *newest);
  assert_int_equal(write_corpus(p, MODEL, 5), 0);
}

static void test_other_models_have_other_tokens(void **state) {
  const own_folder *p = *state;
  static const int32_t own[] = {1, 2, 3, 10, -1, 1, 2, 3, 10, 11, 12};
  keep(p->path, 3);
  assert_int_equal(write_corpus(p, "/some/other.gguf", 1000), 0);
  expect_ids(p, NULL, 0);
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET model = '/some/other.gguf' WHERE id = 2");
  sqlite3_close(db);
  assert_int_equal(write_corpus(p, MODEL, 1000), 10);
  expect_ids(p, own, sizeof own / sizeof *own);
}

static void test_what_cannot_be_read_or_written_is_told(void **state) {
  const own_folder *p = *state;
  char path[SCRATCH_MAX + 40];
  int64_t tokens;
  err e = {0};
  corpus_path(p, path);
  assert_int_equal(ledger_corpus_write(p->path, MODEL, 1000, path, &tokens, &e), ERR_GONE);
  keep(p->path, 1);
  snprintf(path, sizeof path, "%s/nowhere/corpus", p->name);
  assert_int_equal(ledger_corpus_write(p->path, MODEL, 1000, path, &tokens, &e), ERR_IO);
  assert_non_null(strstr(e.text, "nowhere"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_sessions_come_whole_the_newest_last),
      CASE(test_of_many_the_newest_come),
      CASE(test_other_models_have_other_tokens),
      CASE(test_what_cannot_be_read_or_written_is_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
