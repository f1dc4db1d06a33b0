#include "common/model/rope.h"
#include "kernels/rope_angle.h"

#include <math.h>

#define LN2_HIGH  0x1.62e42fee00000p-1 /* low bits zero: small multiples are exact */
#define LN2_LOW   0x1.a39ef35793c76p-33
#define EXP_TERMS 20 /* |r| <= ln2 / 2 */
#define LOG_TERMS 24 /* t^2 <= 0.0295: odd powers to t^47 */

/* ln x = e ln2 + 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)). */
static double log_of(double x) {
  int e;
  double m = frexp(x, &e);
  if (m < 0x1.6a09e667f3bcdp-1) {
    m *= 2;
    e--;
  }
  double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
  for (int k = LOG_TERMS - 1; k >= 0; k--) sum = fma(sum, t2, 1.0 / (2 * k + 1));
  return fma(e, LN2_HIGH, fma(e, LN2_LOW, 2 * t * sum));
}

static double exp_of(double x) {
  double n = rint(x / (LN2_HIGH + LN2_LOW)), r = fma(-n, LN2_LOW, fma(-n, LN2_HIGH, x)), sum = 1;
  for (int k = EXP_TERMS; k >= 1; k--) sum = fma(sum, r / k, 1);
  return ldexp(sum, (int)n);
}

/* --- scalings --- */

#define TWO_PI (4 * ROPE_ANGLE_PIO2)
#define FREQUENCY_MAX                                                                                        \
  1024.0f /* plain ones are at most 1; times a position it is still a whole number of quarter turns */

/* llama3: long waves are stretched, short ones are not, and between them it goes over. */
static double scale_llama3(const model_rope_scaling *s, double frequency) {
  double turns = (double)s->original * frequency / TWO_PI; /* within the trained context */
  double smooth = (turns - (double)s->low) / ((double)s->high - (double)s->low);
  if (turns < (double)s->low) smooth = 0;
  if (turns > (double)s->high) smooth = 1;
  return frequency * ((1 - smooth) / (double)s->factor + smooth);
}

/* YaRN: the pair that makes so many turns within the trained context. */
static double pair_of_turns(const model_config *c, double turns) {
  return c->rope_dim * log_of((double)c->scaling.original / (turns * TWO_PI)) /
         (2 * log_of((double)c->rope_base));
}

static double scale_yarn(const model_config *c, double frequency, int32_t i) {
  double low = floor(pair_of_turns(c, (double)c->scaling.beta_fast)),
         high = ceil(pair_of_turns(c, (double)c->scaling.beta_slow));
  low = low > 0 ? low : 0;
  high = high < c->rope_dim - 1 ? high : c->rope_dim - 1;
  double ramp = (i - low) / (high == low ? 0.001 : high - low);
  ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
  return frequency * (ramp / (double)c->scaling.factor + 1 - ramp);
}

static double scaled(const model_config *c, double frequency, int32_t i) {
  switch (c->scaling.kind) {
  case ROPE_LINEAR:
    return frequency / (double)c->scaling.factor;
  case ROPE_LLAMA3:
    return scale_llama3(&c->scaling, frequency);
  case ROPE_YARN:
    return scale_yarn(c, frequency, i);
  case ROPE_PLAIN:
    break;
  }
  return frequency;
}

static double yarn_mscale(double factor, double m) {
  return factor > 1 ? 0.1 * m * log_of(factor) + 1 : 1;
}

static double times_of(const model_rope_scaling *s) {
  double factor = (double)s->factor;
  if (s->kind != ROPE_YARN) return (double)s->times;
  if (s->attention > 0) return (double)s->times * (double)s->attention;
  if (s->mscale > 0 && s->mscale_all > 0)
    return (double)s->times * yarn_mscale(factor, (double)s->mscale) /
           yarn_mscale(factor, (double)s->mscale_all);
  return (double)s->times * yarn_mscale(factor, 1);
}

bool rope_init(rope *r, const model_config *c, const float *factors) {
  double log_base = log_of((double)c->rope_base);
  *r = (rope){.dim = c->rope_dim, .times = (float)times_of(&c->scaling)};
  for (int32_t i = 0; i < r->dim / 2; i++) {
    if (factors && !(factors[i] > 0 && factors[i] < INFINITY)) return false;
    double f = scaled(c, exp_of(-log_base * (2.0 * i) / r->dim), i);
    r->frequency[i] = (float)(factors ? f / (double)factors[i] : f);
    if (!(r->frequency[i] >= 0 && r->frequency[i] <= FREQUENCY_MAX)) return false;
  }
  return true;
}

/* --- angles --- */

void rope_row(const rope *r, int32_t position, float *out) {
  for (int32_t i = 0; i < r->dim / 2; i++) {
    float cosine, sine;
    rope_angle(r->frequency[i], position, r->times, &cosine, &sine);
    out[2 * i] = out[2 * i + 1] = cosine;
    out[r->dim + 2 * i] = -sine;
    out[r->dim + 2 * i + 1] = sine;
  }
}
