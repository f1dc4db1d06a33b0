#include "tests/support/quant_blocks.h"

const quant_type *quant_type_of(ops_type type) {
  for (size_t i = 0; i < QUANT_TYPE_COUNT; i++)
    if (QUANT_TYPES[i].type == type) return &QUANT_TYPES[i];
  return NULL;
}

double quant_half(const uint8_t *at) {
  int h = at[0] | at[1] << 8, exponent = h >> 10 & 31, fraction = h & 1023;
  double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
  return h & 0x8000 ? -v : v;
}
void quant_put_half(uint8_t *at, uint32_t (*random)(void), int low, int top) {
  uint32_t h = (random() & 0x83ff) | (uint32_t)(low + (int)(random() % (uint32_t)(top - low))) << 10;
  at[0] = (uint8_t)h;
  at[1] = (uint8_t)(h >> 8);
}

void quant_fill(const quant_type *t, uint8_t *block, uint32_t (*random)(void), int low) {
  for (int i = 0; i < t->bytes; i++) block[i] = (uint8_t)random();
  quant_put_half(block + t->d_at, random, low, t->d_top);
  if (t->m_at >= 0) quant_put_half(block + t->m_at, random, low, t->d_top);
}

int quant_nibble(const uint8_t *bytes, int i) {
  return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
}

static int quant_bit(const uint8_t *bytes, int i) {
  return bytes[i / 8] >> i % 8 & 1;
}

/* Scale and minimum of block b of Q4_K and Q5_K. */
static void quant_scale_min(const uint8_t *s, int b, int *scale, int *minimum) {
  *scale = b < 4 ? s[b] & 63 : (s[b + 4] & 15) | (s[b - 4] >> 6) << 4;
  *minimum = b < 4 ? s[b + 4] & 63 : s[b + 4] >> 4 | (s[b] >> 6) << 4;
}

static int quant_q3_scale(const uint8_t *s, int i) {
  int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
  return (low | (s[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32;
}

double quant_value(const quant_type *t, const uint8_t *p, int i) {
  static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  double d = quant_half(p + t->d_at), m = t->m_at >= 0 ? quant_half(p + t->m_at) : 0;
  int b = i / 32, l = i % 32, scale, minimum;
  switch (t->type) {
  case OPS_Q4_0:
    return d * (quant_nibble(p + 2, i) - 8);
  case OPS_Q4_1:
    return d * quant_nibble(p + 4, i) + m;
  case OPS_Q5_0:
    return d * (quant_nibble(p + 6, i) + 16 * quant_bit(p + 2, i) - 16);
  case OPS_Q5_1:
    return d * (quant_nibble(p + 8, i) + 16 * quant_bit(p + 4, i)) + m;
  case OPS_Q8_0:
    return d * (int8_t)p[2 + i];
  case OPS_IQ4_NL:
    return d * iq4[quant_nibble(p + 2, i)];
  case OPS_Q2_K:
    return d * (p[i / 16] & 15) * (p[16 + i / 128 * 32 + l] >> b % 4 * 2 & 3) - m * (p[i / 16] >> 4);
  case OPS_Q3_K:
    return d * quant_q3_scale(p + 96, i / 16) *
           ((p[32 + i / 128 * 32 + l] >> b % 4 * 2 & 3) - (p[l] >> b & 1 ? 0 : 4));
  case OPS_Q4_K:
    quant_scale_min(p + 4, b, &scale, &minimum);
    return d * scale * (p[16 + b / 2 * 32 + l] >> b % 2 * 4 & 15) - m * minimum;
  case OPS_Q5_K:
    quant_scale_min(p + 4, b, &scale, &minimum);
    return d * scale * ((p[48 + b / 2 * 32 + l] >> b % 2 * 4 & 15) + 16 * (p[16 + l] >> b & 1)) - m * minimum;
  case OPS_Q6_K: {
    int low = p[i / 128 * 64 + b % 2 * 32 + l] >> b % 4 / 2 * 4 & 15;
    int high = p[128 + i / 128 * 32 + l] >> b % 4 * 2 & 3;
    return d * (int8_t)p[192 + i / 16] * (low + 16 * high - 32);
  }
  default:
    return NAN;
  }
}
