/* libs: kernels : far emulated */
/* Op rank against its definition, on every device: the lists are those that sampler_rank makes of the same
 * rows' logits, whatever is kept, ranked or chosen beside them. */
#include "tests/support/choices.h"

enum { ROWS_MAX = 40, COLUMNS = 64, TOKENS = 500 };

/* Every device with one host thread and with several. */
static int open_with_threads(void **state) {
  const char *name, *more = getenv("TANDEM_TEST_DEVICE");
  (void)state;
  device_count = 0;
  for (int32_t threads = 1; threads <= 4; threads += 3) {
    for (int32_t i = 0; (name = devices_name(i)); i++) open_device(name, threads);
    if (more) open_device(more, threads);
  }
  return 0;
}

/* --- what is asked for --- */

typedef struct request {
  int32_t count; /* rows of each use: kept, ranked and choosing */
  ops_ranking rankings[ROWS_MAX];
  ops_sampling choices[ROWS_MAX];
  int32_t tokens[TOKENS], bias_tokens[TOKENS];
  float bias_values[TOKENS];
} request;

static ops_slice random_slice(void) {
  int32_t first = (int32_t)(random_bits() % TOKENS);
  return (ops_slice){first, (int32_t)(random_bits() % (uint32_t)(TOKENS - first + 1))};
}

static ops_ranking random_ranking(void) {
  static const float temperatures[] = {0, 0.8f, 1, 3}, top_ps[] = {1, 0.95f, 0.3f},
                     min_ps[] = {0, 0.05f, 0.5f}, penalties[] = {1, 1.3f, 0.7f}, counted[] = {0, 0.4f, -1.5f};
  static const int32_t top_ks[] = {0, 1, 5, 40};
  ops_ranking r = {.options = {.temperature = temperatures[random_bits() % 4],
                               .top_k = top_ks[random_bits() % 4],
                               .top_p = top_ps[random_bits() % 3],
                               .min_p = min_ps[random_bits() % 3],
                               .repeat_penalty = penalties[random_bits() % 3],
                               .presence_penalty = counted[random_bits() % 3],
                               .frequency_penalty = counted[random_bits() % 3],
                               .seed = (uint64_t)random_bits() << 40 ^ random_bits(),
                               .choice = random_bits() % 3},
                   .position = (int32_t)(random_bits() % 100000),
                   .count = 1 + (int32_t)(random_bits() % SAMPLER_RANKED_MAX)};
  for (int i = 0; i < 2; i++)
    if (random_bits() % 2) r.history[i] = random_slice();
  r.prompt_count = (int32_t)(random_bits() % TOKENS);
  if (random_bits() % 2) r.bias = random_slice();
  if (random_bits() % 3) return r;
  const sampler_options o = {.temperature = r.options.temperature, .top_p = 1, .repeat_penalty = 1};
  return (ops_ranking){.options = o, .position = r.position, .count = r.count}; /* as drafts ask mostly */
}

static request random_request(int32_t count, int32_t vocabulary) {
  request r = {.count = count};
  for (int32_t i = 0; i < count; i++) {
    r.rankings[i] = random_ranking();
    r.choices[i] = choice_random(i);
  }
  for (int32_t i = 0; i < TOKENS; i++) /* some are outside the vocabulary */
    r.tokens[i] = (int32_t)(random_bits() % (uint32_t)(vocabulary + 20)) - 10;
  for (int32_t i = 0; i < TOKENS; i++) {
    r.bias_tokens[i] = (int32_t)(random_bits() % (uint32_t)(vocabulary + 20)) - 10;
    r.bias_values[i] = (float)(int32_t)(random_bits() % 2001 - 1000) / 100;
  }
  return r;
}

/* --- a forward: each row keeps its logits, is ranked, and chooses, each time in another order; or it is
 * ranked alone --- */

static int32_t line_of_logits(const request *r, int32_t row) {
  return r->count - 1 - row;
}

static int32_t line_of_choice(const request *r, int32_t row) {
  return (row + 1) % r->count;
}

static void begin_head(device *d, const request *r, bool alone) {
  ops_row rows[3 * ROWS_MAX];
  int32_t head[3 * ROWS_MAX], count = alone ? r->count : 3 * r->count;
  request mine = *r;
  for (int32_t i = 0; i < count; i++) {
    rows[i] = (ops_row){.position = i, .length = i + 1};
    head[i] = i;
  }
  assert_true(d->table->begin(d, NULL,
                              &(ops_batch){.rows = rows,
                                           .row_count = count,
                                           .head_rows = head,
                                           .head_count = count,
                                           .logit_count = alone ? 0 : r->count,
                                           .rank_count = r->count,
                                           .rankings = mine.rankings,
                                           .tokens = mine.tokens,
                                           .token_count = TOKENS,
                                           .bias_tokens = mine.bias_tokens,
                                           .bias_values = mine.bias_values,
                                           .bias_count = TOKENS,
                                           .choices = mine.choices}));
  memset(&mine, 0x5a, sizeof mine); /* copied */
}

