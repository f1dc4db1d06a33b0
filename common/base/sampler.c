#include "common/base/sampler.h"

#include "common/base/filter_math.h"
#include "common/base/ranking.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES       16 /* independent maxima, so that the compiler may use vectors */
#define CHUNK       64 /* tokens whose noise is made at once; a multiple of 4 and of LANES */
#define DIGIT_BITS  11
#define DIGIT_COUNT (1 << DIGIT_BITS)

struct sampler {
  int32_t vocab;
  uint32_t stamp;       /* of the present pick */
  uint32_t *seen;       /* [vocab]: == stamp: the history has the token, and its logit has no penalty yet */
  float *adjusted;      /* [vocab]: logits after penalties, bias, mask */
  int32_t *ids;         /* [vocab]: candidates of the filters; before, how often the output has a token */
  float *logits;        /* [vocab]: of the candidates */
  float *probabilities; /* [vocab]: of the candidates, relative to the best one */
  uint64_t histogram[DIGIT_COUNT];
};

#define LISTS 5 /* of vocab elements of 4 bytes each, which follow the structure */

/* --- functions --- */

float sampler_log(float x) {
  return noise_log(x);
}

float sampler_exp(float x) {
  return filter_exp(x);
}

float sampler_gumbel(uint64_t seed, uint32_t choice, uint32_t position, uint32_t token) {
  return noise_of(&(noise_source){seed, choice, position}, (int32_t)token);
}

/* --- options and scratch --- */

int sampler_check(const sampler_options *o, err *e) {
  const struct {
    const char *name;
    float value, low, high;
    bool open_low, open_high; /* the bound itself is outside */
  } ranges[] = {
      {"temperature", o->temperature, 0, SAMPLER_TEMPERATURE_MAX, false, false},
      {"top_p", o->top_p, 0, 1, true, false},
      {"min_p", o->min_p, 0, 1, false, true},
      {"repeat_penalty", o->repeat_penalty, 0, SAMPLER_PENALTY_MAX, true, false},
      {"presence_penalty", o->presence_penalty, -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX, false, false},
      {"frequency_penalty", o->frequency_penalty, -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX, false, false},
  };
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    float v = ranges[i].value, low = ranges[i].low, high = ranges[i].high;
    bool ok =
        v >= low && v <= high && !(ranges[i].open_low && v == low) && !(ranges[i].open_high && v == high);
    if (!ok)
      return err_set(e, ERR_ARG, "%s is %g, but must be in %c%g, %g%c", ranges[i].name, (double)v,
                     ranges[i].open_low ? '(' : '[', (double)low, (double)high,
                     ranges[i].open_high ? ')' : ']');
  }
  if (o->top_k < 0)
    return err_set(e, ERR_ARG, "top_k is %d, but must be 0 (off) or the number of tokens to keep", o->top_k);
  return ERR_OK;
}

size_t sampler_bytes(int32_t vocab) {
  return sizeof(sampler) + LISTS * (size_t)vocab * sizeof(float);
}

sampler *sampler_init(void *memory, int32_t vocab) {
  sampler *s = memory;
  size_t n = (size_t)vocab;
  assert(vocab >= 1 && vocab <= SAMPLER_VOCAB_MAX);
  s->vocab = vocab;
  s->stamp = 0;
  s->seen = (uint32_t *)(s + 1);
  s->adjusted = (float *)(s->seen + n);
  s->ids = (int32_t *)(s->adjusted + n);
  s->logits = (float *)(s->ids + n);
  s->probabilities = s->logits + n;
  memset(s->seen, 0, n * sizeof *s->seen);
  return s;
}

int sampler_alloc(sampler **out, int32_t vocab) {
  *out = NULL;
  if (vocab < 1 || vocab > SAMPLER_VOCAB_MAX) return ERR_ARG;
  void *memory = malloc(sampler_bytes(vocab));
  if (!memory) return ERR_NOMEM;
  *out = sampler_init(memory, vocab);
  return ERR_OK;
}

void sampler_free(sampler *s) {
  free(s);
}

/* --- what a row adds --- */

