/* libs: ledger base */
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

#ifdef __SANITIZE_THREAD__
#define NEEDS_FORK() skip() /* TSan knows no threads after a fork */
#else
#define NEEDS_FORK() (void)0
#endif

#define PATIENCE_US 60000000 /* for a condition; never for a time */
#define LOOK_US     1000
#define SESSION     UINT64_C(0xfedcba9876543210)

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

typedef struct place { /* a folder of its own */
  char folder[64], path[96];
} place;

static int set_up(void **state) {
  place *p = calloc(1, sizeof *p);
  strcpy(p->folder, "/tmp/test-ledger-XXXXXX");
  if (!mkdtemp(p->folder)) return -1;
  snprintf(p->path, sizeof p->path, "%s/a/b/ledger.sqlite", p->folder);
  *state = p;
  return 0;
}

static int tear_down(void **state) {
  place *p = *state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", p->folder);
  int rc = system(command);
  free(p);
  return rc;
}

static void nothing(void *context) {
  (void)context;
}

static int try_open(ledger *l, const char *path, err *e) {
  ledger_file_options o = {
      .path = path, .command = "test", .model = "/some/model.gguf", .on_durable = nothing};
  o.fingerprint.bytes[3] = 9;
  return ledger_file_open(l, &o, e);
}

static ledger opened(const char *path) {
  ledger l;
  err e = {0};
  if (try_open(&l, path, &e)) fail_msg("%s", e.text);
  return l;
}

static void begin(ledger *l, uint64_t session) {
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
static void append(ledger *l, uint64_t session, int32_t from, int32_t count) {
  for (int32_t i = from; i < from + count; i++)
    assert_int_equal(l->append(l->self, session, 3 + i, &(int32_t){10 + i}, 1), ERR_OK);
}

static bool comes_to(ledger *l, uint64_t session, int32_t length) {
  for (int64_t waited = 0; waited < PATIENCE_US; waited += LOOK_US, usleep(LOOK_US))
    if (l->durable(l->self, session) == length) return true;
  return false;
}

static sqlite3 *look(const char *path) {
  sqlite3 *db;
  err e = {0};
  if (ledger_database_open(&db, path, false, &e)) fail_msg("%s", e.text);
  return db;
}

static int64_t number(sqlite3 *db, const char *sql) {
  sqlite3_stmt *s;
  assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(s), SQLITE_ROW);
  int64_t n = sqlite3_column_int64(s, 0);
  sqlite3_finalize(s);
  return n;
}

