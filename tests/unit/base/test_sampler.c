/* libs: base : cost=20 */
/* Goldens: tests/golden/gumbel.json, made by make_gumbel.py with Python's decimal module. */
#include "common/base/filter_math.h"
#include "common/base/sampler.h"

#include "common/base/noise.h"
#include "tests/support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB_MAX = 49152 };

static sampler_options options(float temperature, int32_t top_k, float top_p, float min_p) {
  sampler_options o = SAMPLER_DEFAULTS;
  o.temperature = temperature, o.top_k = top_k, o.top_p = top_p, o.min_p = min_p;
  return o;
}

static sampler *sampler_of(int32_t vocab) {
  sampler *s;
  assert_int_equal(sampler_alloc(&s, vocab), ERR_OK);
  return s;
}

/* --- goldens --- */

static int load(void **state) {
  json_error_t e;
  json_t *root = json_load_file("tests/golden/gumbel.json", 0, &e);
  if (!root) print_error("tests/golden/gumbel.json: %s\n", e.text);
  *state = root;
  return root ? 0 : -1;
}

static int unload(void **state) {
  json_decref(*state);
  return 0;
}

static int64_t integer(const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  assert_true(json_is_integer(v));
  return json_integer_value(v);
}

static double number(const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  assert_true(json_is_number(v) || json_is_string(v));
  return json_is_string(v) ? strtod(json_string_value(v), NULL) : json_number_value(v);
}

static uint64_t seed_of(const json_t *object) {
  return strtoull(json_string_value(json_object_get(object, "seed")), NULL, 16);
}

static float float_of(uint32_t pattern) {
  float x;
  memcpy(&x, &pattern, sizeof x);
  return x;
}

static uint32_t bits_of(float x) {
  uint32_t pattern;
  memcpy(&pattern, &x, sizeof pattern);
  return pattern;
}

/* The distance of neighbouring f32 at `x`. */
static double ulp(double x) {
  int e;
  frexp(x, &e);
  return ldexp(1, e - 24);
}

static void golden_noise(void **state) {
  const json_t *list = json_object_get(*state, "gumbel"), *one;
  size_t i;
  assert_true(json_array_size(list) > 500);
  json_array_foreach(list, i, one) {
    uint32_t choice = (uint32_t)integer(one, "choice"), position = (uint32_t)integer(one, "position");
    uint32_t token = (uint32_t)integer(one, "token");
    uint64_t seed = seed_of(one);
    const uint32_t counter[4] = {token / 4, position, choice, 0},
                   key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    assert_int_equal(philox4x32(counter, key).lane[token % 4], integer(one, "bits"));
    /* 2 ulp of the outer logarithm, and those of the inner one, which come out as an absolute error. */
    double want = number(one, "g");
    float got = sampler_gumbel(seed, choice, position, token);
    assert_true(fabs((double)got - want) <= 2 * ulp(want) + 0x1p-22);
    assert_int_equal(bits_of(got), integer(one, "f32"));
  }
}

static double worst_of(const json_t *list, const char *key, float (*f)(float)) {
  double worst = 0;
  const json_t *one;
  size_t i;
  assert_true(json_array_size(list) > 400);
  json_array_foreach(list, i, one) {
    float got = f(float_of((uint32_t)integer(one, "x")));
    double want = number(one, key), error = fabs((double)got - want);
    assert_int_equal(bits_of(got), integer(one, "f32"));
    if (want == 0)
      assert_true(error == 0);
    else if (error / ulp(want) > worst)
      worst = error / ulp(want);
  }
  return worst;
}

static void golden_functions(void **state) {
  double log_worst = worst_of(json_object_get(*state, "log"), "log", sampler_log);
  double exp_worst = worst_of(json_object_get(*state, "exp"), "exp", sampler_exp);
  print_message("against a multiprecision library: log %.3f ulp, exp %.3f ulp\n", log_worst, exp_worst);
  assert_true(log_worst <= 2 && exp_worst <= 2);
}

/* More values than a file should hold, against the C library's double. */
static void functions_everywhere(void **state) {
  (void)state;
  double log_worst = 0, exp_worst = 0;
  for (uint32_t b = 0x00800000; b<0x7f800000; b += b> 0x3f000000 && b < 0x40000000 ? 13 : 1021) {
    double x = (double)float_of(b), error = fabs((double)sampler_log((float)x) - log(x));
    if (x != 1) log_worst = fmax(log_worst, error / ulp(log(x)));
  }
  assert_true(sampler_log(1) == 0);
  for (uint32_t b = 0x20000000; b <= 0x42a00000; b += 509) {
    double x = -(double)float_of(b);
    exp_worst = fmax(exp_worst, fabs((double)sampler_exp((float)x) - exp(x)) / ulp(exp(x)));
  }
  assert_true(sampler_exp(0) == 1);
  assert_true(log_worst <= 2 && exp_worst <= 2);
}

static const int32_t *integers(const json_t *list, int32_t *out) {
  for (size_t i = 0; i < json_array_size(list); i++)
    out[i] = (int32_t)json_integer_value(json_array_get(list, i));
  return out;
}

/* Of every token, once as its own and once in its place among the likeliest. */
static void golden_logprobs(void **state) {
  const json_t *list = json_object_get(*state, "logprob"), *one;
  size_t i;
  double worst = 0;
  assert_int_equal(json_array_size(list), 60);
  json_array_foreach(list, i, one) {
    const json_t *logits = json_object_get(one, "logits"), *want = json_object_get(one, "logprobs");
    int32_t vocab = (int32_t)json_array_size(logits);
    float x[SAMPLER_LOGPROBS_MAX];
    ranking_token got[1 + SAMPLER_LOGPROBS_MAX];
    for (int32_t t = 0; t < vocab; t++)
      x[t] = float_of((uint32_t)json_integer_value(json_array_get(logits, (size_t)t)));
    sampler *s = sampler_of(vocab);
    for (int32_t t = 0; t < vocab; t++) {
      uint32_t bits = (uint32_t)json_integer_value(json_array_get(json_object_get(one, "f32"), (size_t)t));
      double real = strtod(json_string_value(json_array_get(want, (size_t)t)), NULL);
      sampler_logprobs(s, x, t, SAMPLER_LOGPROBS_MAX, got);
      assert_int_equal(got[0].token, t);
      assert_int_equal(bits_of(got[0].value), bits);
      if (fabs((double)got[0].value - real) > worst) worst = fabs((double)got[0].value - real);
      int32_t before = 0;
      for (int32_t other = 0; other < vocab; other++)
        before += x[other] > x[t] || (x[other] == x[t] && other < t);
      assert_int_equal(got[1 + before].token, t);
      assert_int_equal(bits_of(got[1 + before].value), bits);
      for (int32_t k = vocab; k < SAMPLER_LOGPROBS_MAX; k++)
        assert_true(got[1 + k].token == -1 && got[1 + k].value == 0);
    }
    sampler_free(s);
  }
  print_message("log-probabilities against a multiprecision library: within %.2g\n", worst);
  assert_true(worst < 5e-6);
}

static void logprobs_of_odd_logits(void **state) {
  (void)state;
  const float x[] = {NAN, -INFINITY, 3, -FLT_MAX, 3};
  ranking_token got[4];
  sampler *s = sampler_of(5);
  sampler_logprobs(s, x, 1, 3, got);
  assert_true(got[0].value == -FLT_MAX);
  assert_true(got[1].token == 2 && got[2].token == 4 && got[3].token == 3 && got[3].value == -FLT_MAX);
  assert_true(fabsf(got[1].value + logf(2)) < 1e-6f && got[1].value == got[2].value);
  sampler_logprobs(s, x, 0, 0, got);
  assert_true(got[0].value == -FLT_MAX); /* finite, so that it can be sent */
  sampler_free(s);
}

