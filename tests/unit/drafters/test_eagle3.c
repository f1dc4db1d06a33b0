/* libs: drafters wire speculative base */
/* A head as a drafter: which tokens and features go into a batch, and when C may be queried. */
#include "draft_worker/drafters/eagle3.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { SLOT = 3, CAPACITY = 600, WIDTH = 4, FC_WIDTH = 3, ROWS = 2 };

typedef struct world {
  drafter d;
  prefix c;
  draft_batch b;
} world;

static world w;

static int set_up(void **state) {
  err e;
  static const drafter_wants wants = {
      .taps = {1, 2}, .tap_count = 2, .type = WIRE_BF16, .fc = {{1}}, .fc_width = FC_WIDTH};
  *state = &w;
  return eagle3_open(&w.d, &wants, ROWS, WIDTH, NULL, &e);
}

static int tear_down(void **state) {
  (void)state;
  prefix_fini(&w.c);
  drafter_free(&w.d);
  return 0;
}

/* Of C's tokens, `kept` are those that the slot had before. */
static void open_again(int32_t length, int32_t kept) {
  int32_t tokens[CAPACITY];
  for (int32_t i = 0; i < length; i++) tokens[i] = i;
  assert_int_equal(prefix_init(&w.c, CAPACITY, 7), ERR_OK);
  assert_int_equal(prefix_append(&w.c, tokens, length), ERR_OK);
  const msg_options options = {.budget = 4};
  const drafter_session s = {&w.c, kept, length, &options};
  assert_int_equal(w.d.kind->open(w.d.self, SLOT, &s), ERR_OK);
}

static void open_with(int32_t length) {
  open_again(length, 0);
}

static void close_session(void) {
  w.d.kind->close(w.d.self, SLOT);
  prefix_fini(&w.c);
}

static int32_t wanted_from(void) {
  return w.d.kind->features_from(w.d.self, SLOT);
}

static void features(int32_t base, int32_t count) {
  static float rows[CAPACITY * WIDTH];
  for (int32_t i = 0; i < count * WIDTH; i++) rows[i] = (float)(base + i / WIDTH);
  const drafter_features f = {.base = base, .count = count, .width = WIDTH, .rows = rows};
  w.d.kind->features(w.d.self, SLOT, &f);
}

/* Gathers a batch; returns how many tokens the drafter holds then. */
static int32_t gather(void) {
  w.d.kind->batch_begin(w.d.self, &w.b);
  int32_t held = w.d.kind->advance(w.d.self, SLOT, &w.c);
  w.d.kind->batch_end(w.d.self);
  return held;
}

static int32_t held(void) {
  return w.d.kind->advance(w.d.self, SLOT, &w.c);
}

static void test_it_is_absent_without_features(void **state) {
  (void)state;
  open_with(5);
  assert_int_equal(held(), DRAFTER_ABSENT);
  assert_int_equal(gather(), DRAFTER_ABSENT);
  assert_true(w.b.job_count == 1 && w.b.jobs[0].count == 5 && w.b.jobs[0].feature_count == 0);
  features(0, 2);
  assert_true(held() < 5 && held() != DRAFTER_ABSENT); /* the rest is on its way */
}

/* Position 3's row is that of its features and of token 4, the last one. */
static void test_c_is_held_with_the_features_before_its_last_token(void **state) {
  (void)state;
  open_with(5);
  features(0, 3);
  assert_true(gather() < 5);
  const draft_job *j = &w.b.jobs[0];
  assert_true(j->count == 5 && j->feature_base == 0 && j->feature_count == 3 && j->feature_width == WIDTH);
  features(3, 1);
  assert_true(held() < 5); /* not sent yet */
  assert_int_equal(gather(), 5);
  assert_true(j->count == 0 && j->base == 5 && j->feature_base == 3 && j->feature_count == 1 && j->whole);
  assert_true(j->features[0] == 3 && j->features[WIDTH - 1] == 3);
  assert_int_equal(held(), 5);
  assert_false(w.b.query_count > 0);
}

static void test_tokens_wait_for_their_features(void **state) {
  (void)state;
  open_with(5);
  features(0, 4);
  assert_int_equal(gather(), 5);
  assert_int_equal(prefix_append(&w.c, (const int32_t[]){9}, 1), ERR_OK);
  assert_int_equal(gather(), 5);
  assert_int_equal(w.b.job_count, 0);
  features(4, 1);
  assert_int_equal(gather(), 6);
  assert_true(w.b.jobs[0].base == 5 && w.b.jobs[0].count == 1 && w.b.jobs[0].feature_count == 1);
}