static float *rows_of(const request *r, const float *x, bool alone) {
  float *all = malloc(3 * (size_t)r->count * COLUMNS * sizeof *all);
  for (int32_t i = 0; i < r->count; i++) {
    const int32_t lines[] = {line_of_logits(r, i), r->count + i, 2 * r->count + line_of_choice(r, i)};
    for (int use = 0; use < 3; use++)
      memcpy(all + lines[use] * COLUMNS, x + i * COLUMNS, COLUMNS * sizeof *x);
  }
  if (alone) memcpy(all, x, (size_t)r->count * COLUMNS * sizeof *x);
  return all;
}

typedef struct result {
  ops_ranked lists[ROWS_MAX];
  int32_t ids[ROWS_MAX];
  float *logits; /* [count][vocabulary] */
} result;

static void take_lists(device *d, int32_t count, bool at_once, ops_ranked *to) {
  const ops_ranked *first = at_once ? d->table->ranked(d, 0, count) : NULL;
  for (int32_t i = count - 1; i >= 0; i--) {
    const ops_ranked *one = d->table->ranked(d, i, 1);
    assert_non_null(one);
    if (first) assert_ptr_equal(one, first + i);
    to[i] = *one;
  }
}

static void run_head(device *d, const matrix *m, const request *r, const float *x, device_ids ids, bool alone,
                     result *out) {
  float *all = rows_of(r, x, alone);
  device_weight w = pack_matrix(d, m);
  device_act *in = act_of(d, 3 * r->count, COLUMNS, true, all);
  ops_answer a;
  uint64_t lines = d->counters.logit_lines;
  begin_head(d, r, alone);
  d->table->head(d, &w, in);
  d->table->rank(d, ids);
  d->table->end(d);
  assert_int_equal(d->table->wait(d, &a), OPS_OK);
  take_lists(d, r->count, alone, out->lists);
  assert_int_equal(d->counters.logit_lines, lines); /* no logits came to the host */
  for (int32_t i = 0; i < r->count && !alone; i++) {
    out->ids[i] = a.ids[line_of_choice(r, i)];
    memcpy(out->logits + (size_t)i * (size_t)m->rows, d->table->logits(d, line_of_logits(r, i)),
           (size_t)m->rows * sizeof *all);
  }
  assert_int_equal(d->counters.logit_lines, lines + (alone ? 0 : (uint64_t)r->count));
  d->table->act_drop(d, in);
  drop_weight(d, w);
  free(all);
}

/* --- checks --- */

typedef struct outputs {
  const int32_t *tokens; /* [count], or NULL: they are the tokens */
  int32_t count, common; /* by which all rows are ranked */
} outputs;

/* By the definition: on logits under the tokens' own ids. */
static ops_ranked expected_list(const request *r, int32_t row, const float *logits, const outputs *of,
                                int32_t count) {
  const ops_ranking *k = &r->rankings[row];
  float *z = malloc((size_t)count * sizeof *z);
  for (int32_t t = 0; t < count; t++) z[t] = of->tokens ? -INFINITY : logits[t];
  for (int32_t i = 0; of->tokens && i < of->count; i++)
    if (of->tokens[i] >= 0 && (i < of->common || (i >= k->own.first && i < k->own.first + k->own.count)))
      z[of->tokens[i]] = logits[i];
  const sampler_row history = {.history = r->tokens + k->history[0].first,
                               .history_count = k->history[0].count,
                               .extra = r->tokens + k->history[1].first,
                               .extra_count = k->history[1].count,
                               .prompt_count = k->prompt_count,
                               .bias_tokens = r->bias_tokens + k->bias.first,
                               .bias_values = r->bias_values + k->bias.first,
                               .bias_count = k->bias.count};
  sampler *s;
  ops_ranked out;
  assert_int_equal(sampler_alloc(&s, count), ERR_OK);
  out.count = sampler_rank(s, &k->options, &history, z, k->position, k->count, out.list);
  sampler_free(s);
  free(z);
  return out;
}

static void assert_list(const device *d, int32_t row, const ops_ranked *got, const ops_ranked *expected) {
  assert_int_equal(got->count, expected->count);
  size_t bytes = (size_t)got->count * sizeof *got->list;
  if (memcmp(got->list, expected->list, bytes) != 0)
    fail_msg("%s, %d threads: row %d has another list of %d tokens", d->table->name, d->threads, row,
             got->count);
}