static void exec(sqlite3 *db, const char *sql) {
  if (sqlite3_exec(db, sql, NULL, NULL, NULL)) fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

static void load(sqlite3 *db, uint64_t id, ledger_session *out) {
  err e = {0};
  if (ledger_query_load(db, "it", id, out, &e)) fail_msg("%s", e.text);
}

static void expect_tokens(const ledger_session *s, int32_t output) {
  assert_int_equal(s->prompt_length, 3);
  assert_int_equal(s->length, 3 + output);
  assert_memory_equal(s->tokens, prompt, sizeof prompt);
  for (int32_t i = 0; i < output; i++) assert_int_equal(s->tokens[3 + i], 10 + i);
}

/* ---- what is kept ---- */

static void keeps_a_session_exactly(void **state) {
  const place *p = *state;
  ledger l = opened(p->path);
  begin(&l, SESSION);
  append(&l, SESSION, 0, 5);
  assert_int_equal(l.numerics(l.self, SESSION, "cpu/int8"), ERR_OK);
  assert_true(comes_to(&l, SESSION, 8));
  append(&l, SESSION, 5, 2);
  msg_stats stats = {.forwards = 7, .rounds = 2, .rows = 9, .accepted = 4};
  assert_int_equal(l.end(l.self, SESSION, 9, WIRE_FINISH_STOP, &stats), ERR_OK); /* one token was cut */
  l.forget(l.self, SESSION); /* all the same it is written */
  l.close(l.self);

  sqlite3 *db = look(p->path);
  ledger_session s;
  load(db, SESSION, &s);
  expect_tokens(&s, 6);
  assert_int_equal(s.state, LEDGER_ENDED);
  assert_int_equal(s.finish, WIRE_FINISH_STOP);
  assert_int_equal(s.hash_seed, SESSION ^ 99);
  assert_true(s.epoch >= 1);
  assert_int_equal(s.options.seed, request.seed);
  assert_memory_equal(&s.options.temperature, &request.temperature, 4 * sizeof(float));
  assert_int_equal(s.options.top_k, 40);
  assert_int_equal(s.options.choice, 1);
  assert_int_equal(s.options.max_tokens, 100);
  assert_int_equal(s.options.context, 4096);
  assert_int_equal(s.options.budget, 15);
  assert_true(s.options.lockstep);
  assert_int_equal(s.options.selfcheck, 3);
  assert_int_equal(s.options.stop_count, 2);
  assert_memory_equal(s.options.stops, stops, sizeof stops);
  assert_string_equal(s.model, "/some/model.gguf");
  assert_string_equal(s.numerics, "cpu/int8");
  assert_string_equal(s.about, "{\"title\":\"three\"}");
  assert_non_null(strstr(s.stats, "\"accepted_tokens\":4"));
  assert_int_equal(s.fingerprint.bytes[3], 9);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens"), 1); /* the pieces became one */
  assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), 0);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void is_for_the_owner_alone(void **state) {
  const place *p = *state;
  struct stat info;
  char folder[128];
  mode_t before = umask(0);
  ledger l = opened(p->path);
  umask(before);
  begin(&l, 1);
  assert_true(comes_to(&l, 1, 3));
  assert_int_equal(stat(p->path, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0600);
  snprintf(folder, sizeof folder, "%s-wal", p->path);
  assert_int_equal(stat(folder, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0600);
  snprintf(folder, sizeof folder, "%s/a/b", p->folder);
  assert_int_equal(stat(folder, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0700);
  l.close(l.self);
}

/* ---- group commit ---- */

/* While another process holds the file, nothing is durable and nothing waits; then one transaction takes it
 * all. */
static void waits_for_nobody(void **state) {
  const place *p = *state;
  ledger l = opened(p->path);
  begin(&l, 1);
  assert_true(comes_to(&l, 1, 3));
  sqlite3 *other = look(p->path);
  exec(other, "BEGIN IMMEDIATE");
  append(&l, 1, 0, 500);
  begin(&l, 2);
  append(&l, 2, 0, 500);
  assert_int_equal(l.durable(l.self, 1), 3);
  assert_int_equal(l.durable(l.self, 2), 0); /* so nothing may be sent */
  ledger_entry entry;
  assert_true(l.read(l.self, 2, &entry));
  assert_int_equal(entry.length, 503);
  assert_int_equal(number(other, "SELECT count(*) FROM tokens"), 0);
  exec(other, "COMMIT");
  assert_true(comes_to(&l, 1, 503));
  assert_true(comes_to(&l, 2, 503));
  assert_true(number(other, "SELECT count(*) FROM tokens") <=
              4); /* what waited, and what came while it did */
  sqlite3_close(other);
  l.close(l.self);
}

static void epochs_are_recorded_ahead(void **state) {
  const place *p = *state;
  ledger l = opened(p->path);
  sqlite3 *db = look(p->path);
  begin(&l, 1);
  assert_true(comes_to(&l, 1, 3));
  for (uint32_t epoch = 2; epoch < 100; epoch++) {
    assert_int_equal(l.epoch(l.self, 1, epoch), ERR_OK);
    assert_true(number(db, "SELECT epoch FROM session") >= epoch); /* before the first send in it */
  }
  assert_int_equal(l.epoch(l.self, 1, 50), ERR_STALE);
  sqlite3_close(db);
  l.close(l.self);
}

/* ---- death ---- */

static void child_writes(const char *path, int told) {
  ledger l = opened(path);
  begin(&l, 5);
  for (int32_t i = 0;; i++) {
    append(&l, 5, i, 1);
    int32_t n = l.durable(l.self, 5);
    if (write(told, &n, sizeof n) != sizeof n) _exit(1);
    usleep(500);
  }
}

/* Killed between two tokens, at whatever point: what was durable is there. */
static void survives_a_kill(void **state) {
  NEEDS_FORK();
  const place *p = *state;
  int told[2];
  assert_int_equal(pipe(told), 0);
  pid_t child = fork();
  if (child == 0) child_writes(p->path, told[1]);
  close(told[1]);
  int32_t n = 0, last = 0;
  while (last < 60 && read(told[0], &n, sizeof n) == sizeof n) last = n;
  kill(child, SIGKILL);
  while (read(told[0], &n, sizeof n) == sizeof n) last = n; /* what it told before it died */
  close(told[0]);
  assert_int_equal(waitpid(child, NULL, 0), child);
  assert_true(last >= 60);

  sqlite3 *db = look(p->path);
  ledger_session s;
  load(db, 5, &s);
  assert_true(s.length >= last);
  expect_tokens(&s, s.length - 3);
  assert_int_equal(s.state, LEDGER_INTERRUPTED);
  assert_int_equal(s.pid, 0);
  err e = {0};
  assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), 1);
  assert_int_equal(ledger_change_remove_dead(db, p->path, &e), ERR_OK);
  assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), 0);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void goes_on_after_it(void **state) {
  const place *p = *state;
  err e = {0};
  ledger l = opened(p->path);
  begin(&l, 5);
  append(&l, 5, 0, 4);
  assert_int_equal(l.numerics(l.self, 5, "cpu/int8"), ERR_OK);
  assert_true(comes_to(&l, 5, 7));
  l.close(l.self);
  sqlite3 *db = look(p->path);
  ledger_session s;
  load(db, 5, &s);
  sqlite3_close(db);
  assert_int_equal(s.state, LEDGER_INTERRUPTED);

  ledger_file_options o = {
      .path = p->path, .command = "test", .resume = 5, .resume_updated = s.updated, .on_durable = nothing};
  assert_int_equal(ledger_file_open(&l, &o, &e), ERR_OK);
  ledger second;
  assert_int_equal(ledger_file_open(&second, &o, &e), ERR_STATE); /* one at a time */
  assert_non_null(strstr(e.text, "process"));
  ledger_record r = {.session = 5,
                     .hash_seed = s.hash_seed,
                     .tokens = s.tokens,
                     .length = s.length,
                     .prompt_length = 3,
                     .epoch = s.epoch,
                     .options = &request};
  assert_int_equal(l.begin(l.self, &r), ERR_OK);
  assert_int_equal(l.epoch(l.self, 5, s.epoch + 1), ERR_OK);
  assert_true(comes_to(&l, 5, 7));
  append(&l, 5, 4, 3);
  assert_int_equal(l.end(l.self, 5, 10, WIRE_FINISH_LENGTH, NULL), ERR_OK);
  l.close(l.self);
  uint32_t epoch = s.epoch;
  ledger_session_fini(&s);
  db = look(p->path);
  load(db, 5, &s);
  expect_tokens(&s, 7);
  assert_true(s.epoch > epoch);
  assert_string_equal(s.numerics, "cpu/int8"); /* nobody said otherwise */
  assert_string_equal(s.about, "{\"title\":\"three\"}");
  ledger_session_fini(&s);
  sqlite3_close(db);
  o.resume_updated--; /* it was read before a change */
  assert_int_equal(ledger_file_open(&l, &o, &e), ERR_STATE);
}

