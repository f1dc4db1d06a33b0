/* libs: grammar text base */
/* Grammars: which texts their rules take, which tokens of a vocabulary may come next, and that nothing a
 * grammar holds makes that long. */
#include "common/grammar/grammar_matcher.h"
#include "common/grammar/grammar_states.h"
#include "tests/support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

/* --- a vocabulary made by hand: every byte, then these, then the token that ends --- */

static const char *const words[] = {
    "{\"",      "\":",     "[1,", "],[", "true}", "tru",  "null", "12",       "\xc3\xa4\xc3", "\xbc!",
    "\xe2\x82", "\xacuro", "  ",  "ab",  "abc",   "abcd", "\"}",  "\",\"b\"", "bca",          "a}",
};
enum { BYTES = 256, WORDS = sizeof words / sizeof *words, MARK = BYTES + WORDS, STOP, TOKENS };
static const int32_t stops[] = {STOP};

static const char *piece(const void *context, int32_t id, size_t *size) {
  static char bytes[BYTES];
  (void)context;
  if (id >= MARK) { /* "<s>" as a mark is no text, whatever it is spelt like */
    *size = 0;
    return "a";
  }
  if (id >= BYTES) {
    *size = strlen(words[id - BYTES]);
    return words[id - BYTES];
  }
  bytes[id] = (char)id;
  *size = 1;
  return &bytes[id];
}

static grammar_vocabulary *vocabulary;

static int open_vocabulary(void **state) {
  err e;
  (void)state;
  return grammar_vocabulary_make(&vocabulary, TOKENS, piece, NULL, &e);
}

static int close_vocabulary(void **state) {
  (void)state;
  grammar_vocabulary_free(vocabulary);
  return 0;
}

static grammar_matcher *open_matcher(const char *text) {
  grammar *g;
  grammar_matcher *m;
  err e = {0};
  if (grammar_read(&g, text, strlen(text), &e)) fail_msg("%s: %s", text, e.text);
  if (grammar_matcher_open(&m, g, vocabulary, stops, 1, &e)) fail_msg("%s: %s", text, e.text);
  return m;
}

/* How many bytes of `text` the grammar takes; *ends: the answer may end behind them. */
static size_t taken(grammar_matcher *m, const char *text, size_t size, bool *ends) {
  int32_t ids[4096] = {0};
  size_t n = 0;
  assert_int_equal(grammar_matcher_move(m, ids, 0, NULL, 0), ERR_OK);
  for (; n < size && grammar_matcher_allows(m, (unsigned char)text[n]); n++) {
    ids[n] = (unsigned char)text[n];
    assert_int_equal(grammar_matcher_move(m, ids, (int32_t)n + 1, NULL, 0), ERR_OK);
  }
  *ends = grammar_matcher_allows(m, STOP);
  return n;
}

typedef enum { WHOLE, BEGINS, FAILS } outcome;

static outcome outcome_of(grammar_matcher *m, const char *text, size_t size) {
  bool ends;
  if (taken(m, text, size, &ends) < size) return FAILS;
  return ends ? WHOLE : BEGINS;
}

/* --- texts --- */

