/* libs: draft wire speculative base */
/* Features at a draft: what it asks for, and what it takes of that which comes. */
#include "tests/support/draft_world.h"

#include "draft_worker/draft_state.h"
#include "draft_worker/feature_intake.h"
#include <math.h>

/* --- a drafter that keeps what it is given --- */

enum { WIDTH = 4 };

typedef struct reader {
  drafter_kind kind;
  int32_t calls, base, count, from;
  bool fused, ended; /* ended: none come any more */
  float rows[16 * WIDTH];
} reader;

static void read_features(void *self, int32_t slot, const drafter_features *f) {
  reader *r = self;
  (void)slot;
  r->ended = f == NULL;
  if (!f) return;
  r->calls++;
  assert_int_equal(f->width, WIDTH);
  assert_true(f->count <= 16);
  r->base = f->base;
  r->count = f->count;
  r->fused = f->fused;
  if (f->count > 0) memcpy(r->rows, f->rows, (size_t)(f->count * f->width) * sizeof(float));
}

typedef struct bench {
  reader r;
  draft_setup setup;
  draft_session session;
  feature_intake intake;
} bench;

static bench bench_of(wire_type type) {
  bench b = {.setup = {.drafter_count = 1, .reader = 0}, .session = {.options = {.context = CONTEXT}}};
  b.setup.drafters[0].wants = (drafter_wants){.taps = {2, 15}, .tap_count = 2, .type = type, .horizon = 5};
  return b;
}

static int32_t reads_from(void *self, int32_t slot) {
  (void)slot;
  return ((reader *)self)->from;
}

/* A drafter that has the rows of the positions before `from`, in a session that has just been opened. */
static void bench_open(bench *b, int32_t from) {
  b->r.kind.features = read_features;
  b->r.kind.features_from = reads_from;
  b->r.from = from;
  b->setup.drafters[0].kind = &b->r.kind;
  b->setup.drafters[0].self = &b->r;
  feature_intake_begin(&b->intake, &b->setup, &b->session);
}

static void granted(bench *b, msg_feature_grant g) {
  feature_intake_granted(&b->intake, &b->setup, &b->session, &g);
}

static void bench_grant(bench *b, wire_type type) {
  bench_open(b, 0);
  granted(b, (msg_feature_grant){.width = WIDTH, .type = type});
}

static int take(bench *b, int32_t base, int32_t count, wire_type type, const void *rows) {
  err e;
  const msg_features x = {.base = base,
                          .count = count,
                          .width = WIDTH,
                          .type = type,
                          .rows = rows,
                          .size = (uint32_t)(count * WIDTH) * wire_type_size(type)};
  return feature_intake_take(&b->intake, &b->setup, &b->session, &x, &e);
}

static const float NUMBERS[16 * WIDTH] = {1, -2, 0.5f, 3, 4, 5, 6, 7, 8};

static void test_the_request_is_what_the_drafter_wants(void **state) {
  (void)state;
  bench b = bench_of(WIRE_BF16);
  msg_feature_request r = feature_intake_request(&b.intake, &b.setup);
  assert_int_equal(r.tap_count, 2);
  assert_int_equal(r.taps[1], 15);
  assert_int_equal(r.type, WIRE_BF16);
  assert_int_equal(r.horizon, 5);
  assert_int_equal(r.from, 0);
  b.setup.reader = -1;
  assert_int_equal(feature_intake_request(&b.intake, &b.setup).tap_count, 0);
}

static void test_bf16_is_widened_without_a_change(void **state) {
  (void)state;
  bench b = bench_of(WIRE_BF16);
  static const uint16_t rows[] = {0x3F80, 0xC000, 0x3F00, 0x8000};
  bench_grant(&b, WIRE_BF16);
  assert_int_equal(take(&b, 7, 1, WIRE_BF16, rows), ERR_OK);
  static const float wanted[] = {1, -2, 0.5f, -0.0f};
  assert_memory_equal(b.r.rows, wanted, sizeof wanted);
  assert_int_equal(b.r.base, 7);
  assert_int_equal(b.intake.next, 8);
}

static void test_repeated_and_late_rows_bring_nothing_new(void **state) {
  (void)state;
  bench b = bench_of(WIRE_F32);
  bench_grant(&b, WIRE_F32);
  assert_int_equal(take(&b, 0, 4, WIRE_F32, NUMBERS), ERR_OK);
  assert_int_equal(take(&b, 0, 4, WIRE_F32, NUMBERS), ERR_OK);
  assert_int_equal(take(&b, 1, 2, WIRE_F32, NUMBERS), ERR_OK);
  assert_int_equal(b.r.calls, 1);
  assert_int_equal(take(&b, 3, 2, WIRE_F32, NUMBERS), ERR_OK); /* half of it is new */
  assert_int_equal(b.r.base, 4);
  assert_int_equal(b.r.count, 1);
  assert_memory_equal(b.r.rows, NUMBERS + WIDTH, WIDTH * sizeof(float));
}

