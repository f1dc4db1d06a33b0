/* libs: target wire speculative base */
#include "tests/support/target_world.h"
#include "tests/support/random.h"

static void test_a_new_session_is_opened(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(PROMPT_LENGTH);
  assert_int_equal(m->session, S);
  assert_int_equal(m->epoch, 1);
  assert_true(wire_id_equal(m->to, ID(ORCH)));
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

static void test_a_repeated_open_changes_nothing(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, prompt_message());
  const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(PROMPT_LENGTH + 3);
  assert_int_equal(m->u.state.length, PROMPT_LENGTH + 3); /* as long as C is now */
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->length[held(w, S)->slot], PROMPT_LENGTH + 3);
}

static void test_another_prefix_in_the_same_epoch_is_a_desync(void **state) {
  world *w = *state;
  static const int32_t other[] = {1, 2, 4};
  say_and_open(w, prompt_message());
  rig_say(&w->r, ORCH, open_message(S, 1, other, 3));
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), 0);
  assert_memory_equal(held(w, S)->committed.tokens, PROMPT, sizeof PROMPT);
}

static void test_a_lower_epoch_is_stale(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 5, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, ORCH, open_message(S, 4, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  assert_int_equal(held(w, S)->epoch, 5);
}

/* Resume, delta and rollback are one mechanism: the same prefix, more tokens or fewer, in a new epoch. */
static void test_a_higher_epoch_resumes_extends_or_rolls_back(void **state) {
  world *w = *state;
  static const struct {
    int32_t base, count;
  } table[] = {{6, 0}, {6, 2}, {5, 1}, {4, 0}, {3, 0}, {1, 4}, {0, 7}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    uint32_t epoch = (uint32_t)(10 * i + 10);
    int32_t base = table[i].base, length = base + table[i].count;
    say_and_open(w, open_message(S, epoch, PROMPT, PROMPT_LENGTH));
    assert_int_equal(play(w, 3), 3);
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, delta(epoch + 1, base, truth() + base, table[i].count));
    const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
    assert_int_equal(m->epoch, epoch + 1);
    assert_int_equal(m->u.state.length, length);
    assert_int_equal(play(w, 1), 1); /* check_job compares the cache with C */
    const msg *t = rig_last(&w->r, ORCH, MSG_TOKENS);
    assert_int_equal(t->epoch, epoch + 1);
    expect_tokens(t, length, length + 1);
  }
}

/* After a rollback C continues with other tokens: the rows of the old ones must not be used. */
static void test_rows_of_another_continuation_are_not_used(void **state) {
  world *w = *state;
  static const int32_t other[] = {50, 51};
  say_and_open(w, prompt_message());
  assert_int_equal(play(w, 5), 5);
  rig_say(&w->r, ORCH, delta(2, 4, other, 2));
  assert_int_equal(held(w, S)->committed.length, 6);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(held(w, S)->committed.tokens[6], next_of(51));
}

static void test_a_base_that_is_not_held_is_a_desync(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, delta(1, 2, truth() + 2, 1)); /* nothing is held at all */
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  assert_int_equal(m->u.state.length, 0);
  assert_true(hash_is_zero(m->u.state.hash));
  assert_null(held(w, S));
  say_and_open(w, open_message(S, 2, PROMPT, PROMPT_LENGTH));
  msg bad[2] = {delta(3, 5, truth() + 5, 1), delta(3, 3, truth() + 3, 1)};
  bad[1].u.open.base_hash.bytes[3] ^= 1;
  for (int i = 0; i < 2; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, bad[i]);
    hash16 h = true_hash(PROMPT_LENGTH);
    m = rig_only(&w->r, ORCH, MSG_DESYNC);
    assert_int_equal(m->u.state.length, PROMPT_LENGTH);
    assert_memory_equal(&m->u.state.hash, &h, sizeof h);
    assert_int_equal(held(w, S)->epoch, 2); /* the session is as it was */
    assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH);
  }
}