static void test_features_wait_for_the_token_behind_them(void **state) {
  (void)state;
  open_with(5);
  features(0, 6);
  assert_int_equal(gather(), 5);
  assert_int_equal(w.b.jobs[0].feature_count, 4);
  assert_int_equal(prefix_append(&w.c, (const int32_t[]){9}, 1), ERR_OK);
  assert_true(held() < 6);
  assert_int_equal(gather(), 6);
  assert_true(w.b.jobs[0].feature_base == 4 && w.b.jobs[0].feature_count == 1);
}

static void test_a_long_prompt_is_sent_in_pieces(void **state) {
  (void)state;
  enum { LENGTH = 2 * DRAFT_CHUNK + 9 };
  open_with(LENGTH);
  features(2, LENGTH - 3);
  int32_t next = 2, batches = 0;
  while (gather() < LENGTH) {
    const draft_job *j = &w.b.jobs[0];
    assert_true(j->count <= DRAFT_CHUNK && j->feature_count <= DRAFT_CHUNK);
    assert_int_equal(j->feature_base, next);
    for (int32_t i = 0; i < j->feature_count; i++)
      assert_true(j->features[i * WIDTH] == (float)(j->feature_base + i));
    next += j->feature_count;
    assert_true(++batches < 5);
  }
  assert_int_equal(next + w.b.jobs[0].feature_count, LENGTH - 1);
}

/* The rows between are lost, and it goes on without them. */
static void test_a_gap_holds_nothing_up(void **state) {
  (void)state;
  open_with(9);
  features(0, 2);
  gather();
  features(7, 1);
  assert_int_equal(gather(), 9);
  assert_true(w.b.jobs[0].feature_base == 7 && w.b.jobs[0].feature_count == 1);
}

/* In lockstep C does not grow, and no features come, before the tree is done. */
static void test_nobody_waits_when_the_features_before_the_last_token_are_lost(void **state) {
  (void)state;
  open_with(5);
  features(0, 4);
  assert_int_equal(gather(), 5);
  assert_int_equal(prefix_append(&w.c, (const int32_t[]){9, 8}, 2), ERR_OK);
  assert_int_equal(held(), 5); /* they are on their way */
  features(6, 0);
  assert_int_equal(held(), DRAFTER_ABSENT);
  assert_int_equal(gather(), DRAFTER_ABSENT);
  assert_int_equal(prefix_append(&w.c, (const int32_t[]){7}, 1), ERR_OK);
  assert_int_not_equal(held(), DRAFTER_ABSENT); /* the next ones come */
  features(6, 1);
  assert_int_equal(gather(), 8);
  assert_true(w.b.jobs[0].feature_base == 6 && w.b.jobs[0].feature_count == 1);
}

/* It has no row then that a query could go on from. */
static void test_features_that_begin_behind_the_last_token_are_of_no_use_yet(void **state) {
  (void)state;
  open_with(5);
  features(4, 1);
  assert_int_equal(gather(), DRAFTER_ABSENT);
  assert_int_equal(w.b.jobs[0].count, 5); /* C's tokens go on their way */
  assert_int_equal(prefix_append(&w.c, (const int32_t[]){9}, 1), ERR_OK);
  assert_int_equal(gather(), 6);
  assert_int_equal(w.b.jobs[0].feature_base, 4);
}

static void test_a_session_begins_without_features_of_the_one_before(void **state) {
  (void)state;
  open_with(5);
  features(0, 4);
  assert_int_equal(gather(), 5);
  prefix_fini(&w.c);
  open_with(6);
  assert_int_equal(held(), DRAFTER_ABSENT);
  features(0, 5);
  close_session();
  open_with(6);
  assert_int_equal(gather(), DRAFTER_ABSENT);
  assert_int_equal(wanted_from(), 0);
}

static void fused(int32_t width) {
  static const float rows[2 * WIDTH] = {3, 4, 5};
  const drafter_features f = {.base = 0, .count = 1, .width = width, .fused = true, .rows = rows};
  w.d.kind->features(w.d.self, SLOT, &f);
}

/* Where fc has been applied, a row is as wide as fc makes it, and only then. */
static void test_fused_rows_are_marked_and_have_their_own_width(void **state) {
  (void)state;
  open_with(2);
  fused(WIDTH);
  assert_int_equal(held(), DRAFTER_ABSENT);
  fused(FC_WIDTH);
  assert_int_equal(gather(), 2);
  const draft_job *j = &w.b.jobs[0];
  assert_true(j->fused && j->feature_width == FC_WIDTH && j->feature_count == 1);
  assert_true(j->features[0] == 3 && j->features[FC_WIDTH - 1] == 5);
}

