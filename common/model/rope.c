#include "common/model/rope.h"

#include <math.h>

#define LN2_HIGH   0x1.62e42fee00000p-1 /* low bits zero: small multiples are exact */
#define LN2_LOW    0x1.a39ef35793c76p-33
#define PIO2       0x1.921fb54442d18p+0
#define PIO2_LOW   0x1.1a62633145c07p-54
#define EXP_TERMS  20 /* |r| <= ln2 / 2 */
#define LOG_TERMS  24 /* t^2 <= 0.0295: odd powers to t^47 */
#define TRIG_TERMS 10 /* |r| <= pi / 4 */

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

void rope_frequencies(float base, int32_t dim, float *out) {
  double log_base = log_of(base);
  for (int32_t i = 0; i < dim / 2; i++) out[i] = (float)exp_of(-log_base * (2.0 * i) / dim);
}

/* sum of (-1)^k r^(2k + first) / (2k + first)! */
static double taylor(double r, int first) {
  double sum = 1;
  for (int k = TRIG_TERMS; k >= 1; k--) {
    int n = 2 * k + first;
    sum = fma(sum, -(r * r) / ((double)n * (n - 1)), 1);
  }
  return first ? sum * r : sum;
}

static void sine_cosine(double x, double *sine, double *cosine) {
  double n = rint(x / PIO2), r = fma(-n, PIO2_LOW, fma(-n, PIO2, x));
  double s = taylor(r, 1), c = taylor(r, 0);
  int64_t quadrant = (int64_t)n & 3;
  *sine = quadrant & 1 ? c : s;
  *cosine = quadrant & 1 ? s : c;
  if (quadrant & 2) *sine = -*sine;
  if (quadrant == 1 || quadrant == 2) *cosine = -*cosine;
}

void rope_row(const float *frequencies, int32_t dim, int32_t position, float *out) {
  for (int32_t i = 0; i < dim / 2; i++) {
    float angle = (float)position * frequencies[i];
    double sine, cosine;
    sine_cosine(angle, &sine, &cosine);
    out[2 * i] = out[2 * i + 1] = (float)cosine;
    out[dim + 2 * i] = (float)-sine;
    out[dim + 2 * i + 1] = (float)sine;
  }
}
