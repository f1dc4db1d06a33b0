#include "draft_worker/drafters/calibration.h"

#include "common/base/noise.h"

#include <assert.h>
#include <math.h>

#define GAP_LEAST   (-12.0f) /* a smaller gap says no more */
#define TAIL_SHORT  (-4.0f)  /* gap(last) of a short list is at most this: what it lacks was filtered out */
#define WEIGHT_MAX  100.0f   /* of either sign */
#define SHARP_LEAST 0.01f    /* the better value keeps the better score */
#define RATE        0.03f    /* of the first observation's step */
#define RATE_LEAST  (RATE / 8)
#define SEEN_HALF   500             /* after so many, the rate is half as large */
#define SEEN_MAX    (SEEN_HALF * 8) /* and here it is the least */

/* heads/smollm2-135m-instruct-eagle3.gguf on 96 prompts of Spec-Bench, in trees of 63 nodes: 7,337
 * choices at T = 0, 15,400 at T = 0.8 and 1. Its file has the same numbers. */
static const float default_weights[CALIBRATION_KINDS][CALIBRATION_WEIGHTS] = {
    [CALIBRATION_GREEDY] = {1.22f, 0.067f, 0, 2.36f, 1.16f, 0},
    [CALIBRATION_SAMPLED] = {0.92f, 0.085f, 0.18f, 1.37f, 0.84f, 0.20f},
};

/* Gaps and noise are several times as large as the other inputs. */
static const float rates[CALIBRATION_WEIGHTS] = {0.1f, 0.1f, 0.1f, 1, 0.1f, 0.1f};

/* --- utilities --- */

/* What a reply's candidates are weighed by, in order of rank. */
typedef struct reply {
  int32_t count;
  float tail; /* gap(last) */
  float gaps[DRAFT_CANDIDATES_MAX], noise[DRAFT_CANDIDATES_MAX];
} reply;

/* What weight `w` is multiplied with in the utility of candidate i; i == count: of none of them. */
static float input(const reply *r, int32_t i, calibration_weight w) {
  bool none = i == r->count;
  switch (w) {
  case CALIBRATION_SHARPNESS:
    return none ? 0 : r->gaps[i];
  case CALIBRATION_STEP:
    return none ? 0 : (float)-i;
  case CALIBRATION_EXCESS:
    return none ? 0 : r->noise[0] - r->noise[i];
  case CALIBRATION_OTHER:
    return none;
  case CALIBRATION_TAIL:
    return none ? r->tail : 0;
  case CALIBRATION_LEAD:
    return none ? r->noise[0] : 0;
  case CALIBRATION_WEIGHTS:
    break;
  }
  return 0;
}

static float tail_of(const reply *r) {
  float last = r->gaps[r->count - 1];
  return r->count == DRAFT_CANDIDATES_MAX || last < TAIL_SHORT ? last : TAIL_SHORT;
}

/* p [count + 1]: the last one is that of none of them. */
static void probabilities(const float *weights, const reply *r, float *p) {
  float most = -INFINITY, sum = 0;
  for (int32_t i = 0; i <= r->count; i++) {
    p[i] = 0;
    for (calibration_weight w = 0; w < CALIBRATION_WEIGHTS; w++) p[i] += weights[w] * input(r, i, w);
    if (p[i] > most) most = p[i];
  }
  for (int32_t i = 0; i <= r->count; i++) sum += p[i] = expf(p[i] - most);
  for (int32_t i = 0; i <= r->count; i++) p[i] /= sum;
}

/* --- candidates --- */

static float gap_of(float value, float first) {
  float gap = value - first;
  return gap > GAP_LEAST ? (gap < 0 ? gap : 0) : GAP_LEAST; /* NaN is the least */
}

/* Keeps the list in order of score; of equals the better rank stays first. */
static void insert(draft_candidate *list, int32_t count, draft_candidate x) {
  for (; count > 0 && list[count - 1].score < x.score; count--) list[count] = list[count - 1];
  list[count] = x;
}

void calibration_candidates(const calibration *c, const calibration_choice *choice,
                            const ranking_token *ranked, int32_t count, draft_candidate *out) {
  const sampler_options *o = choice->sampling;
  bool sampled = o->temperature >= SAMPLER_TEMPERATURE_MIN;
  calibration_kind kind = sampled ? CALIBRATION_SAMPLED : CALIBRATION_GREEDY;
  const noise_source noise = {o->seed, o->choice, (uint32_t)choice->position};
  float p[DRAFT_CANDIDATES_MAX + 1];
  reply r = {.count = count};
  assert(count <= DRAFT_CANDIDATES_MAX);
  if (count == 0) return;
  for (int32_t i = 0; i < count; i++) {
    r.gaps[i] = gap_of(ranked[i].value, ranked[0].value);
    if (sampled) r.noise[i] = noise_of(&noise, ranked[i].token);
  }
  r.tail = tail_of(&r);
  probabilities(c->weights[kind], &r, p);
  for (int32_t i = 0; i < count; i++)
    insert(out, i,
           (draft_candidate){.token = ranked[i].token,
                             .score = logf(p[i]),
                             .gap = r.gaps[i],
                             .noise = r.noise[i],
                             .rank = (uint8_t)i,
                             .kind = (uint8_t)kind});
}

/* --- learning --- */

void calibration_init(calibration *c, const float (*measured)[CALIBRATION_WEIGHTS]) {
  *c = (calibration){.seen = {0}};
  for (calibration_kind k = 0; k < CALIBRATION_KINDS; k++) {
    const float *from = measured ? measured[k] : default_weights[k];
    for (calibration_weight w = 0; w < CALIBRATION_WEIGHTS; w++) c->weights[k][w] = from[w];
    c->seen[k] = measured ? SEEN_MAX : 0;
  }
}

static float bounded(float weight, calibration_weight w) {
  float least = w == CALIBRATION_SHARPNESS ? SHARP_LEAST : -WEIGHT_MAX;
  return weight > least ? (weight < WEIGHT_MAX ? weight : WEIGHT_MAX) : least;
}

void calibration_learn(calibration *c, const draft_candidate *list, int32_t count, int32_t token) {
  reply r = {.count = count};
  float p[DRAFT_CANDIDATES_MAX + 1];
  int32_t chosen = count;
  if (count == 0) return;
  for (int32_t i = 0; i < count; i++) {
    if (list[i].rank >= count) return; /* it has lost candidates since: of a better rank, and a worse score */
    r.gaps[list[i].rank] = list[i].gap;
    r.noise[list[i].rank] = list[i].noise;
    if (list[i].token == token) chosen = list[i].rank;
  }
  r.tail = tail_of(&r);
  float *weights = c->weights[list[0].kind];
  int32_t *seen = &c->seen[list[0].kind];
  float rate = fmaxf(RATE / (1 + (float)*seen / SEEN_HALF), RATE_LEAST);
  if (*seen < SEEN_MAX) ++*seen;
  probabilities(weights, &r, p);
  for (calibration_weight w = 0; w < CALIBRATION_WEIGHTS; w++) {
    float slope = input(&r, chosen, w);
    for (int32_t i = 0; i <= count; i++) slope -= p[i] * input(&r, i, w);
    weights[w] = bounded(weights[w] + rate * rates[w] * slope, w);
  }
}
