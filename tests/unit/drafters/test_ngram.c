/* libs: drafters */
#include "draft_worker/drafters/ngram.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/json_lines.h"
#include "tests/support/random.h"

#define GOLDEN TANDEM_SOURCE_DIR "/tests/golden/smollm2_greedy.jsonl"
#define ROOM   4096

static const msg_options any = {.context = ROOM};

static prefix prefix_with(const int32_t *tokens, size_t count) {
  prefix p;
  assert_int_equal(prefix_init(&p, ROOM, 3), ERR_OK);
  assert_int_equal(prefix_append(&p, tokens, (int32_t)count), ERR_OK);
  return p;
}

static int32_t query(immediate_session *d, const int32_t *path, int32_t depth, draft_candidate *list) {
  int32_t n = ngram_kind.candidates(d, path, depth, list);
  assert_true(n >= 0 && n <= DRAFT_CANDIDATES_MAX);
  for (int32_t i = 0; i < n; i++) {
    assert_true(list[i].score <= 0 && list[i].score > -3.51F); /* none below the floor */
    for (int32_t j = 0; j < i; j++) {
      assert_int_not_equal(list[j].token, list[i].token);
      assert_true(list[j].score >= list[i].score);
    }
  }
  return n;
}

static void copies_what_came_before(void **state) {
  (void)state;
  const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 51, 2, 3, 4};
  prefix p = prefix_with(text, sizeof text / sizeof *text);
  immediate_session *d = ngram_kind.open(NULL, &p, p.length, &any);
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  int32_t path[4] = {0};
  double before = -10;
  for (int32_t depth = 0; depth < 4; depth++) { /* 5 6 7 8, surer as the copy grows longer */
    assert_true(query(d, path, depth, list) >= 1);
    assert_int_equal(list[0].token, 5 + depth);
    assert_true((double)list[0].score > before);
    before = (double)list[0].score;
    path[depth] = list[0].token;
  }
  assert_int_equal(query(d, (const int32_t[]){77}, 1, list), 0); /* never seen: nothing to say */
  ngram_kind.close(d);
  prefix_fini(&p);
}

static void the_longest_ending_wins(void **state) {
  (void)state;
  /* After (8 9) came 30, and after 9 alone, more recently, 40; then (8 9) again. */
  const int32_t text[] = {8, 9, 30, 1, 9, 40, 2, 8, 9};
  prefix p = prefix_with(text, sizeof text / sizeof *text);
  immediate_session *d = ngram_kind.open(NULL, &p, p.length, &any);
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  assert_true(query(d, NULL, 0, list) >= 1);
  assert_int_equal(list[0].token, 30);
  /* Of equal endings the most recent one: after 9 alone. */
  assert_true(query(d, (const int32_t[]){77, 9}, 2, list) >= 1);
  assert_int_equal(list[0].token, 40);
  ngram_kind.close(d);
  prefix_fini(&p);
}

/* The end of C has no follower yet, and C's own last token must not be offered for itself. */
static void the_end_is_no_occurrence(void **state) {
  (void)state;
  const int32_t text[] = {1, 2, 3};
  prefix p = prefix_with(text, 3);
  immediate_session *d = ngram_kind.open(NULL, &p, p.length, &any);
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  assert_int_equal(query(d, NULL, 0, list), 0);
  ngram_kind.close(d);
  prefix_fini(&p);
}

/* Few different tokens, and stretches repeated: endings of every length, collisions of every kind. */
static size_t random_text(int32_t *out, size_t count, uint64_t seed) {
  for (size_t n = 0; n < count;) {
    size_t length = 1 + random_below(&seed, 12), from = n > 20 ? random_below(&seed, (uint32_t)n - 12) : 0;
    bool copy = n > 20 && random_below(&seed, 2);
    for (size_t i = 0; i < length && n < count; i++, n++)
      out[n] = copy ? out[from + i] : (int32_t)random_below(&seed, 30);
  }
  return count;
}

