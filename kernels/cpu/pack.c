#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/cpu_math.h"

#include <assert.h>

#define FILE_Q4_1_BLOCK 20 /* f16 d, f16 m, 16 bytes: low nibbles inputs 0..15, high ones 16..31 */
#define FILE_Q8_0_BLOCK 34 /* f16 d, 32 int8 */

static size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

size_t cpu_group_bytes(ops_type type, int32_t columns) {
  size_t k = (size_t)columns, blocks = k / OPS_BLOCK;
  switch (type) {
  case OPS_Q4_1:
    return blocks * CPU_Q4_1_BLOCK;
  case OPS_Q8_0:
    return round_up(blocks * CPU_Q8_0_BLOCK, 64);
  case OPS_F32:
    return k * OPS_GROUP * sizeof(float);
  case OPS_F16:
  case OPS_BF16:
    return round_up(k * OPS_GROUP * sizeof(uint16_t), 64);
  case OPS_TYPE_COUNT:
    break;
  }
  assert(!"a weight type that ops.h does not name");
  return 0;
}

size_t cpu_packed_bytes(ops_type type, int32_t rows, int32_t columns) {
  size_t groups = ((size_t)rows + OPS_GROUP - 1) / OPS_GROUP, bytes = cpu_group_bytes(type, columns);
  return groups > SIZE_MAX / bytes ? 0 : groups * bytes;
}

static void pack_q4_1(const uint8_t *file, int32_t blocks, int32_t lane, uint8_t *out) {
  for (int32_t b = 0; b < blocks; b++, file += FILE_Q4_1_BLOCK, out += CPU_Q4_1_BLOCK) {
    uint8_t *scales = out + CPU_Q4_1_SCALES + lane * sizeof(uint16_t);
    memcpy(scales, file, 2);
    memcpy(scales + CPU_Q4_1_MINIMA, file + 2, 2);
    for (int32_t v = 0; v < 4; v++) memcpy(out + v * 64 + lane * 4, file + 4 + v * 4, 4);
  }
}

static void pack_q8_0(const uint8_t *file, int32_t blocks, int32_t lane, uint8_t *out) {
  for (int32_t b = 0; b < blocks; b++, file += FILE_Q8_0_BLOCK, out += CPU_Q8_0_BLOCK) {
    memcpy(out + CPU_Q8_0_SCALES + lane * sizeof(uint16_t), file, 2);
    for (int32_t v = 0; v < 8; v++) memcpy(out + v * 64 + lane * 4, file + 2 + v * 4, 4);
  }
}

static void pack_plain(const uint8_t *file, int32_t columns, int32_t lane, size_t size, uint8_t *out) {
  for (int32_t k = 0; k < columns; k++) {
    memcpy(out + ((size_t)k * OPS_GROUP + (size_t)lane) * size, file + (size_t)k * size, size);
  }
}

static size_t file_row_bytes(ops_type type, int32_t columns) {
  size_t k = (size_t)columns;
  switch (type) {
  case OPS_Q4_1:
    return k / OPS_BLOCK * FILE_Q4_1_BLOCK;
  case OPS_Q8_0:
    return k / OPS_BLOCK * FILE_Q8_0_BLOCK;
  case OPS_F32:
    return k * 4;
  default:
    return k * 2;
  }
}

void cpu_pack(ops_type type, int32_t rows, int32_t columns, const void *file, void *out, int32_t first,
              int32_t last) {
  size_t row_bytes = file_row_bytes(type, columns), group_bytes = cpu_group_bytes(type, columns);
  for (int32_t g = first; g < last; g++) {
    uint8_t *to = (uint8_t *)out + (size_t)g * group_bytes;
    memset(to, 0, group_bytes);
    for (int32_t lane = 0; lane < OPS_GROUP && g * OPS_GROUP + lane < rows; lane++) {
      const uint8_t *from = (const uint8_t *)file + (size_t)(g * OPS_GROUP + lane) * row_bytes;
      if (type == OPS_Q4_1)
        pack_q4_1(from, columns / OPS_BLOCK, lane, to);
      else if (type == OPS_Q8_0)
        pack_q8_0(from, columns / OPS_BLOCK, lane, to);
      else
        pack_plain(from, columns, lane, type == OPS_F32 ? 4 : 2, to);
    }
  }
}

static float unpack_q4_1(const uint8_t *group, int32_t lane, int32_t k) {
  const uint8_t *block = group + (size_t)(k / OPS_BLOCK) * CPU_Q4_1_BLOCK;
  int32_t i = k % OPS_BLOCK, low = i % 16;
  uint8_t pair = block[low / 4 * 64 + lane * 4 + low % 4];
  uint16_t d, m;
  memcpy(&d, block + CPU_Q4_1_SCALES + lane * 2, 2);
  memcpy(&m, block + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA + lane * 2, 2);
  return fmaf(cpu_f16(d), (float)(i < 16 ? pair & 15 : pair >> 4), cpu_f16(m));
}

static float unpack_q8_0(const uint8_t *group, int32_t lane, int32_t k) {
  const uint8_t *block = group + (size_t)(k / OPS_BLOCK) * CPU_Q8_0_BLOCK;
  int32_t i = k % OPS_BLOCK;
  uint16_t d;
  memcpy(&d, block + CPU_Q8_0_SCALES + lane * 2, 2);
  return cpu_f16(d) * (float)(int8_t)block[i / 4 * 64 + lane * 4 + i % 4];
}

static float unpack_element(ops_type type, const uint8_t *group, int32_t lane, int32_t k) {
  size_t i = (size_t)k * OPS_GROUP + (size_t)lane;
  switch (type) {
  case OPS_Q4_1:
    return unpack_q4_1(group, lane, k);
  case OPS_Q8_0:
    return unpack_q8_0(group, lane, k);
  case OPS_F32:
    return ((const float *)group)[i];
  case OPS_F16:
    return cpu_f16(((const uint16_t *)group)[i]);
  default:
    return cpu_bf16(((const uint16_t *)group)[i]);
  }
}

void cpu_unpack_row(const ops_weight *w, int32_t row, float *out) {
  const uint8_t *group =
      (const uint8_t *)w->data + (size_t)(row / OPS_GROUP) * cpu_group_bytes(w->type, w->columns);
  for (int32_t k = 0; k < w->columns; k++) out[k] = unpack_element(w->type, group, row % OPS_GROUP, k);
}
