#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/cpu_math.h"

#include <assert.h>

/* A row of a file is a run of units: blocks of OPS_BLOCK inputs, or single inputs of the plain types. A
 * group's packed form is a run of units too, each with all 16 rows. */
typedef struct format {
  size_t inputs, file_bytes, group_bytes;                        /* of a unit */
  void (*pack)(const uint8_t *file, size_t lane, uint8_t *out);  /* one unit of one row */
  void (*unpack)(const uint8_t *group, size_t lane, float *out); /* the same way back, to [inputs] */
} format;

/* --- Q4: f16 d, with Q4_1 f16 m, 16 bytes: low nibbles inputs 0..15, high ones 16..31 --- */

static void pack_nibbles(const uint8_t *file, size_t lane, uint8_t *out) {
  for (size_t v = 0; v < 4; v++) memcpy(out + v * 64 + lane * 4, file + v * 4, 4);
}

static void pack_q4_0(const uint8_t *file, size_t lane, uint8_t *out) {
  memcpy(out + CPU_Q4_1_SCALES + lane * 2, file, 2);
  pack_nibbles(file + 2, lane, out);
}

static void pack_q4_1(const uint8_t *file, size_t lane, uint8_t *out) {
  memcpy(out + CPU_Q4_1_SCALES + lane * 2, file, 2);
  memcpy(out + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA + lane * 2, file + 2, 2);
  pack_nibbles(file + 4, lane, out);
}

static float half_at(const uint8_t *from, size_t lane) {
  uint16_t h;
  memcpy(&h, from + lane * sizeof h, sizeof h);
  return cpu_f16(h);
}

static uint8_t nibble_at(const uint8_t *block, size_t lane, size_t i) {
  size_t low = i % 16;
  uint8_t pair = block[low / 4 * 64 + lane * 4 + low % 4];
  return i < 16 ? pair & 15 : pair >> 4;
}

static void unpack_q4_0(const uint8_t *block, size_t lane, float *out) {
  float d = half_at(block + CPU_Q4_1_SCALES, lane);
  for (size_t i = 0; i < OPS_BLOCK; i++) out[i] = d * (float)(nibble_at(block, lane, i) - 8);
}

static void unpack_q4_1(const uint8_t *block, size_t lane, float *out) {
  float d = half_at(block + CPU_Q4_1_SCALES, lane);
  float m = half_at(block + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA, lane);
  for (size_t i = 0; i < OPS_BLOCK; i++) out[i] = fmaf(d, (float)nibble_at(block, lane, i), m);
}

/* --- Q8_0: f16 d, 32 int8 --- */

static void pack_q8_0(const uint8_t *file, size_t lane, uint8_t *out) {
  memcpy(out + CPU_Q8_0_SCALES + lane * 2, file, 2);
  for (size_t v = 0; v < 8; v++) memcpy(out + v * 64 + lane * 4, file + 2 + v * 4, 4);
}

static void unpack_q8_0(const uint8_t *block, size_t lane, float *out) {
  float d = half_at(block + CPU_Q8_0_SCALES, lane);
  for (size_t i = 0; i < OPS_BLOCK; i++) out[i] = d * (float)(int8_t)block[i / 4 * 64 + lane * 4 + i % 4];
}

/* --- plain --- */

static void pack_32(const uint8_t *file, size_t lane, uint8_t *out) {
  memcpy(out + lane * 4, file, 4);
}

static void pack_16(const uint8_t *file, size_t lane, uint8_t *out) {
  memcpy(out + lane * 2, file, 2);
}

static void unpack_f32(const uint8_t *input, size_t lane, float *out) {
  memcpy(out, input + lane * sizeof *out, sizeof *out);
}

static void unpack_f16(const uint8_t *input, size_t lane, float *out) {
  *out = half_at(input, lane);
}

static void unpack_bf16(const uint8_t *input, size_t lane, float *out) {
  uint16_t h;
  memcpy(&h, input + lane * sizeof h, sizeof h);
  *out = cpu_bf16(h);
}

static const format formats[OPS_TYPE_COUNT] = {
    [OPS_F32] = {1, 4, 4 * OPS_GROUP, pack_32, unpack_f32},
    [OPS_F16] = {1, 2, 2 * OPS_GROUP, pack_16, unpack_f16},
    [OPS_BF16] = {1, 2, 2 * OPS_GROUP, pack_16, unpack_bf16},
    [OPS_Q4_0] = {OPS_BLOCK, 18, CPU_Q4_0_BLOCK, pack_q4_0, unpack_q4_0},
    [OPS_Q4_1] = {OPS_BLOCK, 20, CPU_Q4_1_BLOCK, pack_q4_1, unpack_q4_1},
    [OPS_Q8_0] = {OPS_BLOCK, 34, CPU_Q8_0_BLOCK, pack_q8_0, unpack_q8_0},
};

static const format *format_of(ops_type type) {
  assert((unsigned)type < OPS_TYPE_COUNT && formats[type].pack);
  return &formats[type];
}

size_t cpu_group_bytes(ops_type type, int32_t columns) {
  const format *f = format_of(type);
  return ((size_t)columns / f->inputs * f->group_bytes + 63) / 64 * 64;
}

size_t cpu_packed_bytes(ops_type type, int32_t rows, int32_t columns) {
  size_t groups = ((size_t)rows + OPS_GROUP - 1) / OPS_GROUP, bytes = cpu_group_bytes(type, columns);
  return groups > SIZE_MAX / bytes ? 0 : groups * bytes;
}

static void pack_group(const format *f, size_t units, const uint8_t *file, size_t lanes, uint8_t *out) {
  for (size_t lane = 0; lane < lanes; lane++) {
    for (size_t u = 0; u < units; u++, file += f->file_bytes) f->pack(file, lane, out + u * f->group_bytes);
  }
}

void cpu_pack(ops_type type, int32_t rows, int32_t columns, const void *file, void *out, int32_t first,
              int32_t last) {
  const format *f = format_of(type);
  size_t units = (size_t)columns / f->inputs, group_bytes = cpu_group_bytes(type, columns);
  for (size_t g = (size_t)first; g < (size_t)last; g++) {
    size_t row = g * OPS_GROUP, left = (size_t)rows - row;
    uint8_t *to = (uint8_t *)out + g * group_bytes;
    memset(to, 0, group_bytes);
    pack_group(f, units, (const uint8_t *)file + row * units * f->file_bytes,
               left < OPS_GROUP ? left : OPS_GROUP, to);
  }
}

void cpu_unpack_row(const ops_weight *w, int32_t row, float *out) {
  const format *f = format_of(w->type);
  size_t group = (size_t)(row / OPS_GROUP), lane = (size_t)(row % OPS_GROUP);
  const uint8_t *unit = (const uint8_t *)w->data + group * cpu_group_bytes(w->type, w->columns);
  for (size_t u = 0; u < (size_t)w->columns / f->inputs; u++, unit += f->group_bytes)
    f->unpack(unit, lane, out + u * f->inputs);
}
