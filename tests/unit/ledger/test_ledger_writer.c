/* libs: ledger base : cost=15 */
#include "tests/support/ledger_folder.h"

#include "orchestrator/ledger/ledger_writer.h"
#include "orchestrator/ledger/ledger_epochs.h"
#include "orchestrator/ledger/options_json.h"
#include <stdatomic.h>

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

static bool comes_to_be(ledger *l, bool failing) {
  for (uint64_t end = clock_us() + PATIENCE_US; clock_us() < end; usleep(1000))
    if (ledger_file_failing(l) == failing) return true;
  return false;
}

static bool comes_to_fail(ledger *l) {
  return comes_to_be(l, true);
}

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
  if (!comes_to_fail(&l) || l.durable(l.self, 1) != 3) return 2; /* what is not kept is not shown */
  limit.rlim_cur = before;
  setrlimit(RLIMIT_FSIZE, &limit);
  if (!comes_to_be(&l, false)) return 3;
  if (!comes_to(&l, 1, 8)) return 5;
  append(&l, 1, 5, 1);
  if (!comes_to(&l, 1, 9)) return 4;
  l.close(l.self);
  return 0;
}

static ledger opened_as(const char *path, ledger_mode mode) {
  ledger l;
  err e = {0};
  ledger_file_options o = {
      .path = path, .mode = mode, .command = "test", .model = "/m.gguf", .on_durable = nothing};
  if (ledger_file_open(&l, &o, &e)) fail_msg("%s", e.text);
  return l;
}

static void test_only_the_fast_mode_shows_what_is_not_kept(void **state) {
  const own_folder *p = *state;
  for (ledger_mode mode = LEDGER_NORMAL; mode <= LEDGER_FAST; mode++) {
    ledger l = opened_as(p->path, mode);
    uint64_t id = 1 + (uint64_t)mode;
    begin(&l, id);
    assert_true(comes_to(&l, id, 3));
    sqlite3 *other = open_database(p->path);
    exec(other, "BEGIN IMMEDIATE");
    append(&l, id, 0, 200);
    assert_int_equal(l.durable(l.self, id), mode == LEDGER_FAST ? 203 : 3);
    if (mode == LEDGER_FAST) { /* nobody else can know a session that is not in the file */
      begin(&l, 10);
      assert_int_equal(l.durable(l.self, 10), 0);
      assert_true(comes_to_fail(&l));
      assert_int_equal(l.durable(l.self, 10), 3);
    }
    exec(other, "COMMIT");
    assert_true(comes_to(&l, id, 203));
    sqlite3_close(other);
    l.close(l.self);
  }
}

/* Not even in the fast mode: whoever resumes the session from the file would use it as well. */
static void test_no_epoch_is_given_that_cannot_be_recorded(void **state) {
  static const ledger_mode modes[] = {LEDGER_NORMAL, LEDGER_FAST};
  const own_folder *p = *state;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    ledger l = opened_as(p->path, modes[i]);
    uint64_t id = 20 + i;
    begin(&l, id);
    assert_true(comes_to(&l, id, 3));
    sqlite3 *other = open_database(p->path);
    exec(other, "BEGIN IMMEDIATE");
    append(&l, id, 0, 1);
    assert_true(comes_to_fail(&l));
    assert_int_equal(l.epoch(l.self, id, 1 + LEDGER_EPOCHS_AHEAD), ERR_OK); /* it was recorded before */
    assert_int_equal(l.epoch(l.self, id, 2 + LEDGER_EPOCHS_AHEAD), ERR_IO);
    exec(other, "COMMIT");
    assert_true(comes_to_be(&l, false) && comes_to(&l, id, 4));
    assert_int_equal(l.epoch(l.self, id, 3 + LEDGER_EPOCHS_AHEAD), ERR_OK);
    ledger_session s;
    load(other, id, &s);
    assert_true(s.epoch >= 3 + LEDGER_EPOCHS_AHEAD);
    ledger_session_fini(&s);
    sqlite3_close(other);
    l.close(l.self);
  }
}

