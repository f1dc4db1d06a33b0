/* libs: draft wire speculative base */
/* OPEN and END, as a draft takes them. */
#include "tests/support/draft_world.h"

static void test_open_again_changes_nothing(void **state) {
  world *w = *state;
  attach(w, false);
  tell_tokens(w, 3, 2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, prompt_message());
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, 5);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  assert_int_equal(w->f.opened, 1);
}

/* Its ticket has been dismissed: whoever took it would attach in vain. */
static void test_an_open_that_another_ticket_has_overtaken_changes_nothing(void **state) {
  world *w = *state;
  msg newest = prompt_message();
  newest.u.open.ticket = id_of(201);
  open_and_greet(w, newest);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, prompt_message());
  assert_int_equal(rig_count_all(&w->r, RIG_ANY), 0);
  rig_advance(&w->r, DRAFT_REPEAT_US);
  assert_true(wire_id_equal(rig_only(&w->r, TARGET, MSG_ATTACH)->u.state.ticket, id_of(201)));
}

static void test_a_higher_epoch_replaces_and_a_lower_one_is_stale(void **state) {
  world *w = *state;
  open_and_greet(w, open_message(S, 5, PROMPT, PROMPT_LENGTH));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S, 4, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S, 6, PROMPT, PROMPT_LENGTH));
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->epoch, 6);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_ATTACH)->epoch, 6); /* at once: the target is greeted */
}

static void test_open_brings_only_what_is_lacking(void **state) {
  world *w = *state;
  static const struct { int32_t base, count; } table[] = {{5, 0}, {5, 3}, {4, 0}, {3, 1}, {0, 6}};
  attach(w, false);
  uint32_t epoch = 1;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, delta(++epoch, 0, 5));
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, delta(++epoch, table[i].base, table[i].count));
    const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
    int32_t length = table[i].base + table[i].count;
    hash16 h = true_hash(length);
    assert_int_equal(m->u.state.length, length);
    assert_memory_equal(&m->u.state.hash, &h, sizeof h);
    rig_say(&w->r, TARGET, attached_message(epoch, length, epoch));
    settle(w);
    assert_int_equal(w->base, length);
    assert_int_equal(w->nodes[1].token, truth()[length]); /* its drafter knows too */
  }
}

/* Computes what an opened session wants, and ends it. */
static draft_job play_session(world *w, uint64_t id, const int32_t *tokens, int32_t count) {
  static draft_batch b;
  rig_advance(&w->r, 1000);
  open_and_greet(w, open_message(id, 1, tokens, count));
  assert_true(draft_next_batch(w->d, &b));
  draft_job first = b.jobs[0];
  draft_results r = results_of(&b, tokens[count - 1]);
  rig_event(&w->r, EVENT_RESULT, 0, 0, NULL, &r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, id, 1));
  return first;
}

/* As a conversation's second turn does. What has begun otherwise takes another place. */
static void test_a_new_session_finds_the_rows_of_one_that_began_like_it(void **state) {
  world *w = *state;
  int32_t others[40];
  for (int32_t i = 0; i < 40; i++) others[i] = 7;
  draft_job one = play_session(w, S, truth(), 40), two = play_session(w, S + 1, others, 40);
  assert_int_equal(one.base, 0);
  assert_int_not_equal(one.slot, two.slot);
  draft_job next = play_session(w, S + 2, truth(), 60);
  assert_true(next.slot == one.slot && next.base == 40 && next.count == 20);
  next = play_session(w, S + 3, others, 30);
  assert_true(next.slot == two.slot && next.base == 30 && next.count == 0);
  memcpy(others, truth(), 5 * sizeof *others); /* too little of either to take it away: the older one goes */
  next = play_session(w, S + 4, others, 40);
  assert_true(next.slot == one.slot && next.base == 5);
}

static void test_open_of_a_base_that_is_not_held_is_desync(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, delta(1, 3, 1));
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  assert_int_equal(m->u.state.length, 0);
  assert_true(hash_is_zero(m->u.state.hash));
  assert_int_equal(w->f.opened, 0);
  attach(w, false);
  msg bad[] = {delta(2, 4, 0), delta(2, 2, 1), delta(2, 3, 1), delta(2, 3, 1)};
  bad[1].u.open.base_hash.bytes[9] ^= 1;
  bad[2].u.open.hash.bytes[0] ^= 1;
  bad[3].u.open.hash_seed++;
  for (int i = 0; i < 4; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, bad[i]);
    assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, PROMPT_LENGTH);
    assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), 0);
  }
}