static const struct {
  const char *grammar, *text;
  outcome is;
} texts[] = {
    {"root ::= \"ab\" | \"abc\" | [x-z]", "ab", WHOLE},
    {"root ::= \"ab\" | \"abc\" | [x-z]", "abc", WHOLE},
    {"root ::= \"ab\" | \"abc\" | [x-z]", "abcd", FAILS},
    {"root ::= \"ab\" | \"abc\" | [x-z]", "a", BEGINS},
    {"root ::= \"ab\" | \"abc\" | [x-z]", "y", WHOLE},
    {"root ::= \"ab\" | \"abc\" | [x-z]", "w", FAILS},
    {"root ::= [^a-c\\n]+", "xyz", WHOLE},
    {"root ::= [^a-c\\n]+", "xb", FAILS},
    {"root ::= [^a-c\\n]+", "\xc3\xa4", WHOLE},
    {"root ::= [a-]", "-", WHOLE},
    {"root ::= [\\]\\-^]", "]", WHOLE},
    {"root ::= [\\]\\-^]", "^", WHOLE},
    {"root ::= \"\\x41\\u00e4\\U0001F600\\t\\\"\"", "A\xc3\xa4\xf0\x9f\x98\x80\t\"", WHOLE},
    {"root ::= . .", "\xe2\x82\xac\n", WHOLE},
    {"root ::= (\"a\" | \"b\")* \"c\"?", "", WHOLE},
    {"root ::= (\"a\" | \"b\")* \"c\"?", "abbac", WHOLE},
    {"root ::= (\"a\" | \"b\")* \"c\"?", "abbacc", FAILS},
    {"root ::= \"ab\"+", "", BEGINS},
    {"root ::= \"ab\"+", "ababab", WHOLE},
    {"root ::= \"ab\"+", "aba", BEGINS},
    {"root ::= [0-9]{2,3}", "1", BEGINS},
    {"root ::= [0-9]{2,3}", "12", WHOLE},
    {"root ::= [0-9]{2,3}", "123", WHOLE},
    {"root ::= [0-9]{2,3}", "1234", FAILS},
    {"root ::= \"ab\"{2}", "abab", WHOLE},
    {"root ::= \"ab\"{2}", "ab", BEGINS},
    {"root ::= \"a\"{0} \"b\"", "b", WHOLE},
    {"root ::= \"a\"{1,}", "aaaaaaaa", WHOLE},
    {"root ::= \"a\"{,2} \"b\"", "aaab", FAILS},
    {"root ::= (\"a\"*)* \"b\"", "aaab", WHOLE}, /* an empty repetition of an empty one */
    {"root ::= # a comment | \"x\"\n  \"a\" |\n  \"b\"\n  | \"c\" # another\n", "c", WHOLE},
    {"root ::= (\n\"a\"\n\"b\"\n)\n", "ab", WHOLE},
    {"root ::= s\ns ::= \"(\" s \")\" s | \"\"", "(()())()", WHOLE},
    {"root ::= s\ns ::= \"(\" s \")\" s | \"\"", "(()", BEGINS},
    {"root ::= s\ns ::= \"(\" s \")\" s | \"\"", "())", FAILS},
    {"root ::= list-of_1\nlist-of_1 ::= \"1\" (\",\" list-of_1)?", "1,1,1", WHOLE},
    {"root ::= \"a\" e e e \"b\"\ne ::= f f\nf ::= \"\" | \"x\"", "axxxxxxb", WHOLE},
    {"root ::= \"a\" e e e \"b\"\ne ::= f f\nf ::= \"\" | \"x\"", "axxxxxxxb", FAILS},
};

static void which_texts_a_grammar_takes(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    grammar_matcher *m = open_matcher(texts[i].grammar);
    if (outcome_of(m, texts[i].text, strlen(texts[i].text)) != texts[i].is)
      fail_msg("%s: \"%s\"", texts[i].grammar, texts[i].text);
    grammar_matcher_close(m);
  }
}

static const struct {
  const char *grammar, *says;
} wrong[] = {
    {"", "no rule root"},
    {"a ::= \"x\"", "no rule root"},
    {"root ::= b", "no rule b"},
    {"root ::= \"x", "line 1: a \" is not closed"},
    {"\n\nroot ::= [a", "line 3: a [ is not closed"},
    {"root ::= (\"a\"", "a ( is not closed"},
    {"root ::= \"a\" )", "expected a literal"},
    {"root = \"a\"", "expected ::="},
    {"root ::= \"a\"\nroot ::= \"b\"", "there already"},
    {"root ::= * \"a\"", "expected a literal"},
    {"root ::= \"a\"{3,2}", "m below n"},
    {"root ::= \"a\"{x}", "need numbers"},
    {"root ::= \"a\"{2001}", "above 2000"},
    {"root ::= \"a\"{1", "a { is not closed"},
    {"root ::= [z-a]", "ends before it begins"},
    {"root ::= \"\\q\"", "\\ is followed by"},
    {"root ::= \"\\x4\"", "hexadecimal"},
    {"root ::= \"\\U00110000\"", "no character"},
    {"root ::= \"\xff\"", "not UTF-8"},
    {"root ::= root \"a\" | \"b\"", "rule root calls itself"},
    {"root ::= a\na ::= \"\" b\nb ::= c* a \"x\"\nc ::= \"y\"", "calls itself"},
    {"root ::= ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((\"a\"", "in each other"},
};