/* A conversation goes on with an answer that was cut, in the same process and at once; but not where the file
 * has less of it than the conversation by now. */
static void one_that_goes_on_after_its_end(void **state) {
  const place *p = *state;
  for (int rolled_back = 0; rolled_back < 2; rolled_back++) {
    uint64_t id = 5 + (uint64_t)rolled_back;
    ledger l = opened(p->path);
    ledger_session s;
    err e = {0};
    begin(&l, id);
    append(&l, id, 0, 4);
    assert_int_equal(l.end(l.self, id, 7, WIRE_FINISH_LENGTH, NULL), ERR_OK);
    assert_true(comes_to(&l, id, 7));
    sqlite3 *db = look(p->path);
    load(db, id, &s);
    if (rolled_back) {
      while (s.state != LEDGER_ENDED) {
        ledger_session_fini(&s);
        load(db, id, &s);
      }
      assert_int_equal(ledger_change_rollback(db, p->path, id, 2, &e), ERR_OK);
    }
    l.forget(l.self, id);
    ledger_record r = {.session = id,
                       .hash_seed = s.hash_seed,
                       .tokens = s.tokens,
                       .length = 7,
                       .prompt_length = 3,
                       .epoch = s.epoch,
                       .options = &request};
    assert_int_equal(l.begin(l.self, &r), ERR_OK);
    assert_int_equal(l.epoch(l.self, id, s.epoch + 1), ERR_OK);
    append(&l, id, 4, 3);
    assert_int_equal(l.end(l.self, id, 10, WIRE_FINISH_LENGTH, NULL), ERR_OK);
    l.close(l.self);
    ledger_session_fini(&s);
    load(db, id, &s);
    expect_tokens(&s, rolled_back ? 2 : 7);
    if (!rolled_back) assert_int_equal(s.state, LEDGER_ENDED);
    ledger_session_fini(&s);
    sqlite3_close(db);
  }
}

