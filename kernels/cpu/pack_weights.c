#include "kernels/cpu/pack_weights.h"
#include "kernels/cpu/cpu_math.h"
#include "kernels/cpu/packed_format.h"

#include <assert.h>

/* A row of a file is a run of units: blocks of OPS_BLOCK inputs, or single inputs of the plain types. A
 * group's packed form is a run of units too, each with all 16 rows. */
typedef struct format {
  size_t file_bytes;                                             /* of a unit */
  void (*pack)(const uint8_t *file, size_t lane, uint8_t *out);  /* one unit of one row */
  void (*unpack)(const uint8_t *group, size_t lane, float *out); /* the same way back, to [inputs] */
} format;

/* --- quantised types: a unit of one row out of the file, then its place among the 16 (packed_format.h) ---
 */

/* A unit of one row, as numbers. */
typedef struct row_unit {
  uint8_t u[OPS_UNIT];             /* before table and sign: the bits as they are kept */
  uint8_t d[2], m[2];              /* f16 */
  uint8_t sub[CPU_UNIT_BLOCKS][2]; /* sub = 32: scale and minimum; sub = 16: of each half */
} row_unit;

typedef void read_unit(const uint8_t *file, row_unit *r);

/* 32 inputs out of 16 bytes: low nibbles first. */
static void read_nibbles(const uint8_t *from, uint8_t *u) {
  for (size_t i = 0; i < 16; i++) {
    u[i] = from[i] & 15;
    u[16 + i] = from[i] >> 4;
  }
}

/* Bit i of 4 bytes is input i's fifth. */
static void read_fifths(const uint8_t *from, uint8_t *u) {
  for (size_t i = 0; i < OPS_BLOCK; i++) u[i] |= (uint8_t)((from[i / 8] >> i % 8 & 1) << 4);
}

/* f16 d, 16 bytes */
static void read_q4_0(const uint8_t *file, row_unit *r) {
  memcpy(r->d, file, 2);
  read_nibbles(file + 2, r->u);
}

/* f16 d, f16 m, 16 bytes */
static void read_q4_1(const uint8_t *file, row_unit *r) {
  memcpy(r->d, file, 2);
  memcpy(r->m, file + 2, 2);
  read_nibbles(file + 4, r->u);
}

/* f16 d, 4 bytes of fifth bits, 16 bytes */
static void read_q5_0(const uint8_t *file, row_unit *r) {
  memcpy(r->d, file, 2);
  read_nibbles(file + 6, r->u);
  read_fifths(file + 2, r->u);
}

/* f16 d, f16 m, 4 bytes of fifth bits, 16 bytes */
static void read_q5_1(const uint8_t *file, row_unit *r) {
  memcpy(r->d, file, 2);
  memcpy(r->m, file + 2, 2);
  read_nibbles(file + 8, r->u);
  read_fifths(file + 4, r->u);
}

/* f16 d, 32 int8 */
static void read_q8_0(const uint8_t *file, row_unit *r) {
  memcpy(r->d, file, 2);
  memcpy(r->u, file + 2, OPS_BLOCK);
}

static void read_iq4_nl(const uint8_t *file, row_unit *r) {
  read_q4_0(file, r);
}

/* Two bits of 256 inputs out of 64 bytes: blocks 0..3 in bits 0, 2, 4, 6 of the first 32 bytes, 4..7 in the
 * others. */
