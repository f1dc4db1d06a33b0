/* libs: cli wire speculative text file base */
/* Request lines under way together, over the real sessions; this file is the target. */
#include "orchestrator/service/request_queue.h"
#include "orchestrator/cli/commands.h"
#include "tests/support/fake_service.h"

enum { VOCABULARY = 50, LINES_MAX = 8, IDS_MAX = 16 };

typedef struct world {
  service p;
  text_model model; /* without a vocabulary: ids alone */
  flags f;
  logger log;
  request_queue r;
  char *results[LINES_MAX];    /* by tag */
  int given[LINES_MAX], count; /* tags in the order in which they came */
  opened sessions[LINES_MAX];  /* by tag */
} world;

static void on_result(void *owner, size_t tag, char *line) {
  world *w = owner;
  assert_true(tag < LINES_MAX && !w->results[tag]);
  assert_non_null(line);
  w->results[tag] = line;
  w->given[w->count++] = (int)tag;
}

static int set_up(void **state) {
  world *w = calloc(1, sizeof *w);
  fake_service_begin(&w->p);
  unwritten = -1;
  w->model.config.vocab = VOCABULARY;
  w->f = (flags){.given.draft = "none"};
  request_init(&w->f.request);
  w->f.request.max_tokens = 4;
  w->f.request.context = CONTEXT;
  w->f.request.speculate = false;
  w->f.request.sampling.seed = 5;
  w->log = (logger){"test", LOG_ERROR};
  w->r = (request_queue){.defaults = &w->f.request,
                         .model = &w->model,
                         .log = &w->log,
                         .service = &w->p,
                         .on_result = on_result,
                         .owner = w};
  *state = w;
  return 0;
}

static int tear_down(void **state) {
  world *w = *state;
  err why = {.code = ERR_GONE};
  request_queue_fail(&w->r, &why); /* what the test has left under way */
  for (int i = 0; i < LINES_MAX; i++) free(w->results[i]);
  fake_service_end(&w->p);
  free(w);
  return 0;
}

static void begin(world *w, const char *line, size_t tag) {
  int32_t before = w->r.running_count;
  request_queue_begin(&w->r, line, strlen(line), 10 + (long)tag, tag);
  if (w->r.running_count > before) w->sessions[tag] = fake_service_open_session(&w->p);
}

/* The target says these tokens, after a prompt of [1, 2], and that it is done; 0: it goes on. */
static void say(world *w, size_t tag, const int32_t *ids, int32_t from, int32_t count, wire_finish finish) {
  const opened *o = &w->sessions[tag];
  int32_t all[IDS_MAX] = {1, 2};
  memcpy(all + 2, ids, (size_t)(from + count) * sizeof *ids);
  hash16 hash = hash_of(o->seed, all, 2 + from + count);
  rig_say(&w->p.r, TARGET, tokens_message(SELF, o->session, o->epoch, 2 + from, ids + from, count, hash));
  if (!finish) return;
  msg m = message(MSG_DONE, SELF, o->session, o->epoch);
  m.u.done = (msg_done){.length = 2 + from + count,
                        .hash = hash,
                        .finish = finish,
                        .code = finish == WIRE_FINISH_ERROR ? ERR_INTERNAL : 0};
  m.u.done.stats = (msg_stats){.forwards = 3, .rounds = 2, .rows = 8, .accepted = 5};
  if (finish == WIRE_FINISH_ERROR) m.u.done.text = wire_text("it broke");
  rig_say(&w->p.r, TARGET, m);
  m = message(MSG_ENDED, SELF, o->session, o->epoch);
  m.u.existed = true;
  rig_say(&w->p.r, TARGET, m);
}

static json_t *result(world *w, size_t tag) {
  assert_non_null(w->results[tag]);
  size_t size = strlen(w->results[tag]);
  assert_true(size > 1 && w->results[tag][size - 1] == '\n');
  json_t *o = json_loads(w->results[tag], 0, NULL);
  assert_non_null(o);
  return o;
}

static void expect_result(world *w, size_t tag, json_int_t id, const char *finish, size_t tokens,
                          const char *error) {
  json_t *o = result(w, tag);
  assert_int_equal(json_integer_value(json_object_get(o, "id")), id);
  assert_string_equal(json_string_value(json_object_get(o, "finish_reason")), finish);
  assert_int_equal(json_array_size(json_object_get(o, "token_ids")), tokens);
  const char *text = json_string_value(json_object_get(o, "error"));
  if (error)
    assert_true(text && strstr(text, error));
  else
    assert_null(text);
  json_decref(o);
}

static const int32_t ids[] = {7, 8, 9, 10};
#define LINE(id) "{\"id\": " #id ", \"prompt_ids\": [1, 2]}"

