/* libs: drafters */
/* The draws against an independent program's (tests/golden/make_replay.py), and which record fits. */
#include "draft_worker/drafters/replay.h"

#include <math.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/scratch.h"

#include "tests/support/json_lines.h"

#define BOOK    TANDEM_SOURCE_DIR "/tests/golden/replay_book.jsonl"
#define DRAWS   TANDEM_SOURCE_DIR "/tests/golden/replay_draws.jsonl"
#define RECORDS 4
#define ROOM    200

typedef struct recorded {
  int32_t *prompt, *answer;
  size_t prompt_count, answer_count;
} recorded;

typedef struct records {
  recorded list[RECORDS];
  int count;
} records;

static void add_record(const json_t *row, void *context) {
  records *r = context;
  recorded *x = &r->list[r->count++];
  x->prompt = json_lines_ids(row, "prompt_ids", &x->prompt_count);
  x->answer = json_lines_ids(row, "token_ids", &x->answer_count);
}

static records read_records(void) {
  records r = {0};
  assert_int_equal(json_lines_each(BOOK, add_record, &r), RECORDS);
  return r;
}

static void free_records(records *r) {
  for (int i = 0; i < r->count; i++) {
    free(r->list[i].prompt);
    free(r->list[i].answer);
  }
}

static replay_recording *open_book(double rate, double sibling, uint64_t seed) {
  replay_recording *b;
  err e;
  if (replay_recording_open(&b, BOOK, rate, sibling, seed, &e)) fail_msg("%s", e.text);
  return b;
}

static prefix prefix_of(const recorded *x, size_t answered) {
  prefix p;
  assert_int_equal(prefix_init(&p, ROOM, 5), ERR_OK);
  assert_int_equal(prefix_append(&p, x->prompt, (int32_t)x->prompt_count), ERR_OK);
  assert_int_equal(prefix_append(&p, x->answer, (int32_t)answered), ERR_OK);
  return p;
}

static immediate_session *open_drafter(replay_recording *b, const prefix *p, size_t prompt) {
  msg_options options = {.context = ROOM};
  immediate_session *d = replay_kind.open(b, p, (int32_t)prompt, &options);
  assert_non_null(d);
  return d;
}

/* Tokens that the second record shares with the first, which is chosen as long as both fit. */
static size_t fork_of(const records *all) {
  size_t fork = 0;
  while (all->list[0].answer[fork] == all->list[1].answer[fork]) fork++;
  return fork;
}

/* What one golden line says must be offered at every position, at any depth below any C. */
static void check_draws(const json_t *row, void *context) {
  const records *all = context;
  const recorded *x = &all->list[json_integer_value(json_object_get(row, "record"))];
  const json_t *offered = json_object_get(row, "offered");
  const double first = json_real_value(json_object_get(row, "first_score"));
  const double second = json_real_value(json_object_get(row, "second_score"));
  replay_recording *b = open_book(json_real_value(json_object_get(row, "rate")),
                                  json_real_value(json_object_get(row, "sibling")),
                                  (uint64_t)json_integer_value(json_object_get(row, "seed")));
  assert_int_equal(json_array_size(offered), x->answer_count);
  for (size_t base = x == &all->list[1] ? fork_of(all) + 1 : 0; base <= x->answer_count; base += 7) {
    prefix p = prefix_of(x, base);
    immediate_session *d = open_drafter(b, &p, x->prompt_count);
    int32_t path[ROOM] = {0}; /* wrong tokens: what stands below them is offered all the same */
    draft_candidate list[DRAFT_CANDIDATES_MAX];
    for (size_t i = base; i < x->answer_count; i++) {
      const json_t *expected = json_array_get(offered, i);
      int32_t n = replay_kind.candidates(d, path, (int32_t)(i - base), list);
      assert_int_equal(n, json_array_size(expected));
      for (int32_t k = 0; k < n; k++) {
        assert_int_equal(list[k].token, json_integer_value(json_array_get(expected, (size_t)k)));
        double score = n == 1 || k == 0 ? first : second;
        assert_true(fabs((double)list[k].score - score) < 1e-5);
      }
    }
    assert_int_equal(replay_kind.candidates(d, path, (int32_t)(x->answer_count - base), list), 0);
    replay_kind.close(d);
    prefix_fini(&p);
  }
  replay_recording_close(b);
}

static void draws_are_the_golden_ones(void **state) {
  (void)state;
  records all = read_records();
  assert_int_equal(json_lines_each(DRAWS, check_draws, &all), 15);
  free_records(&all);
}