/* It may say that it is out of step, or take it over at once; what it says then must be so. */
static void test_open_of_another_prefix_in_the_same_epoch_is_no_repetition(void **state) {
  world *w = *state;
  static const int32_t other[] = {1, 2, 4};
  hash16 h = hash_of(SEED, other, 3);
  attach(w, false);
  rig_say(&w->r, ORCH, open_message(S, 1, other, 3));
  if (rig_count(&w->r, ORCH, MSG_DESYNC) == 0) {
    assert_memory_equal(&rig_only(&w->r, ORCH, MSG_OPENED)->u.state.hash, &h, sizeof h);
    assert_memory_equal(&rig_only(&w->r, TARGET, MSG_ATTACH)->u.state.hash, &h, sizeof h);
  }
}

static void test_open_beyond_a_context_is_refused(void **state) {
  world *w = *state;
  static int32_t many[CONTEXT + 1];
  rig_say(&w->r, ORCH, open_message(S, 1, many, CONTEXT + 1));
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  assert_int_equal(w->f.opened, 0);
  msg m = open_message(S, 1, truth(), 20); /* longer than the session itself may be */
  m.u.open.options.context = 19;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  assert_int_equal(w->f.opened, 0);
}

/* What it is to hold counts, however much of it is here already. context: of the session. */
static void open_of_every_base(world *w, int32_t context) {
  static int32_t held[CONTEXT], more[CONTEXT + 1];
  for (int32_t length = 1; length <= CONTEXT; length += length < CONTEXT - 3 ? 36 : 1)
    for (int32_t over = -1; over <= 1; over++) {
      uint64_t id = S + (uint64_t)(3 * length + over);
      msg m = open_message(id, 1, held, length);
      m.u.open.options.context = context;
      rig_clear(&w->r);
      rig_say(&w->r, ORCH, m);
      rig_only(&w->r, ORCH, MSG_OPENED);
      int32_t count = CONTEXT - length + over;
      if (count < 0) count = 0;
      m = open_message(id, 2, more, count);
      m.u.open.options.context = context;
      m.u.open.base_length = m.u.open.prompt_length = length;
      m.u.open.base_hash = hash_of(SEED, held, length);
      m.u.open.hash = hash_of(SEED, more, length + count); /* all zeros, as those that are held */
      rig_clear(&w->r);
      rig_say(&w->r, ORCH, m);
      if (length + count > CONTEXT)
        rig_expect_error(&w->r, ORCH, ERR_LIMIT);
      else
        assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, length + count);
      rig_say(&w->r, ORCH, message(MSG_END, SELF, id, 2));
    }
}

static void test_open_counts_the_base_against_the_context(void **state) {
  open_of_every_base(*state, CONTEXT);
}

/* A model's context may be shorter than the session's: it helps while it can, and no longer. */
static void test_a_model_with_a_short_context_counts_what_is_there(void **state) {
  open_of_every_base(*state, 4 * CONTEXT);
}

static void test_open_needs_the_address_of_a_target(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.target_endpoint = (wire_string){0};
  m.u.open.target_incarnation = (wire_id){{0}};
  rig_say(&w->r, ORCH, m);
  rig_expect_error(&w->r, ORCH, ERR_ARG);
}

static void test_open_is_refused_when_all_sessions_are_taken(void **state) {
  world *w = *state;
  for (uint64_t i = 1; i <= DRAFT_SESSIONS_MAX; i++)
    rig_say(&w->r, ORCH, open_message(i, 1, PROMPT, PROMPT_LENGTH));
  assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), DRAFT_SESSIONS_MAX);
  rig_say(&w->r, ORCH, open_message(1000, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_FULL);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, 5, 1));
  rig_say(&w->r, ORCH, open_message(1000, 1, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH, MSG_OPENED);
}

static void test_open_without_memory_is_refused_and_leaves_nothing(void **state) {
  world *w = *state;
  w->f.no_memory = true;
  rig_say(&w->r, ORCH, prompt_message());
  rig_expect_error(&w->r, ORCH, ERR_NOMEM);
  w->f.no_memory = false;
  open_and_greet(w, prompt_message());
}