/* Every logit after penalties and bias, to the bit: a greedy ranking shows them. */
static void golden_adjustments(void **state) {
  const json_t *list = json_object_get(*state, "adjusted"), *one, *pair;
  size_t i, k;
  assert_true(json_array_size(list) > 200);
  json_array_foreach(list, i, one) {
    const json_t *logits = json_object_get(one, "logits"), *ranked = json_object_get(one, "ranked");
    int32_t vocab = (int32_t)json_array_size(logits), history[64], extra[64], tokens[64];
    float x[SAMPLER_RANKED_MAX], values[64];
    ranking_token got[SAMPLER_RANKED_MAX];
    for (int32_t t = 0; t < vocab; t++)
      x[t] = float_of((uint32_t)json_integer_value(json_array_get(logits, (size_t)t)));
    json_array_foreach(json_object_get(one, "bias"), k, pair) {
      tokens[k] = (int32_t)json_integer_value(json_array_get(pair, 0));
      values[k] = float_of((uint32_t)json_integer_value(json_array_get(pair, 1)));
    }
    sampler_options o = SAMPLER_DEFAULTS;
    o.repeat_penalty = float_of((uint32_t)integer(one, "repeat"));
    o.presence_penalty = float_of((uint32_t)integer(one, "presence"));
    o.frequency_penalty = float_of((uint32_t)integer(one, "frequency"));
    const sampler_row row = {.history = integers(json_object_get(one, "history"), history),
                             .history_count = (int32_t)json_array_size(json_object_get(one, "history")),
                             .extra = integers(json_object_get(one, "extra"), extra),
                             .extra_count = (int32_t)json_array_size(json_object_get(one, "extra")),
                             .prompt_count = (int32_t)integer(one, "prompt_count"),
                             .bias_tokens = tokens,
                             .bias_values = values,
                             .bias_count = (int32_t)json_array_size(json_object_get(one, "bias"))};
    sampler *s = sampler_of(vocab);
    assert_int_equal(sampler_rank(s, &o, &row, x, 0, vocab, got), vocab);
    json_array_foreach(ranked, k, pair) {
      assert_int_equal(got[k].token, json_integer_value(json_array_get(pair, 0)));
      assert_int_equal(bits_of(got[k].value), json_integer_value(json_array_get(pair, 1)));
    }
    sampler_free(s);
  }
}

static void golden_picks(void **state) {
  const json_t *list = json_object_get(*state, "pick"), *one;
  size_t i, greedy = 0;
  assert_true(json_array_size(list) > 200);
  json_array_foreach(list, i, one) {
    const json_t *logits = json_object_get(one, "logits"), *history = json_object_get(one, "history");
    const json_t *extra = json_object_get(one, "extra"), *bias = json_object_get(one, "bias");
    const json_t *banned = json_object_get(one, "banned");
    int32_t vocab = (int32_t)json_array_size(logits), tokens[3][128], extra_tokens[128];
    float x[128], values[128];
    uint32_t mask[4];
    memset(mask, 0xff, sizeof mask);
    for (int32_t t = 0; t < vocab; t++) x[t] = (float)json_number_value(json_array_get(logits, (size_t)t));
    integers(banned, tokens[2]);
    for (size_t k = 0; k < json_array_size(banned); k++)
      mask[tokens[2][k] / 32] &= ~(1u << tokens[2][k] % 32);
    for (size_t k = 0; k < json_array_size(bias); k++) {
      const json_t *pair = json_array_get(bias, k);
      tokens[1][k] = (int32_t)json_integer_value(json_array_get(pair, 0));
      values[k] = (float)json_number_value(json_array_get(pair, 1));
    }
    sampler_options o = options((float)number(one, "temperature"), (int32_t)integer(one, "top_k"),
                                (float)number(one, "top_p"), (float)number(one, "min_p"));
    o.repeat_penalty = (float)number(one, "repeat_penalty");
    o.seed = seed_of(one), o.choice = (uint32_t)integer(one, "choice");
    const sampler_row row = {.history = integers(history, tokens[0]),
                             .history_count = (int32_t)json_array_size(history),
                             .extra = integers(extra, extra_tokens),
                             .extra_count = (int32_t)json_array_size(extra),
                             .bias_tokens = tokens[1],
                             .bias_values = values,
                             .bias_count = (int32_t)json_array_size(bias),
                             .mask = mask};
    err e;
    assert_int_equal(sampler_check(&o, &e), ERR_OK);
    sampler *s = sampler_of(vocab);
    int32_t got = sampler_pick(s, &o, &row, x, (int32_t)integer(one, "position"));
    if (got != integer(one, "token")) fail_msg("pick %zu: %d, not %d", i, got, (int)integer(one, "token"));
    greedy += o.temperature == 0;
    sampler_free(s);
  }
  assert_true(greedy > 20);
}

/* --- the same by sorting everything --- */

static const float *sorted_logits; /* qsort has no context argument */

static int by_rank(const void *x, const void *y) {
  int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
  if (sorted_logits[a] != sorted_logits[b]) return sorted_logits[a] > sorted_logits[b] ? -1 : 1;
  return a < b ? -1 : 1;
}

/* What sampler.h says, word for word; `x` is [vocab] after penalty, bias and mask. order [vocab] is scratch
 * and holds the kept tokens afterwards, best first. */
static int32_t kept_by_sorting(const sampler_options *o, const float *x, int32_t vocab, int32_t *order) {
  int32_t count = 0, kept = 0;
  for (int32_t t = 0; t < vocab; t++)
    if (x[t] > -INFINITY) order[count++] = t;
  sorted_logits = x;
  qsort(order, (size_t)count, sizeof *order, by_rank);
  if (o->top_k && count > o->top_k) count = o->top_k;
  float scale = 1.0f / o->temperature, best = x[order[0]] * scale;
  if (o->top_p < 1) {
    uint64_t total = 0, sum = 0;
    for (int pass = 0; pass < 2; pass++)
      for (int32_t i = 0; i < count && (pass == 0 || (double)sum < (double)o->top_p * (double)total); i++) {
        float d = x[order[i]] * scale - best;
        uint64_t w = d > FILTER_EXP_MIN ? (uint64_t)(sampler_exp(d) * 0x1p36f) : 0;
        if (pass == 0)
          total += w;
        else
          sum += w, kept++;
      }
    count = kept;
  }
  if (o->min_p > 0)
    for (kept = 0; kept < count && x[order[kept]] * scale - best >= sampler_log(o->min_p); kept++)
      ;
  return o->min_p > 0 ? kept : count;
}

static int32_t pick_by_sorting(const sampler_options *o, const float *x, int32_t vocab, int32_t position,
                               int32_t *order) {
  int32_t count = kept_by_sorting(o, x, vocab, order), winner = -1;
  float best = -INFINITY, scale = 1.0f / o->temperature;
  for (int32_t i = 0; i < count; i++) {
    int32_t t = order[i];
    float v = x[t] * scale + sampler_gumbel(o->seed, o->choice, (uint32_t)position, (uint32_t)t);
    if (v > best || (v == best && t < winner)) best = v, winner = t;
  }
  return winner;
}