static void read_twos(const uint8_t *from, uint8_t *u) {
  for (size_t i = 0; i < OPS_UNIT; i++) u[i] = from[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

/* Nibbles of 256 inputs out of 128 bytes: each 32 bytes hold a block and the next one. */
static void read_nibbles_k(const uint8_t *from, uint8_t *u) {
  for (size_t i = 0; i < OPS_UNIT; i++) u[i] = from[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

/* One bit of 256 inputs out of 32 bytes: block b in bit b. */
static void read_ones_k(const uint8_t *from, int shift, uint8_t *u) {
  for (size_t i = 0; i < OPS_UNIT; i++) u[i] |= (uint8_t)((from[i % 32] >> i / 32 & 1) << shift);
}

/* 8 scales and 8 minima of 6 bits in 12 bytes: of the first four blocks in the low bits of bytes 0..7, of the
 * others low bits in 8..11 and high ones on top of the first. */
static void read_scales_k(const uint8_t *from, row_unit *r) {
  for (size_t b = 0; b < 4; b++) {
    const uint8_t s = from[b], m = from[4 + b], both = from[8 + b];
    r->sub[b][0] = s & 63;
    r->sub[b][1] = m & 63;
    r->sub[4 + b][0] = (uint8_t)((both & 15) | (s >> 6) << 4);
    r->sub[4 + b][1] = (uint8_t)(both >> 4 | (m >> 6) << 4);
  }
}

/* 16 bytes of scale | minimum << 4, 64 bytes, f16 d, f16 dmin */
static void read_q2_k(const uint8_t *file, row_unit *r) {
  memcpy(r->sub, file, sizeof r->sub);
  read_twos(file + 16, r->u);
  memcpy(r->d, file + 80, 2);
  memcpy(r->m, file + 82, 2);
}

/* 32 bytes of third bits, 64 bytes, 16 scales + 32 of 6 bits in 12 bytes (nibbles, then pairs of bits), f16 d
 */
static void read_q3_k(const uint8_t *file, row_unit *r) {
  const uint8_t *s = file + 96;
  read_twos(file + 32, r->u);
  read_ones_k(file, 2, r->u);
  for (size_t i = 0; i < 16; i++) {
    int low = s[i % 8] >> i / 8 * 4 & 15, high = s[8 + i % 4] >> i / 4 * 2 & 3;
    r->sub[i / 2][i % 2] = (uint8_t)((low | high << 4) - 32);
  }
  memcpy(r->d, file + 108, 2);
}

/* f16 d, f16 dmin, 12 bytes of scales, 128 bytes */
static void read_q4_k(const uint8_t *file, row_unit *r) {
  memcpy(r->d, file, 2);
  memcpy(r->m, file + 2, 2);
  read_scales_k(file + 4, r);
  read_nibbles_k(file + 16, r->u);
}

/* f16 d, f16 dmin, 12 bytes of scales, 32 bytes of fifth bits, 128 bytes */
static void read_q5_k(const uint8_t *file, row_unit *r) {
  memcpy(r->d, file, 2);
  memcpy(r->m, file + 2, 2);
  read_scales_k(file + 4, r);
  read_nibbles_k(file + 48, r->u);
  read_ones_k(file + 16, 4, r->u);
}

/* 128 bytes of nibbles, 64 bytes of the fifth and sixth bits, 16 int8 scales, f16 d. Each half of the unit:
 * 64 bytes of nibbles hold blocks 0, 1 low and 2, 3 high. */
static void read_q6_k(const uint8_t *file, row_unit *r) {
  read_twos(file + 128, r->u);
  for (size_t i = 0; i < OPS_UNIT; i++) {
    int low = file[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
    r->u[i] = (uint8_t)(low | r->u[i] << 4);
  }
  memcpy(r->sub, file + 192, sizeof r->sub);
  memcpy(r->d, file + 208, 2);
}

/* Four inputs of a lane at a time: vector v of the planes takes inputs 4 v to 4 v + 3. */
static void put_planes(cpu_format f, const uint8_t *u, size_t lane, uint8_t *planes) {
  const uint32_t each = 0x01010101;
  uint32_t four[CPU_VECTORS], ones = 0;
  memcpy(four, u, sizeof four);
  planes += 4 * lane;
  for (size_t v = 0; v < CPU_VECTORS; v++) {
    ones |= (four[v] >> (f.bits & 6) & each) << v;
    if (f.bits & 8) memcpy(planes + v * CPU_VECTOR_BYTES, &four[v], 4);
  }
  for (size_t v = 0; v < 4 && f.bits & 4; v++) {
    uint32_t pair = (four[v] & 15 * each) | (four[v + 4] & 15 * each) << 4;
    memcpy(planes + v * CPU_VECTOR_BYTES, &pair, 4);
  }
  for (size_t i = 0; i < 2 && f.bits & 2; i++) {
    uint32_t twos = 0;
    for (size_t k = 0; k < 4; k++) twos |= (four[4 * i + k] >> (f.bits & 4) & 3 * each) << 2 * k;
    memcpy(planes + cpu_twos_at(f) + i * CPU_VECTOR_BYTES, &twos, 4);
  }
  if (f.bits & 1) memcpy(planes + cpu_ones_at(f), &ones, 4);
}

static void put_sub(cpu_format f, const uint8_t sub[2], size_t lane, uint8_t *out) {
  out[f.sub == 32 ? lane : 2 * lane] = sub[0];
  out[f.sub == 32 ? OPS_GROUP + lane : 2 * lane + 1] = sub[1];
}

static inline void put_unit(cpu_format f, const row_unit *r, size_t lane, uint8_t *unit) {
  for (size_t b = 0; b < cpu_unit_blocks(f); b++) {
    cpu_block k = cpu_block_at(unit, f, b);
    put_planes(f, r->u + b * OPS_BLOCK, lane, unit + (k.planes - unit));
    if (f.sub) put_sub(f, r->sub[b], lane, unit + (k.sub - unit));
  }
  uint8_t *scales = unit + (cpu_block_at(unit, f, 0).scales - unit);
  memcpy(scales + lane * 2, r->d, 2);
  if (f.minima) memcpy(scales + CPU_HALVES + lane * 2, r->m, 2);
}

static void unpack_unit(cpu_format f, const uint8_t *unit, size_t lane, float *out) {
  for (size_t b = 0; b < cpu_unit_blocks(f); b++, out += OPS_BLOCK) {
    uint8_t u[CPU_VECTORS][CPU_VECTOR_BYTES];
    cpu_block k = cpu_block_at(unit, f, b);
    cpu_block_weights(k.planes, f, 4 * lane, 4 * lane + 4, u);
    for (size_t half = 0; half < 2; half++) {
      cpu_scale scale = cpu_scale_at(k, f, lane, half);
      for (size_t i = half * 16; i < half * 16 + 16; i++)
        out[i] = cpu_weight_value(f, scale, u[i / 4][4 * lane + i % 4]);
    }
  }
}

#define QUANTISED(name, TYPE, ...)                                                                           \
  static const cpu_format name##_form = {__VA_ARGS__};                                                       \
  static void pack_##name(const uint8_t *file, size_t lane, uint8_t *out) {                                  \
    row_unit r;                                                                                              \
    read_##name(file, &r);                                                                                   \
    put_unit(name##_form, &r, lane, out);                                                                    \
  }                                                                                                          \
  static void unpack_##name(const uint8_t *group, size_t lane, float *out) {                                 \
    unpack_unit(name##_form, group, lane, out);                                                              \
  }
CPU_FORMATS(QUANTISED)

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
  *out = cpu_half_at(input, lane);
}

static void unpack_bf16(const uint8_t *input, size_t lane, float *out) {
  uint16_t h;
  memcpy(&h, input + lane * sizeof h, sizeof h);
  *out = cpu_bf16(h);
}

static const format formats[OPS_TYPE_COUNT] = {
    [OPS_F32] = {4, pack_32, unpack_f32},
    [OPS_F16] = {2, pack_16, unpack_f16},
    [OPS_BF16] = {2, pack_16, unpack_bf16},
    [OPS_Q4_0] = {18, pack_q4_0, unpack_q4_0},
    [OPS_Q4_1] = {20, pack_q4_1, unpack_q4_1},
    [OPS_Q5_0] = {22, pack_q5_0, unpack_q5_0},
    [OPS_Q5_1] = {24, pack_q5_1, unpack_q5_1},
    [OPS_Q8_0] = {34, pack_q8_0, unpack_q8_0},
    [OPS_IQ4_NL] = {18, pack_iq4_nl, unpack_iq4_nl},
    [OPS_Q2_K] = {84, pack_q2_k, unpack_q2_k},
    [OPS_Q3_K] = {110, pack_q3_k, unpack_q3_k},
    [OPS_Q4_K] = {144, pack_q4_k, unpack_q4_k},
    [OPS_Q5_K] = {176, pack_q5_k, unpack_q5_k},
    [OPS_Q6_K] = {210, pack_q6_k, unpack_q6_k},
};

static const format *format_of(ops_type type) {
  assert((unsigned)type < OPS_TYPE_COUNT && formats[type].pack);
  return &formats[type];
}

#define FORM(name, TYPE, ...) [OPS_##TYPE] = {__VA_ARGS__},
static const cpu_format forms[OPS_TYPE_COUNT] = {CPU_FORMATS(FORM)};

static size_t unit_inputs(ops_type type) {
  return forms[type].bits ? cpu_unit_blocks(forms[type]) * OPS_BLOCK : 1;
}

static size_t unit_bytes(ops_type type) {
  return forms[type].bits ? cpu_unit_bytes(forms[type]) : format_of(type)->file_bytes * OPS_GROUP;
}

size_t cpu_group_bytes(ops_type type, int32_t columns) {
  return ((size_t)columns / unit_inputs(type) * unit_bytes(type) + 63) / 64 * 64;
}

size_t cpu_packed_bytes(ops_type type, int32_t rows, int32_t columns) {
  size_t groups = ((size_t)rows + OPS_GROUP - 1) / OPS_GROUP, bytes = cpu_group_bytes(type, columns);
  return groups > SIZE_MAX / bytes ? 0 : groups * bytes;
}

static void pack_group(ops_type type, size_t units, const uint8_t *file, size_t lanes, uint8_t *out) {
  const format *f = format_of(type);
  size_t bytes = unit_bytes(type);
  for (size_t lane = 0; lane < lanes; lane++) {
    for (size_t u = 0; u < units; u++, file += f->file_bytes) f->pack(file, lane, out + u * bytes);
  }
}

void cpu_pack(ops_type type, int32_t rows, int32_t columns, const void *file, void *out, int32_t first,
              int32_t last) {
  size_t units = (size_t)columns / unit_inputs(type), group_bytes = cpu_group_bytes(type, columns);
  size_t row_bytes = units * format_of(type)->file_bytes;
  for (size_t g = (size_t)first; g < (size_t)last; g++) {
    size_t row = g * OPS_GROUP, left = (size_t)rows - row;
    uint8_t *to = (uint8_t *)out + g * group_bytes;
    memset(to, 0, group_bytes);
    pack_group(type, units, (const uint8_t *)file + row * row_bytes, left < OPS_GROUP ? left : OPS_GROUP, to);
  }
}

void cpu_unpack_row(const cpu_weight *w, int32_t row, float *out) {
  size_t group = (size_t)(row / OPS_GROUP), lane = (size_t)(row % OPS_GROUP), inputs = unit_inputs(w->type);
  const uint8_t *unit = (const uint8_t *)w->data + group * cpu_group_bytes(w->type, w->columns);
  for (size_t k = 0; k < (size_t)w->columns; k += inputs, unit += unit_bytes(w->type))
    format_of(w->type)->unpack(unit, lane, out + k);
}
