/* quant_blocks.h - blocks of the quantised types in their file form, made at random, and what they stand for:
 * written here from the format's definition (ggml's quants), one weight at a time, apart from the code under
 * test. */
#pragma once

#include "kernels/ops.h"

#include <math.h>
#include <string.h>

typedef struct quant_type {
  ops_type type;
  uint32_t gguf; /* its number in a file */
  const char *name;
  int inputs, bytes;
  int d_at, m_at; /* of the f16 scale and minimum; m_at -1: there is none */
  int d_top;      /* largest exponent of a scale that keeps weights below about 4 */
} quant_type;

static const quant_type QUANT_TYPES[] = {
    {OPS_Q4_0, 2, "Q4_0", 32, 18, 0, -1, 13},     {OPS_Q4_1, 3, "Q4_1", 32, 20, 0, 2, 13},
    {OPS_Q5_0, 6, "Q5_0", 32, 22, 0, -1, 12},     {OPS_Q5_1, 7, "Q5_1", 32, 24, 0, 2, 12},
    {OPS_Q8_0, 8, "Q8_0", 32, 34, 0, -1, 10},     {OPS_IQ4_NL, 20, "IQ4_NL", 32, 18, 0, -1, 10},
    {OPS_Q2_K, 10, "Q2_K", 256, 84, 80, 82, 11},  {OPS_Q3_K, 11, "Q3_K", 256, 110, 108, -1, 10},
    {OPS_Q4_K, 12, "Q4_K", 256, 144, 0, 2, 7},    {OPS_Q5_K, 13, "Q5_K", 256, 176, 0, 2, 6},
    {OPS_Q6_K, 14, "Q6_K", 256, 210, 208, -1, 5},
};
#define QUANT_TYPE_COUNT (sizeof QUANT_TYPES / sizeof QUANT_TYPES[0])

/* NULL: the type is a plain one. */
const quant_type *quant_type_of(ops_type type);

/* The f16 at `at`, from IEEE 754's definition of binary16. */
double quant_half(const uint8_t *at);

/* A scale of either sign with an exponent below `top`, subnormal ones among them when `low` is 0. */
void quant_put_half(uint8_t *at, uint32_t (*random)(void), int low, int top);

/* Any bytes, but for the scales. */
void quant_fill(const quant_type *t, uint8_t *block, uint32_t (*random)(void), int low);

/* The four bits of weight i, in a block of 32. */
int quant_nibble(const uint8_t *bytes, int i);

/* Weight i of a block, exactly; a double holds every product. */
double quant_value(const quant_type *t, const uint8_t *p, int i);
