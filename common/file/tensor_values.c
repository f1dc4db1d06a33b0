#include "common/file/tensor_values.h"

#include <math.h>
#include <string.h>

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