static void test_lost_rows_are_not_waited_for(void **state) {
  (void)state;
  bench b = bench_of(WIRE_F32);
  bench_grant(&b, WIRE_F32);
  assert_int_equal(take(&b, 10, 2, WIRE_F32, NUMBERS), ERR_OK);
  assert_int_equal(b.intake.next, 12);
  assert_int_equal(take(&b, 20, 0, WIRE_F32, NULL), ERR_OK); /* the target says so */
  assert_int_equal(b.r.base, 20);
  assert_int_equal(b.r.count, 0);
  assert_int_equal(b.intake.next, 20);
  assert_int_equal(take(&b, 12, 3, WIRE_F32, NUMBERS), ERR_OK);
  assert_int_equal(b.r.calls, 2);
}

static void test_what_was_not_granted_is_refused_for_good(void **state) {
  (void)state;
  float infinite[WIDTH] = {1, 2, INFINITY, 4}, no_number[WIDTH] = {1, NAN, 3, 4};
  for (int i = 0; i < 5; i++) {
    bench b = bench_of(WIRE_F32);
    bench_grant(&b, WIRE_F32);
    if (i == 0) assert_int_equal(take(&b, 0, 1, WIRE_BF16, NUMBERS), ERR_ARG);
    if (i == 1) assert_int_equal(take(&b, 0, 1, WIRE_F32, infinite), ERR_ARG);
    if (i == 2) assert_int_equal(take(&b, 0, 1, WIRE_F32, no_number), ERR_ARG);
    if (i == 3) assert_int_equal(take(&b, CONTEXT - 1, 2, WIRE_F32, NUMBERS), ERR_ARG);
    if (i == 4) {
      b.intake.grant.width = WIDTH + 1;
      assert_int_equal(take(&b, 0, 1, WIRE_F32, NUMBERS), ERR_ARG);
      b.intake.grant.width = WIDTH;
    }
    assert_int_equal(b.r.calls, 0);
    assert_true(b.r.ended);                                      /* the drafter waits for none */
    assert_int_equal(take(&b, 5, 1, WIRE_F32, NUMBERS), ERR_OK); /* said once */
    assert_int_equal(b.r.calls, 0);
  }
}

static void test_a_grant_that_nobody_asked_for_is_none(void **state) {
  (void)state;
  bench b = bench_of(WIRE_F32);
  const msg_feature_grant fused = {.width = WIDTH, .type = WIRE_F32, .fused = true},
                          other = {.width = WIDTH, .type = WIRE_BF16};
  bench_open(&b, 0);
  granted(&b, fused); /* it gave no hash of an fc */
  assert_int_equal(b.intake.grant.width, 0);
  granted(&b, other);
  assert_int_equal(b.intake.grant.width, 0);
  b.setup.drafters[0].wants.fc.bytes[0] = 1;
  b.setup.drafters[0].wants.fc_width = WIDTH + 1; /* of another head */
  granted(&b, fused);
  assert_int_equal(b.intake.grant.width, 0);
  b.setup.drafters[0].wants.fc_width = WIDTH;
  granted(&b, fused);
  assert_true(b.intake.grant.fused);
  b.setup.reader = -1;
  granted(&b, fused);
  assert_int_equal(b.intake.grant.width, 0);
  assert_int_equal(take(&b, 0, 1, WIRE_F32, NUMBERS), ERR_OK);
  assert_int_equal(b.r.calls, 0);
}

/* Its drafter has rows of an earlier session that began alike. */
static void test_what_a_drafter_has_is_not_asked_for(void **state) {
  (void)state;
  bench b = bench_of(WIRE_F32);
  bench_open(&b, 9);
  assert_int_equal(feature_intake_request(&b.intake, &b.setup).from, 9);
  granted(&b, (msg_feature_grant){.width = WIDTH, .type = WIRE_F32, .from = 9});
  assert_int_equal(b.r.calls, 0);
  assert_int_equal(take(&b, 8, 3, WIRE_F32, NUMBERS), ERR_OK);
  assert_int_equal(b.r.base, 9);
  assert_int_equal(b.r.count, 2);
}

