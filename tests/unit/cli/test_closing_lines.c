/* libs: cli */
/* The closing lines: what a stranger reads after an answer. */
#include "orchestrator/cli/closing_lines.h"
#include "orchestrator/service/result_json.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char said[4096];

/* Which line a clause is on is looked at in test_lines_end_before_their_108th_column. */
static void on_one_line(void) {
  static const char end[] = "\ntandem: ";
  for (char *at; (at = strstr(said, end));
       memmove(at + 2, at + sizeof end - 1, strlen(at + sizeof end - 1) + 1))
    memcpy(at, "; ", 2);
}

static FILE *begin_saying(void) {
  FILE *to = fmemopen(said, sizeof said, "w");
  assert_non_null(to);
  return to;
}

static const char *end_saying(FILE *to) {
  assert_int_equal(fclose(to), 0);
  assert_true(strlen(said) < sizeof said - 1);
  return said;
}

static const char *lines_of(const completion *a, closing_lines_options words) {
  FILE *to = begin_saying();
  closing_lines_print(to, a, &words);
  return end_saying(to);
}

static const char *lines_of_both(const completion *plain, const completion *fast) {
  FILE *to = begin_saying();
  closing_lines_print_both(to, plain, fast, &(closing_lines_options){0});
  return end_saying(to);
}

static const char *lines_of_queue(const request_queue *q) {
  FILE *to = begin_saying();
  closing_lines_print_queue(to, q, "any");
  return end_saying(to);
}

/* 100 tokens at 200 a second, of which a draft guessed some. */
static completion drafted(uint64_t rounds, uint64_t rows, uint64_t accepted) {
  completion a = {.id = UINT64_C(0x0123456789abcdef),
                  .count = 101,
                  .first_count = 1,
                  .first_token_us = 1000000,
                  .first_shown_us = 1000000,
                  .end_us = 1500000,
                  .start_us = 900000,
                  .max_tokens = 256,
                  .context = 4096,
                  .finish = WIRE_FINISH_STOP,
                  .draft_wanted = true,
                  .draft_method = "ngram"};
  a.prompt.count = 30;
  a.stats = (msg_stats){.rounds = rounds,
                        .rows = rows,
                        .accepted = accepted,
                        .forwards = 101 - accepted,
                        .plain_steps = 101 - accepted - rounds};
  return a;
}

static void test_what_the_draft_was_worth_is_said(void **state) {
  (void)state;
  completion a = drafted(10, 91, 60);
  a.plain_us = 7692; /* 130 tok/s */
  assert_string_equal(lines_of(&a, (closing_lines_options){0}),
                      "tandem: 101 tokens, 200.0 tok/s; the draft guessed 60 of 91 right; 1.54 times plain "
                      "decoding (130 tok/s)\n");
  a.count = 1;
  a.end_us = a.first_token_us;
  a.plain_us = 0;
  a.stats = (msg_stats){.forwards = 1, .plain_steps = 1};
  assert_string_equal(lines_of(&a, (closing_lines_options){0}), "tandem: 1 token; the draft had no guess\n");
  a.draft_wanted = false;
  assert_string_equal(lines_of(&a, (closing_lines_options){0}), "tandem: 1 token; without a draft\n");
  a.count = a.first_count = 24; /* they came all at once */
  assert_string_equal(lines_of(&a, (closing_lines_options){0}),
                      "tandem: 24 tokens, too few to time; without a draft\n");
}

/* One failed try is no alarm; a draft that was of use before it was lost is told of, and why it was lost. */
static void test_why_it_was_decoded_plainly_is_said(void **state) {
  (void)state;
  completion a = drafted(1, 3, 0);
  strcpy(a.off_reason, "the draft did not pay for itself");
  a.unpaid = true;
  a.plain_us = 4975;
  assert_string_equal(
      lines_of(&a, (closing_lines_options){0}),
      "tandem: 101 tokens, 200.0 tok/s\n"
      "tandem: the draft guessed nothing right in its first try, so the rest was decoded plainly\n");
  a.stats.rounds = 3;
  assert_non_null(strstr(lines_of(&a, (closing_lines_options){0}), "in its first 3 tries, so"));
  strcpy(a.off_reason, "the draft worker died");
  a.unpaid = false;
  lines_of(&a, (closing_lines_options){0});
  assert_non_null(strstr(said, "the draft guessed 0 of 3 right"));
  assert_non_null(strstr(said, "the rest was decoded plainly: the draft worker died"));
  a.stats.rounds = a.stats.rows = 0;
  a.draft_method[0] = a.off_reason[0] = 0;
  assert_string_equal(lines_of(&a, (closing_lines_options){0}),
                      "tandem: 101 tokens, 200.0 tok/s; all of it was decoded plainly: no draft came\n");
}