static bool in_vocab(const sampler *s, int32_t token) {
  return token >= 0 && token < s->vocab;
}

/* Marks the tokens and counts those from index `output` on. */
static void tally(sampler *s, const int32_t *tokens, int32_t count, int32_t output) {
  for (int32_t i = 0; i < count; i++) {
    int32_t t = tokens[i];
    if (!in_vocab(s, t)) continue;
    if (s->seen[t] != s->stamp) s->ids[t] = 0;
    s->seen[t] = s->stamp;
    s->ids[t] += i >= output;
  }
}

/* The logits of the marked tokens among these, whose marks go. */
static void penalise(sampler *s, const sampler_options *o, const int32_t *tokens, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    int32_t t = tokens[i];
    if (!in_vocab(s, t) || s->seen[t] != s->stamp) continue;
    s->seen[t] = 0;
    s->adjusted[t] = filter_penalised(s->adjusted[t], o->repeat_penalty, o->frequency_penalty,
                                      o->presence_penalty, s->ids[t]);
  }
}

static void next_stamp(sampler *s) {
  if (++s->stamp) return;
  memset(s->seen, 0, (size_t)s->vocab * sizeof *s->seen);
  s->stamp = 1;
}

static bool allowed(const uint32_t *mask, int32_t token) {
  return !mask || (mask[token / 32] >> (token % 32) & 1);
}

bool sampler_penalises(const sampler_options *o) {
  return o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
}

static bool penalises(const sampler_options *o, const sampler_row *row) {
  return sampler_penalises(o) && (row->history_count || row->extra_count);
}

static bool adjusts(const sampler_options *o, const sampler_row *row) {
  return penalises(o, row) || row->bias_count || row->mask;
}

/* Penalties, bias and mask, in s->adjusted. */
static void adjust_own(sampler *s, const sampler_options *o, const sampler_row *row) {
  if (penalises(o, row)) {
    next_stamp(s);
    tally(s, row->history, row->history_count, row->prompt_count);
    tally(s, row->extra, row->extra_count, row->prompt_count - row->history_count);
    penalise(s, o, row->history, row->history_count);
    penalise(s, o, row->extra, row->extra_count);
  }
  for (int32_t i = 0; i < row->bias_count; i++)
    if (in_vocab(s, row->bias_tokens[i])) s->adjusted[row->bias_tokens[i]] += row->bias_values[i];
  for (int32_t t = 0; row->mask && t < s->vocab; t++)
    if (!allowed(row->mask, t)) s->adjusted[t] = -INFINITY;
}

/* The logits after penalties, bias and mask: `logits` itself when there is nothing to do. */
static const float *adjust(sampler *s, const sampler_options *o, const sampler_row *row,
                           const float *logits) {
  if (!adjusts(o, row)) return logits;
  memcpy(s->adjusted, logits, (size_t)s->vocab * sizeof *logits);
  adjust_own(s, o, row);
  return s->adjusted;
}

/* --- greedy --- */

/* -INFINITY when there is nothing above it. */
static float max_of(const float *x, int32_t count) {
  float lanes[LANES];
  for (int32_t l = 0; l < LANES; l++) lanes[l] = -INFINITY;
  int32_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int32_t l = 0; l < LANES; l++) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  float best = -INFINITY;
  for (int32_t l = 0; l < LANES; l++) best = lanes[l] > best ? lanes[l] : best;
  for (; i < count; i++) best = x[i] > best ? x[i] : best;
  return best;
}

bool sampler_are_numbers(const float *logits, int32_t count) {
  uint32_t others = 0;
  for (int32_t i = 0; i < count; i++) others |= !(logits[i] < INFINITY);
  return others == 0;
}

/* The lowest id with the largest logit, or -1: nothing is left, or a penalty made it infinite. */
static int32_t argmax(const float *x, int32_t count) {
  float best = max_of(x, count);
  if (best == -INFINITY || best == INFINITY) return -1;
  int32_t t = 0;
  while (x[t] != best) t++;
  return t;
}

/* --- Gumbel-max --- */