static void test_a_drafter_does_not_wait_for_what_is_not_granted(void **state) {
  (void)state;
  bench b = bench_of(WIRE_F32);
  bench_open(&b, 9);
  granted(&b, (msg_feature_grant){.width = WIDTH, .type = WIRE_F32, .from = 12}); /* the target lacks some */
  assert_int_equal(b.r.calls, 1);
  assert_int_equal(b.r.base, 12);
  assert_int_equal(b.r.count, 0);
  granted(&b, (msg_feature_grant){0});
  assert_true(b.r.ended);
}

static void test_half_of_the_credit_is_told_at_once(void **state) {
  (void)state;
  bench b = bench_of(WIRE_F32);
  bench_grant(&b, WIRE_F32);
  b.intake.bytes = WIRE_FEATURES_CREDIT / 2 - 16;
  assert_false(feature_intake_is_due(&b.intake));
  assert_int_equal(take(&b, 0, 1, WIRE_F32, NUMBERS), ERR_OK);
  assert_true(feature_intake_is_due(&b.intake));
}

/* --- the same through the worker --- */

static reader world_reader;

static void world_features(void *self, int32_t slot, const drafter_features *f) {
  (void)self;
  read_features(&world_reader, slot, f);
}

static int set_up_reader(void **state) {
  static const drafter_wants wants = {.taps = {1, 2, 3}, .tap_count = 3, .type = WIRE_F32, .horizon = 6};
  world_reader = (reader){.calls = 0};
  return set_up_wanting(state, &wants, world_features);
}

static int set_up_fused(void **state) {
  static const drafter_wants wants = {
      .taps = {1, 2, 3}, .tap_count = 3, .type = WIRE_F32, .fc = {{1}}, .fc_width = WIDTH};
  world_reader = (reader){.calls = 0};
  return set_up_wanting(state, &wants, world_features);
}

static msg features_message(int32_t base, int32_t count) {
  msg m = message(MSG_FEATURES, SELF, S, 1);
  m.u.features = (msg_features){.base = base,
                                .count = count,
                                .width = WIDTH,
                                .type = WIRE_F32,
                                .rows = (const uint8_t *)NUMBERS,
                                .size = (uint32_t)(count * WIDTH) * 4};
  return m;
}

static msg granting(uint32_t generation) {
  msg m = attached_message(1, PROMPT_LENGTH, generation);
  m.u.state.grant = (msg_feature_grant){.width = WIDTH, .type = WIRE_F32};
  return m;
}

static void test_a_draft_asks_takes_and_names_what_it_has(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  const msg_feature_request *r = &rig_last(&w->r, TARGET, MSG_ATTACH)->u.state.request;
  assert_int_equal(r->tap_count, 3);
  assert_int_equal(r->horizon, 6);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, granting(1));
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.features, 0);
  rig_say(&w->r, TARGET, features_message(0, PROMPT_LENGTH - 1));
  assert_int_equal(world_reader.calls, 1);
  tell_tokens(w, PROMPT_LENGTH, 2);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.features, PROMPT_LENGTH - 1);
  rig_say(&w->r, TARGET, features_message(PROMPT_LENGTH - 1, 2));
  rig_advance(&w->r, DRAFT_IDLE_US);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.features, PROMPT_LENGTH + 1);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE)); /* it attaches again and has them */
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ATTACH)->u.state.request.from, PROMPT_LENGTH + 1);
}

static void test_a_new_epoch_asks_from_the_beginning(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_say(&w->r, TARGET, granting(1));
  rig_say(&w->r, TARGET, features_message(0, PROMPT_LENGTH - 1));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, delta(2, 0, PROMPT_LENGTH));
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ATTACH)->u.state.request.from, 0);
}

static void test_features_of_another_epoch_or_before_attached_are_dropped(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_say(&w->r, TARGET, features_message(0, 1));
  rig_say(&w->r, TARGET, granting(1));
  msg m = features_message(0, 1);
  m.epoch = 2;
  rig_say(&w->r, TARGET, m);
  assert_int_equal(world_reader.calls, 0);
}

static void test_a_target_that_sends_nonsense_is_believed_no_more(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, granting(1));
  msg m = features_message(0, 1);
  m.u.features.width = 2 * WIDTH;
  for (int i = 0; i < 3; i++) rig_say(&w->r, TARGET, m);
  assert_int_equal(rig_logged(&w->r, "are not used"), 1);
  tell_tokens(w, PROMPT_LENGTH, 2);
  settle(w);
  assert_true(w->next_id > 1); /* it drafts on */
  assert_int_equal(world_reader.calls, 0);
}