static void test_another_hash_seed_is_another_prefix(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  msg m = delta(2, 3, truth() + 3, 1);
  m.u.open.hash_seed = SEED + 1;
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_DESYNC);
  m = delta(2, 3, truth(), 0); /* without a token no hash is computed with the new seed */
  m.u.open.hash_seed = SEED + 1;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_DESYNC);
}

static void test_a_wrong_hash_of_the_tokens_is_a_desync(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.hash.bytes[15] ^= 1;
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, 0);
  assert_null(held(w, S));
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_clear(&w->r);
  m = delta(2, 4, truth() + 4, 3);
  m.u.open.hash.bytes[0] ^= 0x80;
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, PROMPT_LENGTH + 2);
  assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH + 2);
  assert_memory_equal(held(w, S)->committed.tokens, truth(), 5 * sizeof(int32_t));
}

static void test_bad_requests_are_refused(void **state) {
  world *w = *state;
  static int32_t many[CONTEXT + 1];
  static const int32_t outside[] = {1, VOCAB, 3}, huge[] = {INT32_MAX};
  struct {
    msg m;
    int code;
  } table[9];
  for (int i = 0; i < 9; i++) table[i].m = prompt_message(), table[i].code = ERR_ARG;
  table[0].m = open_message(S, 1, many, CONTEXT + 1);
  table[0].code = ERR_LIMIT; /* the prompt is longer than its own context */
  table[1].m.u.open.options.context = CONTEXT + 1;
  table[1].code = ERR_LIMIT;
  table[2].m.u.open.options.temperature = -1;
  table[3].m.u.open.options.top_p = 0;
  table[4].m.u.open.options.min_p = 2;
  table[5].m.u.open.options.repeat_penalty = -3;
  table[6].m.u.open.options.top_k = -1;
  table[7].m = open_message(S, 1, outside, 3);
  table[8].m = open_message(S, 1, huge, 1);
  for (int i = 0; i < 9; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, table[i].m);
    rig_expect_error(&w->r, ORCH, table[i].code);
    const msg *m = rig_only(&w->r, ORCH, MSG_ERROR);
    if (m->session != S || m->epoch != 1) fail_msg("row %d: about what session?", i);
    if (held(w, S)) fail_msg("row %d: the session is there", i);
  }
}

/* The prompt is longer than the context that the request allows itself: one typed error, and no step. */
static void test_a_prompt_beyond_its_own_context_is_refused(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = 2;
  rig_say(&w->r, ORCH, m);
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
}

static void test_a_prompt_that_fills_its_context_ends_at_once(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = PROMPT_LENGTH;
  rig_say(&w->r, ORCH, m);
  play(w, 2);
  pass(w, 100000, false);
  if (rig_count(&w->r, ORCH, MSG_ERROR) == 0) {
    const msg *done = rig_last(&w->r, ORCH, MSG_DONE);
    assert_int_equal(done->u.done.finish, WIRE_FINISH_LENGTH);
    assert_int_equal(done->u.done.length, PROMPT_LENGTH);
  }
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
}

/* A session that was moved at its very end has all of its output already. */
static void test_a_completion_that_is_all_there_ends_at_once(void **state) {
  world *w = *state;
  static const int32_t ends[] = {40, 41}; /* by max_tokens, and by a stop token */
  for (int i = 0; i < 2; i++) {
    msg m = open_message((uint64_t)ends[i], 1, truth(), 8);
    int32_t stop = truth()[7];
    m.u.open.prompt_length = PROMPT_LENGTH;
    m.u.open.options.max_tokens = i == 0 ? 5 : 40;
    if (i == 1) {
      m.u.open.options.stops = &stop;
      m.u.open.options.stop_count = 1;
    }
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    while (run_job(w)) {
    }
    const msg *done = rig_last(&w->r, ORCH, MSG_DONE);
    assert_int_equal(done->session, ends[i]);
    assert_int_equal(done->u.done.length, 8);
    assert_int_equal(done->u.done.finish, i == 0 ? WIRE_FINISH_LENGTH : WIRE_FINISH_STOP);
  }
}