/* The engine holds the rows of positions 0 to 7, and those before position 5 are of tokens that stay. */
static void test_a_session_that_begins_alike_asks_for_what_is_new(void **state) {
  (void)state;
  open_with(9);
  features(0, 8);
  assert_int_equal(gather(), 9);
  close_session();
  open_again(12, 6);
  assert_int_equal(wanted_from(), 5);
  assert_int_equal(held(), 6);
  features(5, 6);
  assert_int_equal(gather(), 12);
  const draft_job *j = &w.b.jobs[0];
  assert_true(j->base == 6 && j->count == 6 && j->feature_base == 5 && j->feature_count == 6);
}

static void test_rows_that_were_never_computed_are_asked_for(void **state) {
  (void)state;
  open_with(9);
  features(0, 3);
  assert_true(gather() < 9);
  features(3, 5); /* these wait for the next batch */
  close_session();
  open_again(9, 9);
  assert_int_equal(wanted_from(), 3);
}

static void test_what_began_behind_the_tokens_that_stay_serves_nobody(void **state) {
  (void)state;
  open_with(9);
  features(5, 3);
  assert_int_equal(gather(), 9);
  close_session();
  open_again(9, 6);
  assert_int_equal(wanted_from(), 0);
  assert_int_equal(held(), DRAFTER_ABSENT);
}

/* The engine has forgotten C: all of it is sent again, and all features are wanted. */
static void test_after_a_failure_it_begins_anew(void **state) {
  (void)state;
  draft_reply r;
  open_with(5);
  features(0, 4);
  assert_int_equal(gather(), 5);
  const draft_results failed = {.failure_count = 1, .failures = {{SLOT, ERR_INTERNAL}}};
  w.d.kind->batch_done(w.d.self, &failed);
  assert_true(w.d.kind->take(w.d.self, &r) && r.code == ERR_INTERNAL);
  prefix_fini(&w.c);
  open_again(5, 5);
  assert_int_equal(wanted_from(), 0);
  assert_int_equal(gather(), DRAFTER_ABSENT);
  assert_true(w.b.jobs[0].base == 0 && w.b.jobs[0].count == 5);
}

static void test_when_no_more_features_come_nobody_waits_for_it(void **state) {
  (void)state;
  open_with(5);
  features(0, 2);
  gather();
  w.d.kind->features(w.d.self, SLOT, NULL);
  assert_int_equal(held(), DRAFTER_ABSENT);
}

static int32_t held_with(int32_t width, bool fused) {
  static const float rows[2 * WIDTH] = {0};
  const drafter_features f = {.base = 0, .count = 1, .width = width, .fused = fused, .rows = rows};
  w.d.kind->features(w.d.self, SLOT, &f);
  return held();
}

static void test_rows_of_another_width_are_not_taken(void **state) {
  (void)state;
  open_with(5);
  assert_int_equal(held_with(2 * WIDTH, false), DRAFTER_ABSENT);
  assert_int_equal(held_with(WIDTH - 1, false), DRAFTER_ABSENT);
  assert_int_equal(held_with(WIDTH, true), DRAFTER_ABSENT);
  assert_int_not_equal(held_with(FC_WIDTH, true), DRAFTER_ABSENT);
  assert_int_not_equal(held_with(WIDTH, false), DRAFTER_ABSENT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_it_is_absent_without_features),
      TEST(test_c_is_held_with_the_features_before_its_last_token),
      TEST(test_tokens_wait_for_their_features),
      TEST(test_features_wait_for_the_token_behind_them),
      TEST(test_a_long_prompt_is_sent_in_pieces),
      TEST(test_a_gap_holds_nothing_up),
      TEST(test_nobody_waits_when_the_features_before_the_last_token_are_lost),
      TEST(test_features_that_begin_behind_the_last_token_are_of_no_use_yet),
      TEST(test_a_session_begins_without_features_of_the_one_before),
      TEST(test_fused_rows_are_marked_and_have_their_own_width),
      TEST(test_a_session_that_begins_alike_asks_for_what_is_new),
      TEST(test_rows_that_were_never_computed_are_asked_for),
      TEST(test_what_began_behind_the_tokens_that_stay_serves_nobody),
      TEST(test_after_a_failure_it_begins_anew),
      TEST(test_when_no_more_features_come_nobody_waits_for_it),
      TEST(test_rows_of_another_width_are_not_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