/* It may be another head, or none: the states come in its place. */
static void test_a_target_without_its_head_is_told_once(void **state) {
  world *w = *state;
  for (uint32_t generation = 1; generation < 4; generation++) {
    open_and_greet(w, prompt_message());
    assert_false(hash_is_zero(rig_last(&w->r, TARGET, MSG_ATTACH)->u.state.request.fc));
    rig_say(&w->r, TARGET, granting(generation));
    assert_int_equal(rig_logged(&w->r, "start it with --head"), generation == 1);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  }
}

static void test_nothing_is_told_where_the_target_has_its_head(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  msg m = granting(1);
  m.u.state.grant.fused = true;
  rig_say(&w->r, TARGET, m);
  rig_say(&w->r, TARGET, features_message(0, 1));
  assert_int_equal(rig_logged(&w->r, "start it with --head"), 0);
  assert_int_equal(world_reader.calls, 1);
  assert_true(world_reader.fused);
}

static void test_a_target_of_version_2_is_not_asked(void **state) {
  world *w = *state;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, prompt_message());
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET);
  msg welcome = welcome_message(TARGET);
  welcome.u.hello.version_min = welcome.u.hello.version_max = 2;
  rig_say(&w->r, TARGET, welcome);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ATTACH)->u.state.request.tap_count, 0);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  settle(w);
  assert_true(w->next_id > 1);
}

static void test_a_draft_that_reads_none_asks_for_none(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ATTACH)->u.state.request.tap_count, 0);
  rig_clear(&w->r);
  msg m = attached_message(1, PROMPT_LENGTH, 1);
  m.u.state.grant = (msg_feature_grant){.width = WIDTH, .type = WIRE_F32};
  rig_say(&w->r, TARGET, m);
  rig_say(&w->r, TARGET, features_message(0, 1));
  settle(w);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.features, 0);
}

/* A colocated draft keeps its nodes back until its tree is grown, and the target sends no more features than
 * it has credit for. */
static void test_credit_is_given_while_nodes_are_kept_back(void **state) {
  world *w = *state;
  static drafter_kind kind;
  drafter *d = &w->d->setup.drafters[0];
  kind = *d->kind;
  kind.features = world_features;
  d->kind = &kind;
  d->wants = (drafter_wants){.taps = {1, 2, 3}, .tap_count = 3, .type = WIRE_F32};
  w->d->setup.reader = 0;
  w->d->setup.colocated = true;
  open_and_greet(w, prompt_message());
  rig_say(&w->r, TARGET, granting(1));
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, features_message(0, 1));
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  w->d->sessions[0].features.bytes = WIRE_FEATURES_CREDIT / 2;
  rig_say(&w->r, TARGET, features_message(1, 1));
  const msg_nodes *n = &rig_only(&w->r, TARGET, MSG_NODES)->u.nodes;
  assert_true(n->features == 2 && n->count == 0 && !n->done);
}

#define TEST(name)  cmocka_unit_test_setup_teardown(name, set_up_reader, tear_down)
#define FUSED(name) cmocka_unit_test_setup_teardown(name, set_up_fused, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_request_is_what_the_drafter_wants),
      cmocka_unit_test(test_bf16_is_widened_without_a_change),
      cmocka_unit_test(test_repeated_and_late_rows_bring_nothing_new),
      cmocka_unit_test(test_lost_rows_are_not_waited_for),
      cmocka_unit_test(test_what_was_not_granted_is_refused_for_good),
      cmocka_unit_test(test_a_grant_that_nobody_asked_for_is_none),
      cmocka_unit_test(test_what_a_drafter_has_is_not_asked_for),
      cmocka_unit_test(test_a_drafter_does_not_wait_for_what_is_not_granted),
      cmocka_unit_test(test_half_of_the_credit_is_told_at_once),
      cmocka_unit_test_setup_teardown(test_a_draft_that_reads_none_asks_for_none, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_credit_is_given_while_nodes_are_kept_back, set_up_model,
                                      tear_down),
      TEST(test_a_draft_asks_takes_and_names_what_it_has),
      TEST(test_a_new_epoch_asks_from_the_beginning),
      TEST(test_features_of_another_epoch_or_before_attached_are_dropped),
      TEST(test_a_target_that_sends_nonsense_is_believed_no_more),
      TEST(test_a_target_of_version_2_is_not_asked),
      FUSED(test_a_target_without_its_head_is_told_once),
      FUSED(test_nothing_is_told_where_the_target_has_its_head),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