/* A COMMIT may fail although it has committed, for example where the sync fails: all of it is written again.
 */
static void test_a_transaction_may_be_written_twice(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  sqlite3 *db = open_database(p->path);
  ledger_transaction *w;
  ledger_process who = {.id = 4711, .command = "test", .host = "here"};
  assert_int_equal(ledger_transaction_open(&w, db, &who), ERR_OK);
  const int32_t tokens[] = {1, 2, 3, 10, 11, 12, 13};
  char *options = options_json_text(&request);
  for (int ended = 0; ended < 2; ended++) {
    ledger_job whole = {.at = {.session = 50 + (uint64_t)ended,
                               .hash_seed = 6,
                               .prompt_length = 3,
                               .options = options,
                               .epoch = 17,
                               .ended = ended,
                               .finish = WIRE_FINISH_STOP},
                        .count = 5};
    for (int again = 0; again < 3; again++) {
      ledger_job j = whole;
      j.count = again < 2 ? 5 : 7; /* more has come */
      assert_int_equal(ledger_transaction_commit(w, &j, 1, tokens, &(ledger_heartbeat){0}), SQLITE_OK);
      assert_false(j.at.lost);
    }
    ledger_session s;
    load(db, whole.at.session, &s);
    expect_tokens(&s, 4);
    assert_int_equal(s.state, ended ? LEDGER_ENDED : LEDGER_INTERRUPTED);
    assert_int_equal(s.epoch, 17);
    ledger_session_fini(&s);
    exec(db, "UPDATE session SET owner = 77, epoch = 18");
    ledger_job j = whole;
    assert_int_equal(ledger_transaction_commit(w, &j, 1, tokens, &(ledger_heartbeat){0}), SQLITE_OK);
    assert_true(j.at.lost); /* now it is another process's */
    exec(db, "UPDATE session SET owner = NULL");
  }
  free(options);
  ledger_transaction_close(w);
  sqlite3_close(db);
  l.close(l.self);
}

enum { TIMES = 64, TRIES = 4 };
static struct { /* when the writer came to the end of each transaction */
  _Atomic int32_t count;
  uint64_t at[TIMES];
} ends;

static void note_end(void *context) {
  (void)context;
  int32_t i = ends.count;
  if (i < TIMES) ends.at[i] = clock_us();
  ends.count = i + 1;
}

/* 0: as it should be. */
static int pauses_between_tries(const char *path) {
  ledger l;
  err e;
  ledger_file_options o = {.path = path, .command = "test", .model = "/m.gguf", .on_durable = note_end};
  if (ledger_file_open(&l, &o, &e) != ERR_OK) return 1;
  begin(&l, 1);
  if (!comes_to(&l, 1, 3)) return 2;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, RLIM_INFINITY});
  append(&l, 1, 0, 5);
  if (!comes_to_fail(&l)) return 3;
  int32_t first = ends.count;
  for (uint64_t end = clock_us() + PATIENCE_US; ends.count < first + TRIES; usleep(1000))
    if (clock_us() > end) return 4;
  uint64_t longest = 0; /* an end that is noted late seems nearer to the next */
  for (int32_t i = first; i + 1 < first + TRIES && i + 1 < TIMES; i++)
    if (ends.at[i + 1] - ends.at[i] > longest) longest = ends.at[i + 1] - ends.at[i];
  return longest >= LEDGER_RETRY_US / 2 ? 0 : 5;
}