/* Chooses over the whole vocabulary. It starts with the best logit. A token that cannot beat it even with the
 * largest noise needs no noise of its own, and few of the others can beat it with the bound of their noise. A
 * device does the same while it makes the logits (kernels/cpu/sample.h); here the logits have been adjusted.
 */
static void choose_all(const sampler *s, const noise_source *noise, const float *x, float scale, int32_t top,
                       ranking_list *r) {
  uint32_t bits[CHUNK];
  float most[CHUNK];
  ranking_challenge(r, x[top] * scale + noise_of(noise, top), top);
  for (int32_t first = 0; first < s->vocab; first += CHUNK) {
    int32_t count = s->vocab - first < CHUNK ? s->vocab - first : CHUNK;
    if (max_of(x + first, count) * scale + NOISE_MAX < ranking_least(r)) continue;
    noise_bits(noise, first / 4, (count + 3) / 4, bits);
    for (int32_t i = 0; i < count; i++) most[i] = x[first + i] * scale + noise_bound(bits[i]);
    if (max_of(most, count) < ranking_least(r)) continue;
    for (int32_t i = 0; i < count; i++) {
      if (most[i] < ranking_least(r) || !(x[first + i] > -INFINITY) || first + i == top) continue;
      ranking_challenge(r, x[first + i] * scale + noise_gumbel(bits[i]), first + i);
    }
  }
}

/* Without noise. */
static void choose_greedy(const sampler *s, const float *x, ranking_list *r) {
  for (int32_t first = 0; first < s->vocab; first += CHUNK) {
    int32_t count = s->vocab - first < CHUNK ? s->vocab - first : CHUNK;
    if (!(max_of(x + first, count) > ranking_least(r))) continue;
    for (int32_t i = 0; i < count; i++)
      if (x[first + i] > ranking_least(r)) ranking_challenge(r, x[first + i], first + i);
  }
}

/* Random bits of `count` listed tokens. Without a branch, so that it becomes vector code. */
static void noise_bits_listed(const noise_source *noise, const int32_t *ids, int32_t count, uint32_t *bits) {
  for (int32_t i = 0; i < count; i++) {
    const philox_block b = noise_block(noise, (int32_t)((uint32_t)ids[i] / 4));
    const uint32_t odd = 0 - (uint32_t)(ids[i] & 1), high = 0 - (uint32_t)(ids[i] >> 1 & 1);
    const uint32_t low = (b.lane[0] & ~odd) | (b.lane[1] & odd);
    bits[i] = (low & ~high) | (((b.lane[2] & ~odd) | (b.lane[3] & odd)) & high);
  }
}

/* Over candidates [0, count). */
static void choose_listed(const sampler *s, const noise_source *noise, float scale, int32_t count,
                          ranking_list *r) {
  uint32_t bits[CHUNK];
  float most[CHUNK];
  for (int32_t first = 0; first < count; first += CHUNK) {
    const int32_t *ids = s->ids + first;
    const float *x = s->logits + first;
    int32_t n = count - first < CHUNK ? count - first : CHUNK;
    if (max_of(x, n) * scale + NOISE_MAX < ranking_least(r)) continue;
    noise_bits_listed(noise, ids, n, bits);
    for (int32_t i = 0; i < n; i++) most[i] = x[i] * scale + noise_bound(bits[i]);
    if (max_of(most, n) < ranking_least(r)) continue;
    for (int32_t i = 0; i < n; i++)
      if (most[i] >= ranking_least(r)) ranking_challenge(r, x[i] * scale + noise_gumbel(bits[i]), ids[i]);
  }
}

/* --- filters --- */

static inline uint64_t weight_of(const float *probabilities, int32_t i) {
  return probabilities ? filter_weight(probabilities[i]) : 1;
}

static int32_t list_candidates(sampler *s, const float *x) {
  int32_t count = 0;
  for (int32_t t = 0; t < s->vocab; t++) {
    s->ids[count] = t;
    s->logits[count] = x[t];
    count += x[t] > -INFINITY;
  }
  return count;
}

