#include "common/file/tensor_values.h"

#include <math.h>
#include <string.h>

/* The exponents of one half or of two, of 32 bits. */
#define FIRST  0x7c00u
#define SECOND 0x7c000000u

/* Where the f16 scale of a block stands, and its minimum: in 32 bits that are read at once. */
static const struct {
  gguf_type type;
  uint32_t bytes, at, exponents; /* bytes: of a block */
} BLOCKS[] = {
    {GGUF_Q4_0, 18, 0, FIRST},           {GGUF_Q4_1, 20, 0, FIRST | SECOND},
    {GGUF_Q5_0, 22, 0, FIRST},           {GGUF_Q5_1, 24, 0, FIRST | SECOND},
    {GGUF_Q8_0, 34, 0, FIRST},           {GGUF_IQ4_NL, 18, 0, FIRST},
    {GGUF_Q2_K, 84, 80, FIRST | SECOND}, {GGUF_Q3_K, 110, 106, SECOND},
    {GGUF_Q4_K, 144, 0, FIRST | SECOND}, {GGUF_Q5_K, 176, 0, FIRST | SECOND},
    {GGUF_Q6_K, 210, 206, SECOND},
};

bool tensor_is_plain(gguf_type type) {
  return type == GGUF_F32 || type == GGUF_F16 || type == GGUF_BF16;
}

static float half_to_float(uint16_t h) {
  int exponent = h >> 10 & 31, fraction = h & 1023;
  float v = ldexpf((float)(exponent ? 1024 + fraction : fraction), (exponent ? exponent : 1) - 25);
  if (exponent == 31) v = fraction ? NAN : INFINITY;
  return h & 0x8000 ? -v : v;
}

static float bf16_to_float(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

void tensor_values(gguf_type type, const void *data, size_t first, size_t count, float *out) {
  if (type == GGUF_F32) {
    memcpy(out, (const uint8_t *)data + first * sizeof *out, count * sizeof *out);
    return;
  }
  const uint8_t *halves = (const uint8_t *)data + first * sizeof(uint16_t);
  for (size_t i = 0; i < count; i++) {
    uint16_t half;
    memcpy(&half, halves + i * sizeof half, sizeof half);
    out[i] = type == GGUF_F16 ? half_to_float(half) : bf16_to_float(half);
  }
}

/* ---- rows in blocks ---- */

static float half_at(const uint8_t *p) {
  float v;
  tensor_values(GGUF_F16, p, 0, 1, &v);
  return v;
}

static void read_q8_0(const uint8_t *p, float *out) {
  float d = half_at(p);
  for (int i = 0; i < 32; i++) out[i] = d * (int8_t)p[2 + i];
}

static int nibble(const uint8_t *p, int i) {
  return i < 16 ? p[i] & 15 : p[i - 16] >> 4;
}

static void read_q4_0(const uint8_t *p, float *out) {
  float d = half_at(p);
  for (int i = 0; i < 32; i++) out[i] = d * (float)(nibble(p + 2, i) - 8);
}

static void read_q4_1(const uint8_t *p, float *out) {
  float d = half_at(p), m = half_at(p + 2);
  for (int i = 0; i < 32; i++) out[i] = d * (float)nibble(p + 4, i) + m;
}

/* 128 bytes of low halves, 64 of high pairs of bits, 16 scales, the scale of those. */
static void read_q6_k(const uint8_t *p, float *out) {
  float d = half_at(p + 208);
  for (int i = 0; i < 256; i++) {
    int half = i / 128, part = i % 128 / 32, at = i % 32;
    int low = p[half * 64 + part % 2 * 32 + at] >> part / 2 * 4 & 15,
        high = p[128 + half * 32 + at] >> part * 2 & 3;
    out[i] = d * (float)((int8_t)p[192 + i / 16] * ((low | high << 4) - 32));
  }
}

static const struct {
  gguf_type type;
  int32_t block, bytes;
  void (*read)(const uint8_t *p, float *out);
} READERS[] = {{GGUF_Q8_0, 32, 34, read_q8_0},
               {GGUF_Q4_0, 32, 18, read_q4_0},
               {GGUF_Q4_1, 32, 20, read_q4_1},
               {GGUF_Q6_K, 256, 210, read_q6_k}};

bool tensor_row(const gguf_tensor *t, int64_t row, float *out) {
  size_t columns = (size_t)t->shape[0], row_bytes = t->bytes / (size_t)t->shape[1];
  const uint8_t *p = (const uint8_t *)t->data + (size_t)row * row_bytes;
  if (tensor_is_plain(t->type)) {
    tensor_values(t->type, p, 0, columns, out);
    return true;
  }
  size_t r = 0;
  while (r < sizeof READERS / sizeof READERS[0] && READERS[r].type != t->type) r++;
  if (r == sizeof READERS / sizeof READERS[0]) return false;
  for (size_t i = 0; i < columns; i += (size_t)READERS[r].block, p += READERS[r].bytes)
    READERS[r].read(p, out + i);
  return true;
}

/* ---- whether they are numbers ---- */

/* Bits that are all set in infinities and NaNs. */
#define F32_EXPONENT  0x7f800000u
#define F16_EXPONENT  0x7c00u
#define BF16_EXPONENT 0x7f80u

static bool f32_are_finite(const uint8_t *p, size_t count) {
  uint32_t bad = 0, bits;
  for (size_t i = 0; i < count; i++) {
    memcpy(&bits, p + 4 * i, sizeof bits);
    bad |= (bits & F32_EXPONENT) == F32_EXPONENT;
  }
  return !bad;
}

static bool halves_are_finite(const uint8_t *p, size_t count, uint16_t exponent) {
  uint16_t bad = 0, bits;
  for (size_t i = 0; i < count; i++) {
    memcpy(&bits, p + 2 * i, sizeof bits);
    bad |= (bits & exponent) == exponent;
  }
  return !bad;
}

/* One more in an exponent whose bits are all set carries into the sign. */
static bool blocks_are_finite(const uint8_t *p, size_t bytes, size_t b) {
  const uint32_t exponents = BLOCKS[b].exponents, ones = exponents & 0x04000400u;
  uint32_t sums = 0, bits;
  for (size_t at = BLOCKS[b].at; at < bytes; at += BLOCKS[b].bytes) {
    memcpy(&bits, p + at, sizeof bits);
    sums |= (bits & exponents) + ones;
  }
  return (sums & 0x80008000u) == 0;
}

bool tensor_part_is_finite(gguf_type type, const void *data, size_t bytes) {
  if (type == GGUF_F32) return f32_are_finite(data, bytes / 4);
  if (tensor_is_plain(type))
    return halves_are_finite(data, bytes / 2, type == GGUF_F16 ? F16_EXPONENT : BF16_EXPONENT);
  for (size_t b = 0; b < sizeof BLOCKS / sizeof BLOCKS[0]; b++)
    if (BLOCKS[b].type == type) return blocks_are_finite(data, bytes, b);
  return true;
}

bool tensor_is_finite(const gguf_tensor *t) {
  return tensor_part_is_finite(t->type, t->data, t->bytes);
}
