/* libs: service wire speculative text file base */
/* An answer over the real sessions and the ledger in memory; this file is the target. */
#include "orchestrator/service/completion.h"

#include "common/base/utf8.h"
#include "tests/support/fake_service.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random.h"

#include <jansson.h>

enum { B = GB_SPECIAL_COUNT, M = GB_SPECIAL_COUNT + 256, HELLO = M + 3, AA = M + 5, AB = M + 7 };
enum { MARK = 3, END = 2, PROMPT = B + 'p' }; /* MARK: a control token, without text; END: ends an answer */
enum { IDS_MAX = 24, TEXT_MAX = 256 };

/* ---- the model: a small vocabulary ---- */

static text_model model, ids_only;

static int open_model(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gguf *g;
  gb_vocabulary(&b, 0);
  gb_end(&b);
  assert_int_equal(gguf_open_memory(&g, b.bytes, b.size, NULL), ERR_OK);
  assert_int_equal(tokenizer_open(&model.tokens, g, NULL), ERR_OK);
  gguf_close(g);
  gb_free(&b);
  model.config.vocab = ids_only.config.vocab = tokenizer_size(model.tokens) + 1; /* the last row is padding */
  model.stops[model.stop_count++] = END;
  return 0;
}

static int close_model(void **state) {
  (void)state;
  tokenizer_close(model.tokens);
  return 0;
}

/* ---- one answer ---- */

typedef struct asked {
  int32_t ids[IDS_MAX], count; /* what the target says, one after the other */
  const char *stops[DETOKENIZER_STOP_MAX];
  int32_t stop_count;
} asked;

typedef struct wanted {
  char text[TEXT_MAX];
  size_t size;
  int32_t keep;  /* tokens of the answer */
  int32_t heard; /* of those that the target says, until a stop string is whole; else all */
  bool stopped;
} wanted;

typedef struct run {
  service p;
  opened o;
  completion a;
  request q;
  ledger_session before; /* where it is resumed */
  int32_t before_tokens[IDS_MAX + 1];
  char shown[TEXT_MAX];    /* [size]: what the sink got */
  char accepted[TEXT_MAX]; /* [size]: d or t: from the draft or from the target */
  size_t size;
  int ends; /* calls of on_end */
} run;

static void on_text(void *context, const char *text, size_t size, bool accepted) {
  run *r = context;
  assert_true(size > 0 && r->ends == 0);
  assert_int_equal(utf8_valid(text, size), size);
  assert_true(r->size + size <= sizeof r->shown);
  memcpy(r->shown + r->size, text, size);
  memset(r->accepted + r->size, accepted ? 'd' : 't', size);
  r->size += size;
}

static void on_end(void *context, const completion *c) {
  run *r = context;
  assert_ptr_equal(c, &r->a);
  assert_true(completion_is_over(c));
  r->ends++;
}

static void init(run *r, const text_model *m, int32_t max_tokens) {
  const completion_sink sink = {.on_text = on_text, .on_end = on_end, .context = r};
  static const int32_t prompt[] = {PROMPT};
  memset(r, 0, sizeof *r);
  fake_service_begin(&r->p);
  request_init(&r->q);
  r->q.max_tokens = max_tokens;
  r->q.context = CONTEXT;
  r->q.speculate = false;
  assert_int_equal(request_set_ids(&r->q, prompt, 1, NULL), ERR_OK);
  completion_init(&r->a, m, &sink);
}

/* The answer's first `logged` tokens are in the ledger already. `whole`: show them too, which another target
 * has made. */
static void begin_in_state(run *r, const text_model *m, const asked *q, int32_t logged, bool whole,
                           ledger_state state) {
  err e = {0};
  init(r, m, IDS_MAX);
  for (int32_t i = 0; i < q->stop_count; i++)
    assert_int_equal(request_add_stop(&r->q, "stop", q->stops[i], strlen(q->stops[i]), NULL), ERR_OK);
  if (logged >= 0) {
    r->before_tokens[0] = PROMPT;
    memcpy(r->before_tokens + 1, q->ids, (size_t)logged * sizeof *q->ids);
    r->before = (ledger_session){.id = 7,
                                 .epoch = 41,
                                 .state = state,
                                 .tokens = r->before_tokens,
                                 .length = 1 + logged,
                                 .prompt_length = 1};
    r->before.options = (msg_options){.top_p = 1,
                                      .repeat_penalty = 1,
                                      .frequency_penalty = 1,
                                      .max_tokens = IDS_MAX,
                                      .context = CONTEXT,
                                      .bias_count = 1,
                                      .bias_tokens = r->before.bias.tokens,
                                      .bias_values = r->before.bias.values};
    r->before.bias = (msg_bias){.tokens = {5}, .values = {2}};
    r->a.resume = &r->before;
    r->a.show_whole = whole;
    r->before.numerics = whole ? (char *)"another" : NULL;
  }
  if (completion_begin(&r->a, &r->p, &r->q, &e)) fail_msg("%s", e.text);
  const msg_options *o = &rig_last(&r->p.r, TARGET, MSG_OPEN)->u.open.options;
  assert_true(o->frequency_penalty == (logged >= 0) && o->bias_count == (logged >= 0));
  if (logged >= 0) assert_true(o->bias_tokens[0] == 5 && o->bias_values[0] == 2);
  r->o = fake_service_open_session(&r->p);
}