/* Logits of several shapes: flat, peaked, with many ties, with some that do not count. */
static void fill_logits(uint64_t *rng, float *x, int32_t vocab) {
  uint32_t shape = random_below(rng, 6), steps = 2 + random_below(rng, 30);
  for (int32_t t = 0; t < vocab; t++) {
    float u = (float)random_below(rng, 1 << 20) / (1 << 20);
    static const float spread[] = {0.01f, 3, 30, 0, 8, 0};
    x[t] = shape == 3 ? (float)random_below(rng, steps) - (float)steps / 2 : spread[shape] * (u - 0.5f);
    if (shape == 5)
      x[t] = 100 - (float)random_below(rng, 4) * 0x1p-17f; /* at a low temperature: equal sums */
    if (shape == 4 && random_below(rng, 4) == 0) x[t] = -INFINITY;
    if (shape == 4 && random_below(rng, 4) == 0) x[t] = random_below(rng, 2) ? 0.0f : -0.0f;
  }
  if (shape != 5) x[random_below(rng, (uint32_t)vocab)] = 4;
}

static void filters_are_a_sort(void **state) {
  (void)state;
  static float x[VOCAB_MAX];
  static int32_t order[VOCAB_MAX];
  static const int32_t vocabs[] = {1, 2, 3, 31, 64, 65, 200, 1021};
  static const float temperatures[] = {0.1f, 0.8f, 1, 3, 1e-5f},
                     top_ps[] = {1, 1, 1e-6f, 0.5f, 0.9f, 0.99999994f};
  static const float min_ps[] = {0, 0, 1e-30f, 0.05f, 0.9f};
  static const int32_t top_ks[] = {0, 0, 1, 2, 7, 40, 300, INT32_MAX};
  for (uint64_t seed = 1; seed <= 4000; seed++) {
    uint64_t rng = seed;
    int32_t vocab = seed % 400 == 0 ? VOCAB_MAX : vocabs[random_below(&rng, 8)];
    sampler *s = sampler_of(vocab);
    fill_logits(&rng, x, vocab);
    sampler_options o = options(temperatures[random_below(&rng, 5)], top_ks[random_below(&rng, 8)],
                                top_ps[random_below(&rng, 6)], min_ps[random_below(&rng, 5)]);
    o.seed = seed;
    for (int32_t position = 0; position < 3; position++)
      assert_int_equal(sampler_pick(s, &o, NULL, x, position),
                       pick_by_sorting(&o, x, vocab, position, order));
    sampler_free(s);
  }
}

/* All tokens that can come out do, and no other: the tie rule at the edge of each filter. */
static void filter_edges_keep_the_lowest_ids(void **state) {
  (void)state;
  const float x[] = {1, 2, 1, 2, 1, 1, -5, -5};
  static const struct {
    sampler_options o;
    const char *kept;
  } cases[] = {
      {{.temperature = 1, .top_k = 1, .top_p = 1}, ".1......"},
      {{.temperature = 1, .top_k = 3, .top_p = 1}, "01.3...."},
      {{.temperature = 1, .top_k = 5, .top_p = 1}, "01234..."},
      {{.temperature = 1, .top_k = 8, .top_p = 1}, "01234567"},
      /* p is 0.288 for the 2s, 0.106 for the 1s. */
      {{.temperature = 1, .top_p = 0.2f}, ".1......"},
      {{.temperature = 1, .top_p = 0.5f}, ".1.3...."},
      {{.temperature = 1, .top_p = 0.6f}, "01.3...."},
      {{.temperature = 1, .top_p = 0.7f}, "0123...."},
      {{.temperature = 1, .top_p = 0.9995f}, "0123456."},
      {{.temperature = 1, .top_k = 3, .top_p = 0.8f}, ".1.3...."}, /* of what top-k left: 0.42, 0.42, 0.16 */
      {{.temperature = 1, .top_p = 1, .min_p = 0.37f}, ".1.3...."},
      {{.temperature = 1, .top_p = 1, .min_p = 0.36f}, "012345.."},
      {{.temperature = 3, .top_p = 1, .min_p = 0.37f}, "012345.."}, /* after the temperature */
  };
  sampler *s = sampler_of(8);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char seen[] = "........";
    sampler_options o = cases[i].o;
    o.repeat_penalty = 1;
    for (int32_t position = 0; position < 20000; position++) {
      int32_t t = sampler_pick(s, &o, NULL, x, position);
      seen[t] = (char)('0' + t);
    }
    assert_string_equal(seen, cases[i].kept);
  }
  sampler_free(s);
}

/* The tokens that are left, as a bit each. */
static uint32_t left(sampler *s, const sampler_options *o, const float *x) {
  ranking_token list[SAMPLER_RANKED_MAX];
  uint32_t bits = 0;
  int32_t count = sampler_rank(s, o, NULL, x, 3, SAMPLER_RANKED_MAX, list);
  for (int32_t i = 0; i < count; i++) bits |= 1u << list[i].token;
  return bits;
}

/* What lies exactly at a bound is inside it, its neighbour of f32 is not. */
static void bounds_are_inclusive(void **state) {
  (void)state;
  static const float temperatures[] = {1, 0.25f, 2}, ends[] = {FLT_MIN, 1e-20f, 0.5f, 0.99999994f};
  sampler *s = sampler_of(4);
  uint64_t rng = 1;
  for (int i = 0; i < 600; i++)
    for (int t = 0; t < 3; t++) { /* powers of two: nothing is rounded */
      float min_p = i < 4 ? ends[i] : (float)(1 + random_below(&rng, 9999)) / 10000;
      float at = sampler_log(min_p) * temperatures[t];
      const float x[] = {nextafterf(at, -INFINITY), at, 0, nextafterf(at, INFINITY)};
      sampler_options o = options(temperatures[t], 0, 1, min_p);
      assert_int_equal(left(s, &o, x), 0xe);
    }
  sampler_options tiny = options(1, 0, 1, FLT_MIN / 4); /* below the normal numbers: as their end */
  const float deep[] = {nextafterf(sampler_log(FLT_MIN), -INFINITY), sampler_log(FLT_MIN), 0, -1};
  assert_int_equal(left(s, &tiny, deep), 0xe);
  sampler_free(s);
}

static void equal_tokens_reach_a_share_exactly(void **state) {
  (void)state;
  const float x[SAMPLER_RANKED_MAX] = {0};
  for (int32_t n = 1; n <= SAMPLER_RANKED_MAX; n *= 2) {
    sampler *s = sampler_of(n);
    for (int32_t k = 1; k <= n; k++) {
      float share = (float)k / (float)n, around[] = {nextafterf(share, 0), share, nextafterf(share, 2)};
      for (int i = 0; i < 3; i++) {
        sampler_options o = options(1, 0, around[i], 0);
        int32_t want = k + (i == 2) < n ? k + (i == 2) : n;
        if (around[i] <= 1) assert_int_equal(left(s, &o, x), (1u << want) - 1); /* the lowest ids */
      }
    }
    for (int32_t k = 0; k <= n + 1; k++) {
      sampler_options o = options(1, k, 1, 0);
      assert_int_equal(left(s, &o, x), k && k < n ? (1u << k) - 1 : (1u << n) - 1);
    }
    sampler_free(s);
  }
}

static void the_least_temperature_is_sampled(void **state) {
  (void)state;
  sampler_options at = options(SAMPLER_TEMPERATURE_MIN, 0, 1, 0), below = at;
  below.temperature = nextafterf(SAMPLER_TEMPERATURE_MIN, 0);
  assert_true(sampler_scale(&at) == 1 / SAMPLER_TEMPERATURE_MIN);
  assert_true(sampler_scale(&below) == 0);
}

/* --- the distribution --- */