static void assert_same_candidates(immediate_session *a, immediate_session *b) {
  draft_candidate x[DRAFT_CANDIDATES_MAX], y[DRAFT_CANDIDATES_MAX];
  for (int32_t first = -1; first < 12; first++) {
    const int32_t path[] = {first, first + 3};
    int32_t depth = first < 0 ? 0 : 1 + first % 2;
    int32_t n = query(a, path, depth, x);
    assert_int_equal(query(b, path, depth, y), n);
    for (int32_t i = 0; i < n; i++) {
      assert_int_equal(x[i].token, y[i].token);
      assert_memory_equal(&x[i].score, &y[i].score, sizeof x[i].score);
    }
  }
}

/* One token at a time, in pieces, after queries, and with detours through other tokens: always what a new
 * drafter says that is given C at once. */
static void candidates_are_a_function_of_the_tokens(void **state) {
  (void)state;
  enum { COUNT = 700, PROMPT = 60 };
  int32_t text[COUNT];
  random_text(text, COUNT, 8);
  uint64_t seed = 4;
  prefix p = prefix_with(text, PROMPT);
  immediate_session *d = ngram_kind.open(NULL, &p, PROMPT, &any);
  for (int round = 0; p.length < COUNT; round++) {
    int32_t step = 1 + (int32_t)random_below(&seed, 9);
    if (step > COUNT - p.length) step = COUNT - p.length;
    if (round % 5 == 4) { /* a detour that a rollback undoes, to as many tokens as before */
      int32_t kept = p.length - 1 - (int32_t)random_below(&seed, 3), length = p.length;
      prefix_truncate(&p, kept);
      for (int32_t i = kept; i < length; i++) prefix_append(&p, &(int32_t){29 - text[i]}, 1);
      ngram_kind.advance(d, &p);
      prefix_truncate(&p, kept);
      prefix_append(&p, text + kept, length - kept);
    }
    prefix_append(&p, text + p.length, step);
    ngram_kind.advance(d, &p);
    const msg_options other = {.context = ROOM / 2}; /* tables of another size */
    immediate_session *fresh = ngram_kind.open(NULL, &p, PROMPT, &other);
    assert_same_candidates(d, fresh);
    ngram_kind.close(fresh);
  }
  ngram_kind.close(d);
  prefix_fini(&p);
}

/* A text whose copies are always wrong teaches the drafter to keep quiet; one whose copies are right, to be
 * surer than at the start. */
static void a_session_corrects_the_table(void **state) {
  (void)state;
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  prefix p = prefix_with((const int32_t[]){1, 2, 3, 4, 5}, 5);
  immediate_session *d = ngram_kind.open(NULL, &p, 1, &any);
  for (int32_t i = 0; i < 100; i++)
    prefix_append(&p, (const int32_t[]){5, 1000 + i}, 2); /* after 5, ever new */
  prefix_append(&p, (const int32_t[]){5}, 1);
  ngram_kind.advance(d, &p);
  assert_int_equal(query(d, NULL, 0, list), 0);
  ngram_kind.close(d);
  prefix_fini(&p);

  p = prefix_with((const int32_t[]){1, 2, 3, 1}, 4);
  d = ngram_kind.open(NULL, &p, 1, &any);
  assert_int_equal(query(d, NULL, 0, list), 1);
  float start = list[0].score;
  ngram_kind.close(d);
  prefix_fini(&p);
  p = prefix_with((const int32_t[]){1}, 1);
  for (int32_t i = 0; i < 40; i++)
    prefix_append(&p, (const int32_t[]){500 + i, 1, 2}, 3); /* 2 after 1, alone */
  prefix_append(&p, (const int32_t[]){600, 1}, 2);
  d = ngram_kind.open(NULL, &p, 1, &any);
  assert_true(query(d, NULL, 0, list) >= 1);
  assert_int_equal(list[0].token, 2);
  assert_true(list[0].score > start);
  ngram_kind.close(d);
  prefix_fini(&p);
}

typedef struct tally {
  int places, guessed, right;
  double expected, log_loss; /* of the first guesses */
} tally;