/* One that slept for long and was taken for dead writes nothing into what is another's now. */
static void one_that_was_taken_over_keeps_off(void **state) {
  const place *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  sqlite3 *db = look(p->path);
  exec(db, "BEGIN IMMEDIATE; UPDATE session SET owner = 77; DELETE FROM orchestrator; COMMIT");
  append(&l, 5, 0, 2);
  assert_true(comes_to(&l, 5, 5)); /* from memory */
  l.end(l.self, 5, 5, WIRE_FINISH_STOP, NULL);
  l.close(l.self);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens"), 0);
  assert_int_equal(number(db, "SELECT owner FROM session"), 77);
  sqlite3_close(db);
}

/* Nor may it send in an epoch that the file does not hold: the other process may be using it. */
static void epochs_of_one_that_was_taken_over(void **state) {
  const place *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  sqlite3 *db = look(p->path);
  exec(db, "UPDATE session SET owner = 77");
  uint32_t epoch = 2;
  int rc = ERR_OK;
  for (; epoch < 100 && (rc = l.epoch(l.self, 5, epoch)) == ERR_OK; epoch++)
    assert_true(number(db, "SELECT epoch FROM session") >= epoch);
  assert_int_not_equal(rc, ERR_OK);
  assert_int_equal(l.epoch(l.self, 5, epoch + 1), ERR_GONE);
  l.close(l.self);
  assert_int_equal(number(db, "SELECT owner FROM session"), 77);
  sqlite3_close(db);
}