static void test_results_come_as_they_finish(void **state) {
  world *w = *state;
  for (size_t i = 0; i < 3; i++) begin(w, i == 0 ? LINE(1) : i == 1 ? LINE(2) : LINE(3), i);
  assert_int_equal(w->r.running_count, 3);
  request_queue_update(&w->r);
  assert_int_equal(w->count, 0);
  say(w, 1, ids, 0, 2, WIRE_FINISH_STOP);
  say(w, 0, ids, 0, 1, 0);
  request_queue_update(&w->r);
  assert_int_equal(w->count, 1);
  assert_int_equal(w->r.running_count, 2);
  say(w, 2, ids, 0, 4, WIRE_FINISH_LENGTH);
  request_queue_update(&w->r);
  say(w, 0, ids, 1, 3, WIRE_FINISH_LENGTH);
  request_queue_update(&w->r);
  assert_int_equal(w->r.running_count, 0);
  assert_true(w->given[0] == 1 && w->given[1] == 2 && w->given[2] == 0);
  expect_result(w, 0, 1, "length", 4, NULL);
  expect_result(w, 1, 2, "stop", 2, NULL);
  expect_result(w, 2, 3, "length", 4, NULL);
  assert_int_equal(w->r.completed, 3);
  assert_int_equal(w->r.tokens, 10);
  assert_int_equal(w->r.rounds, 6);
  assert_int_equal(w->r.drafted, 24);
  assert_int_equal(w->r.accepted, 15);
  assert_int_equal(w->r.failed + w->r.cancelled + w->r.plain, 0);
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_OK);
}

/* A target that dies takes its figures with it; which tokens were guessed has been told with them. */
static void test_what_a_dead_target_has_done_is_told(void **state) {
  world *w = *state;
  static const int32_t tokens[] = {1, 2, 7, 8, 9};
  static const uint8_t guessed = 1 << 1 | 1 << 2;
  w->r.accepted_wanted = true;
  begin(w, LINE(1), 0);
  const opened *o = &w->sessions[0];
  msg m = tokens_message(SELF, o->session, o->epoch, 2, ids, 3, hash_of(o->seed, tokens, 5));
  m.u.tokens.accepted = &guessed;
  m.u.tokens.accepted_size = 1;
  rig_say(&w->p.r, TARGET, m);
  request_queue_update(&w->r);
  rig_clear(&w->p.r);
  sessions_worker_died(w->p.o, id_of(TARGET), w->p.r.now, &w->p.r.out);
  fake_service_add_target(&w->p);
  w->sessions[0] = fake_service_open_session(&w->p);
  rig_say(&w->p.r, TARGET,
          tokens_message(SELF, o->session, o->epoch, 5, ids + 3, 1,
                         hash_of(o->seed, (int32_t[]){1, 2, 7, 8, 9, 10}, 6)));
  m = message(MSG_DONE, SELF, o->session, o->epoch);
  m.u.done = (msg_done){.length = 6,
                        .hash = hash_of(o->seed, (int32_t[]){1, 2, 7, 8, 9, 10}, 6),
                        .finish = WIRE_FINISH_LENGTH,
                        .stats = {.forwards = 1}};
  rig_say(&w->p.r, TARGET, m);
  m = message(MSG_ENDED, SELF, o->session, o->epoch);
  m.u.existed = true;
  rig_say(&w->p.r, TARGET, m);
  request_queue_update(&w->r);
  expect_result(w, 0, 1, "length", 4, NULL);
  assert_int_equal(w->r.lost, 3);
  assert_int_equal(w->r.lost_accepted, 2);
}

/* The clock runs while an answer is under way. */
static void test_a_speed_needs_an_answer(void **state) {
  world *w = *state;
  assert_true(request_queue_speed(&w->r) == 0);
  begin(w, LINE(1), 0);
  w->r.busy_from -= 2000000;
  say(w, 0, ids, 0, 4, WIRE_FINISH_LENGTH);
  request_queue_update(&w->r);
  assert_true(w->r.busy_us >= 2000000 && w->r.tokens == 4);
  assert_true(request_queue_speed(&w->r) == 0); /* of four tokens */
  w->r.busy_us = 2000000;
  w->r.tokens = 40;
  assert_true(request_queue_speed(&w->r) == 20);
}

/* What a line says is for that line alone. */
static void test_options_of_a_line_are_its_own(void **state) {
  world *w = *state;
  request before = w->f.request;
  begin(w, "{\"id\": 1, \"prompt_ids\": [1, 2], \"max_tokens\": 2, \"seed\": 99}", 0);
  assert_memory_equal(&before, &w->f.request, sizeof before);
  assert_int_equal(w->r.running[0]->completion.seed, 99);
  begin(w, LINE(2), 1);
  assert_int_equal(w->r.running[1]->completion.seed, before.sampling.seed);
}

static void test_bad_lines_are_told_at_once(void **state) {
  world *w = *state;
  begin(w, "no json", 0);
  begin(w, "{\"id\": 5, \"prompt_ids\": [1, 50]}", 1);
  begin(w, "{\"id\": 6, \"prompt\": \"text\"}", 2);
  begin(w, LINE(7), 3);
  assert_int_equal(w->r.running_count, 1);
  assert_int_equal(w->count, 3);
  expect_result(w, 0, 10, "error", 0, "not JSON"); /* its line's number */
  expect_result(w, 1, 5, "error", 0, "[1]");
  expect_result(w, 2, 6, "error", 0, "no vocabulary");
  assert_int_equal(w->r.failed, 3);
  assert_int_equal(w->r.completed, 0);
  say(w, 3, ids, 0, 4, WIRE_FINISH_LENGTH);
  request_queue_update(&w->r);
  expect_result(w, 3, 7, "length", 4, NULL);
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_FAILED);
}

