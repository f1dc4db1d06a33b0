/* rope_angle.h - the sine and cosine of a rotary angle, for every device.
 *
 * It uses only IEEE additions, multiplications, divisions and fused multiply-adds in f64, in the order
 * written, so that the bits depend neither on a C library nor on the processor. */
#pragma once

#include "common/base/portable.h"

#include <math.h>
#include <stdint.h>

#define ROPE_ANGLE_PIO2     0x1.921fb54442d18p+0
#define ROPE_ANGLE_PIO2_LOW 0x1.1a62633145c07p-54
#define ROPE_ANGLE_TERMS    10 /* |r| <= pi / 4 */

/* sum of (-1)^k r^(2k + first) / (2k + first)! */
PORTABLE double rope_angle_taylor(double r, int first) {
  double sum = 1;
  for (int k = ROPE_ANGLE_TERMS; k >= 1; k--) {
    int n = 2 * k + first;
    sum = fma(sum, -(r * r) / ((double)n * (n - 1)), 1.0);
  }
  return first ? sum * r : sum;
}

/* Of pair i at a position: frequency is that of the pair. */
PORTABLE void rope_angle(float frequency, int32_t position, float times, float *cosine, float *sine) {
  float angle = (float)position * frequency;
  double x = (double)angle, n = rint(x / ROPE_ANGLE_PIO2);
  double r = fma(-n, ROPE_ANGLE_PIO2_LOW, fma(-n, ROPE_ANGLE_PIO2, x));
  double s = rope_angle_taylor(r, 1), c = rope_angle_taylor(r, 0);
  int64_t quadrant = (int64_t)n & 3;
  double turned_s = quadrant & 1 ? c : s, turned_c = quadrant & 1 ? s : c;
  if (quadrant & 2) turned_s = -turned_s;
  if (quadrant == 1 || quadrant == 2) turned_c = -turned_c;
  *cosine = (float)turned_c * times;
  *sine = (float)turned_s * times;
}