static void what_is_no_grammar_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    grammar *g;
    err e = {0};
    int rc = grammar_read(&g, wrong[i].grammar, strlen(wrong[i].grammar), &e);
    if (rc == ERR_OK || !strstr(e.text, wrong[i].says))
      fail_msg("%s: %s, not '%s'", wrong[i].grammar, rc ? e.text : "is taken", wrong[i].says);
    assert_null(g);
  }
  grammar *g;
  err e = {0};
  assert_int_equal(grammar_read(&g, "root ::= \"a\0\"", 13, &e), ERR_FORMAT);
  char *large = malloc(GRAMMAR_TEXT_MAX + 1);
  memset(large, '\n', GRAMMAR_TEXT_MAX + 1);
  memcpy(large, "root ::= \"a\"", 12);
  assert_int_equal(grammar_read(&g, large, GRAMMAR_TEXT_MAX + 1, &e), ERR_LIMIT);
  assert_int_equal(grammar_read(&g, large, GRAMMAR_TEXT_MAX, &e), ERR_OK);
  grammar_free(g);
  for (int32_t i = 0; i < 40; i++) memcpy(large + 8 + i * 12, " [ab]{2000} ", 12);
  assert_int_equal(grammar_read(&g, large, 8 + 40 * 12, &e), ERR_LIMIT);
  assert_non_null(strstr(e.text, "too many elements"));
  for (int32_t i = 0; i < 40; i++) memcpy(large + 8 + i * 12, " [a]{0,2000}", 12);
  assert_int_equal(grammar_read(&g, large, 8 + 40 * 12, &e), ERR_LIMIT);
  assert_non_null(strstr(e.text, "too many rules"));
  free(large);
}

/* --- UTF-8 --- */

static void characters_come_in_pieces(void **state) {
  (void)state;
  grammar_matcher *m = open_matcher("root ::= [\xc3\xa4-\xc3\xbc]{2} \"!\" | \"\xe2\x82\xacuro\"");
  const int32_t umlauts[] = {BYTES + 8, BYTES + 9}, euro[] = {BYTES + 10, BYTES + 11};
  assert_int_equal(grammar_matcher_move(m, umlauts, 0, NULL, 0), ERR_OK);
  assert_true(grammar_matcher_allows(m, BYTES + 8));  /* ä and the lead of a second character */
  assert_false(grammar_matcher_allows(m, BYTES + 9)); /* begins within a character */
  assert_true(grammar_matcher_allows(m, BYTES + 10));
  assert_true(grammar_matcher_allows(m, 0xc3));
  assert_false(grammar_matcher_allows(m, 0xc4)); /* no character of the class begins so */
  assert_int_equal(grammar_matcher_move(m, umlauts, 1, NULL, 0), ERR_OK);
  assert_true(grammar_matcher_allows(m, BYTES + 9));
  assert_true(grammar_matcher_allows(m, 0xa4));
  assert_false(grammar_matcher_allows(m, 0xa3)); /* before the range, */
  assert_false(grammar_matcher_allows(m, 0xbd)); /* and behind it */
  assert_false(grammar_matcher_allows(m, STOP)); /* in the middle of a character */
  assert_int_equal(grammar_matcher_move(m, umlauts, 2, NULL, 0), ERR_OK);
  assert_true(grammar_matcher_allows(m, STOP));
  assert_int_equal(grammar_matcher_move(m, euro, 1, NULL, 0), ERR_OK);
  assert_true(grammar_matcher_allows(m, BYTES + 11));
  assert_int_equal(grammar_matcher_move(m, euro, 1, euro + 1, 1), ERR_OK);
  assert_true(grammar_matcher_allows(m, STOP));
  grammar_matcher_close(m);
}