static void test_why_it_is_no_longer_is_said(void **state) {
  (void)state;
  completion a = drafted(10, 91, 60);
  a.finish = WIRE_FINISH_LENGTH;
  a.max_tokens = 101;
  lines_of(&a, (closing_lines_options){.kept = true});
  assert_non_null(strstr(said, "stopped at --max-tokens 101: -n raises it"));
  assert_non_null(strstr(said, "`tandem session resume 01234567 --max-tokens 101' goes on"));
  assert_null(strstr(lines_of(&a, (closing_lines_options){0}), "session resume"));
  a.context = 131; /* that of the prompt and the answer */
  lines_of(&a, (closing_lines_options){.kept = true});
  assert_non_null(strstr(said, "the context of 131 tokens is full: --ctx makes it longer"));
  assert_null(strstr(said, "session resume"));
  a.finish = WIRE_FINISH_CANCELLED;
  lines_of(&a, (closing_lines_options){.kept = true});
  on_one_line();
  assert_non_null(strstr(said, "; interrupted; `tandem session resume 0123456789abcdef' goes on"));
}

/* --max-tokens of `session resume' counts what comes more, and so do the lines. */
static void test_what_a_resumed_answer_has_more_is_said(void **state) {
  (void)state;
  const ledger_session earlier = {.length = 30 + 61, .prompt_length = 30};
  completion a = drafted(10, 91, 60);
  a.resume = &earlier;
  a.finish = WIRE_FINISH_LENGTH;
  a.max_tokens = 101;
  lines_of(&a, (closing_lines_options){.kept = true});
  assert_non_null(strstr(said, "tandem: 40 more tokens, 101 in all"));
  assert_non_null(strstr(said, "stopped at --max-tokens 40: -n raises it"));
  assert_non_null(strstr(said, "`tandem session resume 01234567 --max-tokens 40' goes on"));
  lines_of(&a, (closing_lines_options){.kept = true, .same_limit = true, .ledger = "a.sqlite"});
  assert_non_null(strstr(said, "stopped at its limit of 101 tokens"));
  assert_non_null(strstr(said, "session resume 01234567 --max-tokens 40 --ledger a.sqlite' goes on"));
}

static void test_a_drawn_seed_and_details_are_said(void **state) {
  (void)state;
  completion a = drafted(10, 91, 60);
  a.seed = 77;
  assert_null(strstr(lines_of(&a, (closing_lines_options){0}), "seed"));
  assert_non_null(strstr(lines_of(&a, (closing_lines_options){.seed_drawn = true}),
                         "its seed was drawn: --seed 77 gives the same again"));
  lines_of(&a, (closing_lines_options){.details = true});
  on_one_line();
  assert_non_null(strstr(said, "first token after 100 ms; draft ngram: 10 rounds, 6.00 accepted a round"));
}

/* Lines end before their 108th column, if their clauses are not longer. */
static void test_lines_end_before_their_108th_column(void **state) {
  (void)state;
  completion a = drafted(10, 91, 60);
  a.plain_us = 7692; /* 130 tok/s */
  a.finish = WIRE_FINISH_LENGTH;
  lines_of(&a, (closing_lines_options){.kept = true, .seed_drawn = true, .details = true});
  for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n")) {
    assert_memory_equal(line, "tandem: ", 8);
    assert_true(strlen(line) <= 108);
  }
}

/* A longer answer with the same beginning differs as well. */
static void test_two_completions_are_compared(void **state) {
  (void)state;
  int32_t same[] = {5, 6, 7, 8}, other[] = {5, 6, 9, 8};
  completion plain = drafted(0, 0, 0), fast = drafted(1, 5, 2);
  plain.draft_wanted = false;
  plain.prompt.count = fast.prompt.count = 0;
  plain.count = fast.count = 4;
  plain.first_count = fast.first_count = 0;
  plain.tokens = fast.tokens = same;
  fast.end_us = fast.first_token_us + (plain.end_us - plain.first_token_us) / 2;
  assert_int_equal(completion_first_difference(&plain, &fast), -1);
  json_t *o = result_json_of_both(&plain, &fast);
  assert_true(json_is_true(json_object_get(o, "identical")));
  assert_true(json_is_null(json_object_get(o, "first_difference")));
  assert_true(json_is_null(json_object_get(o, "speedup"))); /* of four tokens */
  assert_int_equal(json_array_size(json_object_get(json_object_get(o, "draft"), "token_ids")), 4);
  json_decref(o);
  fast.tokens = other;
  assert_int_equal(completion_first_difference(&plain, &fast), 2);
  fast.tokens = same;
  fast.count = 3;
  assert_int_equal(completion_first_difference(&plain, &fast), 3);
  const char *text = lines_of_both(&plain, &fast);
  assert_non_null(strstr(text, "tandem: plainly:    4 tokens, too few to time\n"
                               "tandem: with draft: 3 tokens, too few to time; the draft guessed 2 of 5"));
  assert_non_null(strstr(
      text, "\ntandem: identical: no, from token 4 of the answer on: 8 plainly, the end with the draft\n"));
}

