#include "tests/support/ledger_folder.h"

int set_up(void **state) {
  own_folder *p = calloc(1, sizeof *p);
  strcpy(p->name, scratch_make_folder().text);
  snprintf(p->path, sizeof p->path, "%s/a/b/ledger.sqlite", p->name);
  *state = p;
  return 0;
}

int tear_down(void **state) {
  own_folder *p = *state;
  scratch_remove(p->name);
  free(p);
  return 0;
}

void nothing(void *context) {
  (void)context;
}

static int try_open(ledger *l, const char *path, err *e) {
  ledger_file_options o = {
      .path = path, .command = "test", .model = "/some/model.gguf", .on_durable = nothing};
  o.fingerprint.bytes[3] = 9;
  return ledger_file_open(l, &o, e);
}

ledger opened(const char *path) {
  ledger l;
  err e = {0};
  if (try_open(&l, path, &e)) fail_msg("%s", e.text);
  return l;
}

void begin(ledger *l, uint64_t session) {
  ledger_record r = {.session = session,
                     .hash_seed = session ^ 99,
                     .tokens = prompt,
                     .length = 3,
                     .prompt_length = 3,
                     .options = &request,
                     .about = "{\"title\":\"three\"}"};
  assert_int_equal(l->begin(l->self, &r), ERR_OK);
  assert_int_equal(l->epoch(l->self, session, 1), ERR_OK);
}

void append(ledger *l, uint64_t session, int32_t from, int32_t count) {
  for (int32_t i = from; i < from + count; i++)
    assert_int_equal(l->append(l->self, session, 3 + i, &(int32_t){10 + i}, 1), ERR_OK);
}

bool comes_to(ledger *l, uint64_t session, int32_t length) {
  for (uint64_t end = clock_us() + PATIENCE_US; clock_us() < end; usleep(1000))
    if (l->durable(l->self, session) == length) return true;
  return false;
}

sqlite3 *open_database(const char *path) {
  sqlite3 *db;
  err e = {0};
  if (ledger_database_open(&db, path, false, &e)) fail_msg("%s", e.text);
  return db;
}

int64_t number(sqlite3 *db, const char *sql) {
  sqlite3_stmt *s;
  assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(s), SQLITE_ROW);
  int64_t n = sqlite3_column_int64(s, 0);
  sqlite3_finalize(s);
  return n;
}

void exec(sqlite3 *db, const char *sql) {
  if (sqlite3_exec(db, sql, NULL, NULL, NULL)) fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

void load(sqlite3 *db, uint64_t id, ledger_session *out) {
  err e = {0};
  if (ledger_query_load(db, "it", id, out, &e)) fail_msg("%s", e.text);
}

void expect_tokens(const ledger_session *s, int32_t output) {
  assert_int_equal(s->prompt_length, 3);
  assert_int_equal(s->length, 3 + output);
  assert_memory_equal(s->tokens, prompt, sizeof prompt);
  for (int32_t i = 0; i < output; i++) assert_int_equal(s->tokens[3 + i], 10 + i);
}

void resume(ledger *l, const ledger_session *s) {
  ledger_record r = {.session = s->id,
                     .hash_seed = s->hash_seed,
                     .tokens = s->tokens,
                     .length = s->length,
                     .prompt_length = s->prompt_length,
                     .epoch = s->epoch,
                     .options = &request};
  assert_int_equal(l->begin(l->self, &r), ERR_OK);
  assert_int_equal(l->epoch(l->self, s->id, s->epoch + 1), ERR_OK);
}

void expect_refused(const char *path, int code, const char *phrase) {
  ledger l;
  err e = {0};
  assert_int_equal(try_open(&l, path, &e), code);
  if (!strstr(e.text, phrase) || !strstr(e.text, "--ledger")) fail_msg("'%s' lacks '%s'", e.text, phrase);
}

void finished(const char *path, uint64_t session, int32_t output) {
  ledger l = opened(path);
  begin(&l, session);
  append(&l, session, 0, output);
  l.end(l.self, session, 3 + output, WIRE_FINISH_LENGTH, NULL);
  l.close(l.self);
}