static void bytes_that_are_no_utf8_are_never_allowed(void **state) {
  static const char *const bad[] = {
      "\xff",         "\x80",     "\xc0\x80", "\xc1\xbf",         "\xe0\x9f\xbf",
      "\xed\xa0\x80", "\xc3\x28", "\xf0\x8f", "\xf4\x90\x80\x80", "\xf5"};
  static const char *const good[] = {"\xc2\x80",     "\xe0\xa0\x80",     "\xed\x9f\xbf",    "\xee\x80\x80",
                                     "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
  (void)state;
  grammar_matcher *m = open_matcher("root ::= .");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (outcome_of(m, bad[i], strlen(bad[i])) != FAILS) fail_msg("bad %zu", i);
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    if (outcome_of(m, good[i], strlen(good[i])) != WHOLE) fail_msg("good %zu", i);
  grammar_matcher_close(m);
}

/* --- tokens --- */

static bool has_bit(const uint32_t *mask, int32_t token) {
  return mask[token / 32] >> token % 32 & 1;
}

/* The mask says of every token what walking its bytes says. */
static void check_mask(grammar_matcher *m, const int32_t *ids, int32_t count) {
  bool allowed[TOKENS];
  assert_int_equal(grammar_matcher_move(m, ids, count, NULL, 0), ERR_OK);
  for (int32_t i = 0; i < TOKENS; i++) allowed[i] = grammar_matcher_allows(m, i);
  const uint32_t *mask = grammar_matcher_mask(m);
  assert_non_null(mask);
  for (int32_t i = 0; i < TOKENS; i++)
    if (has_bit(mask, i) != allowed[i]) fail_msg("token %d after %d", i, count);
}

static const char json_like[] = "root ::= object\n"
                                "object ::= \"{\" \"\\\"\" [a-d]+ \"\\\":\" value (\",\" pair)* \"}\"\n"
                                "pair ::= \"\\\"\" [a-d]+ \"\\\":\" value\n"
                                "value ::= object | [0-9]+ | \"true\" | \"null\" | list\n"
                                "list ::= \"[\" (value (\",\" value)*)? \"]\"\n";

static void tokens_span_elements(void **state) {
  (void)state;
  grammar_matcher *m = open_matcher(json_like);
  /* {" abcd ": [1, 12 ],[ ... : the lists of the last two tokens do not fit, since a list's items are values
   */
  const int32_t ids[] = {BYTES + 0, BYTES + 15, BYTES + 1, '[', BYTES + 2, BYTES + 7, ']', BYTES + 5};
  for (int32_t i = 0; i <= 8; i++) check_mask(m, ids, i);
  assert_int_equal(grammar_matcher_move(m, ids, 3, NULL, 0), ERR_OK);
  assert_true(grammar_matcher_allows(m, BYTES + 4)); /* true} ends value and object at once */
  assert_true(grammar_matcher_allows(m, BYTES + 5)); /* tru stops within a literal */
  assert_false(grammar_matcher_allows(m, BYTES + 12));
  assert_false(grammar_matcher_allows(m, MARK));
  assert_false(grammar_matcher_allows(m, STOP));
  assert_false(grammar_matcher_allows(m, TOKENS));
  assert_false(grammar_matcher_allows(m, -1));
  const int32_t end[] = {BYTES + 4};
  assert_int_equal(grammar_matcher_move(m, ids, 3, end, 1), ERR_OK);
  for (int32_t i = 0; i < TOKENS; i++) assert_int_equal(grammar_matcher_allows(m, i), i == STOP);
  grammar_matcher_close(m);
}

/* Any order of calls gives the same masks as a matcher that was asked nothing before. */
static void a_state_follows_from_the_answer_alone(void **state) {
  (void)state;
  grammar_matcher *m = open_matcher(json_like);
  const int32_t one[] = {BYTES + 0, 'a', BYTES + 1, BYTES + 7, ',', '"', 'b'},
                two[] = {BYTES + 0, BYTES + 13, BYTES + 1, '[', '[', BYTES + 2};
  static const uint8_t order[][3] = {/* which, answer, path */
                                     {0, 7, 0}, {1, 2, 4}, {1, 2, 3}, {0, 2, 2}, {0, 2, 3}, {1, 6, 0},
                                     {0, 0, 0}, {0, 7, 0}, {0, 3, 1}, {0, 1, 3}, {1, 1, 5}, {1, 4, 0}};
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    const int32_t *ids = order[i][0] ? two : one;
    grammar_matcher *fresh = open_matcher(json_like);
    assert_int_equal(grammar_matcher_move(fresh, ids, order[i][1] + order[i][2], NULL, 0), ERR_OK);
    assert_int_equal(grammar_matcher_move(m, ids, order[i][1], ids + order[i][1], order[i][2]), ERR_OK);
    const uint32_t *a = grammar_matcher_mask(m), *b = grammar_matcher_mask(fresh);
    assert_memory_equal(a, b, (TOKENS + 31) / 32 * sizeof *a);
    grammar_matcher_close(fresh);
  }
  grammar_matcher_close(m);
}