static void test_a_full_store_takes_the_slot_of_a_finished_session(void **state) {
  world *w = *state; /* with one slot */
  msg m = prompt_message();
  m.u.open.options.max_tokens = 2;
  say_and_open(w, m);
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_FULL);
  play(w, 2);
  rig_only(&w->r, ORCH, MSG_DONE);
  for (int32_t kept = PROMPT_LENGTH + 1; kept <= PROMPT_LENGTH + 2; kept++) {
    rig_say(&w->r, ORCH, ack(1, kept));
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
    if (kept == PROMPT_LENGTH + 1)
      rig_expect_error(&w->r, ORCH, ERR_FULL); /* its last token may be asked for */
  }
  rig_only(&w->r, ORCH, MSG_OPENED);
  assert_null(held(w, S));
  assert_int_equal(play(w, 2), 2);
}

/* The slot of the session that finished first is taken, whenever that session began. */
static void test_the_session_that_finished_first_makes_room(void **state) {
  world *w = *state;
  for (uint64_t id = S; id < S + SLOTS; id++) {
    w->r.now += 1000;
    msg m = open_message(id, 1, PROMPT, PROMPT_LENGTH);
    m.u.open.options.max_tokens = id == S ? 9 : id == S + 1 ? 4 : 40;
    say_and_open(w, m);
  }
  while (held(w, S)->state != SESSION_FINISHED) assert_true(run_job(w));
  assert_int_equal(held(w, S + 1)->state, SESSION_FINISHED);
  assert_int_equal(held(w, S + 2)->state, SESSION_RUNNING);
  for (uint64_t id = S; id <= S + 1; id++) {
    msg kept = ack(1, held(w, id)->committed.length);
    kept.session = id;
    rig_say(&w->r, ORCH, kept);
  }
  say_and_open(w, open_message(S + 9, 1, PROMPT, PROMPT_LENGTH));
  assert_null(held(w, S + 1));
  assert_non_null(held(w, S));
  assert_non_null(held(w, S + 2));
}

/* For a desynced session, OPEN of the same epoch is a repair and no repetition. */
static void test_a_desync_is_repaired_in_the_same_epoch(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_say(&w->r, ORCH, ack(1, 9));
  rig_only(&w->r, ORCH, MSG_DESYNC);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, delta(1, 5, truth() + 5, 0));
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, 5);
  assert_int_equal(play(w, 1), 1);
}

/* Prompts of a few kinds, which have beginnings in common and differ from some position on. */
static int32_t storm_tokens(uint64_t *random, int32_t tokens[64]) {
  static const int32_t places[] = {3, KV_BLOCK, KV_BLOCK + 9, 2 * KV_BLOCK, 64};
  int32_t count = 1 + (int32_t)random_below(random, 60), from = places[random_below(random, 5)];
  int32_t kind = (int32_t)random_below(random, 2);
  for (int32_t i = 0; i < count; i++) tokens[i] = (7 * i + 11 + (i >= from ? 1 + kind : 0)) % VOCAB;
  return count;
}

/* Opens with the whole prompt, or with what follows a prefix that is held. */
static void storm_open(world *w, uint64_t *random, uint64_t id, uint32_t epoch) {
  int32_t tokens[2048];
  const session *s = held(w, id);
  int32_t base = 0, count;
  if (s && random_below(random, 2)) base = 1 + (int32_t)random_below(random, (uint32_t)s->committed.length);
  if (base) memcpy(tokens, s->committed.tokens, (size_t)base * sizeof *tokens);
  count = storm_tokens(random, tokens + base);
  if (base && random_below(random, 4) == 0) count = 0; /* a rollback */
  msg m = open_message(id, epoch, tokens + base, count);
  m.u.open.base_length = base;
  m.u.open.base_hash = hash_of(SEED, tokens, base);
  m.u.open.hash = hash_of(SEED, tokens, base + count);
  m.u.open.prompt_length = base + count;
  m.u.open.options.max_tokens = 1 + (int32_t)random_below(random, 40);
  rig_say(&w->r, ORCH, m);
}