static void test_prompts_to_the_end_of_the_context(void **state) {
  world *w = *state;
  for (size_t over = 0; over < 2; over++) {
    char line[1000] = "{\"id\": 1, \"prompt_ids\": [1";
    for (size_t i = 1; i < CONTEXT - 1 + over; i++) strcat(line, ",1");
    strcat(line, "]}");
    begin(w, line, over);
  }
  assert_int_equal(w->r.running_count, 1); /* one token fits */
  expect_result(w, 1, 1, "error", 0, "the context is 64");
}

static void test_one_that_fails_fails_alone(void **state) {
  world *w = *state;
  begin(w, LINE(1), 0);
  begin(w, LINE(2), 1);
  say(w, 0, ids, 0, 2, WIRE_FINISH_ERROR);
  say(w, 1, ids, 0, 4, WIRE_FINISH_LENGTH);
  request_queue_update(&w->r);
  expect_result(w, 0, 1, "error", 2, "it broke");
  expect_result(w, 1, 2, "length", 4, NULL);
  assert_true(w->r.failed == 1 && w->r.completed == 1);
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_FAILED);
}

static void test_all_fail_together(void **state) {
  world *w = *state;
  err why = {.code = ERR_GONE};
  snprintf(why.text, sizeof why.text, "the target is gone");
  begin(w, LINE(1), 0);
  begin(w, LINE(2), 1);
  say(w, 1, ids, 0, 3, 0);
  request_queue_fail(&w->r, &why);
  assert_int_equal(w->r.running_count, 0);
  expect_result(w, 0, 1, "error", 0, "the target is gone");
  expect_result(w, 1, 2, "error", 3, "the target is gone");
  request_queue_refuse(&w->r, LINE(9), strlen(LINE(9)), 3, 2, &why);
  expect_result(w, 2, 9, "error", 0, "the target is gone"); /* under its own id */
  request_queue_refuse(&w->r, "{", 1, 4, 3, &why);
  expect_result(w, 3, 4, "error", 0, "the target is gone"); /* under its line's number */
  assert_int_equal(w->r.failed, 4);
}

static void test_cancelled_ones_keep_what_they_have(void **state) {
  world *w = *state;
  begin(w, LINE(1), 0);
  begin(w, LINE(2), 1);
  say(w, 0, ids, 0, 3, 0);
  request_queue_cancel(&w->r);
  request_queue_update(&w->r);
  assert_int_equal(w->r.running_count, 2); /* its figures are still to come */
  for (size_t i = 0; i < 2; i++) {
    msg m = message(MSG_ENDED, SELF, w->sessions[i].session, w->sessions[i].epoch + 1);
    m.u.existed = true;
    rig_say(&w->p.r, TARGET, m);
  }
  request_queue_update(&w->r);
  assert_int_equal(w->r.running_count, 0);
  expect_result(w, 0, 1, "cancelled", 3, NULL);
  expect_result(w, 1, 2, "cancelled", 0, NULL);
  assert_true(w->r.cancelled == 2 && w->r.completed == 2 && w->r.failed == 0);
}

static void test_why_speculation_was_off(void **state) {
  world *w = *state;
  w->f.given.draft = w->p.workers.draft = "ngram";
  w->f.request.speculate = true;
  w->f.request.budget = 8;
  begin(w, LINE(1), 0); /* no draft is there */
  begin(w, "{\"id\": 2, \"prompt_ids\": [1, 2], \"draft\": false}", 1);
  for (size_t i = 0; i < 2; i++) say(w, i, ids, 0, 4, WIRE_FINISH_LENGTH);
  request_queue_update(&w->r);
  assert_int_equal(w->r.plain, 1); /* who did not ask for it has none */
  assert_string_equal(w->r.off_reason, "no draft came");
}

static void test_exit_statuses(void **state) {
  world *w = *state;
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_OK);
  w->r.failed = 1;
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_FAILED);
  w->p.lost = true;
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_IO);
  w->p.trouble.code = ERR_GONE;
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_WORKER);
  w->p.signal = 15;
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_TERMINATED);
  w->r.out_of_memory = true;
  assert_int_equal(command_end_queue(&w->r, &w->f), STATUS_FAILED);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_results_come_as_they_finish),
      CASE(test_what_a_dead_target_has_done_is_told),
      CASE(test_a_speed_needs_an_answer),
      CASE(test_options_of_a_line_are_its_own),
      CASE(test_bad_lines_are_told_at_once),
      CASE(test_prompts_to_the_end_of_the_context),
      CASE(test_one_that_fails_fails_alone),
      CASE(test_all_fail_together),
      CASE(test_cancelled_ones_keep_what_they_have),
      CASE(test_why_speculation_was_off),
      CASE(test_exit_statuses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
