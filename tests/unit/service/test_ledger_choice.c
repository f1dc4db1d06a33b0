/* libs: service wire speculative base */
/* Which ledger a command writes, and what happens where it cannot. */
#include "orchestrator/service/ledger_choice.h"

#include "orchestrator/ledger/ledger_query.h"
#include "tests/support/machine_rig.h"
#include "tests/support/patience.h"
#include "tests/support/scratch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct place {
  char folder[SCRATCH_MAX], path[SCRATCH_MAX + 20], state[SCRATCH_MAX + 20],
      kept[SCRATCH_MAX + 50]; /* kept: the default file */
  uv_loop_t loop;
  ledger_choice *choice;
  logger log;
  int told;       /* calls of on_logged */
  char made[128]; /* the path of on_new_file, once it was called */
} place;

static int set_up(void **state) {
  place *p = calloc(1, sizeof *p);
  strcpy(p->folder, scratch_make_folder().text);
  if (uv_loop_init(&p->loop)) return -1;
  snprintf(p->path, sizeof p->path, "%s/own.sqlite", p->folder);
  snprintf(p->state, sizeof p->state, "%s/state", p->folder);
  snprintf(p->kept, sizeof p->kept, "%s/tandem/ledger.sqlite", p->state);
  p->log = (logger){"test", LOG_ERROR};
  setenv("XDG_STATE_HOME", p->state, 1);
  *state = p;
  return 0;
}

static void close_book(place *p) {
  ledger_choice_close(p->choice);
  p->choice = NULL;
  uv_run(&p->loop, UV_RUN_DEFAULT);
}

static int tear_down(void **state) {
  place *p = *state;
  close_book(p);
  assert_int_equal(uv_loop_close(&p->loop), 0);
  scratch_remove(p->folder);
  free(p);
  return 0;
}

static void on_logged(void *context) {
  ((place *)context)->told++;
}

static void on_new_file(void *context, const char *path) {
  snprintf(((place *)context)->made, sizeof((place *)context)->made, "%s", path);
}

static int open_book(place *p, const char *where, uint64_t resume, err *e) {
  ledger_choice_options o = {.loop = &p->loop,
                             .ledger = where,
                             .command = "test",
                             .model = "/m.gguf",
                             .log = &p->log,
                             .resume = resume,
                             .on_logged = on_logged,
                             .on_new_file = on_new_file,
                             .context = p};
  return ledger_choice_open(&p->choice, &o, e);
}

static void opened(place *p, const char *where) {
  err e = {0};
  if (open_book(p, where, 0, &e)) fail_msg("%s", e.text);
}

static bool is_there(const char *path) {
  struct stat s;
  return stat(path, &s) == 0;
}

static const int32_t tokens[] = {1, 2, 3};

static void begin(place *p) {
  ledger l = ledger_choice_ledger(p->choice);
  ledger_record r = {.session = 7, .tokens = tokens, .length = 3, .prompt_length = 3};
  assert_int_equal(l.begin(l.self, &r), ERR_OK);
  assert_int_equal(l.epoch(l.self, 7, 1), ERR_OK);
}

static void test_none_is_memory(void **state) {
  place *p = *state;
  opened(p, "none");
  assert_false(ledger_choice_keeps(p->choice));
  assert_false(ledger_choice_failed(p->choice));
  begin(p);
  ledger l = ledger_choice_ledger(p->choice);
  assert_int_equal(l.durable(l.self, 7), 3); /* at once */
  close_book(p);
  assert_false(is_there(p->kept) || is_there("none"));
}

static void test_a_named_file_is_the_only_one(void **state) {
  place *p = *state;
  opened(p, p->path);
  assert_true(ledger_choice_keeps(p->choice));
  assert_true(is_there(p->path));
  assert_false(is_there(p->kept));
}

static void test_the_default_file_is_made(void **state) {
  place *p = *state;
  opened(p, NULL);
  assert_true(ledger_choice_keeps(p->choice));
  assert_true(is_there(p->kept));
}

static bool says_place(place *p, const char *where) {
  p->made[0] = 0;
  opened(p, where);
  close_book(p);
  if (p->made[0]) assert_string_equal(p->made, p->kept);
  return p->made[0];
}

static void test_a_new_default_file_is_told_of_once(void **state) {
  place *p = *state;
  assert_false(says_place(p, "none"));
  assert_false(says_place(p, p->path));
  assert_true(says_place(p, NULL));
  assert_false(says_place(p, NULL));
}

/* Without a word from the user the answer matters more than its record; a file that was asked for must work.
 */
static void test_without_a_file_only_an_unnamed_one_does(void **state) {
  place *p = *state;
  err e = {0};
  int fd = open(p->state, O_CREAT | O_WRONLY, 0600); /* where a folder should be */
  close(fd);
  opened(p, NULL);
  assert_false(ledger_choice_keeps(p->choice));
  assert_false(ledger_choice_failed(p->choice));
  begin(p);
  close_book(p);
  assert_int_equal(open_book(p, p->kept, 0, &e), ERR_IO);
  close_book(p);
  assert_int_equal(open_book(p, NULL, 7, &e), ERR_IO); /* what goes on is in no memory */
}