/* Runs the sessions that are left to their ends, which must have the model's tokens. */
static void storm_settle(world *w, const uint64_t *ids, int32_t count) {
  while (run_job(w)) rig_clear(&w->r);
  for (int32_t i = 0; i < count; i++) {
    const session *s = held(w, ids[i]);
    if (!s) continue;
    assert_int_equal(s->state, SESSION_FINISHED);
    assert_int_equal(s->committed.length, s->request.prompt_length + s->request.options.max_tokens);
    for (int32_t k = s->request.prompt_length; k < s->committed.length; k++)
      assert_int_equal(s->committed.tokens[k], next_of(s->committed.tokens[k - 1]));
    rig_say(&w->r, ORCH, message(MSG_END, SELF, ids[i], UINT32_MAX));
  }
  rig_clear(&w->r);
}

/* Two sessions, whose beginnings others have computed, are opened with other tokens, with more or fewer of
 * them, ended and opened again, sometimes while a job is under way. Every job's rows are compared with C, and
 * no block is left behind. */
static void test_sessions_opened_again_and_again_keep_their_rows_right(void **state) {
  world *w = *state;
  const session_store *store = target_sessions(w->t);
  for (uint64_t seed = 1; seed <= 500; seed++) {
    uint64_t random = seed, ids[] = {1000 + 2 * seed, 1001 + 2 * seed};
    uint32_t epoch = 1;
    for (int step = 0; step < 40; step++) {
      uint64_t id = ids[random_below(&random, 2)];
      switch (random_below(&random, 8)) {
      case 0:
      case 1:
        storm_open(w, &random, id, ++epoch);
        break;
      case 2:
        rig_say(&w->r, ORCH, message(MSG_END, SELF, id, ++epoch));
        break;
      case 3:
      case 4:
        take_job(w);
        break;
      default:
        if (take_job(w)) give_result(w);
      }
      rig_clear(&w->r);
    }
    storm_settle(w, ids, 2);
    if (store->is_virtual) assert_int_equal(block_pool_available(&store->blocks), store->blocks.count);
  }
}

static void test_the_largest_max_tokens_is_accepted(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = INT32_MAX;
  m.u.open.options.selfcheck = INT32_MAX;
  m.u.open.options.context = 20;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 17);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_LENGTH);
}

/* --- a prefix in several frames --- */

static void expect_held(world *w, msg m, int32_t length) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  const msg *o = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(length);
  assert_int_equal(o->epoch, m.epoch);
  assert_int_equal(o->u.state.length, length);
  assert_memory_equal(&o->u.state.hash, &h, sizeof h);
}

static msg last_message(uint32_t epoch, int32_t base, int32_t length) {
  msg m = delta(epoch, base, truth() + base, length - base);
  m.u.open.prompt_length = length;
  return m;
}

static void test_parts_open_a_session_and_nothing_begins_before_the_last(void **state) {
  world *w = *state;
  expect_held(w, part_message(1, 0, 4, 12), 4);
  expect_held(w, part_message(1, 4, 8, 12), 8);
  assert_false(take_job(w));
  assert_int_equal(held(w, S)->cache.block_count, 0);
  rig_say(&w->r, DRAFT, attach_message(1, TICKET));
  rig_expect_error(&w->r, DRAFT, ERR_GONE);
  pass(w, 5000000, false);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  expect_held(w, last_message(1, 8, 12), 12);
  assert_int_equal(play(w, 3), 3); /* check_job compares what the engine is given with C */
  expect_tokens(rig_last(&w->r, ORCH, MSG_TOKENS), 12, 13);
}