enum { CELLS = 40, DRAWS = 100000 };

/* Exact filtered softmax, in double. */
static void softmax(const sampler_options *o, const float *x, double *p) {
  int32_t order[CELLS];
  double temperature = (double)o->temperature, total = 0, reached = 0;
  sorted_logits = x;
  for (int32_t i = 0; i < CELLS; i++) order[i] = i, p[i] = 0;
  qsort(order, CELLS, sizeof *order, by_rank);
  int32_t count = o->top_k ? o->top_k : CELLS, kept = 0;
  double best = x[order[0]];
  for (int32_t i = 0; i < count; i++) total += exp((x[order[i]] - best) / temperature);
  for (; kept < count && reached < (double)o->top_p * total; kept++)
    reached += exp((x[order[kept]] - best) / temperature);
  while (exp((x[order[kept - 1]] - best) / temperature) < (double)o->min_p) kept--;
  total = 0;
  for (int32_t i = 0; i < kept; i++) total += exp((x[order[i]] - best) / temperature);
  for (int32_t i = 0; i < kept; i++) p[order[i]] = exp((x[order[i]] - best) / temperature) / total;
}

/* Cells that expect fewer than 5 draws go together. Writes the degrees of freedom. */
static double chi_square(const int64_t *seen, const double *p, int *freedom) {
  double sum = 0, rare = 0, rare_seen = 0;
  *freedom = -1;
  for (int32_t t = 0; t < CELLS; t++) {
    if (p[t] == 0) {
      assert_int_equal(seen[t], 0); /* what was filtered away never comes */
    } else if (p[t] * DRAWS < 5) {
      rare += p[t] * DRAWS, rare_seen += (double)seen[t];
    } else {
      sum += ((double)seen[t] - p[t] * DRAWS) * ((double)seen[t] - p[t] * DRAWS) / (p[t] * DRAWS);
      ++*freedom;
    }
  }
  if (rare >= 1) {
    sum += (rare_seen - rare) * (rare_seen - rare) / rare;
    ++*freedom;
  }
  return sum;
}

/* The value that chi-square passes with probability 1e-4 (Wilson and Hilferty 1931). The seeds are fixed, so
 * a right sampler passes always or never; of right samplers one in 10,000 would fail a case. A wrong one
 * fails by far, as the control below shows. */
static double chi_square_limit(int freedom) {
  const double z = 3.719, k = 2.0 / (9.0 * freedom);
  return freedom * pow(1 - k + z * sqrt(k), 3);
}

static void draw_many(const sampler_options *o, const sampler_row *row, const float *x, int64_t *seen) {
  sampler *s = sampler_of(CELLS);
  memset(seen, 0, CELLS * sizeof *seen);
  for (int32_t position = 0; position < DRAWS; position++) seen[sampler_pick(s, o, row, x, position)]++;
  sampler_free(s);
}

static void distribution_is_the_softmax(void **state) {
  (void)state;
  static const sampler_options cases[] = {
      {.temperature = 0.8f, .top_p = 1},
      {.temperature = 1, .top_p = 1},
      {.temperature = 2.5f, .top_p = 1, .choice = 3},
      {.temperature = 1.3f, .top_p = 1, .top_k = 10},
      {.temperature = 1, .top_p = 0.9f},
      {.temperature = 0.7f, .top_p = 0.5f},
      {.temperature = 1, .top_p = 1, .min_p = 0.05f},
      {.temperature = 1.5f, .top_p = 0.95f, .top_k = 20, .min_p = 0.02f},
  };
  float x[CELLS];
  double p[CELLS], wrong[CELLS];
  int64_t seen[CELLS];
  uint64_t rng = 18; /* logits with which the control shows in every case */
  for (int32_t t = 0; t < CELLS; t++) x[t] = (float)random_below(&rng, 1000) / 150 - 3;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sampler_options o = cases[i], other = o;
    o.repeat_penalty = 1;
    o.seed = 0x1234567890abcdefu + i;
    int freedom;
    softmax(&o, x, p);
    draw_many(&o, NULL, x, seen);
    double value = chi_square(seen, p, &freedom), limit = chi_square_limit(freedom);
    other.temperature *= 1.05f; /* the control: 5 % off */
    other.min_p = 0, other.top_p = 1, other.top_k = 0;
    softmax(&other, x, wrong);
    for (int32_t t = 0; t < CELLS; t++) wrong[t] = p[t] > 0 ? wrong[t] : 0;
    double control = 0;
    for (int32_t t = 0; t < CELLS; t++) control += wrong[t];
    for (int32_t t = 0; t < CELLS; t++) wrong[t] /= control;
    control = chi_square(seen, wrong, &freedom);
    print_message("chi-square %zu: %.1f with %d degrees of freedom, limit %.1f; control %.1f\n", i, value,
                  freedom, limit, control);
    assert_true(value < limit);
    assert_true(control > chi_square_limit(freedom));
  }
}

/* The same after penalty, bias and mask. */
static void distribution_of_an_adjusted_row(void **state) {
  (void)state;
  float x[CELLS], y[CELLS];
  double p[CELLS];
  int64_t seen[CELLS];
  const int32_t history[] = {1, 2, 1, 1}, extra[] = {3, 2}, biased[] = {5, 6};
  const float bias[] = {2, -INFINITY};
  uint32_t mask[2] = {0xfffffffe, 0xffffffff};
  for (int32_t t = 0; t < CELLS; t++) y[t] = x[t] = (float)(t % 7) / 2 - 1;
  sampler_options o = options(0.9f, 0, 1, 0);
  o.repeat_penalty = 1.5f, o.seed = 5;
  const sampler_row row = {history, 4, extra, 2, 0, biased, bias, 2, mask};
  y[1] *= 1.5f, y[2] *= 1.5f, y[3] /= 1.5f; /* -0.5, 0, 0.5 */
  y[5] += 2, y[6] = -INFINITY, y[0] = -INFINITY;
  int freedom;
  softmax(&o, y, p);
  draw_many(&o, &row, x, seen);
  assert_true(chi_square(seen, p, &freedom) < chi_square_limit(freedom));
}

/* --- greedy, and what a row adds --- */

static void greedy_takes_the_lowest_of_equals(void **state) {
  (void)state;
  static float x[1000];
  uint64_t rng = 3;
  for (int round = 0; round < 500; round++) {
    int32_t vocab = 1 + (int32_t)random_below(&rng, 1000), want = -1;
    for (int32_t t = 0; t < vocab; t++) {
      x[t] = (float)random_below(&rng, 30) - 50;
      if (random_below(&rng, 5) == 0) x[t] = -INFINITY;
      if (x[t] > -INFINITY && (want < 0 || x[t] > x[want])) want = t;
    }
    sampler *s = sampler_of(vocab);
    for (int filtered = 0; filtered < 2; filtered++) { /* filters and noise are not used */
      sampler_options o = filtered ? options(0, 3, 0.1f, 0.9f) : SAMPLER_DEFAULTS;
      o.seed = (uint64_t)round;
      assert_int_equal(sampler_pick(s, &o, NULL, x, round), want);
    }
    sampler_free(s);
  }
}

static const sampler_options every_way[] = {
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1},
    {.temperature = 1, .top_k = 2, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 1, .top_k = 5, .top_p = 1, .min_p = 0.5f, .repeat_penalty = 1},
    {.temperature = 1e-5f, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 1e-5f, .top_p = 0.5f, .repeat_penalty = 1},
    {.temperature = 100, .top_p = 0.5f, .repeat_penalty = 1},
};
#define WAYS (sizeof every_way / sizeof *every_way)