static void test_a_session_moves_to_another_target(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = open_message(S, 2, PROMPT, PROMPT_LENGTH); /* failover: the same session at another target */
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_OPENED);
  const action *a = rig_connect_asked(&w->r);
  assert_string_equal(a->text, "tcp://127.0.0.1:4001");
  rig_connected(&w->r, a->tag, TARGET2);
  msg welcome = welcome_message(TARGET2);
  rig_say(&w->r, TARGET2, welcome);
  assert_int_equal(rig_only(&w->r, TARGET2, MSG_ATTACH)->epoch, 2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(2, PROMPT_LENGTH, 3)); /* the old one has no say in it */
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_NODES), 0);
}

static void test_end_closes_the_session(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  rig_only(&w->r, TARGET, MSG_DETACH);
  assert_int_equal(w->f.closed, 1);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_false(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  tell_tokens(w, 3, 2); /* late: nobody is concerned */
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ERROR), 0);
}

/* A cancelled answer: the target's figures should not say that its draft gave up because it has heard of the
 * end first. */
static void test_end_of_a_later_epoch_does_not_detach(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_DETACH), 0);
  assert_int_equal(w->f.closed, 1);
}

static void test_end_of_a_lower_epoch_is_stale(void **state) {
  world *w = *state;
  open_and_greet(w, open_message(S, 3, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  assert_int_equal(w->f.closed, 0);
}

/* --- a prefix in several frames --- */

static msg part(uint32_t epoch, int32_t base, int32_t end, int32_t total) {
  msg m = delta(epoch, base, end - base);
  m.type = MSG_PART;
  m.u.open.total = total;
  return m;
}

static void expect_held(world *w, msg m, int32_t length) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  const msg *o = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(length);
  assert_int_equal(o->u.state.length, length);
  assert_memory_equal(&o->u.state.hash, &h, sizeof h);
}

static void test_a_draft_attaches_when_the_last_part_is_there(void **state) {
  world *w = *state;
  attach(w, false); /* so that the target is greeted */
  expect_held(w, part(2, 0, 4, 12), 4);
  expect_held(w, part(2, 4, 8, 12), 8);
  expect_held(w, part(2, 0, 4, 12), 8); /* again, or late */
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  expect_held(w, delta(2, 8, 4), 12);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_ATTACH)->u.state.length, 12);
  expect_held(w, part(2, 4, 8, 12), 12);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_DETACH), 0);
  rig_say(&w->r, TARGET, attached_message(2, 12, 2));
  settle(w);
  assert_int_equal(w->base, 12);
  assert_int_equal(w->nodes[1].token, truth()[12]);
}

static void test_parts_that_do_not_fit_a_draft_are_refused(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, part(1, 0, 4, CONTEXT + 1));
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, part(1, 4, 8, 12)); /* the first one was lost */
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, 0);
  expect_held(w, part(1, 0, 4, 12), 4);
  msg m = delta(1, 4, 8);
  m.u.open.hash.bytes[0] ^= 1;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, 4);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, part(1, 4, 8, 12)); /* not from its orchestrator */
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPENED), 0);
  pass(w, 61000000, true, true); /* what never opens is freed */
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_false(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_open_again_changes_nothing),
      CASE(test_an_open_that_another_ticket_has_overtaken_changes_nothing),
      CASE(test_a_higher_epoch_replaces_and_a_lower_one_is_stale),
      CASE(test_open_brings_only_what_is_lacking),
      CASE(test_open_of_a_base_that_is_not_held_is_desync),
      CASE(test_open_of_another_prefix_in_the_same_epoch_is_no_repetition),
      CASE(test_open_beyond_a_context_is_refused),
      CASE(test_open_counts_the_base_against_the_context),
      MODEL_CASE(test_a_new_session_finds_the_rows_of_one_that_began_like_it),
      MODEL_CASE(test_a_model_with_a_short_context_counts_what_is_there),
      CASE(test_open_needs_the_address_of_a_target),
      CASE(test_open_is_refused_when_all_sessions_are_taken),
      CASE(test_open_without_memory_is_refused_and_leaves_nothing),
      CASE(test_a_session_moves_to_another_target),
      CASE(test_end_closes_the_session),
      CASE(test_end_of_a_later_epoch_does_not_detach),
      CASE(test_end_of_a_lower_epoch_is_stale),
      CASE(test_a_draft_attaches_when_the_last_part_is_there),
      CASE(test_parts_that_do_not_fit_a_draft_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