static void test_parts_that_come_again_or_late_change_nothing(void **state) {
  world *w = *state;
  expect_held(w, part_message(1, 0, 4, 12), 4);
  expect_held(w, part_message(1, 4, 8, 12), 8);
  expect_held(w, part_message(1, 0, 4, 12), 8);
  expect_held(w, part_message(1, 4, 8, 12), 8);
  expect_held(w, last_message(1, 8, 12), 12);
  expect_held(w, part_message(1, 4, 8, 12), 12);
  assert_int_equal(play(w, 2), 2);
  expect_held(w, part_message(1, 0, 4, 12), 14);
  expect_held(w, last_message(1, 8, 12), 14);
}

static void expect_desync(world *w, msg m, int32_t length) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, length);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), 0);
}

static void test_parts_that_do_not_fit_are_a_desync(void **state) {
  world *w = *state;
  expect_desync(w, part_message(1, 4, 8, 12), 0); /* the first one was lost */
  assert_null(held(w, S));
  expect_held(w, part_message(1, 0, 4, 12), 4);
  expect_desync(w, part_message(1, 8, 10, 12), 4);
  expect_desync(w, last_message(1, 8, 12), 4);
  msg m = part_message(1, 4, 8, 12);
  m.u.open.hash.bytes[0] ^= 1;
  expect_desync(w, m, 4);
  m = last_message(1, 4, 12);
  m.u.open.hash.bytes[0] ^= 1;
  expect_desync(w, m, 4);
  expect_held(w, last_message(1, 4, 12), 12);
  m = part_message(1, 0, 4, 12); /* of an epoch that is open */
  m.u.open.tokens = truth() + 1;
  m.u.open.hash = hash_of(SEED, truth() + 1, 4);
  expect_desync(w, m, 12);
}

/* The orchestrator's word is what C is: other tokens take the place of those of an earlier part. */
static void test_a_part_with_other_tokens_replaces_what_followed(void **state) {
  world *w = *state;
  int32_t other[8];
  memcpy(other, truth(), sizeof other);
  other[3] = wrong_of(other[3]);
  msg m = part_message(1, 0, 8, 12);
  m.u.open.tokens = other;
  m.u.open.hash = hash_of(SEED, other, 8);
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, 8);
  expect_desync(w, part_message(1, 8, 10, 12), 8);
  expect_held(w, part_message(1, 0, 5, 12), 5);
  expect_held(w, last_message(1, 5, 12), 12);
  assert_int_equal(play(w, 2), 2);
}

static void test_a_part_is_judged_by_its_total(void **state) {
  world *w = *state;
  static const struct {
    int32_t total, prompt;
  } table[] = {{CONTEXT + 1, 4}, {WIRE_CONTEXT_MAX, 4}, {12, 13}, {3, 3}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    msg m = part_message(1, 0, 4, table[i].total);
    m.u.open.prompt_length = table[i].prompt;
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    rig_expect_error(&w->r, ORCH, i < 2 ? ERR_LIMIT : ERR_ARG);
    assert_null(held(w, S)); /* nothing was taken for it */
  }
}

/* What OPEN brings of the answer may not be durable: ACK tells, and the credit counts from there. */
static void test_open_acknowledges_the_prompt_alone(void **state) {
  world *w = *state;
  enum { ANSWERED = 100 };
  msg m = open_message(S, 1, truth(), PROMPT_LENGTH + ANSWERED);
  m.u.open.prompt_length = PROMPT_LENGTH;
  m.u.open.options.max_tokens = 1000;
  m.u.open.options.budget = 0;
  say_and_open(w, m);
  play(w, 1000);
  int32_t length = held(w, S)->committed.length;
  assert_in_range(length, PROMPT_LENGTH + ANSWERED + 1, PROMPT_LENGTH + SCHEDULE_CREDIT);
  rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH + ANSWERED));
  play(w, 1000);
  assert_int_equal(held(w, S)->committed.length, length + ANSWERED);
}