/* --- the first few, by sorting everything --- */

static float value_of(const sampler_options *o, const float *x, int32_t position, int32_t t) {
  if (o->temperature == 0) return x[t];
  return x[t] * (1.0f / o->temperature) + sampler_gumbel(o->seed, o->choice, (uint32_t)position, (uint32_t)t);
}

/* Every token that may be chosen, the best first. x: after penalty, bias and mask. */
static int32_t rank_by_sorting(const sampler_options *o, const float *x, int32_t vocab, int32_t position,
                               float *values, int32_t *order) {
  int32_t count = 0;
  if (o->temperature > 0)
    count = kept_by_sorting(o, x, vocab, order);
  else
    for (int32_t t = 0; t < vocab; t++)
      if (x[t] > -INFINITY) order[count++] = t;
  for (int32_t i = 0; i < count; i++) values[order[i]] = value_of(o, x, position, order[i]);
  sorted_logits = values;
  qsort(order, (size_t)count, sizeof *order, by_rank);
  return count;
}

static void ranks_are_a_sort(void **state) {
  (void)state;
  static float x[VOCAB_MAX], values[VOCAB_MAX];
  static int32_t order[VOCAB_MAX];
  static const int32_t vocabs[] = {1, 2, 3, 31, 64, 65, 200, 1021};
  static const float temperatures[] = {0, 0.1f, 0.8f, 1, 3, 1e-5f}, top_ps[] = {1, 1, 1e-6f, 0.5f, 0.9f};
  static const float min_ps[] = {0, 0, 0, 1e-30f, 0.05f};
  static const int32_t top_ks[] = {0, 0, 1, 2, 7, 40, INT32_MAX};
  int32_t short_ones = 0;
  for (uint64_t seed = 1; seed <= 4000; seed++) {
    uint64_t rng = seed;
    int32_t vocab = seed % 400 == 0 ? VOCAB_MAX : vocabs[random_below(&rng, 8)];
    sampler *s = sampler_of(vocab);
    fill_logits(&rng, x, vocab);
    sampler_options o = options(temperatures[random_below(&rng, 6)], top_ks[random_below(&rng, 7)],
                                top_ps[random_below(&rng, 5)], min_ps[random_below(&rng, 5)]);
    o.seed = seed;
    for (int32_t position = 0; position < 3; position++) {
      ranking_token got[SAMPLER_RANKED_MAX];
      int32_t wanted = 1 + (int32_t)random_below(&rng, SAMPLER_RANKED_MAX);
      int32_t all = rank_by_sorting(&o, x, vocab, position, values, order);
      int32_t count = sampler_rank(s, &o, NULL, x, position, wanted, got);
      assert_int_equal(count, all < wanted ? all : wanted);
      for (int32_t i = 0; i < count; i++) {
        assert_int_equal(got[i].token, order[i]);
        assert_true(got[i].value == values[order[i]]);
      }
      assert_int_equal(got[0].token, sampler_pick(s, &o, NULL, x, position));
      short_ones += all < wanted;
    }
    sampler_free(s);
  }
  assert_true(short_ones > 1000); /* more were asked for than there are */
}

/* Tokens [0, vocab) in two lists in any order, some of them in neither; `dense` gets the logits of those that
 * are. */
static void split_tokens(uint64_t *rng, const float *x, int32_t vocab, int32_t *tokens, float *logits,
                         float *dense, sampler_listed lists[2]) {
  int32_t first = (int32_t)random_below(rng, (uint32_t)vocab + 1);
  for (int32_t t = 0; t < vocab; t++) tokens[t] = t;
  for (int32_t t = vocab - 1; t > 0; t--) {
    int32_t other = (int32_t)random_below(rng, (uint32_t)t + 1), kept = tokens[t];
    tokens[t] = tokens[other];
    tokens[other] = kept;
  }
  for (int32_t i = 0; i < vocab; i++) {
    bool none = random_below(rng, 4) == 0;
    logits[i] = x[tokens[i]];
    dense[tokens[i]] = none ? -INFINITY : logits[i];
    if (none) tokens[i] = -1;
  }
  lists[0] = (sampler_listed){tokens, logits, first};
  lists[1] = (sampler_listed){tokens + first, logits + first, vocab - first};
}

/* Many of the logits are equal, so that a filter must choose among ties by the tokens' ids. */
static void listed_tokens_rank_as_a_vocabulary_without_the_others(void **state) {
  (void)state;
  static float x[VOCAB_MAX], dense[VOCAB_MAX], logits[VOCAB_MAX];
  static int32_t tokens[VOCAB_MAX];
  static const int32_t vocabs[] = {1, 2, 31, 64, 65, 200, 1021};
  static const float temperatures[] = {0, 0.1f, 0.8f, 3}, top_ps[] = {1, 0.5f, 0.9f},
                     penalties[] = {1, 1.3f, 0.5f, 1};
  static const int32_t top_ks[] = {0, 1, 2, 7, 40};
  const int32_t history[] = {1, 2, 1, 30, 5000, -4}, extra[] = {3, 2, 60}, biased[] = {0, 2, 61, 5000};
  const float bias[] = {1, -2, 100, 100};
  sampler_row row = {.history = history, .history_count = 6, .extra = extra, .extra_count = 3};
  for (uint64_t seed = 1; seed <= 3000; seed++) {
    uint64_t rng = seed;
    sampler_listed lists[2];
    ranking_token got[SAMPLER_RANKED_MAX], want[SAMPLER_RANKED_MAX];
    int32_t vocab = vocabs[random_below(&rng, 7)],
            wanted = 1 + (int32_t)random_below(&rng, SAMPLER_RANKED_MAX);
    sampler *s = sampler_of(vocab);
    fill_logits(&rng, x, vocab);
    for (int32_t t = 0; seed % 2 && t < vocab; t++) x[t] = (float)random_below(&rng, 3);
    split_tokens(&rng, x, vocab, tokens, logits, dense, lists);
    sampler_options o = options(temperatures[random_below(&rng, 4)], top_ks[random_below(&rng, 5)],
                                top_ps[random_below(&rng, 3)], random_below(&rng, 2) ? 0.05f : 0);
    o.repeat_penalty = penalties[random_below(&rng, 4)];
    o.presence_penalty = (float)random_below(&rng, 2);
    o.frequency_penalty = (float)random_below(&rng, 2) / 4;
    o.seed = seed;
    row.prompt_count = (int32_t)random_below(&rng, 9);
    row.bias_tokens = biased, row.bias_values = bias, row.bias_count = random_below(&rng, 3) ? 0 : 4;
    int32_t count = sampler_rank(s, &o, &row, dense, 7, wanted, want);
    assert_int_equal(sampler_rank_listed(s, &o, &row, lists, 2, 7, wanted, got), count);
    for (int32_t i = 0; i < count; i++) {
      assert_int_equal(got[i].token, want[i].token);
      assert_true(got[i].value == want[i].value);
    }
    sampler_free(s);
  }
}