/* The same with one that goes on, and was taken over before it could say so. */
static void first_epoch_of_one_that_was_taken_over(void **state) {
  const place *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  l.close(l.self);
  sqlite3 *db = look(p->path);
  ledger_session s;
  load(db, 5, &s);
  ledger_file_options o = {
      .path = p->path, .command = "test", .resume = 5, .resume_updated = s.updated, .on_durable = nothing};
  err e = {0};
  assert_int_equal(ledger_file_open(&l, &o, &e), ERR_OK);
  exec(db, "UPDATE session SET owner = 77");
  ledger_record r = {.session = 5,
                     .hash_seed = s.hash_seed,
                     .tokens = s.tokens,
                     .length = s.length,
                     .prompt_length = 3,
                     .epoch = s.epoch,
                     .options = &request};
  assert_int_equal(l.begin(l.self, &r), ERR_OK);
  assert_int_equal(l.epoch(l.self, 5, s.epoch + 1), ERR_OK); /* it counts with the beginning */
  assert_true(comes_to(&l, 5, 3));
  assert_int_equal(l.epoch(l.self, 5, s.epoch + 1), ERR_GONE);
  assert_int_equal(number(db, "SELECT epoch FROM session"), s.epoch);
  l.close(l.self);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* ---- several processes ---- */

enum { WRITERS = 4, EACH = 20 };

static void writer_process(const char *path, int which) {
  ledger l = opened(path);
  for (int i = 0; i < EACH; i++) {
    uint64_t session = (uint64_t)(1000 * (which + 1) + i);
    begin(&l, session);
    append(&l, session, 0, 10);
    if (!comes_to(&l, session, 13)) _exit(1);
    l.end(l.self, session, 13, WIRE_FINISH_STOP, NULL);
    l.forget(l.self, session);
  }
  l.close(l.self);
  _exit(0);
}

static void several_processes_write_one_file(void **state) {
  NEEDS_FORK();
  const place *p = *state;
  pid_t children[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    if ((children[i] = fork()) == 0) writer_process(p->path, i);
  for (int i = 0; i < WRITERS; i++) {
    int status;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    assert_int_equal(status, 0);
  }
  sqlite3 *db = look(p->path);
  assert_int_equal(number(db, "SELECT count(*) FROM session WHERE state = 1"), WRITERS * EACH);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens WHERE length(ids) = 40"), WRITERS * EACH);
  sqlite3_close(db);
}

/* ---- a full disk ---- */

/* 0: as it should be. The limit of file sizes stands for the disk. */
static int writes_on_a_full_disk(const char *path) {
  ledger l = opened(path);
  struct rlimit limit;
  begin(&l, 1);
  if (!comes_to(&l, 1, 3)) return 1;
  getrlimit(RLIMIT_FSIZE, &limit);
  rlim_t before = limit.rlim_cur;
  signal(SIGXFSZ, SIG_IGN);
  limit.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &limit);
  append(&l, 1, 0, 5);
  if (!comes_to(&l, 1, 8) || !ledger_file_failing(&l)) return 2; /* the answer goes on */
  limit.rlim_cur = before;
  setrlimit(RLIMIT_FSIZE, &limit);
  for (int64_t waited = 0; ledger_file_failing(&l); waited += LOOK_US, usleep(LOOK_US))
    if (waited > PATIENCE_US) return 3;
  append(&l, 1, 5, 1);
  if (!comes_to(&l, 1, 9)) return 4;
  l.close(l.self);
  return 0;
}

static void a_full_disk_ends_no_answer(void **state) {
  NEEDS_FORK();
  const place *p = *state;
  int status;
  pid_t child = fork();
  if (child == 0) _exit(writes_on_a_full_disk(p->path));
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_true(WIFEXITED(status));
  sqlite3 *db = look(p->path);
  ledger_session s;
  load(db, 1, &s);
  expect_tokens(&s, 6); /* nothing is missing */
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* ---- files that are none ---- */

static void expect_refused(const char *path, int code, const char *phrase) {
  ledger l;
  err e = {0};
  assert_int_equal(try_open(&l, path, &e), code);
  if (!strstr(e.text, phrase) || !strstr(e.text, "--ledger")) fail_msg("'%s' lacks '%s'", e.text, phrase);
}

static void write_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void refuses_what_is_no_ledger(void **state) {
  place *p = *state;
  sqlite3 *db;
  char path[128];
  snprintf(path, sizeof path, "%s/other", p->folder);
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  exec(db, "CREATE TABLE their(own)");
  sqlite3_close(db);
  expect_refused(path, ERR_FORMAT, "no ledger");
  snprintf(path, sizeof path, "%s/text", p->folder);
  write_file(path, "This is a letter, and it is long enough to be taken for more than the head of a "
                   "database, which has 100 bytes.\n");
  expect_refused(path, ERR_FORMAT, "damaged");
  expect_refused(p->folder, ERR_IO, "directory");
  expect_refused("/dev/null", ERR_FORMAT, "regular");
  expect_refused("/dev/null/ledger", ERR_IO, "cannot be opened");

  ledger l = opened(p->path);
  l.close(l.self);
  db = look(p->path);
  exec(db, "PRAGMA user_version = 2");
  sqlite3_close(db);
  expect_refused(p->path, ERR_VERSION, "newer");
  err e = {0};
  snprintf(path, sizeof path, "%s/none", p->folder);
  assert_int_equal(ledger_database_open(&db, path, false, &e), ERR_GONE);
  assert_int_equal(access(path, F_OK), -1); /* nothing is made by looking */
}

/* A header that is right and pages that are not, and rows that lie. */
static void reads_damage_as_damage(void **state) {
  place *p = *state;
  ledger l = opened(p->path);
  begin(&l, 1);
  append(&l, 1, 0, 5);
  l.end(l.self, 1, 8, WIRE_FINISH_STOP, NULL);
  l.close(l.self);
  static const char *const lies[] = {
      "UPDATE tokens SET position = 4",
      "UPDATE tokens SET ids = x'010203'",
      "UPDATE tokens SET ids = x'ffffffff'",
      "UPDATE tokens SET position = 3, ids = x'01000000'; INSERT INTO tokens VALUES(1, 2, x'01000000')",
      "UPDATE session SET prompt = x''",
      "UPDATE session SET options = '{\"seed\":1}'",
      "UPDATE session SET options = NULL"};
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    sqlite3 *db = look(p->path);
    ledger_session s;
    err e = {0};
    load(db, 1, &s); /* one lie at a time */
    ledger_session_fini(&s);
    exec(db, "CREATE TEMP TABLE t AS SELECT * FROM main.tokens; CREATE TEMP TABLE s AS SELECT * FROM "
             "main.session");
    exec(db, lies[i]);
    assert_int_equal(ledger_query_load(db, p->path, 1, &s, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "--delete"));
    exec(db, "DELETE FROM main.tokens; DELETE FROM main.session; INSERT INTO main.tokens SELECT * FROM t;"
             "INSERT INTO main.session SELECT * FROM s");
    sqlite3_close(db);
  }
  FILE *f = fopen(p->path, "r+");
  assert_non_null(f);
  fseek(f, 100, SEEK_SET);
  for (int i = 0; i < 16000; i++) fputc(0xa5, f);
  fclose(f);
  expect_refused(p->path, ERR_FORMAT, "damaged");
}

/* ---- changes by commands ---- */

static void finished(const char *path, uint64_t session, int32_t output) {
  ledger l = opened(path);
  begin(&l, session);
  append(&l, session, 0, output);
  l.end(l.self, session, 3 + output, WIRE_FINISH_LENGTH, NULL);
  l.close(l.self);
}

static void rolls_back_to_any_length(void **state) {
  const place *p = *state;
  err e = {0};
  ledger l = opened(p->path);
  begin(&l, 1);
  for (int32_t i = 0; i < 4; i++) { /* four pieces of two */
    append(&l, 1, 2 * i, 2);
    assert_true(comes_to(&l, 1, 5 + 2 * i));
  }
  sqlite3 *db = look(p->path);
  assert_int_equal(ledger_change_rollback(db, p->path, 1, 3, &e), ERR_STATE); /* it is being served */
  assert_int_equal(ledger_change_delete(db, p->path, 1, &e), ERR_STATE);
  l.close(l.self);
  for (int32_t to = 7; to >= 0; to--) {
    assert_int_equal(ledger_change_rollback(db, p->path, 1, to, &e), ERR_OK);
    ledger_session s;
    load(db, 1, &s);
    expect_tokens(&s, to);
    assert_int_equal(s.state, LEDGER_INTERRUPTED);
    ledger_session_fini(&s);
  }
  assert_int_equal(ledger_change_end(db, p->path, 1, WIRE_FINISH_CANCELLED, &e), ERR_OK);
  ledger_session s;
  load(db, 1, &s);
  assert_int_equal(s.state, LEDGER_ENDED);
  ledger_session_fini(&s);
  assert_int_equal(ledger_change_delete(db, p->path, 1, &e), ERR_OK);
  assert_int_equal(ledger_change_delete(db, p->path, 1, &e), ERR_GONE);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens"), 0);
  sqlite3_close(db);
}

static void finds_by_first_digits(void **state) {
  const place *p = *state;
  err e = {0};
  uint64_t id = 0;
  finished(p->path, UINT64_C(0xabc0000000000001), 1);
  finished(p->path, UINT64_C(0xabd0000000000001), 1);
  finished(p->path, UINT64_C(0x0000000000000abc), 1);
  sqlite3 *db = look(p->path);
  assert_int_equal(ledger_query_find(db, p->path, "ABC", &id, &e), ERR_OK);
  assert_int_equal(id, UINT64_C(0xabc0000000000001));
  assert_int_equal(ledger_query_find(db, p->path, "0000000000000abc", &id, &e), ERR_OK);
  assert_int_equal(id, 0xabc);
  assert_int_equal(ledger_query_find(db, p->path, "ab", &id, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "several"));
  static const char *const none[] = {"abe", "", "x", "%", "abc00000000000011", "abc'"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++)
    assert_int_equal(ledger_query_find(db, p->path, none[i], &id, &e), ERR_ARG);
  sqlite3_close(db);
}

static void count_lines(void *context, const ledger_line *l) {
  uint64_t *next = context;
  assert_int_equal(l->id, *next); /* newest first */
  (*next)--;
}

static void lists_the_newest(void **state) {
  const place *p = *state;
  err e = {0};
  for (uint64_t id = 1; id <= 5; id++) finished(p->path, id, 1);
  sqlite3 *db = look(p->path);
  exec(db, "UPDATE session SET created = 1000 * id");
  static const int32_t limits[] = {0, 1, 4, 5, 6};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    uint64_t next = 5;
    int64_t total;
    assert_int_equal(ledger_query_list(db, "it", limits[i], count_lines, &next, &total, &e), ERR_OK);
    assert_int_equal(total, 5);
    assert_int_equal(5 - next, limits[i] && limits[i] < 5 ? limits[i] : 5);
  }
  sqlite3_close(db);
}