/* --- choices --- */

static void the_best_allowed_token_is_chosen(void **state) {
  static const sampler_options options[] = {
      {.top_p = 1, .repeat_penalty = 1},
      {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5},
      {.temperature = 1.5f, .top_k = 3, .top_p = 0.9f, .repeat_penalty = 1, .seed = 6},
      {.temperature = 1.5f, .top_p = 1, .min_p = 0.2f, .repeat_penalty = 1, .seed = 7},
  };
  (void)state;
  sampler *s;
  float logits[TOKENS];
  assert_int_equal(sampler_alloc(&s, TOKENS), ERR_OK);
  grammar_matcher *m = open_matcher(json_like);
  uint64_t random = 1;
  for (int32_t round = 0; round < 400; round++) {
    const sampler_options *o = &options[round % 4];
    const int32_t ids[] = {BYTES + 0, 'a', BYTES + 1};
    for (int32_t i = 0; i < TOKENS; i++) logits[i] = (float)random_below(&random, 256) / 25;
    assert_int_equal(grammar_matcher_move(m, ids, round % 3 + 1, NULL, 0), ERR_OK);
    const sampler_row none = {0}, masked = {.mask = grammar_matcher_mask(m)};
    int32_t want = sampler_pick(s, o, &masked, logits, round);
    assert_int_equal(grammar_matcher_pick(m, s, o, &none, logits, round), want);
    assert_true(grammar_matcher_allows(m, want));
  }
  sampler_free(s);
  grammar_matcher_close(m);
}

static void where_nothing_can_follow_nothing_is_chosen(void **state) {
  (void)state;
  sampler *s;
  const sampler_row none = {0};
  const sampler_options o = SAMPLER_DEFAULTS;
  float logits[TOKENS] = {0};
  const int32_t ids[] = {'a', 'b', STOP};
  assert_int_equal(sampler_alloc(&s, TOKENS), ERR_OK);
  grammar_matcher *m = open_matcher("root ::= \"ab\"");
  assert_int_equal(grammar_matcher_move(m, ids, 2, NULL, 0), ERR_OK);
  assert_int_equal(grammar_matcher_pick(m, s, &o, &none, logits, 2), STOP);
  assert_int_equal(grammar_matcher_move(m, ids, 3, NULL, 0), ERR_OK);
  assert_int_equal(grammar_matcher_pick(m, s, &o, &none, logits, 3), -1); /* nothing follows the end, */
  assert_int_equal(grammar_matcher_move(m, ids + 1, 1, NULL, 0), ERR_OK);
  assert_int_equal(grammar_matcher_pick(m, s, &o, &none, logits, 1),
                   -1); /* nor what the grammar never took */
  sampler_free(s);
  grammar_matcher_close(m);
}

static void a_grammar_needs_a_token_that_ends(void **state) {
  (void)state;
  grammar *g;
  grammar_matcher *m;
  err e = {0};
  assert_int_equal(grammar_read(&g, "root ::= \"a\"", 12, &e), ERR_OK);
  assert_int_equal(grammar_matcher_open(&m, g, vocabulary, stops, 0, &e), ERR_ARG);
  assert_null(m);
}

/* --- bounds --- */