/* A row's penalties, biases and mask come first; where they leave nothing, nothing is ranked. */
static void ranks_of_an_adjusted_row(void **state) {
  (void)state;
  float x[CELLS], y[CELLS];
  const int32_t history[] = {1, 2, 1, 1}, extra[] = {3, 2}, biased[] = {5, 6};
  const float bias[] = {2, -INFINITY}, none[] = {-INFINITY, -INFINITY, -INFINITY};
  uint32_t mask[2] = {0xfffffffe, 0xffffffff}, nothing[2] = {0};
  ranking_token got[SAMPLER_RANKED_MAX], want[SAMPLER_RANKED_MAX];
  sampler *s = sampler_of(CELLS), *small = sampler_of(3);
  for (int32_t t = 0; t < CELLS; t++) y[t] = x[t] = (float)(t % 7) / 2 - 1;
  y[1] *= 1.5f, y[2] *= 1.5f, y[3] /= 1.5f; /* -0.5, 0, 0.5 */
  y[5] += 2, y[6] = -INFINITY, y[0] = -INFINITY;
  for (size_t w = 0; w < WAYS; w++) {
    sampler_options o = every_way[w], plain = o;
    o.repeat_penalty = 1.5f;
    sampler_row row = {history, 4, extra, 2, 0, biased, bias, 2, mask};
    for (int32_t position = 0; position < 50; position++) {
      int32_t count = sampler_rank(s, &plain, NULL, y, position, SAMPLER_RANKED_MAX, want);
      assert_true(count > 0);
      assert_int_equal(sampler_rank(s, &o, &row, x, position, SAMPLER_RANKED_MAX, got), count);
      for (int32_t i = 0; i < count; i++) {
        assert_int_equal(got[i].token, want[i].token);
        assert_true(got[i].value == want[i].value);
      }
    }
    row.mask = nothing;
    assert_int_equal(sampler_rank(s, &o, &row, x, 0, SAMPLER_RANKED_MAX, got), 0);
    assert_int_equal(sampler_rank(small, &plain, NULL, none, 0, 2, got), 0);
  }
  sampler_free(s);
  sampler_free(small);
}

static void minus_infinity_is_never_chosen(void **state) {
  (void)state;
  const float one[] = {-INFINITY, -INFINITY, -1e38f, -INFINITY};
  const float none[] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  sampler *s = sampler_of(4);
  for (size_t w = 0; w < WAYS; w++)
    for (int32_t position = 0; position < 300; position++) {
      assert_int_equal(sampler_pick(s, &every_way[w], NULL, one, position), 2);
      assert_int_equal(sampler_pick(s, &every_way[w], NULL, none, position), -1);
    }
  sampler_free(s);
}

/* A logit that is no number, wherever it is, tells that the others cannot be trusted: neither the best of
 * them nor the infinite one is an answer, also where a mask or a list leaves it out. */
static void nothing_is_chosen_among_what_is_no_number(void **state) {
  (void)state;
  enum { VOCAB = 70 };
  const float others[] = {NAN, -NAN, INFINITY};
  const uint32_t mask[] = {0x38, 0, 0}; /* 3, 4, 5 */
  const sampler_row masked = {.mask = mask}, rows[] = {{0}, masked};
  const int32_t tokens[] = {4, 2, -1};
  ranking_token best[4];
  sampler *s = sampler_of(VOCAB);
  for (size_t w = 0; w < WAYS; w++)
    for (int32_t at = 0; at < VOCAB; at++)
      for (int k = 0; k < 3; k++) {
        float x[VOCAB];
        for (int32_t t = 0; t < VOCAB; t++) x[t] = (float)(t % 9);
        assert_true(sampler_are_numbers(x, VOCAB));
        x[at] = others[k];
        assert_false(sampler_are_numbers(x, VOCAB));
        for (int i = 0; i < 2; i++) {
          assert_int_equal(sampler_pick(s, &every_way[w], &rows[i], x, at), -1);
          assert_int_equal(sampler_rank(s, &every_way[w], &rows[i], x, at, 4, best), 0);
        }
        const float listed[] = {others[k], 1, 0}, unlisted[] = {2, 1, others[k]};
        const sampler_listed bad = {tokens, listed, 3}, good = {tokens, unlisted, 3};
        assert_int_equal(sampler_rank_listed(s, &every_way[w], NULL, &bad, 1, at, 4, best), 0);
        assert_in_range(sampler_rank_listed(s, &every_way[w], NULL, &good, 1, at, 4, best), 1, 2);
      }
  sampler_free(s);
}

/* A penalty below 1 divides: the quotient may be beyond the largest float. */
static void a_penalty_may_make_no_number(void **state) {
  (void)state;
  const float x[] = {1, 3e38f, 2};
  const int32_t history[] = {1};
  const sampler_row row = {.history = history, .history_count = 1};
  sampler *s = sampler_of(3);
  for (size_t w = 0; w < WAYS; w++) {
    sampler_options o = every_way[w];
    o.repeat_penalty = 0.5f;
    assert_int_equal(sampler_pick(s, &o, &row, x, 7), -1);
    assert_int_equal(sampler_pick(s, &o, NULL, x, 7), 1);
  }
  sampler_free(s);
}

static void mask_and_bias(void **state) {
  (void)state;
  float x[70];
  for (int32_t t = 0; t < 70; t++) x[t] = (float)t / 10;
  uint32_t mask[3] = {1u << 7, 1u << 31, 1u << 1}, nothing[3] = {0};
  const int32_t tokens[] = {7, 7, 65, -1, 70, INT32_MAX}; /* the last three are in no vocabulary */
  const float values[] = {50, 50, -1, 1000, 1000, 1000};
  sampler *s = sampler_of(70);
  for (size_t w = 0; w < WAYS; w++)
    for (int32_t position = 0; position < 200; position++) {
      sampler_row row = {.mask = mask};
      int32_t t = sampler_pick(s, &every_way[w], &row, x, position);
      assert_true(t == 7 || t == 63 || t == 65);
      if (every_way[w].temperature == 0) assert_int_equal(t, 65);
      row = (sampler_row){.bias_tokens = tokens, .bias_values = values, .bias_count = 6};
      if (every_way[w].temperature < 2)
        assert_int_equal(sampler_pick(s, &every_way[w], &row, x, position), 7);
      row.mask = mask, mask[0] = 0; /* a mask beats any bias */
      assert_int_not_equal(sampler_pick(s, &every_way[w], &row, x, position), 7);
      mask[0] = 1u << 7;
      row.mask = nothing;
      assert_int_equal(sampler_pick(s, &every_way[w], &row, x, position), -1);
    }
  sampler_free(s);
}