/* By the time of the last change, to the microsecond; never what a living process serves. */
static void ends_what_is_old(void **state) {
  const place *p = *state;
  err e = {0};
  for (uint64_t id = 1; id <= 4; id++) finished(p->path, id, 2);
  ledger living = opened(p->path);
  begin(&living, 5);
  append(&living, 5, 0, 2);
  assert_true(comes_to(&living, 5, 5));
  sqlite3 *db = look(p->path);
  exec(db, "UPDATE session SET updated = 1000 * id, created = 7");
  exec(db, "UPDATE session SET state = 2, finish = NULL WHERE id IN (2, 3)"); /* interrupted */
  exec(db,
       "UPDATE session SET state = 0, owner = 12345 WHERE id = 3"); /* by one that nobody knows any more */
  static const struct {
    int64_t before, count, left;
    bool forget;
  } steps[] = {{1000, 0, 5, true},  {2000, 0, 5, false}, {2001, 1, 5, false}, {3001, 1, 5, false},
               {9000, 0, 5, false}, {1000, 0, 5, true},  {1001, 1, 4, true},  {4001, 1, 3, true}};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    int64_t count = -1;
    assert_int_equal(ledger_change_end_old(db, "it", steps[i].before, steps[i].forget, &count, &e), ERR_OK);
    assert_int_equal(count, steps[i].count);
    assert_int_equal(number(db, "SELECT count(*) FROM session"), steps[i].left);
    assert_int_equal(number(db, "SELECT count(DISTINCT session) FROM tokens"), steps[i].left);
  }
  assert_int_equal(
      number(
          db,
          "SELECT count(*) FROM session WHERE state = 1 AND finish = 3 AND owner IS NULL AND updated > 9000"),
      2);
  append(&living, 5, 2, 1);
  living.end(living.self, 5, 6, WIRE_FINISH_LENGTH, NULL);
  living.close(living.self);
  ledger_session s;
  load(db, 5, &s);
  expect_tokens(&s, 3);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* Whatever comes while the writer waits in a transaction for another process is written with the next one. */