/* The digit of `key` at `shift`, and whether the digits above are those of `prefix`. */
static inline bool digit_at(uint32_t key, uint32_t prefix, int shift, uint32_t *digit) {
  *digit = key >> shift & (DIGIT_COUNT - 1);
  return (uint64_t)key >> (shift + DIGIT_BITS) == (uint64_t)prefix >> (shift + DIGIT_BITS);
}

/* Returns the key at which the weights, summed from the largest key down, reach `target` (at most their sum);
 * *rest is what the candidates with exactly that key must add. This is a radix select: three passes over the
 * list and no sort. */
static uint32_t select_key(sampler *s, const float *probabilities, int32_t count, uint64_t target,
                           uint64_t *rest) {
  uint32_t prefix = 0, digit;
  for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
    memset(s->histogram, 0, sizeof s->histogram);
    for (int32_t i = 0; i < count; i++)
      if (digit_at(filter_key(s->logits[i]), prefix, shift, &digit))
        s->histogram[digit] += weight_of(probabilities, i);
    for (digit = DIGIT_COUNT - 1; s->histogram[digit] < target; digit--) {
      target -= s->histogram[digit];
      assert(digit > 0);
    }
    prefix |= digit << shift;
  }
  *rest = target;
  return prefix;
}

/* Of the candidates with this key, as few as reach `rest`, those with the lowest ids: the last one's id. The
 * same key has the same weight. */
static int32_t last_of_ties(const sampler *s, const float *probabilities, int32_t count, uint32_t key,
                            uint64_t rest) {
  uint64_t weight = 0, ties = 0, wanted, up_to;
  for (int32_t i = 0; i < count; i++)
    if (filter_key(s->logits[i]) == key) weight = weight_of(probabilities, i), ties++;
  wanted = weight > 0 ? (rest + weight - 1) / weight : 0;
  if (wanted >= ties) return INT32_MAX;
  int32_t low = -1, last = s->vocab - 1; /* the id is in (low, last] */
  while (last - low > 1) {
    int32_t middle = low + (last - low) / 2;
    up_to = 0;
    for (int32_t i = 0; i < count; i++) up_to += filter_key(s->logits[i]) == key && s->ids[i] <= middle;
    if (up_to >= wanted)
      last = middle;
    else
      low = middle;
  }
  return wanted > 0 ? last : -1;
}

/* Keeps the fewest candidates, best first, whose weights reach `target`. */
static int32_t keep_best(sampler *s, const float *probabilities, int32_t count, uint64_t target) {
  uint64_t rest;
  const uint32_t key = select_key(s, probabilities, count, target, &rest);
  const int32_t last = last_of_ties(s, probabilities, count, key, rest);
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++) {
    uint32_t k = filter_key(s->logits[i]);
    bool keep = k > key || (k == key && s->ids[i] <= last);
    s->ids[kept] = s->ids[i];
    s->logits[kept] = s->logits[i];
    kept += keep;
  }
  return kept;
}

/* Relative probabilities of the candidates. */
static void weigh(sampler *s, int32_t count, float best, float scale) {
  for (int32_t i = 0; i < count; i++) s->probabilities[i] = filter_probability(s->logits[i], best, scale);
}

static int32_t keep_weighty(sampler *s, int32_t count, uint64_t *total) {
  int32_t kept = 0;
  *total = 0;
  for (int32_t i = 0; i < count; i++) {
    uint64_t weight = weight_of(s->probabilities, i);
    *total += weight;
    s->ids[kept] = s->ids[i];
    s->logits[kept] = s->logits[i];
    s->probabilities[kept] = s->probabilities[i];
    kept += weight > 0;
  }
  return kept;
}

static int32_t keep_top_p(sampler *s, int32_t count, float top_p, float best, float scale) {
  uint64_t total;
  weigh(s, count, best, scale);
  count = keep_weighty(s, count, &total);
  return keep_best(s, s->probabilities, count, filter_target(top_p, total));
}

static int32_t keep_min_p(sampler *s, int32_t count, float min_p, float best, float scale) {
  float least = filter_least(min_p), z_max = best * scale;
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++) {
    bool keep = s->logits[i] == best || s->logits[i] * scale - z_max >= least;
    s->ids[kept] = s->ids[i];
    s->logits[kept] = s->logits[i];
    kept += keep;
  }
  return kept;
}