static void penalty_counts_a_token_once(void **state) {
  (void)state;
  const float x[] = {4, 3, 2, -1, -1.5f, 0};
  sampler *s = sampler_of(6);
  sampler_options o = SAMPLER_DEFAULTS;
  o.repeat_penalty = 1.5f;
  static const struct {
    int32_t history[4], history_count, extra[4], extra_count, want;
  } cases[] = {
      {{0}, 0, {0}, 0, 0},
      {{0}, 1, {0}, 0, 1},             /* 2.67, 3 */
      {{0, 0, 0, 0}, 4, {0, 0}, 2, 1}, /* once: 2.67 is still above 2 */
      {{0, 1, 0, 1}, 4, {0}, 0, 0},    /* 2.67, 2, 2 */
      {{0, 1, -1, 6}, 4, {0, 1}, 2, 0},
      {{0}, 1, {1}, 1, 0}, /* a path counts like history */
      {{0}, 0, {0}, 1, 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const sampler_row row = {.history = cases[i].history,
                             .history_count = cases[i].history_count,
                             .extra = cases[i].extra,
                             .extra_count = cases[i].extra_count};
    for (int again = 0; again < 3; again++) /* no pick leaves a trace in the next */
      assert_int_equal(sampler_pick(s, &o, &row, x, 0), cases[i].want);
  }
  const float y[] = {-2, -3, -4, -5, -6, -7};
  const int32_t seen[] = {0};
  const sampler_row row = {.history = seen, .history_count = 1};
  o.repeat_penalty = 1.4f; /* a negative logit is multiplied: -2.8 stays best */
  assert_int_equal(sampler_pick(s, &o, &row, y, 0), 0);
  o.repeat_penalty = 1.6f; /* -3.2 */
  assert_int_equal(sampler_pick(s, &o, &row, y, 0), 1);
  sampler_free(s);
}

/* 4 - 0.5 * times - 1, of the output alone. */
static void output_tokens_are_counted(void **state) {
  (void)state;
  sampler *s = sampler_of(3);
  sampler_options o = SAMPLER_DEFAULTS;
  o.presence_penalty = 1, o.frequency_penalty = 0.5f;
  static const struct {
    int32_t history_count, extra_count, prompt_count;
    float want; /* of token 0 */
  } cases[] = {{0, 0, 0, 4},    {4, 0, 4, 4}, {4, 0, 9, 4},   {4, 0, 3, 2.5f}, {4, 0, 0, 1.5f},
               {4, 3, 4, 2.5f}, {4, 3, 3, 2}, {0, 3, 1, 4},   {0, 3, 0, 2.5f}, {2, 3, 3, 4},
               {3, 3, 2, 2},    {1, 1, 0, 2}, {1, 1, 1, 2.5f}};
  static const int32_t history[] = {0, 1, 0, 0}, extra[] = {0, 2, 3};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const float x[] = {4, -INFINITY, -INFINITY};
    const sampler_row row = {.history = history,
                             .history_count = cases[i].history_count,
                             .extra = extra,
                             .extra_count = cases[i].extra_count,
                             .prompt_count = cases[i].prompt_count};
    ranking_token best;
    for (int again = 0; again < 3; again++) {
      assert_int_equal(sampler_rank(s, &o, &row, x, 0, 1, &best), 1);
      if (best.value != cases[i].want) fail_msg("case %zu: %g", i, (double)best.value);
    }
  }
  sampler_free(s);
}

/* The penalty comes before the bias: (4 / 2) + 1 = 3, not (4 + 1) / 2. */
static void order_of_penalty_and_bias(void **state) {
  (void)state;
  const float x[] = {4, 2.75f};
  const int32_t token[] = {0};
  const float bias[] = {1};
  sampler_options o = SAMPLER_DEFAULTS;
  o.repeat_penalty = 2;
  const sampler_row row = {token, 1, NULL, 0, 0, token, bias, 1, NULL};
  sampler *s = sampler_of(2);
  assert_int_equal(sampler_pick(s, &o, &row, x, 0), 0);
  sampler_free(s);
}

static void a_pick_is_a_function(void **state) {
  (void)state;
  enum { N = 5000 };
  static float x[N], copy[N];
  uint64_t rng = 8;
  for (int32_t t = 0; t < N; t++) copy[t] = x[t] = (float)random_below(&rng, 1000) / 1000;
  int changed[3] = {0};
  const int32_t history[] = {3, 4};
  const sampler_row row = {.history = history, .history_count = 2};
  sampler *s = sampler_of(N), *other = sampler_of(N);
  for (size_t w = 1; w < 5; w++)
    for (int32_t position = 0; position < 50; position++) {
      sampler_options o = every_way[w];
      o.repeat_penalty = 1.3f;
      if (o.top_k) o.top_k = 1000;
      o.seed = 77;
      int32_t t = sampler_pick(s, &o, &row, x, position);
      sampler_pick(other, &o, NULL, x, position + 9); /* another past of the scratch */
      assert_int_equal(sampler_pick(other, &o, &row, x, position), t);
      changed[0] += sampler_pick(s, &o, &row, x, position + 1000) != t;
      o.choice = 1;
      changed[1] += sampler_pick(s, &o, &row, x, position) != t;
      o.choice = 0, o.seed += 1ull << 32;
      changed[2] += sampler_pick(s, &o, &row, x, position) != t;
    }
  for (int i = 0; i < 3; i++) assert_true(changed[i] > 190); /* of 200; chance makes two equal once in 1000 */
  assert_memory_equal(x, copy, sizeof x);
  sampler_free(s);
  sampler_free(other);
}

/* Noise past a bound would break the rules that skip tokens. */
static void noise_has_bounds(void **state) {
  (void)state;
  float loosest = 0;
  for (uint32_t x = 0; x < 1u << 23; x++) {
    float g = noise_gumbel(x << 9 | (x & 511)), bound = noise_bound(x << 9 | (x >> 5 & 511));
    if (g > bound || g >= NOISE_MAX || bound >= NOISE_MAX)
      fail_msg("u %u: noise %g, bound %g", x, (double)g, (double)bound);
    if (g > 5 && bound - g > loosest) loosest = bound - g;
  }
  assert_true(loosest > 0.06f && loosest < 0.07f);
  float most = -sampler_log(-sampler_log(philox_unit(0xffffffff)));
  float least = -sampler_log(-sampler_log(philox_unit(0)));
  assert_true(most > 16.63f && most < 16.64f);
  assert_true(least < -2.81f && least > -2.82f);
}

/* Few tokens ever get noise near the bound: look for one, and let it win from far below. */
static void the_luckiest_token_wins(void **state) {
  (void)state;
  static float x[VOCAB_MAX];
  static uint32_t bits[VOCAB_MAX];
  const uint32_t key[2] = {42, 0}, high = 0x7ffffc; /* u above 1 - 4.2e-7, g above 14.6 */
  sampler *s = sampler_of(VOCAB_MAX);
  sampler_options o = options(1, 0, 1, 0);
  o.seed = 42;
  int found = 0;
  for (int32_t position = 0; found < 3 && position < 2000; position++) {
    philox_run((const uint32_t[]){0, (uint32_t)position, 0, 0}, key, VOCAB_MAX / 4, bits);
    for (int32_t t = 1; t < VOCAB_MAX; t++) {
      if (bits[t] >> 9 < high) continue;
      float g = sampler_gumbel(42, 0, (uint32_t)position, (uint32_t)t),
            first = sampler_gumbel(42, 0, (uint32_t)position, 0);
      for (int32_t i = 0; i < VOCAB_MAX; i++) x[i] = -100;
      x[0] = -first; /* the best one comes to 0 */
      x[t] = 0.01f - g;
      for (o.top_k = 0; o.top_k <= 5; o.top_k += 5)
        assert_int_equal(sampler_pick(s, &o, NULL, x, position), t);
      found++;
    }
  }
  assert_true(found >= 3);
  sampler_free(s);
}

/* Many tokens, each one in two million, together one in 45: top-p must not lose them. */
static void a_long_tail_counts(void **state) {
  (void)state;
  static float x[VOCAB_MAX];
  for (int32_t t = 1; t < VOCAB_MAX; t++) x[t] = -14.6f;
  sampler *s = sampler_of(VOCAB_MAX);
  sampler_options o = options(1, 0, 0.9999f, 0);
  int tail = 0;
  for (int32_t position = 0; position < 600; position++) tail += sampler_pick(s, &o, NULL, x, position) > 0;
  assert_true(tail >= 3 && tail <= 30); /* 13 expected */
  sampler_free(s);
}

/* At this temperature z has no fraction left, so that noise brings unequal logits to equal sums. */
static void equal_sums_go_to_the_lowest_id(void **state) {
  (void)state;
  float x[64];
  int32_t order[64];
  uint64_t rng = 4;
  sampler *s = sampler_of(64);
  sampler_options o = options(1e-5f, 0, 1, 0);
  for (int32_t position = 0; position < 2000; position++) {
    for (int32_t t = 0; t < 64; t++) x[t] = 100 - (float)random_below(&rng, 4) * 0x1p-17f;
    assert_int_equal(sampler_pick(s, &o, NULL, x, position), pick_by_sorting(&o, x, 64, position, order));
  }
  sampler_free(s);
}