static void what_comes_meanwhile_is_written_too(void **state) {
  enum { TOKENS, NUMERICS, EPOCH, END, KINDS };
  const place *p = *state;
  const uint32_t epoch = LEDGER_EPOCHS_AHEAD / 2 + 2; /* more are recorded now */
  for (int what = 0; what < KINDS; what++) {
    ledger l = opened(p->path);
    uint64_t id = 10 + (uint64_t)what;
    begin(&l, id);
    append(&l, id, 0, 2);
    assert_true(comes_to(&l, id, 5));
    sqlite3 *db = look(p->path);
    exec(db, "BEGIN IMMEDIATE");
    append(&l, id, 2, 3);
    assert_int_equal(l.numerics(l.self, id, "first"), ERR_OK);
    usleep(300000); /* by now the writer waits with these */
    if (what == TOKENS) append(&l, id, 5, 2);
    if (what == NUMERICS) assert_int_equal(l.numerics(l.self, id, "second"), ERR_OK);
    if (what == EPOCH) assert_int_equal(l.epoch(l.self, id, epoch), ERR_OK);
    if (what == END)
      assert_int_equal(l.end(l.self, id, 3 + 4, WIRE_FINISH_STOP, NULL), ERR_OK); /* cuts what waits */
    assert_true(l.durable(l.self, id) <= 5);
    exec(db, "COMMIT");
    assert_true(comes_to(&l, id, what == TOKENS ? 10 : what == END ? 7 : 8));
    l.close(l.self);
    ledger_session s;
    load(db, id, &s);
    expect_tokens(&s, what == TOKENS ? 7 : what == END ? 4 : 5);
    assert_string_equal(s.numerics, what == NUMERICS ? "second" : "first");
    assert_true(s.epoch >= (what == EPOCH ? epoch : 1) + LEDGER_EPOCHS_AHEAD);
    assert_int_equal(s.state, what == END ? LEDGER_ENDED : LEDGER_INTERRUPTED);
    ledger_session_fini(&s);
    sqlite3_close(db);
  }
}