static int32_t right_token(immediate_session *d) {
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  int32_t n = replay_kind.candidates(d, NULL, 0, list);
  assert_true(n <= 1); /* rate 1 */
  return n ? list[0].token : -1;
}

static void another_record_takes_over(void **state) {
  (void)state;
  records all = read_records();
  const recorded *a = &all.list[0], *b = &all.list[1];
  size_t fork = fork_of(&all);
  assert_true(fork > 3 && fork < b->answer_count - 3);
  replay_recording *book = open_book(1, 0, 0);
  prefix p = prefix_of(a, 0);
  immediate_session *d = open_drafter(book, &p, a->prompt_count);
  for (size_t i = 0; i < b->answer_count; i++) { /* the session follows b; a is the first that fits */
    assert_int_equal(right_token(d), i <= fork ? a->answer[i] : b->answer[i]);
    assert_int_equal(prefix_append(&p, &b->answer[i], 1), ERR_OK);
    replay_kind.advance(d, &p);
  }
  assert_int_equal(right_token(d), -1);

  prefix_truncate(&p, (int32_t)(b->prompt_count + fork)); /* a rollback, and then the other way */
  prefix_append(&p, a->answer + fork, (int32_t)(a->answer_count - fork - 2));
  replay_kind.advance(d, &p);
  assert_int_equal(right_token(d), a->answer[a->answer_count - 2]);

  int32_t end = p.length; /* replaced in the middle, and as recorded after that, and longer */
  prefix_truncate(&p, (int32_t)(a->prompt_count + 3));
  prefix_append(&p, &(int32_t){a->answer[3] + 1}, 1);
  prefix_append(&p, a->answer + 4, (int32_t)(end + 1 - p.length));
  replay_kind.advance(d, &p);
  assert_int_equal(right_token(d), -1);

  prefix_truncate(&p, (int32_t)(b->prompt_count + 2)); /* an answer that nobody recorded */
  prefix_append(&p, &(int32_t){a->answer[2] + 1}, 1);
  replay_kind.advance(d, &p);
  assert_int_equal(right_token(d), -1);
  prefix_truncate(&p, (int32_t)(b->prompt_count + 2));
  replay_kind.advance(d, &p);
  assert_int_equal(right_token(d), a->answer[2]);
  replay_kind.close(d);
  prefix_fini(&p);
  replay_recording_close(book);
  free_records(&all);
}

static void the_prompt_must_be_the_same(void **state) {
  (void)state;
  records all = read_records();
  replay_recording *book = open_book(1, 0, 0);
  prefix p = prefix_of(&all.list[0], 3);
  immediate_session *d =
      open_drafter(book, &p, all.list[0].prompt_count + 1); /* the same tokens, another border */
  assert_int_equal(right_token(d), -1);
  replay_kind.close(d);
  d = open_drafter(book, &p, all.list[0].prompt_count);
  assert_int_equal(right_token(d), all.list[0].answer[3]);
  replay_kind.close(d);
  prefix_fini(&p);
  replay_recording_close(book);
  free_records(&all);
}

/* Of many draws about as many are right as were asked for. */
static void rate_and_sibling_are_probabilities(void **state) {
  (void)state;
  records all = read_records();
  const recorded *x = &all.list[0];
  int right = 0, second = 0, total = 0;
  for (uint64_t seed = 0; seed < 200; seed++) {
    replay_recording *book = open_book(0.7, 0.4, seed);
    prefix p = prefix_of(x, 0);
    immediate_session *d = open_drafter(book, &p, x->prompt_count);
    draft_candidate list[DRAFT_CANDIDATES_MAX];
    for (size_t i = 0; i < x->answer_count; i++) {
      int32_t n = replay_kind.candidates(d, NULL, (int32_t)i, list);
      right += list[0].token == x->answer[i];
      second += n == 2 && list[1].token == x->answer[i];
      total++;
    }
    replay_kind.close(d);
    prefix_fini(&p);
    replay_recording_close(book);
  }
  assert_true(fabs(right / (double)total - 0.7) < 0.02);
  assert_true(fabs(second / (double)total - 0.3 * 0.4) < 0.02);
  free_records(&all);
}