static void on_time(uv_timer_t *timer) {
  (void)timer;
}

/* A program's loop has more to do than the ledger_choice, which keeps none alive. */
static void keep_alive(place *p, uv_timer_t *timer) {
  uv_timer_init(&p->loop, timer);
  uv_timer_start(timer, on_time, 1000000, 1000000);
}

static void test_it_tells_of_what_is_logged(void **state) {
  place *p = *state;
  opened(p, p->path);
  begin(p);
  ledger l = ledger_choice_ledger(p->choice);
  WAIT_UNTIL(l.durable(l.self, 7) == 3);
  uv_timer_t timer;
  keep_alive(p, &timer);
  WAIT_UNTIL((uv_run(&p->loop, UV_RUN_NOWAIT), p->told > 0)); /* on the loop's thread */
  uv_close((uv_handle_t *)&timer, NULL);
  uv_run(&p->loop, UV_RUN_NOWAIT);
}

/* A file that takes nothing any more: it matters to who asked for it by name. */
static void fails(place *p, const char *named) {
  err e = {0};
  sqlite3 *other;
  opened(p, named);
  assert_int_equal(ledger_database_open(&other, named ? named : p->kept, false, &e), ERR_OK);
  assert_int_equal(sqlite3_exec(other, "DROP TABLE session", NULL, NULL, NULL), SQLITE_OK);
  sqlite3_close(other);
  begin(p);
  ledger l = ledger_choice_ledger(p->choice);
  WAIT_UNTIL(ledger_file_failing(&l));
  assert_int_equal(l.durable(l.self, 7), 0); /* so nothing is sent */
  assert_int_equal(ledger_choice_failed(p->choice), named != NULL);
  assert_false(ledger_choice_keeps(p->choice)); /* so nobody is told that it can go on */
}

static void test_a_named_file_that_fails_is_told_of(void **state) {
  place *p = *state;
  fails(p, p->path);
  close_book(p);
  fails(p, NULL);
}

/* ---- what `tandem status` shows ---- */

static uint64_t some_random(void *context) {
  return ++*(uint64_t *)context;
}

static void note_workers(void *context, const ledger_orchestrator *o) {
  snprintf(context, 1000, "%s", o->workers ? o->workers : "");
}

static const char *look_at_workers(const char *path, char *text) {
  sqlite3 *db;
  err e = {0};
  assert_int_equal(ledger_database_open(&db, path, false, &e), ERR_OK);
  assert_int_equal(ledger_query_orchestrators(db, "it", note_workers, text, &e), ERR_OK);
  sqlite3_close(db);
  return text;
}

static void test_workers_are_told_each_second(void **state) {
  place *p = *state;
  uint64_t random = 1;
  err e = {0};
  sessions_machine *o;
  opened(p, p->path);
  sessions_options options = {.incarnation = id_of(1),
                              .random = some_random,
                              .random_context = &random,
                              .ledger = ledger_choice_ledger(p->choice)};
  assert_int_equal(sessions_alloc(&o, &options, &e), ERR_OK);
  rig r;
  rig_init(&r, sessions_as_machine(o));
  msg target = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, id_of(2)),
      draft = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of(3));
  target.u.hello.numerics_id = wire_text("int8-f16-2");
  target.u.hello.endpoint = wire_text("ipc:///there");
  draft.u.hello.method = wire_text("ngram");
  rig_say(&r, 2, target);
  rig_say(&r, 3, draft);
  rig_say(&r, 2, ping_message(MSG_PONG, id_of(1), 0, r.now, 3));
  ledger_choice_watch(p->choice, o);
  char text[1000] = "";
  uv_timer_t timer;
  keep_alive(p, &timer);
  WAIT_UNTIL((uv_run(&p->loop, UV_RUN_NOWAIT), look_at_workers(p->path, text)[0]));
  uv_close((uv_handle_t *)&timer, NULL);
  uv_run(&p->loop, UV_RUN_NOWAIT);
  assert_string_equal(
      text, "[{\"id\":\"02550000000000000000000000000000\",\"state\":\"ready\",\"role\":\"target\","
            "\"numerics_id\":\"int8-f16-2\",\"endpoint\":\"ipc:///there\",\"device\":\"\",\"load\":3,"
            "\"session_max\":0},{\"id\":\"03550000000000000000000000000000\",\"state\":\"ready\","
            "\"role\":\"draft\",\"method\":\"ngram\",\"device\":\"\",\"load\":0,\"session_max\":0}]");
  ledger_choice_watch(p->choice, NULL);
  rig_fini(&r);
  sessions_free(o);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_none_is_memory),
      CASE(test_a_named_file_is_the_only_one),
      CASE(test_the_default_file_is_made),
      CASE(test_a_new_default_file_is_told_of_once),
      CASE(test_without_a_file_only_an_unnamed_one_does),
      CASE(test_it_tells_of_what_is_logged),
      CASE(test_a_named_file_that_fails_is_told_of),
      CASE(test_workers_are_told_each_second),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