static void test_a_file_that_cannot_be_written_is_tried_at_a_pace(void **state) {
  NEEDS_FORK();
  const own_folder *p = *state;
  int status;
  pid_t child = fork();
  if (child == 0) _exit(pauses_between_tries(p->path));
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* While another process holds the file, nothing becomes durable. Then one transaction takes it all. */
static void test_no_call_waits_for_a_locked_file(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 1);
  assert_true(comes_to(&l, 1, 3));
  sqlite3 *other = open_database(p->path);
  exec(other, "BEGIN IMMEDIATE");
  append(&l, 1, 0, 500);
  begin(&l, 2);
  append(&l, 2, 0, 500);
  assert_int_equal(l.durable(l.self, 1), 3);
  assert_int_equal(l.durable(l.self, 2), 0); /* so nothing may be sent */
  ledger_entry entry;
  assert_true(l.read(l.self, 2, &entry));
  assert_int_equal(entry.length, 503);
  assert_int_equal(number(other, "SELECT count(*) FROM tokens WHERE length(ids) > 0"), 0);
  exec(other, "COMMIT");
  assert_true(comes_to(&l, 1, 503));
  assert_true(comes_to(&l, 2, 503));
  assert_true(number(other, "SELECT count(*) FROM tokens WHERE length(ids) > 0") <=
              4); /* what waited, and what came while it did */
  sqlite3_close(other);
  l.close(l.self);
}

static void test_several_processes_write_one_file(void **state) {
  NEEDS_FORK();
  const own_folder *p = *state;
  pid_t children[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    if ((children[i] = fork()) == 0) writer_process(p->path, i);
  for (int i = 0; i < WRITERS; i++) {
    int status;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    assert_int_equal(status, 0);
  }
  sqlite3 *db = open_database(p->path);
  assert_int_equal(number(db, "SELECT count(*) FROM session WHERE state = 1"), WRITERS * EACH);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens WHERE length(ids) = 40"), WRITERS * EACH);
  sqlite3_close(db);
}

static void test_a_full_disk_ends_no_session(void **state) {
  NEEDS_FORK();
  const own_folder *p = *state;
  int status;
  pid_t child = fork();
  if (child == 0) _exit(writes_on_a_full_disk(p->path));
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_true(WIFEXITED(status));
  sqlite3 *db = open_database(p->path);
  ledger_session s;
  load(db, 1, &s);
  expect_tokens(&s, 6); /* nothing is missing */
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void test_what_comes_during_a_transaction_is_written_with_the_next(void **state) {
  enum { TOKENS, NUMERICS, EPOCH, END, KINDS };
  const own_folder *p = *state;
  const uint32_t epoch = LEDGER_EPOCHS_AHEAD / 2 + 2; /* more are recorded now */
  for (int what = 0; what < KINDS; what++) {
    ledger l = opened(p->path);
    uint64_t id = 10 + (uint64_t)what;
    begin(&l, id);
    append(&l, id, 0, 2);
    assert_true(comes_to(&l, id, 5));
    sqlite3 *db = open_database(p->path);
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

/* Another session's tokens make the writer write between the two. */
static void test_a_beginning_waits_for_its_first_epoch(void **state) {
  const own_folder *p = *state;
  const ledger_record r = {
      .session = 2, .tokens = prompt, .length = 3, .prompt_length = 3, .options = &request};
  ledger l = opened(p->path);
  sqlite3 *db = open_database(p->path);
  assert_int_equal(l.begin(l.self, &r), ERR_OK);
  begin(&l, 1);
  append(&l, 1, 0, 2);
  assert_true(comes_to(&l, 1, 5));
  assert_int_equal(number(db, "SELECT count(*) FROM session WHERE id = 2"), 0);
  assert_int_equal(l.epoch(l.self, 2, 1), ERR_OK);
  assert_true(comes_to(&l, 2, 3));
  assert_int_equal(number(db, "SELECT count(*) FROM session WHERE id = 2 AND epoch > 0"), 1);
  l.close(l.self);
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_no_call_waits_for_a_locked_file),
      CASE(test_several_processes_write_one_file),
      CASE(test_a_full_disk_ends_no_session),
      CASE(test_what_comes_during_a_transaction_is_written_with_the_next),
      CASE(test_a_file_that_cannot_be_written_is_tried_at_a_pace),
      CASE(test_only_the_fast_mode_shows_what_is_not_kept),
      CASE(test_no_epoch_is_given_that_cannot_be_recorded),
      CASE(test_a_transaction_may_be_written_twice),
      CASE(test_a_beginning_waits_for_its_first_epoch),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
