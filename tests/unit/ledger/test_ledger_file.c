/* libs: ledger base */
#include "orchestrator/ledger/ledger_epochs.h"
#include "tests/support/ledger_folder.h"

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

static void test_a_session_is_kept_exactly(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, SESSION);
  append(&l, SESSION, 0, 5);
  assert_int_equal(l.numerics(l.self, SESSION, "int8"), ERR_OK);
  assert_true(comes_to(&l, SESSION, 8));
  append(&l, SESSION, 5, 2);
  msg_stats stats = {.forwards = 7, .rounds = 2, .rows = 9, .accepted = 4};
  assert_int_equal(l.end(l.self, SESSION, 9, WIRE_FINISH_STOP, &stats), ERR_OK); /* one token was cut */
  l.forget(l.self, SESSION); /* all the same it is written */
  l.close(l.self);

  sqlite3 *db = open_database(p->path);
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
  assert_string_equal(s.numerics, "int8");
  assert_string_equal(s.about, "{\"title\":\"three\"}");
  assert_non_null(strstr(s.stats, "\"accepted_tokens\":4"));
  assert_int_equal(s.fingerprint.bytes[3], 9);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens WHERE length(ids) > 0"),
                   1); /* the pieces became one */
  assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), 0);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void test_epochs_are_recorded_ahead(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  sqlite3 *db = open_database(p->path);
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

/* The process is killed between two tokens, at whatever point. */
static void test_what_was_durable_survives_a_kill(void **state) {
  NEEDS_FORK();
  const own_folder *p = *state;
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

  sqlite3 *db = open_database(p->path);
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

static void test_an_interrupted_session_goes_on(void **state) {
  const own_folder *p = *state;
  err e = {0};
  ledger l = opened(p->path);
  begin(&l, 5);
  append(&l, 5, 0, 4);
  assert_int_equal(l.numerics(l.self, 5, "int8"), ERR_OK);
  assert_true(comes_to(&l, 5, 7));
  l.close(l.self);
  sqlite3 *db = open_database(p->path);
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
  resume(&l, &s);
  assert_true(comes_to(&l, 5, 7));
  append(&l, 5, 4, 3);
  assert_int_equal(l.end(l.self, 5, 10, WIRE_FINISH_LENGTH, NULL), ERR_OK);
  l.close(l.self);
  uint32_t epoch = s.epoch;
  ledger_session_fini(&s);
  db = open_database(p->path);
  load(db, 5, &s);
  expect_tokens(&s, 7);
  assert_true(s.epoch > epoch);
  assert_string_equal(s.numerics, "int8"); /* nobody said otherwise */
  assert_string_equal(s.about, "{\"title\":\"three\"}");
  ledger_session_fini(&s);
  sqlite3_close(db);
  o.resume_updated--; /* it was read before a change */
  assert_int_equal(ledger_file_open(&l, &o, &e), ERR_STATE);
}

/* A conversation goes on with a completion that was cut, in the same process and at once; but not if the file
 * has less of it by now. */
static void test_a_session_goes_on_right_after_its_end(void **state) {
  const own_folder *p = *state;
  for (int rolled_back = 0; rolled_back < 2; rolled_back++) {
    uint64_t id = 5 + (uint64_t)rolled_back;
    ledger l = opened(p->path);
    ledger_session s;
    err e = {0};
    begin(&l, id);
    append(&l, id, 0, 4);
    assert_int_equal(l.end(l.self, id, 7, WIRE_FINISH_LENGTH, NULL), ERR_OK);
    assert_true(comes_to(&l, id, 7));
    sqlite3 *db = open_database(p->path);
    load(db, id, &s);
    if (rolled_back) {
      while (s.state != LEDGER_ENDED) {
        ledger_session_fini(&s);
        load(db, id, &s);
      }
      assert_int_equal(ledger_change_rollback(db, p->path, id, 2, &e), ERR_OK);
    }
    l.forget(l.self, id);
    resume(&l, &s);
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

/* A person has said that this process is dead. */
static void test_nothing_is_written_to_a_session_that_was_taken_over(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  sqlite3 *db = open_database(p->path);
  exec(db, "BEGIN IMMEDIATE; UPDATE session SET owner = 77; DELETE FROM orchestrator; COMMIT");
  append(&l, 5, 0, 2);
  WAIT_UNTIL(l.lost(l.self, 5));
  assert_int_equal(l.durable(l.self, 5), 3); /* what is kept nowhere is not shown */
  l.end(l.self, 5, 5, WIRE_FINISH_STOP, NULL);
  l.close(l.self);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens WHERE length(ids) > 0"), 0);
  assert_int_equal(number(db, "SELECT owner FROM session"), 77);
  sqlite3_close(db);
}

/* The other process may be using the next epoch. */
static void test_a_session_that_was_taken_over_gets_no_epoch(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET owner = 77");
  uint32_t epoch = 2;
  int rc = ERR_OK;
  for (; epoch < 100 && (rc = l.epoch(l.self, 5, epoch)) == ERR_OK; epoch++)
    assert_true(number(db, "SELECT epoch FROM session") >= epoch);
  assert_int_equal(rc, ERR_GONE);
  assert_int_equal(l.epoch(l.self, 5, epoch + 1), ERR_GONE);
  l.close(l.self);
  assert_int_equal(number(db, "SELECT owner FROM session"), 77);
  sqlite3_close(db);
}

static void test_a_resumed_session_may_be_taken_over_before_its_first_epoch(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  l.close(l.self);
  sqlite3 *db = open_database(p->path);
  ledger_session s;
  load(db, 5, &s);
  ledger_file_options o = {
      .path = p->path, .command = "test", .resume = 5, .resume_updated = s.updated, .on_durable = nothing};
  err e = {0};
  assert_int_equal(ledger_file_open(&l, &o, &e), ERR_OK);
  exec(db, "UPDATE session SET owner = 77");
  resume(&l, &s); /* it counts with the beginning */
  WAIT_UNTIL(l.lost(l.self, 5));
  assert_int_equal(l.durable(l.self, 5), 0); /* so nothing is sent */
  assert_int_equal(l.epoch(l.self, 5, s.epoch + 1), ERR_GONE);
  assert_int_equal(number(db, "SELECT epoch FROM session"), s.epoch);
  l.close(l.self);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* Session 5, which nobody owns, is given up and not claimed. */
static void expect_not_claimed(ledger *l, sqlite3 *db) {
  WAIT_UNTIL(l->lost(l->self, 5) || number(db, "SELECT owner IS NOT NULL FROM session"));
  assert_true(l->lost(l->self, 5));
}

/* It has resumed the session from the same epoch, so that it has recorded what this process will record, and
 * has added nothing. */
static void test_a_resumed_session_may_be_taken_over_and_let_go(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  l.close(l.self);
  sqlite3 *db = open_database(p->path);
  ledger_session s;
  load(db, 5, &s);
  ledger_file_options o = {
      .path = p->path, .command = "test", .resume = 5, .resume_updated = s.updated, .on_durable = nothing};
  err e = {0};
  assert_int_equal(ledger_file_open(&l, &o, &e), ERR_OK);
  char sql[96];
  snprintf(sql, sizeof sql, "UPDATE session SET owner = NULL, epoch = %u", s.epoch + 1 + LEDGER_EPOCHS_AHEAD);
  exec(db, sql);
  resume(&l, &s);
  expect_not_claimed(&l, db);
  l.close(l.self);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* Another process has used more epochs, and left the session with the tokens that it had. */
static void test_the_bound_of_epochs_never_goes_down(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  sqlite3 *db = open_database(p->path);
  ledger_session s;
  load(db, 5, &s);
  assert_int_equal(l.end(l.self, 5, 3, WIRE_FINISH_CANCELLED, NULL), ERR_OK);
  l.forget(l.self, 5);
  WAIT_UNTIL(number(db, "SELECT owner IS NULL FROM session"));
  exec(db, "UPDATE session SET epoch = epoch + 50");
  int64_t bound = number(db, "SELECT epoch FROM session");
  resume(&l, &s);
  expect_not_claimed(&l, db);
  assert_int_equal(number(db, "SELECT epoch FROM session"), bound);
  l.close(l.self);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void test_a_cut_token_is_never_durable(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 1);
  append(&l, 1, 0, 6);
  assert_true(comes_to(&l, 1, 9));
  assert_int_equal(l.end(l.self, 1, 5, WIRE_FINISH_STOP, NULL), ERR_OK);
  assert_int_equal(l.durable(l.self, 1), 5);
  l.close(l.self);
  sqlite3 *db = open_database(p->path);
  ledger_session s;
  load(db, 1, &s);
  expect_tokens(&s, 2);
  ledger_session_fini(&s);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens WHERE length(ids) > 0"), 1);
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_session_is_kept_exactly),
      CASE(test_epochs_are_recorded_ahead),
      CASE(test_what_was_durable_survives_a_kill),
      CASE(test_an_interrupted_session_goes_on),
      CASE(test_a_session_goes_on_right_after_its_end),
      CASE(test_nothing_is_written_to_a_session_that_was_taken_over),
      CASE(test_a_session_that_was_taken_over_gets_no_epoch),
      CASE(test_a_resumed_session_may_be_taken_over_before_its_first_epoch),
      CASE(test_a_resumed_session_may_be_taken_over_and_let_go),
      CASE(test_the_bound_of_epochs_never_goes_down),
      CASE(test_a_cut_token_is_never_durable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