static bool filters_top_k(const sampler_options *o, int32_t vocab) {
  return o->top_k > 0 && o->top_k < vocab;
}

float sampler_scale(const sampler_options *o) {
  return o->temperature < SAMPLER_TEMPERATURE_MIN ? 0 : 1.0f / o->temperature;
}

bool sampler_needs_logits(const sampler_options *o, const sampler_row *row, int32_t vocab) {
  if (adjusts(o, row)) return true;
  return sampler_scale(o) > 0 && (filters_top_k(o, vocab) || o->top_p < 1 || o->min_p > 0);
}

/* Of candidates [0, count). */
static int32_t filter(sampler *s, const sampler_options *o, int32_t count, float best, float scale) {
  if (filters_top_k(o, s->vocab) && o->top_k < count) count = keep_best(s, NULL, count, (uint64_t)o->top_k);
  if (o->top_p < 1) count = keep_top_p(s, count, o->top_p, best, scale);
  if (o->min_p > 0) count = keep_min_p(s, count, o->min_p, best, scale);
  return count;
}

/* Among adjusted logits x, of which `top` is the largest. */
static void rank(sampler *s, const sampler_options *o, const float *x, int32_t top, int32_t position,
                 ranking_list *r) {
  static const sampler_row nothing = {0};
  const float scale = sampler_scale(o);
  const noise_source noise = {o->seed, o->choice, (uint32_t)position};
  if (scale == 0)
    choose_greedy(s, x, r);
  else if (!sampler_needs_logits(o, &nothing, s->vocab))
    choose_all(s, &noise, x, scale, top, r);
  else
    choose_listed(s, &noise, scale, filter(s, o, list_candidates(s, x), x[top], scale), r);
}

static int32_t rank_adjusted(sampler *s, const sampler_options *o, const float *x, int32_t position,
                             ranking_list *r) {
  int32_t top = argmax(x, s->vocab);
  if (top >= 0) rank(s, o, x, top, position, r);
  return ranking_count(r);
}

int32_t sampler_rank(sampler *s, const sampler_options *o, const sampler_row *row, const float *logits,
                     int32_t position, int32_t count, ranking_token *out) {
  static const sampler_row nothing = {0};
  ranking_list r;
  assert(count >= 1 && count <= SAMPLER_RANKED_MAX);
  ranking_init(&r, out, count);
  if (!sampler_are_numbers(logits, s->vocab)) return 0;
  return rank_adjusted(s, o, adjust(s, o, row ? row : &nothing, logits), position, &r);
}

/* --- log-probabilities --- */

/* S / 2^36: at least 1, since the best token's weight is 2^36. */
static float weights_over_best(const float *x, int32_t vocab, float best) {
  uint64_t sum = 0;
  for (int32_t t = 0; t < vocab; t++)
    sum += x[t] > -INFINITY ? filter_weight(filter_probability(x[t], best, 1)) : 0;
  return (float)((double)sum / (double)FILTER_WEIGHT_SCALE);
}

void sampler_logprobs(sampler *s, const float *logits, int32_t token, int32_t count, ranking_token *out) {
  const float best = max_of(logits, s->vocab), rest = noise_log(weights_over_best(logits, s->vocab, best));
  ranking_list r;
  assert(count >= 0 && count <= SAMPLER_LOGPROBS_MAX && in_vocab(s, token));
  out[0] = (ranking_token){token, logits[token]};
  if (count > 0) {
    ranking_init(&r, out + 1, count);
    choose_greedy(s, logits, &r);
  }
  for (int32_t i = 0; i <= count; i++) {
    float value = out[i].value == best ? 0 - rest : out[i].value - best - rest;
    if (out[i].token == INT32_MAX) out[i].token = -1, value = 0;
    out[i].value = value >= -FLT_MAX ? value : -FLT_MAX;
  }
}

/* --- listed tokens --- */