static void test_the_speeds_of_two_completions_are_told(void **state) {
  (void)state;
  int32_t tokens[101] = {0};
  completion plain = drafted(0, 0, 0), fast = drafted(10, 91, 60);
  plain.draft_wanted = false;
  plain.tokens = fast.tokens = tokens;
  plain.prompt.count = fast.prompt.count = 0;
  fast.end_us -= 250000;
  json_t *o = result_json_of_both(&plain, &fast);
  assert_true(json_real_value(json_object_get(o, "speedup")) == 2);
  json_decref(o);
  const char *text = lines_of_both(&plain, &fast);
  assert_non_null(strstr(text, "tandem: plainly:    101 tokens, 200.0 tok/s\n"
                               "tandem: with draft: 101 tokens, 400.0 tok/s; 2.00 times as fast; the draft"));
}

static void test_a_gain_is_told_as_it_was_measured(void **state) {
  (void)state;
  completion a = drafted(40, 91, 60);
  assert_null(strstr(lines_of(&a, (closing_lines_options){0}), "times plain"));
  assert_null(strstr(lines_of(&a, (closing_lines_options){0}), "gain"));
  a.plain_us = 8000;
  assert_non_null(strstr(lines_of(&a, (closing_lines_options){0}), "1.60 times plain decoding (125 tok/s)"));
  a.stats.accepted = 0; /* what did not gain anything is told to who asks */
  assert_null(strstr(lines_of(&a, (closing_lines_options){0}), "times plain"));
  assert_non_null(strstr(lines_of(&a, (closing_lines_options){.gain = true}), "times plain"));
  a.stats.accepted = 60;
  const char *told = lines_of(&a, (closing_lines_options){.gain = true});
  assert_non_null(strstr(told, "acceptance length 2.46 (tokens for each step of the target)"));
  assert_non_null(strstr(told, "1.60 times plain decoding"));
  a.plain_us = 0;
  assert_non_null(strstr(lines_of(&a, (closing_lines_options){.gain = true}), "the gain is unknown"));
}

static void test_a_plain_answer_gains_nothing(void **state) {
  (void)state;
  completion a = drafted(0, 0, 0);
  a.plain_us = 10000;
  lines_of(&a, (closing_lines_options){.gain = true});
  assert_null(strstr(said, "times plain"));
  assert_null(strstr(said, "gain"));
  assert_null(strstr(said, "acceptance length"));
  a = drafted(10, 91, 60);
  a.draft_wanted = false;
  a.plain_us = 10000;
  assert_string_equal(lines_of(&a, (closing_lines_options){.gain = true}),
                      "tandem: 101 tokens, 200.0 tok/s; without a draft\n");
}

static void test_colours_have_a_legend(void **state) {
  (void)state;
  completion a = drafted(10, 91, 60);
  static const char legend[] = "green: guessed by the draft; cyan: chosen by the target alone";
  assert_null(strstr(lines_of(&a, (closing_lines_options){.gain = true}), legend));
  assert_non_null(strstr(lines_of(&a, (closing_lines_options){.legend = true}), legend));
}

static void test_many_answers_are_summed_up(void **state) {
  (void)state;
  request_queue q = {.completed = 3, .tokens = 600, .rounds = 10, .accepted = 30, .drafted = 90};
  static const struct {
    uint64_t busy_us;
    int64_t lost, lost_accepted;
    const char *line;
  } table[] = {
      {0, 0, 0, "tandem: 3 answers, 600 tokens; draft any: 10 rounds, 3.00 accepted a round (30 of 90)\n"},
      {4000000, 0, 0,
       "tandem: 3 answers, 600 tokens, 150.0 tok/s; draft any: 10 rounds, 3.00 accepted a round (30 of "
       "90)\n"},
      {4000000, 50, 20,
       "tandem: 3 answers, 600 tokens, 150.0 tok/s; draft any: 10 rounds, 3.00 accepted a round (30 of 90); "
       "50 "
       "tokens, 20 of them from the draft, are of targets that died and are not in these rounds\n"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    q.busy_us = table[i].busy_us, q.lost = table[i].lost, q.lost_accepted = table[i].lost_accepted;
    assert_string_equal(lines_of_queue(&q), table[i].line);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_the_draft_was_worth_is_said),
      cmocka_unit_test(test_why_it_was_decoded_plainly_is_said),
      cmocka_unit_test(test_why_it_is_no_longer_is_said),
      cmocka_unit_test(test_what_a_resumed_answer_has_more_is_said),
      cmocka_unit_test(test_a_drawn_seed_and_details_are_said),
      cmocka_unit_test(test_lines_end_before_their_108th_column),
      cmocka_unit_test(test_two_completions_are_compared),
      cmocka_unit_test(test_the_speeds_of_two_completions_are_told),
      cmocka_unit_test(test_a_plain_answer_gains_nothing),
      cmocka_unit_test(test_colours_have_a_legend),
      cmocka_unit_test(test_many_answers_are_summed_up),
      cmocka_unit_test(test_a_gain_is_told_as_it_was_measured),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
