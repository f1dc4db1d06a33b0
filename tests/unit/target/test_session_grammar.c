/* libs: target wire speculative base */
/* A session's grammar at the target: an OPEN that is refused for it, which job has which, and the end of an
 * answer that cannot go on. What the engine does with it is in test_engine.c. */
#include "tests/support/target_world.h"

static const char *piece(const void *context, int32_t id, size_t *size) {
  (void)context;
  (void)id;
  *size = 1;
  return "a";
}

static const grammar_vocabulary *open_vocabulary(void *context, err *e) {
  grammar_vocabulary **v = context;
  if (!*v) grammar_vocabulary_make(v, 8, piece, NULL, e);
  return *v;
}

static grammar_vocabulary *vocabulary;

static void give_vocabulary(world *w) {
  target_sessions(w->t)->vocabulary = (session_grammar_source){open_vocabulary, &vocabulary};
}

static void drop_vocabulary(void) {
  grammar_vocabulary_free(vocabulary);
  vocabulary = NULL;
}

static msg with_grammar(msg m, const char *text) {
  static const int32_t stops[] = {7};
  m.u.open.options.grammar = text;
  m.u.open.options.grammar_size = (uint32_t)strlen(text);
  m.u.open.options.stops = stops;
  m.u.open.options.stop_count = 1;
  return m;
}

static void test_an_open_is_refused_for_its_grammar(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, with_grammar(prompt_message(), "root ::= \"a\""));
  rig_expect_error(&w->r, ORCH, ERR_UNSUPPORTED); /* no vocabulary */
  assert_null(held(w, S));
  give_vocabulary(w);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, with_grammar(prompt_message(), "root ::= ("));
  rig_expect_error(&w->r, ORCH, ERR_FORMAT);
  assert_null(held(w, S));
  rig_clear(&w->r);
  msg m = with_grammar(prompt_message(), "root ::= \"a\"");
  m.u.open.options.stop_count = 0;
  rig_say(&w->r, ORCH, m);
  rig_expect_error(&w->r, ORCH, ERR_ARG); /* nothing could end the answer */
  assert_null(held(w, S));
  rig_clear(&w->r);
  say_and_open(w, with_grammar(prompt_message(), "root ::= \"a\""));
  assert_non_null(held(w, S)->request.grammar);
  assert_null(held(w, S)->request.options.grammar); /* the frame's */
  drop_vocabulary();
}

/* The engine may still follow the one before. */
static void test_a_job_under_way_keeps_its_grammar(void **state) {
  world *w = *state;
  give_vocabulary(w);
  say_and_open(w, with_grammar(prompt_message(), "root ::= \"a\"*"));
  prefill(w);
  assert_true(take_job(w));
  grammar_matcher *first = w->job.grammar;
  assert_non_null(first);
  assert_memory_equal(w->job.history, PROMPT, sizeof PROMPT);
  msg m = with_grammar(open_message(S, 2, PROMPT, PROMPT_LENGTH), "root ::= \"aa\"*");
  rig_say(&w->r, ORCH, m);
  m = with_grammar(open_message(S, 3, PROMPT, PROMPT_LENGTH), "root ::= \"aaa\"*");
  rig_say(&w->r, ORCH, m);
  assert_int_equal(grammar_matcher_move(first, PROMPT, 0, NULL, 0), ERR_OK);
  assert_true(grammar_matcher_allows(first, 0)); /* it is there still */
  give_result(w);
  assert_true(take_job(w));
  assert_ptr_equal(w->job.grammar, held(w, S)->request.grammar);
  rig_say(&w->r, ORCH, open_message(S, 4, PROMPT, PROMPT_LENGTH));
  assert_non_null(w->job.grammar);
  give_result(w);
  assert_true(take_job(w));
  assert_null(w->job.grammar);
  give_result(w);
  drop_vocabulary();
}

static void test_an_answer_that_cannot_go_on_ends(void **state) {
  world *w = *state;
  give_vocabulary(w);
  say_and_open(w, with_grammar(prompt_message(), "root ::= \"a\"*"));
  prefill(w);
  w->fail = ERR_LIMIT;
  assert_true(run_job(w));
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_ERROR);
  assert_int_equal(d->code, ERR_LIMIT);
  drop_vocabulary();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_an_open_is_refused_for_its_grammar),
      CASE(test_a_job_under_way_keeps_its_grammar),
      CASE(test_an_answer_that_cannot_go_on_ends),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