static void begin_resumed(run *r, const text_model *m, const asked *q, int32_t logged, bool whole) {
  begin_in_state(r, m, q, logged, whole, LEDGER_INTERRUPTED);
}

static void begin_ended(run *r, const text_model *m, const asked *q, int32_t logged) {
  begin_in_state(r, m, q, logged, false, LEDGER_ENDED);
}

static void begin(run *r, const text_model *m, const asked *q, int32_t logged) {
  begin_resumed(r, m, q, logged, true);
}

static void finish(run *r) {
  completion_fini(&r->a);
  request_fini(&r->q);
  fake_service_end(&r->p);
}

static hash16 hash_after(const run *r, const asked *q, int32_t count) {
  int32_t all[IDS_MAX + 1] = {PROMPT};
  memcpy(all + 1, q->ids, (size_t)count * sizeof *q->ids);
  return hash_of(r->o.seed, all, count + 1);
}

static void say(run *r, const asked *q, int32_t from, int32_t count) {
  rig_say(&r->p.r, TARGET,
          tokens_message(SELF, r->o.session, r->o.epoch, from + 1, q->ids + from, count,
                         hash_after(r, q, from + count)));
}

static void done_as(run *r, const asked *q, wire_finish finish) {
  msg m = message(MSG_DONE, SELF, r->o.session, r->o.epoch);
  m.u.done = (msg_done){.length = q->count + 1, .hash = hash_after(r, q, q->count), .finish = finish};
  m.u.done.stats = (msg_stats){.forwards = 3, .rounds = 2, .rows = 8, .accepted = 5};
  rig_say(&r->p.r, TARGET, m);
}

static void done(run *r, const asked *q) {
  done_as(r, q, WIRE_FINISH_LENGTH);
}

static ledger_entry kept(const run *r) {
  ledger_entry entry;
  assert_true(r->p.memory.read(r->p.memory.self, r->o.session, &entry));
  return entry;
}

/* Whole characters, only what has been written, and only the answer's own text. */
static void look(run *r, const wanted *w, const size_t *text_after) {
  int32_t in_file = slow_durable(r->p.memory.self, r->o.session) - 1;
  completion_update(&r->a, &r->p);
  assert_true(r->size <= w->size);
  assert_memory_equal(r->shown, w->text, r->size);
  if (r->a.finish)
    assert_int_equal(in_file, kept(r).length - 1); /* it ends when all of it is written */
  else
    assert_true(r->size <= text_after[in_file]);
}

/* ---- what must come out, by looking at the whole text ---- */

static bool begins_character(char c) {
  return ((unsigned char)c & 0xc0) != 0x80;
}

/* text_after[i]: bytes of the text after i tokens. */
static wanted expect(const asked *q, size_t text_after[IDS_MAX + 1]) {
  wanted w = {.keep = q->count, .heard = q->count};
  size_t start[IDS_MAX], size;
  for (int32_t i = 0; i < q->count; i++) {
    const char *piece = tokenizer_piece(model.tokens, q->ids[i], &size);
    bool special = tokenizer_is_special(model.tokens, q->ids[i]);
    text_after[i] = start[i] = w.size;
    if (!special) memcpy(w.text + w.size, piece, size), w.size += size;
    while (!special && start[i] > 0 && !begins_character(w.text[start[i]])) start[i]--;
  }
  text_after[q->count] = w.size;
  for (size_t end = 1; end <= w.size && !w.stopped; end++)
    for (int32_t k = 0; k < q->stop_count; k++) {
      size_t n = strlen(q->stops[k]);
      if (n > end || memcmp(w.text + end - n, q->stops[k], n) != 0) continue;
      if (w.stopped && end - n >= w.size) continue; /* the longer one counts */
      for (w.heard = 0; text_after[w.heard] < end;) w.heard++;
      w.stopped = true;
      w.size = end - n;
    }
  for (w.keep = 0; w.keep < w.heard && (!w.stopped || start[w.keep] < w.size);) w.keep++;
  return w;
}