/* After n letters there are 2^n ways to go on: soon more than a state has, and such a text is not allowed. */
static void ambiguity_is_bounded(void **state) {
  (void)state;
  grammar_matcher *m = open_matcher("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"");
  char text[64];
  bool ends;
  memset(text, 'a', sizeof text);
  size_t n = taken(m, text, sizeof text, &ends);
  assert_in_range(n, 8, 12);
  assert_non_null(grammar_matcher_mask(m));
  text[n - 1] = 'd'; /* a text that stays within the bound can still end */
  memset(text + n, 'b', n - 1);
  assert_int_equal(outcome_of(m, text, 2 * n - 1), WHOLE);
  grammar_matcher_close(m);
}

static void depth_is_bounded(void **state) {
  (void)state;
  grammar_matcher *m = open_matcher("root ::= \"[\" root \"]\" | \"x\"");
  char text[2 * GRAMMAR_STATES_DEPTH_MAX + 8];
  bool ends;
  memset(text, '[', sizeof text);
  size_t n = taken(m, text, sizeof text, &ends);
  assert_in_range(n, GRAMMAR_STATES_DEPTH_MAX / 2, GRAMMAR_STATES_DEPTH_MAX);
  const uint32_t *mask = grammar_matcher_mask(m);
  assert_true(has_bit(mask, 'x'));  /* it can still be ended, */
  assert_false(has_bit(mask, '[')); /* but not go deeper */
  grammar_matcher_close(m);
}

/* Every character makes a new state, more of them than the tables hold: what they forget changes nothing. */
static void full_tables_change_nothing(void **state) {
  static const char text[] = "root ::= ([a-d]{2000}){3} \"!\"";
  (void)state;
  grammar_matcher *m = open_matcher(text), *other = open_matcher(text);
  int32_t ids[5000];
  for (int32_t i = 0; i < 5000; i++) ids[i] = "abcd"[i * 7 % 11 % 4];
  for (int32_t i = 0; i <= 5000; i += 250) {
    assert_int_equal(grammar_matcher_move(m, ids, i, NULL, 0), ERR_OK);
    if (i % 1000 != 750) continue;
    assert_int_equal(grammar_matcher_move(other, ids, 0, NULL, 0), ERR_OK); /* all again */
    assert_int_equal(grammar_matcher_move(other, ids, i, NULL, 0), ERR_OK);
    const uint32_t *a = grammar_matcher_mask(m), *b = grammar_matcher_mask(other);
    assert_non_null(a);
    assert_non_null(b);
    assert_memory_equal(a, b, (TOKENS + 31) / 32 * sizeof *a);
    assert_true(has_bit(a, 'a'));
  }
  grammar_matcher_close(m);
  grammar_matcher_close(other);
}

/* The work that a step counts does not depend on what is known already. */
static void work_is_a_function_of_the_state(void **state) {
  (void)state;
  grammar *g;
  grammar_states *s;
  err e = {0};
  bool failed;
  assert_int_equal(grammar_read(&g, json_like, strlen(json_like), &e), ERR_OK);
  assert_int_equal(grammar_states_open(&s, g), ERR_OK);
  int32_t at = grammar_states_begin(s), first[2], again, count;
  for (const char *p = "{\"ab\":["; *p; p++) at = grammar_states_step(s, at, (uint8_t)*p, &again);
  int32_t to = grammar_states_step(s, at, '[', &first[0]);
  assert_true(to > GRAMMAR_STATES_DEAD && first[0] > 0);
  assert_int_equal(grammar_states_step(s, at, '[', &again), to);
  assert_int_equal(again, first[0]);
  count = grammar_states_count(s);
  at = grammar_states_clear(s, at, &failed);
  assert_false(failed);
  assert_true(at > GRAMMAR_STATES_DEAD && grammar_states_count(s) < count);
  assert_true(grammar_states_step(s, at, '[', &first[1]) > GRAMMAR_STATES_DEAD);
  assert_int_equal(first[1], first[0]);
  grammar_states_close(s);
  grammar_free(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(which_texts_a_grammar_takes),
      cmocka_unit_test(what_is_no_grammar_is_named),
      cmocka_unit_test(characters_come_in_pieces),
      cmocka_unit_test(bytes_that_are_no_utf8_are_never_allowed),
      cmocka_unit_test(tokens_span_elements),
      cmocka_unit_test(a_state_follows_from_the_answer_alone),
      cmocka_unit_test(the_best_allowed_token_is_chosen),
      cmocka_unit_test(where_nothing_can_follow_nothing_is_chosen),
      cmocka_unit_test(a_grammar_needs_a_token_that_ends),
      cmocka_unit_test(ambiguity_is_bounded),
      cmocka_unit_test(depth_is_bounded),
      cmocka_unit_test(full_tables_change_nothing),
      cmocka_unit_test(work_is_a_function_of_the_state),
  };
  return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
