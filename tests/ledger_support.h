/* ledger_support.h - a ledger in a folder of its own, written through its interface and read by queries, for
 * the tests of the ledger room. */
#pragma once

#include "orchestrator/ledger/ledger_file.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/ledger_query.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/patience.h"
#include "tests/scratch.h"

#ifdef __SANITIZE_THREAD__
#define NEEDS_FORK() skip() /* TSan knows no threads after a fork */
#else
#define NEEDS_FORK() (void)0
#endif

#define SESSION UINT64_C(0xfedcba9876543210)

static const int32_t prompt[] = {1, 2, 3};
static const int32_t stops[] = {2, 7};
static const msg_options request = {.temperature = 0.8f,
                                    .top_p = 0.95f,
                                    .min_p = 1.0f / 3,
                                    .repeat_penalty = 1.1f,
                                    .top_k = 40,
                                    .seed = UINT64_MAX - 5,
                                    .choice = 1,
                                    .max_tokens = 100,
                                    .context = 4096,
                                    .stops = stops,
                                    .stop_count = 2,
                                    .budget = 15,
                                    .lockstep = true,
                                    .selfcheck = 3};

typedef struct own_folder { /* a folder of its own */
  char name[SCRATCH_MAX], path[SCRATCH_MAX + 20];
} own_folder;

static inline int set_up(void **state) {
  own_folder *p = calloc(1, sizeof *p);
  strcpy(p->name, scratch_make_folder().text);
  snprintf(p->path, sizeof p->path, "%s/a/b/ledger.sqlite", p->name);
  *state = p;
  return 0;
}

static inline int tear_down(void **state) {
  own_folder *p = *state;
  scratch_remove(p->name);
  free(p);
  return 0;
}

static inline void nothing(void *context) {
  (void)context;
}

static inline int try_open(ledger *l, const char *path, err *e) {
  ledger_file_options o = {
      .path = path, .command = "test", .model = "/some/model.gguf", .on_durable = nothing};
  o.fingerprint.bytes[3] = 9;
  return ledger_file_open(l, &o, e);
}

static inline ledger opened(const char *path) {
  ledger l;
  err e = {0};
  if (try_open(&l, path, &e)) fail_msg("%s", e.text);
  return l;
}

static inline void begin(ledger *l, uint64_t session) {
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

/* Output token i is 10 + i. */
static inline void append(ledger *l, uint64_t session, int32_t from, int32_t count) {
  for (int32_t i = from; i < from + count; i++)
    assert_int_equal(l->append(l->self, session, 3 + i, &(int32_t){10 + i}, 1), ERR_OK);
}

static inline bool comes_to(ledger *l, uint64_t session, int32_t length) {
  for (uint64_t end = clock_us() + PATIENCE_US; clock_us() < end; usleep(1000))
    if (l->durable(l->self, session) == length) return true;
  return false;
}

static inline sqlite3 *open_database(const char *path) {
  sqlite3 *db;
  err e = {0};
  if (ledger_database_open(&db, path, false, &e)) fail_msg("%s", e.text);
  return db;
}

static inline int64_t number(sqlite3 *db, const char *sql) {
  sqlite3_stmt *s;
  assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(s), SQLITE_ROW);
  int64_t n = sqlite3_column_int64(s, 0);
  sqlite3_finalize(s);
  return n;
}

static inline void exec(sqlite3 *db, const char *sql) {
  if (sqlite3_exec(db, sql, NULL, NULL, NULL)) fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

static inline void load(sqlite3 *db, uint64_t id, ledger_session *out) {
  err e = {0};
  if (ledger_query_load(db, "it", id, out, &e)) fail_msg("%s", e.text);
}

static inline void expect_tokens(const ledger_session *s, int32_t output) {
  assert_int_equal(s->prompt_length, 3);
  assert_int_equal(s->length, 3 + output);
  assert_memory_equal(s->tokens, prompt, sizeof prompt);
  for (int32_t i = 0; i < output; i++) assert_int_equal(s->tokens[3 + i], 10 + i);
}

/* A session of the file goes on. */
static inline void resume(ledger *l, const ledger_session *s) {
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

static inline void expect_refused(const char *path, int code, const char *phrase) {
  ledger l;
  err e = {0};
  assert_int_equal(try_open(&l, path, &e), code);
  if (!strstr(e.text, phrase) || !strstr(e.text, "--ledger")) fail_msg("'%s' lacks '%s'", e.text, phrase);
}

static inline void finished(const char *path, uint64_t session, int32_t output) {
  ledger l = opened(path);
  begin(&l, session);
  append(&l, session, 0, output);
  l.end(l.self, session, 3 + output, WIRE_FINISH_LENGTH, NULL);
  l.close(l.self);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