/* Of what was cut at the end nothing counts as written. */
static void a_cut_is_never_durable(void **state) {
  const place *p = *state;
  ledger l = opened(p->path);
  begin(&l, 1);
  append(&l, 1, 0, 6);
  assert_true(comes_to(&l, 1, 9));
  assert_int_equal(l.end(l.self, 1, 5, WIRE_FINISH_STOP, NULL), ERR_OK);
  assert_int_equal(l.durable(l.self, 1), 5);
  l.close(l.self);
  sqlite3 *db = look(p->path);
  ledger_session s;
  load(db, 1, &s);
  expect_tokens(&s, 2);
  ledger_session_fini(&s);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens"), 1);
  sqlite3_close(db);
}

/* A shared file may hold more dead ones than are taken out at a time. */
static void many_dead_are_taken_out(void **state) {
  const place *p = *state;
  err e = {0};
  finished(p->path, 1, 1);
  sqlite3 *db = look(p->path);
  exec(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)"
           " INSERT INTO orchestrator SELECT i, 1, 1, 'elsewhere', 'run', 1, 1, 0, 0, NULL FROM n");
  for (int64_t left = 600; left > 0; left = left > 256 ? left - 256 : 0) {
    assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), left);
    assert_int_equal(ledger_change_remove_dead(db, "it", &e), ERR_OK);
  }
  assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), 0);
  sqlite3_close(db);
}

static void makes_the_file_once(void **state) {
  const place *p = *state;
  struct stat info;
  assert_true(ledger_database_make(p->path));
  assert_int_equal(stat(p->path, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0600);
  assert_false(ledger_database_make(p->path));
  finished(p->path, 1, 1);
  assert_false(ledger_database_make(p->path));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(keeps_a_session_exactly),
      CASE(is_for_the_owner_alone),
      CASE(waits_for_nobody),
      CASE(epochs_are_recorded_ahead),
      CASE(survives_a_kill),
      CASE(goes_on_after_it),
      CASE(one_that_goes_on_after_its_end),
      CASE(one_that_was_taken_over_keeps_off),
      CASE(epochs_of_one_that_was_taken_over),
      CASE(first_epoch_of_one_that_was_taken_over),
      CASE(several_processes_write_one_file),
      CASE(a_full_disk_ends_no_answer),
      CASE(refuses_what_is_no_ledger),
      CASE(reads_damage_as_damage),
      CASE(rolls_back_to_any_length),
      CASE(finds_by_first_digits),
      CASE(lists_the_newest),
      CASE(ends_what_is_old),
      CASE(makes_the_file_once),
      CASE(what_comes_meanwhile_is_written_too),
      CASE(a_cut_is_never_durable),
      CASE(many_dead_are_taken_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