static void check_end(run *r, const asked *q, const wanted *w) {
  ledger_entry entry = kept(r);
  assert_int_equal(r->a.finish, w->stopped ? WIRE_FINISH_STOP : WIRE_FINISH_LENGTH);
  assert_int_equal(r->a.count, w->keep);
  if (w->keep) assert_memory_equal(r->a.tokens, q->ids, (size_t)w->keep * sizeof *q->ids);
  assert_int_equal(r->size, w->size);
  assert_true(entry.ended);
  assert_int_equal(entry.length, 1 + w->keep); /* the ledger holds the answer, and nothing else */
  if (w->keep) assert_memory_equal(entry.tokens + 1, q->ids, (size_t)w->keep * sizeof *q->ids);
}

/* From `logged` on (-1: a new answer) in bursts, each of which the ledger may be slow to write. */
static void play(const asked *q, int32_t logged, int32_t burst, uint64_t *random) {
  size_t text_after[IDS_MAX + 1];
  wanted w = expect(q, text_after);
  if (logged > w.heard - w.stopped) return; /* what completes a stop string is never logged */
  run r;
  begin(&r, &model, q, logged);
  look(&r, &w, text_after);
  for (int32_t at = logged > 0 ? logged : 0, count; at < w.heard; at += count) {
    count = burst ? burst : 1 + (int32_t)random_below(random, (uint32_t)IDS_MAX);
    if (count > q->count - at) count = q->count - at;
    say(&r, q, at, count);
    for (unwritten = (int32_t)random_below(random, 4); unwritten >= 0; unwritten--) look(&r, &w, text_after);
    unwritten = 0;
  }
  if (!w.stopped) done(&r, q);
  look(&r, &w, text_after);
  check_end(&r, q, &w);
  finish(&r);
}

/* The text of an answer's first tokens that may be shown when they are there. */
static size_t text_of(const asked *q, int32_t count) {
  detokenizer *d;
  detokenizer_out out;
  size_t size = 0;
  assert_int_equal(detokenizer_alloc(&d, model.tokens, q->stops, q->stop_count, true, true, NULL), ERR_OK);
  for (int32_t i = 0; i < count; i++) {
    assert_int_equal(detokenizer_feed(d, q->ids[i], &out), ERR_OK);
    size += out.size;
  }
  detokenizer_free(d);
  return size;
}

/* ---- answers ---- */

static const int32_t units[][3] = {{B + 'a'},
                                   {B + 'b'},
                                   {AA},
                                   {AB},
                                   {HELLO},
                                   {B + 'l'},
                                   {MARK},
                                   {B + 0xc3, B + 0xa9},
                                   {B + 0xe2, B + 0x82, B + 0xac}};
enum { UNITS = sizeof units / sizeof *units };

/* A text of few letters, so that stop strings are found everywhere: within a token, over three of them,
 * overlapping. */
static void make(asked *q, uint64_t *random, char stops[2][16]) {
  static const char *const letters[] = {"a", "b", "l", "h", "lo", "e", "\xc3\xa9", "\xe2\x82\xac"};
  int32_t wanted_count = 1 + (int32_t)random_below(random, (uint32_t)(IDS_MAX - 4));
  *q = (asked){.stop_count = (int32_t)random_below(random, 3)};
  while (q->count < wanted_count) {
    const int32_t *unit = units[random_below(random, UNITS)];
    for (int i = 0; i < 3 && unit[i]; i++) q->ids[q->count++] = unit[i];
  }
  for (int32_t k = 0; k < q->stop_count; k++) {
    int size = 1 + (int)(random_below(random, 4));
    stops[k][0] = 0;
    while (size-- > 0) strcat(stops[k], letters[random_below(random, 8)]);
    q->stops[k] = stops[k];
  }
}

static void test_bursts_of_every_size_give_the_same_text(void **state) {
  (void)state;
  int32_t stopped = 0, cut_back = 0;
  for (uint64_t seed = 1; seed <= 500; seed++) {
    uint64_t random = seed;
    char stops[2][16];
    size_t text_after[IDS_MAX + 1];
    asked q;
    make(&q, &random, stops);
    wanted w = expect(&q, text_after);
    stopped += w.stopped;
    cut_back += w.stopped && w.keep < w.heard - 1; /* an earlier token than the last falls with it */
    for (int32_t burst = 0; burst <= q.count; burst++) play(&q, -1, burst, &random);
    for (int32_t logged = 0; logged < w.heard; logged++) play(&q, logged, (int32_t)(seed % 4), &random);
  }
  print_message("%d answers stopped, %d cut back\n", (int)stopped, (int)cut_back);
  assert_true(stopped > 40 && cut_back > 10);
}