/* One part that comes again and again does not hold a place. */
static void test_an_opening_session_is_freed_when_nothing_new_comes(void **state) {
  world *w = *state;
  expect_held(w, part_message(1, 0, 4, 12), 4);
  pass(w, 9000000, false);
  expect_held(w, part_message(1, 4, 8, 12), 8); /* it has as long again */
  for (int i = 0; i < 9; i++) {
    pass(w, 1000000, false);
    expect_held(w, part_message(1, 4, 8, 12), 8);
  }
  pass(w, 2000000, false);
  assert_null(held(w, S));
}

static void test_parts_of_a_higher_epoch_stop_a_session_that_runs(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  assert_int_equal(play(w, 20), 20);
  assert_true(take_job(w));
  expect_held(w, part_message(2, 0, 6, 12), 6);
  rig_clear(&w->r);
  give_result(w); /* a late one */
  assert_false(take_job(w));
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  expect_held(w, last_message(2, 6, 12), 12);
  assert_int_equal(play(w, 2), 2);
}

/* It is out of step in that epoch, and parts of it do not hide that. */
static void test_parts_do_not_repair_a_desync_in_its_epoch(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  rig_say(&w->r, ORCH, ack(1, 9));
  assert_int_equal(held(w, S)->state, SESSION_DESYNCED);
  expect_desync(w, part_message(1, 0, 4, 12), PROMPT_LENGTH);
  expect_held(w, part_message(2, 0, 4, 12), 4);
  expect_held(w, last_message(2, 4, 12), 12);
}

static void test_only_an_orchestrator_sends_parts(void **state) {
  world *w = *state;
  rig_say(&w->r, DRAFT, part_message(1, 0, 4, 12));
  rig_expect_error(&w->r, DRAFT, ERR_PROTOCOL);
  assert_null(held(w, S));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_new_session_is_opened),
      CASE(test_a_repeated_open_changes_nothing),
      CASE(test_another_prefix_in_the_same_epoch_is_a_desync),
      CASE(test_a_lower_epoch_is_stale),
      CASE(test_a_higher_epoch_resumes_extends_or_rolls_back),
      CASE(test_rows_of_another_continuation_are_not_used),
      CASE(test_a_base_that_is_not_held_is_a_desync),
      CASE(test_another_hash_seed_is_another_prefix),
      CASE(test_a_wrong_hash_of_the_tokens_is_a_desync),
      CASE(test_bad_requests_are_refused),
      CASE(test_a_prompt_beyond_its_own_context_is_refused),
      CASE(test_a_prompt_that_fills_its_context_ends_at_once),
      CASE(test_a_completion_that_is_all_there_ends_at_once),
      cmocka_unit_test_setup_teardown(test_a_full_store_takes_the_slot_of_a_finished_session, set_up_one,
                                      tear_down),
      CASE(test_the_session_that_finished_first_makes_room),
      CASE(test_a_desync_is_repaired_in_the_same_epoch),
      CASE(test_sessions_opened_again_and_again_keep_their_rows_right),
      FEW_BLOCKS(test_sessions_opened_again_and_again_keep_their_rows_right),
      CASE(test_the_largest_max_tokens_is_accepted),
      CASE(test_parts_open_a_session_and_nothing_begins_before_the_last),
      CASE(test_parts_that_come_again_or_late_change_nothing),
      CASE(test_parts_that_do_not_fit_are_a_desync),
      CASE(test_a_part_with_other_tokens_replaces_what_followed),
      CASE(test_a_part_is_judged_by_its_total),
      CASE(test_open_acknowledges_the_prompt_alone),
      CASE(test_an_opening_session_is_freed_when_nothing_new_comes),
      CASE(test_parts_of_a_higher_epoch_stop_a_session_that_runs),
      CASE(test_parts_do_not_repair_a_desync_in_its_epoch),
      CASE(test_only_an_orchestrator_sends_parts),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