static void check_device(device *d, const matrix *m, const request *r, const float *x, const outputs *of,
                         int32_t count) {
  result both = {.logits = malloc((size_t)r->count * (size_t)m->rows * sizeof(float))}, alone;
  device_memory *memory = of->tokens ? upload(d, of->tokens, (size_t)of->count * sizeof *of->tokens) : NULL;
  const device_ids tokens = {.memory = memory, .count = count, .outputs = of->count, .common = of->common};
  run_head(d, m, r, x, tokens, false, &both);
  run_head(d, m, r, x, tokens, true, &alone);
  for (int32_t i = 0; i < r->count; i++) {
    const float *logits = both.logits + (size_t)i * (size_t)m->rows;
    ops_ranked expected = expected_list(r, i, logits, of, count);
    assert_list(d, i, &both.lists[i], &expected);
    assert_list(d, i, &alone.lists[i], &expected);
    assert_int_equal(both.ids[i], choice_of(&r->choices[line_of_choice(r, i)], logits, m->rows));
  }
  d->table->drop(d, memory);
  free(both.logits);
}

/* Each row has other outputs of its own behind the common ones. */
static void give_own(request *r, const outputs *of) {
  for (int32_t i = 0; i < r->count && of->common < of->count; i++) {
    int32_t first = of->common + (int32_t)(random_bits() % (uint32_t)(of->count - of->common));
    r->rankings[i].own = (ops_slice){first, (int32_t)(random_bits() % (uint32_t)(of->count - first + 1))};
  }
}

static void check(int32_t columns, int32_t rows, ops_type type, const outputs *of, int32_t count) {
  static const outputs none = {0};
  matrix m = make_matrix(type, columns, COLUMNS);
  float *x = random_floats((size_t)rows * COLUMNS);
  request r = random_request(rows, count);
  if (of) give_own(&r, of);
  for (int math = 0; math < 2; math++)
    for (int32_t i = 0; i < device_count; i++)
      check_device(devices[math][i], &m, &r, x, of ? of : &none, count);
  free(x);
  free_matrix(&m);
}

static void lists_are_those_of_the_sampler(void **state) {
  (void)state;
  static const int32_t vocabularies[] = {1, 17, 100, 1000, 5001};
  for (int v = 0; v < 5; v++)
    for (int32_t rows = 1; rows <= 10; rows += 3)
      check(vocabularies[v], rows, v % 2 ? OPS_F32 : OPS_Q8_0, NULL, vocabularies[v]);
  check(600, ROWS_MAX, OPS_Q4_0, NULL, 600);
}

static void the_outputs_after_the_last_token_are_left_out(void **state) {
  (void)state;
  check(640, 5, OPS_F32, NULL, 601);
}

/* A part of the tokens in any order, each once, and outputs without a token. */
static void shuffle(int32_t *tokens, int32_t outputs_count, int32_t count) {
  int32_t *all = malloc((size_t)count * sizeof *all);
  for (int32_t t = 0; t < count; t++) all[t] = t;
  for (int32_t t = count - 1; t > 0; t--) {
    int32_t other = (int32_t)(random_bits() % (uint32_t)(t + 1)), x = all[t];
    all[t] = all[other];
    all[other] = x;
  }
  for (int32_t i = 0; i < outputs_count; i++) tokens[i] = i < count && random_bits() % 4 ? all[i] : -1;
  free(all);
}

static void outputs_may_have_other_ids_than_tokens(void **state) {
  (void)state;
  enum { OUTPUTS = 700, COUNT = 1000 };
  int32_t tokens[OUTPUTS];
  const outputs all = {tokens, OUTPUTS, OUTPUTS}, common = {tokens, OUTPUTS, 400}, few = {tokens, 30, 30};
  shuffle(tokens, OUTPUTS, COUNT);
  check(OUTPUTS, 6, OPS_F32, &all, COUNT);
  check(OUTPUTS, 6, OPS_F32, &few, COUNT);
  for (int i = 0; i < 4; i++) check(OUTPUTS, 6, OPS_Q8_0, &common, COUNT);
  shuffle(tokens, OUTPUTS, COUNT / 5); /* fewer tokens than outputs */
  check(OUTPUTS, 6, OPS_F32, &all, COUNT / 5);
  for (int32_t i = 0; i < OUTPUTS; i++) tokens[i] = -1;
  check(OUTPUTS, 2, OPS_F32, &all, COUNT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lists_are_those_of_the_sampler),
      cmocka_unit_test(the_outputs_after_the_last_token_are_left_out),
      cmocka_unit_test(outputs_may_have_other_ids_than_tokens),
  };
  return cmocka_run_group_tests(tests, open_with_threads, close_devices);
}