static void a_tiny_temperature_is_greedy(void **state) {
  (void)state;
  const float x[] = {1, 1 + 0x1p-23f};
  sampler *s = sampler_of(2);
  sampler_options o = options(0.99e-5f, 0, 1, 0);
  for (int32_t position = 0; position < 100; position++)
    assert_int_equal(sampler_pick(s, &o, NULL, x, position), 1);
  sampler_free(s);
}

/* --- options --- */

static void logits_are_needed_by_filters_and_rows(void **state) {
  (void)state;
  const int32_t token[] = {1};
  const uint32_t mask[] = {3};
  const sampler_row history = {.history = token, .history_count = 1},
                    path = {.extra = token, .extra_count = 1}, bias = {.bias_tokens = token, .bias_count = 1},
                    masked = {.mask = mask}, none = {0};
  const struct {
    sampler_options o;
    const sampler_row *row;
    bool needed;
  } cases[] = {
      {options(0, 0, 1, 0), &none, false},      {options(0, 5, 0.5f, 0.1f), &none, false},
      {options(0.8f, 0, 1, 0), &none, false},   {options(0.8f, 0, 1, 0), &history, false},
      {options(0.8f, 100, 1, 0), &none, false}, {options(0.8f, 99, 1, 0), &none, true},
      {options(0.8f, 0, 0.9f, 0), &none, true}, {options(0.8f, 0, 1, 0.1f), &none, true},
      {options(0, 0, 1, 0), &bias, true},       {options(0, 0, 1, 0), &masked, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(sampler_needs_logits(&cases[i].o, cases[i].row, 100), cases[i].needed);
  sampler_options o = options(0, 0, 1, 0);
  o.repeat_penalty = 1.1f;
  assert_false(sampler_needs_logits(&o, &none, 100));
  assert_true(sampler_needs_logits(&o, &history, 100));
  assert_true(sampler_needs_logits(&o, &path, 100));
  assert_true(sampler_scale(&o) == 0);
  o.temperature = SAMPLER_TEMPERATURE_MIN / 2;
  assert_true(sampler_scale(&o) == 0);
  o.temperature = 0.8f;
  assert_true(sampler_scale(&o) == 1.25f);
}

static void options_have_ranges(void **state) {
  (void)state;
  static const struct {
    const char *name;
    sampler_options o;
    bool ok;
  } cases[] = {
      {"", {.temperature = 0, .top_p = 1, .repeat_penalty = 1}, true},
      {"",
       {.temperature = 100, .top_p = 1e-9f, .min_p = 0.999f, .repeat_penalty = 10, .top_k = INT32_MAX},
       true},
      {"temperature", {.temperature = -0.1f, .top_p = 1, .repeat_penalty = 1}, false},
      {"temperature", {.temperature = 100.1f, .top_p = 1, .repeat_penalty = 1}, false},
      {"temperature", {.temperature = NAN, .top_p = 1, .repeat_penalty = 1}, false},
      {"temperature", {.temperature = INFINITY, .top_p = 1, .repeat_penalty = 1}, false},
      {"top_p", {.top_p = 0, .repeat_penalty = 1}, false},
      {"top_p", {.top_p = 1.01f, .repeat_penalty = 1}, false},
      {"top_p", {.top_p = NAN, .repeat_penalty = 1}, false},
      {"min_p", {.top_p = 1, .min_p = 1, .repeat_penalty = 1}, false},
      {"min_p", {.top_p = 1, .min_p = -0.1f, .repeat_penalty = 1}, false},
      {"min_p", {.top_p = 1, .min_p = NAN, .repeat_penalty = 1}, false},
      {"repeat_penalty", {.top_p = 1, .repeat_penalty = 0}, false},
      {"repeat_penalty", {.top_p = 1, .repeat_penalty = 10.5f}, false},
      {"repeat_penalty", {.top_p = 1, .repeat_penalty = NAN}, false},
      {"", {.top_p = 1, .repeat_penalty = 1, .presence_penalty = -2, .frequency_penalty = 2}, true},
      {"presence_penalty", {.top_p = 1, .repeat_penalty = 1, .presence_penalty = 2.1f}, false},
      {"presence_penalty", {.top_p = 1, .repeat_penalty = 1, .presence_penalty = NAN}, false},
      {"frequency_penalty", {.top_p = 1, .repeat_penalty = 1, .frequency_penalty = -2.1f}, false},
      {"top_k", {.top_p = 1, .repeat_penalty = 1, .top_k = -1}, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    err e = {0};
    int code = sampler_check(&cases[i].o, &e);
    assert_int_equal(code, cases[i].ok ? ERR_OK : ERR_ARG);
    assert_int_equal(sampler_check(&cases[i].o, NULL), code);
    if (!cases[i].ok) assert_int_equal(strncmp(e.text, cases[i].name, strlen(cases[i].name)), 0);
  }
  assert_int_equal(sampler_check(&SAMPLER_DEFAULTS, NULL), ERR_OK);
  sampler *s;
  assert_int_equal(sampler_alloc(&s, 0), ERR_ARG);
  assert_null(s);
  assert_int_equal(sampler_alloc(&s, SAMPLER_VOCAB_MAX + 1), ERR_ARG);
  sampler_free(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_noise),
      cmocka_unit_test(golden_functions),
      cmocka_unit_test(golden_picks),
      cmocka_unit_test(golden_adjustments),
      cmocka_unit_test(golden_logprobs),
      cmocka_unit_test(logprobs_of_odd_logits),
      cmocka_unit_test(output_tokens_are_counted),
      cmocka_unit_test(functions_everywhere),
      cmocka_unit_test(noise_has_bounds),
      cmocka_unit_test(the_luckiest_token_wins),
      cmocka_unit_test(a_long_tail_counts),
      cmocka_unit_test(equal_sums_go_to_the_lowest_id),
      cmocka_unit_test(a_tiny_temperature_is_greedy),
      cmocka_unit_test(filters_are_a_sort),
      cmocka_unit_test(filter_edges_keep_the_lowest_ids),
      cmocka_unit_test(bounds_are_inclusive),
      cmocka_unit_test(equal_tokens_reach_a_share_exactly),
      cmocka_unit_test(the_least_temperature_is_sampled),
      cmocka_unit_test(distribution_is_the_softmax),
      cmocka_unit_test(distribution_of_an_adjusted_row),
      cmocka_unit_test(greedy_takes_the_lowest_of_equals),
      cmocka_unit_test(ranks_are_a_sort),
      cmocka_unit_test(listed_tokens_rank_as_a_vocabulary_without_the_others),
      cmocka_unit_test(ranks_of_an_adjusted_row),
      cmocka_unit_test(minus_infinity_is_never_chosen),
      cmocka_unit_test(nothing_is_chosen_among_what_is_no_number),
      cmocka_unit_test(a_penalty_may_make_no_number),
      cmocka_unit_test(mask_and_bias),
      cmocka_unit_test(penalty_counts_a_token_once),
      cmocka_unit_test(order_of_penalty_and_bias),
      cmocka_unit_test(a_pick_is_a_function),
      cmocka_unit_test(logits_are_needed_by_filters_and_rows),
      cmocka_unit_test(options_have_ranges),
  };
  return cmocka_run_group_tests(tests, load, unload);
}