/* The stop string begins in a token that is logged, and acknowledged, before the rest of it comes. */
static void test_a_stop_takes_back_what_was_logged(void **state) {
  (void)state;
  uint64_t random = 1;
  const asked cases[] = {{{B + 'x', B + 'a', B + 'b', B + 'y'}, 4, {"ab"}, 1},
                         {{B + 'a', B + 'b', B + 'y'}, 3, {"ab"}, 1}, /* nothing is left */
                         {{HELLO, HELLO, B + 'x', B + 'y'}, 4, {"hellohellox"}, 1},
                         {{B + 'x', B + 'h', MARK, HELLO}, 4, {"hhell"}, 1},
                         {{B + 'x', B + 0xc3, B + 0xa9, B + 'y'}, 4, {"\xc3\xa9y"}, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int32_t burst = 1; burst <= 4; burst++)
      for (int32_t logged = -1; logged < 3; logged++) play(&cases[i], logged, burst, &random);
}

/* One that is resumed shows the rest, from where the text had come to, or all of it. */
static void test_a_resumed_one_shows_the_rest_or_the_whole(void **state) {
  (void)state;
  const asked q = {{B + 'x', B + 0xc3, B + 0xa9, B + 'a', HELLO, B + 'b', B + 'z'}, 7, {"helloq"}, 1};
  size_t text_after[IDS_MAX + 1];
  wanted w = expect(&q, text_after);
  for (int32_t logged = 0; logged < q.count; logged++)
    for (int whole = 0; whole < 2; whole++) {
      const char *rest = w.text + (whole ? 0 : text_of(&q, logged));
      run r;
      begin_resumed(&r, &model, &q, logged, whole);
      say(&r, &q, logged, q.count - logged);
      done(&r, &q);
      completion_update(&r.a, &r.p);
      assert_int_equal(r.size, w.size - (size_t)(rest - w.text));
      assert_memory_equal(r.shown, rest, r.size);
      assert_int_equal(r.a.count, q.count); /* the ids are the whole answer's */
      finish(&r);
    }
}

/* One that had ended has shown what was held back, but half a character: none of it comes again. */
static void test_what_an_end_has_shown_is_not_shown_again(void **state) {
  (void)state;
  const asked q = {{B + 'x', B + 0xc3, B + 0xa9, B + 'a', HELLO, B + 'b', B + 'z'}, 7, {"helloq"}, 1};
  static const size_t shown[] = {0, 1, 1, 3, 4, 9, 10}; /* after two tokens there is half a letter */
  size_t text_after[IDS_MAX + 1];
  wanted w = expect(&q, text_after);
  for (int32_t logged = 0; logged < q.count; logged++) {
    run r;
    begin_ended(&r, &model, &q, logged);
    say(&r, &q, logged, q.count - logged);
    done(&r, &q);
    completion_update(&r.a, &r.p);
    assert_int_equal(r.size, w.size - shown[logged]);
    assert_memory_equal(r.shown, w.text + shown[logged], r.size);
    finish(&r);
  }
}

/* Wherever an answer is cut, what both runs have shown is the answer. */
static void test_half_a_letter_is_shown_with_the_rest(void **state) {
  (void)state;
  const asked q = {{B + 'x', B + 0xf0, B + 0x9f, B + 0x98, B + 0x80, HELLO, B + 'b'}, 7, {"helloq"}, 1};
  size_t text_after[IDS_MAX + 1];
  wanted w = expect(&q, text_after);
  for (int32_t count = 0; count < q.count; count++) {
    asked cut = q;
    run first, rest;
    cut.count = count;
    begin(&first, &model, &cut, -1);
    if (count) say(&first, &cut, 0, count);
    done(&first, &cut);
    completion_update(&first.a, &first.p);
    assert_int_equal(first.size, first.a.text_size);
    finish(&first);
    begin_ended(&rest, &model, &q, count);
    say(&rest, &q, count, q.count - count);
    done(&rest, &q);
    completion_update(&rest.a, &rest.p);
    assert_int_equal(first.size + rest.size, w.size);
    assert_memory_equal(first.shown, w.text, first.size);
    assert_memory_equal(rest.shown, w.text + first.size, rest.size);
    finish(&rest);
  }
}

/* Nothing follows a stop: what came of the letter is U+FFFD. */
static void test_half_a_letter_at_a_stop_is_shown_as_such(void **state) {
  (void)state;
  const asked q = {.ids = {B + 'x', B + 0xf0, B + 0x9f, END}, .count = 4};
  run r;
  begin(&r, &model, &q, -1);
  say(&r, &q, 0, q.count);
  done_as(&r, &q, WIRE_FINISH_STOP);
  completion_update(&r.a, &r.p);
  assert_int_equal(r.size, 4);
  assert_memory_equal(r.shown, "x\xef\xbf\xbd", 4);
  finish(&r);
}

static void check_about(const char *text, const char *draft, bool raw_with_layers) {
  json_t *about = json_loads(text, 0, NULL), *stops = json_object_get(about, "stop");
  assert_string_equal(json_string_value(json_object_get(about, "draft")), draft);
  assert_string_equal(json_string_value(json_object_get(about, "math")), "f32");
  assert_int_equal(json_is_true(json_object_get(about, "raw")), raw_with_layers);
  assert_int_equal(json_integer_value(json_object_get(about, "draft_layers")), raw_with_layers ? 4 : 0);
  assert_null(json_object_get(about, "title"));
  assert_int_equal(json_array_size(stops), 2);
  assert_string_equal(json_string_value(json_array_get(stops, 0)), "one");
  assert_string_equal(json_string_value(json_array_get(stops, 1)), "two");
  json_decref(about);
}

/* What is asked of the target, and what the ledger gets to know for the case that it goes on later. */
static void test_what_the_target_is_asked_and_the_ledger_is_told(void **state) {
  (void)state;
  static const struct {
    const char *draft;
    int32_t max_tokens, budget, want_tokens, want_budget;
    bool lockstep;
  } table[] = {{"none", 10, 8, 10, 0, true},
               {"ngram", 10, 8, 10, 8, true},
               {"ngram", CONTEXT - 1, 8, CONTEXT - 1, 8, false},
               {"ngram", CONTEXT, 8, CONTEXT - 1, 8, false},
               {"ngram", 10, 0, 10, 0, true}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    run r;
    err e = {0};
    init(&r, &model, table[i].max_tokens);
    r.p.workers = (flag_values){.draft = table[i].draft, .math = 0 /* f32 */, .draft_layers = i == 1 ? 4 : 0};
    r.q.speculate = strcmp(table[i].draft, "none") != 0;
    r.q.budget = table[i].budget;
    r.q.lockstep = r.q.single_token = true;
    r.q.selfcheck = 3;
    r.q.raw = i == 1;
    r.q.sampling.seed = 123;
    r.q.sampling.temperature = 0.5f;
    r.q.sampling.presence_penalty = 0.25f;
    request_add_bias(&r.q, 5, -7, NULL);
    request_add_stop(&r.q, "stop", "one", 3, NULL);
    request_add_stop(&r.q, "stop", "two", 3, NULL);
    assert_int_equal(completion_begin(&r.a, &r.p, &r.q, &e), ERR_OK);
    const msg_options *o = &rig_last(&r.p.r, TARGET, MSG_OPEN)->u.open.options;
    assert_int_equal(o->max_tokens, table[i].want_tokens);
    assert_int_equal(o->budget, table[i].want_budget);
    assert_int_equal(o->lockstep, table[i].want_budget > 0);
    assert_true(o->single && o->selfcheck == 3 && o->context == CONTEXT && o->seed == 123 &&
                o->temperature == 0.5f);
    assert_true(o->stop_count == 1 && o->stops[0] == END);
    assert_true(o->presence_penalty == 0.25f && o->bias_count == 1);
    assert_true(o->bias_tokens[0] == 5 && o->bias_values[0] == -7);
    assert_int_equal(r.a.seed, 123);
    check_about(r.p.about, table[i].draft, i == 1);
    finish(&r);
  }
}

/* It goes on in a higher epoch than any that was sent, and says so where other numerics decode the rest. */
static void test_a_resumed_one_begins_a_higher_epoch(void **state) {
  (void)state;
  const asked q = {.ids = {B + 'a', B + 'b', B + 'x'}, .count = 3};
  for (int logged = 0; logged < 3; logged++)
    for (int other = 0; other < 2; other++) {
      run r;
      begin_resumed(&r, &model, &q, logged, other);
      assert_int_equal(r.o.epoch, 42);
      say(&r, &q, logged, 3 - logged);
      done(&r, &q);
      completion_update(&r.a, &r.p);
      rig_say(&r.p.r, TARGET, message(MSG_ENDED, SELF, r.o.session, r.o.epoch));
      completion_update(&r.a, &r.p);
      assert_int_equal(r.a.session, 0);
      assert_int_equal(r.a.numerics_changed, other && logged > 0);
      assert_string_equal(r.a.numerics_id, "test");
      finish(&r);
    }
}

/* Shown is what has been written; the speed counts from when tokens came. */
static void test_speed_counts_from_the_first_tokens(void **state) {
  (void)state;
  const asked q = {.ids = {B + 'a', B + 'b', B + 'x', B + 'y'}, .count = 4};
  run r;
  begin(&r, &model, &q, -1);
  completion_update(&r.a, &r.p);
  assert_true(r.a.first_shown_us == 0 && r.size == 0);
  unwritten = 1;
  say(&r, &q, 0, 3);
  completion_update(&r.a, &r.p);
  assert_true(r.a.first_shown_us > 0 && r.a.first_count == 3 && r.size == 2);
  finish(&r);
  begin(&r, &model, &q, 2); /* resumed: of the rest */
  completion_update(&r.a, &r.p);
  assert_true(r.a.first_shown_us == 0);
  say(&r, &q, 2, 1);
  completion_update(&r.a, &r.p);
  assert_true(r.a.first_shown_us > 0 && r.a.first_count == 3);
  finish(&r);
}

/* x, a (accepted), b (accepted), HELLO, y: text is accepted exactly where its token is. */
static void test_the_sink_is_told_which_text_came_with_accepted_tokens(void **state) {
  (void)state;
  const asked q = {.ids = {B + 'x', B + 'a', B + 'b', HELLO, B + 'y'}, .count = 5};
  for (int32_t first = 1; first <= q.count; first++) { /* in two bursts, and in one */
    run r;
    init(&r, &model, IDS_MAX);
    r.a.accepted_wanted = true;
    assert_int_equal(completion_begin(&r.a, &r.p, &r.q, NULL), ERR_OK);
    r.o = fake_service_open_session(&r.p);
    for (int32_t from = 0, to = first; from < q.count; from = to, to = q.count) {
      msg m = tokens_message(SELF, r.o.session, r.o.epoch, from + 1, q.ids + from, to - from,
                             hash_after(&r, &q, to));
      const uint8_t bits = (uint8_t)((0x06 >> from) & ((1 << (to - from)) - 1));
      m.u.tokens.accepted = &bits;
      m.u.tokens.accepted_size = 1;
      m.u.tokens.plain_us = 4000;
      assert_true(completion_plain_speed(&r.a) == (from ? 250 : 0));
      rig_say(&r.p.r, TARGET, m);
      completion_update(&r.a, &r.p);
      assert_true(completion_plain_speed(&r.a) == 250); /* while it runs */
    }
    assert_int_equal(r.a.fresh, 5);
    assert_int_equal(r.a.fresh_accepted, 2);
    assert_true(completion_acceptance_length(&r.a) > 1.66 && completion_acceptance_length(&r.a) < 1.67);
    assert_true(r.size > 4);
    for (size_t i = 0; i < r.size; i++) assert_int_equal(r.accepted[i], i == 1 || i == 2 ? 'd' : 't');
    finish(&r);
  }
}

static void test_a_gain_needs_both_speeds(void **state) {
  (void)state;
  assert_true(completion_gain(300, 200) == 1.5);
  assert_true(completion_gain(0, 200) == 0 && completion_gain(300, 0) == 0);
}

/* Every split of one answer, by its bits: a border between two bursts or none. */
static void test_every_split_of_one_answer_gives_the_same_text(void **state) {
  (void)state;
  const asked q = {
      {B + 'x', B + 'a', B + 'a', AB, HELLO, B + 'a', B + 'b', B + 'l', B + 'z'}, 9, {"abbl", "loabl"}, 2};
  size_t text_after[IDS_MAX + 1];
  wanted w = expect(&q, text_after);
  assert_true(w.stopped && w.keep == 5 && w.heard == 8);
  for (uint32_t borders = 0; borders < 1u << (q.count - 1); borders++) {
    run r;
    begin(&r, &model, &q, -1);
    for (int32_t from = 0, at = 1; at <= q.count; at++) {
      if (at < q.count && !(borders >> (at - 1) & 1)) continue;
      if (!rig_count(&r.p.r, TARGET, MSG_END)) say(&r, &q, from, at - from);
      look(&r, &w, text_after);
      from = at;
    }
    check_end(&r, &q, &w);
    finish(&r);
  }
}

static void test_a_bias_is_of_tokens_of_the_model(void **state) {
  (void)state;
  run r;
  err e = {0};
  init(&r, &model, 5);
  assert_int_equal(request_add_bias(&r.q, model.config.vocab - 1, 1, NULL), ERR_OK);
  assert_int_equal(completion_prepare(&r.a, &r.q, &e), ERR_OK);
  assert_int_equal(request_add_bias(&r.q, model.config.vocab, 1, NULL), ERR_OK);
  r.a.prompt.count = 0;
  assert_int_equal(completion_prepare(&r.a, &r.q, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "a logit bias names token"));
  finish(&r);
}

/* The ids are the answer where there is no vocabulary. */
static void test_without_a_vocabulary_the_ids_are_the_answer(void **state) {
  (void)state;
  const asked q = {.ids = {5, 6, 7}, .count = 3};
  run r;
  begin(&r, &ids_only, &q, -1);
  say(&r, &q, 0, 2);
  say(&r, &q, 2, 1);
  done(&r, &q);
  completion_update(&r.a, &r.p);
  assert_int_equal(r.size, 0);
  assert_int_equal(r.a.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(r.a.count, 3);
  assert_memory_equal(r.a.tokens, q.ids, 3 * sizeof *q.ids);
  assert_int_equal(kept(&r).length, 4);
  finish(&r);
}

/* Padding rows have no text: the answer ends there with an error, and what came before is kept. */
static void test_a_token_without_text_ends_the_answer(void **state) {
  (void)state;
  asked q = {.ids = {B + 'a', HELLO, 0, B + 'b'}, .count = 4};
  q.ids[2] = tokenizer_size(model.tokens);
  for (int32_t burst = 1; burst <= 4; burst++) {
    run r;
    begin(&r, &model, &q, -1);
    for (int32_t at = 0; at < 3; at += burst) say(&r, &q, at, burst < q.count - at ? burst : q.count - at);
    completion_update(&r.a, &r.p);
    assert_int_equal(r.a.finish, WIRE_FINISH_ERROR);
    assert_true(strstr(r.a.trouble.text, "has no text") != NULL);
    assert_int_equal(r.a.count, 2);
    assert_int_equal(kept(&r).length, 3);
    assert_int_equal(r.size, 6);
    assert_memory_equal(r.shown, "ahello", 6);
    finish(&r);
  }
}

/* A program that has died: what came until then is there. */
static void test_a_failed_one_keeps_what_came(void **state) {
  (void)state;
  const asked q = {.ids = {B + 'a', B + 'b'}, .count = 2};
  run r;
  err why = {.code = ERR_GONE};
  begin(&r, &model, &q, -1);
  say(&r, &q, 0, 2);
  completion_fail(&r.a, &r.p, &why);
  assert_int_equal(r.a.finish, WIRE_FINISH_ERROR);
  assert_int_equal(r.a.trouble.code, ERR_GONE);
  assert_int_equal(r.a.count, 2);
  assert_int_equal(r.a.session, 0);
  finish(&r);
}

/* ---- the sink ---- */

static void test_the_sink_hears_all_the_text_and_then_the_end_once(void **state) {
  (void)state;
  const asked q = {{B + 'x', B + 'a', HELLO}, 3, {"helloq"}, 1}; /* the end of it is held back */
  run r;
  begin(&r, &model, &q, -1);
  say(&r, &q, 0, 3);
  completion_update(&r.a, &r.p);
  assert_true(r.size == 2 && r.ends == 0);
  done(&r, &q);
  completion_update(&r.a, &r.p);
  assert_true(r.size == 7 && r.a.finish == WIRE_FINISH_LENGTH);
  assert_int_equal(r.ends, 0); /* its figures are still to come */
  rig_say(&r.p.r, TARGET, message(MSG_ENDED, SELF, r.o.session, r.o.epoch));
  for (int i = 0; i < 3; i++) completion_update(&r.a, &r.p);
  completion_cancel(&r.a, &r.p);
  completion_fail(&r.a, &r.p, &(err){.code = ERR_GONE});
  assert_int_equal(r.ends, 1);
  assert_memory_equal(r.shown, "xahello", 7);
  assert_int_equal(r.a.finish, WIRE_FINISH_LENGTH);
  finish(&r);
}

static void test_one_that_never_began_ends_too(void **state) {
  (void)state;
  for (int fails = 0; fails < 2; fails++) {
    run r;
    init(&r, &model, 4);
    if (fails)
      completion_fail(&r.a, &r.p, &(err){.code = ERR_GONE});
    else
      completion_cancel(&r.a, &r.p);
    completion_update(&r.a, &r.p);
    assert_int_equal(r.ends, 1);
    assert_int_equal(r.a.finish, fails ? WIRE_FINISH_ERROR : WIRE_FINISH_CANCELLED);
    finish(&r);
  }
}

static void test_nobody_need_listen(void **state) {
  (void)state;
  const asked q = {.ids = {B + 'a', B + 'b'}, .count = 2};
  run r;
  begin(&r, &model, &q, -1);
  r.a.sink = (completion_sink){0};
  say(&r, &q, 0, 2);
  done(&r, &q);
  rig_say(&r.p.r, TARGET, message(MSG_ENDED, SELF, r.o.session, r.o.epoch));
  completion_update(&r.a, &r.p);
  assert_true(completion_is_over(&r.a) && r.a.shown == 2);
  finish(&r);
}

/* Checked before anything is sent, and by the request's own check. */
static void test_a_bad_request_opens_no_session(void **state) {
  (void)state;
  run r;
  err e = {0};
  init(&r, &model, 4);
  r.q.raw = true;
  request_set_system(&r.q, "be brief", NULL); /* the sessions below know nothing of templates */
  assert_int_equal(completion_begin(&r.a, &r.p, &r.q, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "system message"));
  assert_int_equal(rig_count(&r.p.r, TARGET, MSG_OPEN), 0);
  finish(&r);
}

static void test_too_little_has_no_speed(void **state) {
  (void)state;
  assert_true(completion_speed(32, 20000) == 1600);
  assert_true(completion_speed(31, 100000000) == 0 && completion_speed(1000, 19999) == 0);
  completion fast = {.count = 34, .first_count = 2, .first_token_us = 1000, .end_us = 101000}, slow = fast;
  slow.end_us = 201000;
  fast.stats.rows = 1;
  assert_int_equal(completion_timed_tokens(&fast), 32);
  assert_int_equal(completion_timed_us(&fast), 100000);
  assert_true(completion_tokens_per_second(&fast) == 320);
  assert_true(completion_speedup(&slow, &fast) == 2);
  fast.stats.rows = 0; /* nothing was guessed: it was plain decoding too */
  assert_true(completion_speedup(&slow, &fast) == 0);
  fast.stats.rows = 1;
  fast.count--;
  assert_true(completion_tokens_per_second(&fast) == 0 && completion_speedup(&slow, &fast) == 0);
  fast.fresh = 33;
  assert_true(completion_speed_now(&fast, 201000) == 0);
  fast.fresh = 34;
  assert_true(completion_speed_now(&fast, 201000) == 160);
}

static void test_figures_of_an_answer(void **state) {
  (void)state;
  completion a = {.count = 41,
                  .first_count = 1,
                  .start_us = 1000,
                  .first_token_us = 3500,
                  .first_shown_us = 3500,
                  .end_us = 4003500,
                  .draft_wanted = true};
  a.stats.rounds = 4;
  a.stats.accepted = 6;
  assert_true(completion_tokens_per_second(&a) == 10);
  assert_true(completion_first_ms(&a) == 2.5);
  assert_true(completion_mean_accepted(&a) == 1.5);
  assert_string_equal(completion_off_reason(&a), "no draft came");
  snprintf(a.draft_method, sizeof a.draft_method, "ngram");
  assert_null(completion_off_reason(&a));
  snprintf(a.off_reason, sizeof a.off_reason, "because");
  assert_string_equal(completion_off_reason(&a), "because");
  a.draft_wanted = false;
  assert_null(completion_off_reason(&a));
  a.first_count = 41; /* all at once */
  a.stats.rounds = 0;
  assert_true(completion_tokens_per_second(&a) == 0 && completion_mean_accepted(&a) == 0);
  a.first_shown_us = 0;
  assert_true(completion_first_ms(&a) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_stop_takes_back_what_was_logged),
      cmocka_unit_test(test_bursts_of_every_size_give_the_same_text),
      cmocka_unit_test(test_the_sink_is_told_which_text_came_with_accepted_tokens),
      cmocka_unit_test(test_a_gain_needs_both_speeds),
      cmocka_unit_test(test_too_little_has_no_speed),
      cmocka_unit_test(test_every_split_of_one_answer_gives_the_same_text),
      cmocka_unit_test(test_what_an_end_has_shown_is_not_shown_again),
      cmocka_unit_test(test_half_a_letter_is_shown_with_the_rest),
      cmocka_unit_test(test_half_a_letter_at_a_stop_is_shown_as_such),
      cmocka_unit_test(test_a_resumed_one_shows_the_rest_or_the_whole),
      cmocka_unit_test(test_what_the_target_is_asked_and_the_ledger_is_told),
      cmocka_unit_test(test_a_resumed_one_begins_a_higher_epoch),
      cmocka_unit_test(test_speed_counts_from_the_first_tokens),
      cmocka_unit_test(test_a_bias_is_of_tokens_of_the_model),
      cmocka_unit_test(test_without_a_vocabulary_the_ids_are_the_answer),
      cmocka_unit_test(test_a_token_without_text_ends_the_answer),
      cmocka_unit_test(test_a_failed_one_keeps_what_came),
      cmocka_unit_test(test_the_sink_hears_all_the_text_and_then_the_end_once),
      cmocka_unit_test(test_one_that_never_began_ends_too),
      cmocka_unit_test(test_nobody_need_listen),
      cmocka_unit_test(test_a_bad_request_opens_no_session),
      cmocka_unit_test(test_figures_of_an_answer),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