static void tally_golden(const json_t *row, void *context) {
  tally *t = context;
  size_t prompt, output;
  int32_t *prompt_ids = json_lines_ids(row, "prompt_ids", &prompt);
  int32_t *output_ids = json_lines_ids(row, "output_ids", &output);
  prefix p = prefix_with(prompt_ids, prompt);
  immediate_session *d = ngram_kind.open(NULL, &p, (int32_t)prompt, &any);
  for (size_t i = 0; i < output; i++) {
    draft_candidate list[DRAFT_CANDIDATES_MAX];
    t->places++;
    if (query(d, NULL, 0, list) > 0) {
      bool right = list[0].token == output_ids[i];
      double q = exp((double)list[0].score);
      t->guessed++;
      t->right += right;
      t->expected += q;
      t->log_loss -= log(right ? q : 1 - q);
    }
    prefix_append(&p, &output_ids[i], 1);
    ngram_kind.advance(d, &p);
  }
  ngram_kind.close(d);
  prefix_fini(&p);
  free(prompt_ids);
  free(output_ids);
}

/* On real answers: scores are honest probabilities, and better ones than one figure for all. */
static void scores_are_match_rates(void **state) {
  (void)state;
  tally t = {0};
  assert_int_equal(json_lines_each(GOLDEN, tally_golden, &t), 24);
  double rate = t.right / (double)t.guessed;
  double flat = -rate * log(rate) - (1 - rate) * log(1 - rate);
  print_message("%d places, %d guessed, %d right (%.3f, promised %.3f), log loss %.3f of %.3f\n", t.places,
                t.guessed, t.right, rate, t.expected / t.guessed, t.log_loss / t.guessed, flat);
  assert_true(t.right > t.places / 4);
  assert_true(fabs(t.expected / t.guessed - rate) < 0.05);
  assert_true(t.log_loss / t.guessed < 0.85 * flat);
}

/* The same token for ever, to the last place of the context. */
static void one_token_repeated(void **state) {
  (void)state;
  prefix p = prefix_with((const int32_t[]){7}, 1);
  immediate_session *d = ngram_kind.open(NULL, &p, 1, &any);
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  while (p.length < ROOM) {
    for (int i = 0; i < 100 && p.length < ROOM; i++) prefix_append(&p, &(int32_t){7}, 1);
    ngram_kind.advance(d, &p);
    assert_int_equal(query(d, NULL, 0, list), 1);
    assert_int_equal(list[0].token, 7);
  }
  ngram_kind.close(d);
  prefix_fini(&p);
}

/* What a chat template writes around every turn is no text: what followed an earlier header is no guess at
 * how the answer begins, nor is the end of a turn at how it goes on. */
static void a_template_is_no_text(void **state) {
  (void)state;
  enum { END = 2, START = 1, LINE = 198, SYSTEM = 90, USER = 91, ASSISTANT = 92 };
  const int32_t text[] = {START, SYSTEM, LINE, 10, 11, 12,  END,  LINE,  START,     USER, LINE,
                          20,    21,     22,   10, 13, END, LINE, START, ASSISTANT, LINE};
  const int32_t stops[] = {77, END};
  const msg_options chat = {.context = ROOM, .stops = stops, .stop_count = 2};
  prefix p = prefix_with(text, sizeof text / sizeof *text);
  immediate_session *d = ngram_kind.open(NULL, &p, p.length, &chat),
                    *raw = ngram_kind.open(NULL, &p, p.length, &any);
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  assert_true(query(raw, NULL, 0, list) > 0); /* where no stop is known, it is text like any other */
  assert_int_equal(query(d, NULL, 0, list), 0);
  assert_int_equal(query(d, (const int32_t[]){20}, 1, list), 1);
  assert_int_equal(list[0].token, 21);
  assert_int_equal(query(d, (const int32_t[]){10}, 1, list), 2); /* in both turns */
  assert_int_equal(query(d, (const int32_t[]){12}, 1, list), 0); /* then the turn ended */
  assert_int_equal(query(d, (const int32_t[]){LINE}, 1, list), 0);
  assert_int_equal(query(d, (const int32_t[]){USER, LINE}, 2, list), 0);
  ngram_kind.close(raw);
  ngram_kind.close(d);
  prefix_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies_what_came_before),
      cmocka_unit_test(the_longest_ending_wins),
      cmocka_unit_test(the_end_is_no_occurrence),
      cmocka_unit_test(candidates_are_a_function_of_the_tokens),
      cmocka_unit_test(a_session_corrects_the_table),
      cmocka_unit_test(scores_are_match_rates),
      cmocka_unit_test(one_token_repeated),
      cmocka_unit_test(a_template_is_no_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