static void one_token_only_has_no_wrong_one(void **state) {
  (void)state;
  const scratch_path_text file = scratch_path("recording");
  const char *path = file.text;
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  const char text[] = "{\"prompt_ids\": [7], \"token_ids\": [7, 7]}\n";
  assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
  close(fd);
  replay_recording *book;
  err e;
  assert_int_equal(replay_recording_open(&book, path, 0, 0, 0, &e), ERR_OK);
  prefix p;
  prefix_init(&p, ROOM, 1);
  prefix_append(&p, &(int32_t){7}, 1);
  immediate_session *d = open_drafter(book, &p, 1);
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  assert_int_equal(replay_kind.candidates(d, NULL, 0, list), 0);
  replay_kind.close(d);
  prefix_fini(&p);
  replay_recording_close(book);
  unlink(path);
}

static void bad_files_are_refused_with_the_line(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int code;
    const char *says;
  } bad[] = {
      {"", ERR_FORMAT, "is empty"},
      {"\n\n", ERR_FORMAT, "is empty"},
      {"{\"prompt_ids\": [1], \"token_ids\": [2]}\nnonsense\n", ERR_FORMAT, "line 2"},
      {"{\"token_ids\": [2]}\n", ERR_FORMAT, "line 1: no prompt_ids"},
      {"{\"prompt_ids\": [1]}\n", ERR_FORMAT, "no prompt_ids or no token_ids"},
      {"{\"prompt_ids\": [1], \"token_ids\": 3}\n", ERR_FORMAT, "line 1"},
      {"{\"prompt_ids\": [1], \"token_ids\": [2.5]}\n", ERR_FORMAT, "no token id"},
      {"{\"prompt_ids\": [-1], \"token_ids\": []}\n", ERR_FORMAT, "no token id"},
      {"{\"prompt_ids\": [4294967296], \"token_ids\": []}\n", ERR_FORMAT, "no token id"},
      {"{\"prompt_ids\": [1], \"prompt_ids\": [2], \"token_ids\": []}\n", ERR_FORMAT, "duplicate"},
      {"[1, 2]\n", ERR_FORMAT, "line 1"},
  };
  const scratch_path_text file = scratch_path("recording");
  const char *path = file.text;
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    replay_recording *book;
    err e;
    size_t size = strlen(bad[i].text);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, bad[i].text, size, 0), size);
    assert_int_equal(replay_recording_open(&book, path, 1, 0, 0, &e), bad[i].code);
    assert_null(book);
    if (!strstr(e.text, bad[i].says)) fail_msg("'%s' does not say '%s'", e.text, bad[i].says);
  }
  close(fd);
  unlink(path);
  replay_recording *book;
  err e;
  assert_int_equal(replay_recording_open(&book, path, 1, 0, 0, &e), ERR_IO);
}

static int opened(const char *argument, char *text, size_t size) {
  replay_recording *book = NULL;
  err e = {0};
  int rc = replay_recording_open_argument(&book, argument, 1, &e);
  snprintf(text, size, "%s", e.text);
  replay_recording_close(book);
  return rc;
}

/* Colons may be part of the file's name: the numbers are taken from the end. */
static void an_argument_is_a_file_and_one_or_two_rates(void **state) {
  (void)state;
  static const struct {
    const char *argument;
    int code;
    const char *text;
  } cases[] = {{BOOK ":0.5", ERR_OK, ""},
               {BOOK ":0.5:0.25", ERR_OK, ""},
               {"no:such:0.5", ERR_IO, "no:such"},
               {"no:such:0.5:1", ERR_IO, "no:such"},
               {BOOK, ERR_ARG, "replay:FILE:RATE or replay:FILE:RATE:S"},
               {":0.5", ERR_ARG, "replay:FILE:RATE or replay:FILE:RATE:S"},
               {BOOK ":2", ERR_ARG, "RATE of --draft replay"},
               {BOOK ":0.5:2", ERR_ARG, "S of --draft replay"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[ERR_TEXT_MAX];
    int rc = opened(cases[i].argument, text, sizeof text);
    if (rc != cases[i].code || !strstr(text, cases[i].text))
      fail_msg("%s: %d, %s", cases[i].argument, rc, text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(draws_are_the_golden_ones),
      cmocka_unit_test(another_record_takes_over),
      cmocka_unit_test(the_prompt_must_be_the_same),
      cmocka_unit_test(rate_and_sibling_are_probabilities),
      cmocka_unit_test(one_token_only_has_no_wrong_one),
      cmocka_unit_test(an_argument_is_a_file_and_one_or_two_rates),
      cmocka_unit_test(bad_files_are_refused_with_the_line),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