/* Without noise, in any order of the tokens. */
static void choose_greedy_listed(const sampler_listed *l, ranking_list *r) {
  for (int32_t first = 0; first < l->count; first += CHUNK) {
    const float *x = l->logits + first;
    int32_t n = l->count - first < CHUNK ? l->count - first : CHUNK;
    float most = max_of(x, n);
    if (!(most >= ranking_least(r)) || most == -INFINITY) continue;
    for (int32_t i = 0; i < n; i++)
      if (x[i] >= ranking_least(r) && x[i] > -INFINITY && l->tokens[first + i] >= 0)
        ranking_challenge(r, x[i], l->tokens[first + i]);
  }
}

/* Those of no token do not count. */
static bool lists_are_numbers(const sampler_listed *lists, int32_t list_count) {
  uint32_t others = 0;
  for (const sampler_listed *l = lists; l < lists + list_count; l++)
    for (int32_t i = 0; i < l->count; i++) others |= l->tokens[i] >= 0 && !(l->logits[i] < INFINITY);
  return others == 0;
}

/* The candidates of all lists. */
static int32_t join_lists(sampler *s, const sampler_listed *lists, int32_t list_count) {
  int32_t n = 0;
  for (const sampler_listed *l = lists; l < lists + list_count; l++) {
    for (int32_t i = 0; i < l->count; i++) {
      if (l->tokens[i] < 0) continue;
      assert(l->tokens[i] < s->vocab && n < s->vocab);
      s->ids[n] = l->tokens[i];
      s->logits[n] = l->logits[i];
      n += l->logits[i] > -INFINITY;
    }
  }
  return n;
}

/* The logits of all tokens, to be adjusted. */
static void spread_lists(sampler *s, const sampler_listed *lists, int32_t list_count) {
  for (int32_t t = 0; t < s->vocab; t++) s->adjusted[t] = -INFINITY;
  for (const sampler_listed *l = lists; l < lists + list_count; l++) {
    for (int32_t i = 0; i < l->count; i++) {
      assert(l->tokens[i] < s->vocab);
      if (l->tokens[i] >= 0) s->adjusted[l->tokens[i]] = l->logits[i];
    }
  }
}

/* With noise, over candidates [0, count). */
static void rank_listed(sampler *s, const sampler_options *o, int32_t count, int32_t position,
                        ranking_list *r) {
  const float scale = sampler_scale(o), best = max_of(s->logits, count);
  const noise_source noise = {o->seed, o->choice, (uint32_t)position};
  if (best > -INFINITY) choose_listed(s, &noise, scale, filter(s, o, count, best, scale), r);
}

int32_t sampler_rank_listed(sampler *s, const sampler_options *o, const sampler_row *row,
                            const sampler_listed *lists, int32_t list_count, int32_t position, int32_t count,
                            ranking_token *out) {
  ranking_list r;
  assert(count >= 1 && count <= SAMPLER_RANKED_MAX);
  ranking_init(&r, out, count);
  if (!lists_are_numbers(lists, list_count)) return 0;
  if (row && adjusts(o, row)) {
    spread_lists(s, lists, list_count);
    adjust_own(s, o, row);
    return rank_adjusted(s, o, s->adjusted, position, &r);
  }
  if (sampler_scale(o) == 0)
    for (int32_t i = 0; i < list_count; i++) choose_greedy_listed(&lists[i], &r);
  else
    rank_listed(s, o, join_lists(s, lists, list_count), position, &r);
  return ranking_count(&r);
}

/* --- one token --- */

int32_t sampler_pick(sampler *s, const sampler_options *o, const sampler_row *row, const float *logits,
                     int32_t position) {
  static const sampler_row nothing = {0};
  if (!row) row = &nothing;
  if (!sampler_are_numbers(logits, s->vocab)) return -1;
  const float *x = adjust(s, o, row, logits);
  int32_t top = argmax(x, s->vocab);
  if (top < 0) return -1;
  if (sampler_scale(o) == 0) return top;
  ranking_token first;
  ranking_list r;
  ranking_init(&r, &first, 1);
  rank(s, o, x, top, position, &r);
  return first.token;
}
