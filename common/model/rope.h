/* rope.h - rotary position embedding: frequencies and the sines and cosines of a position.
 *
 * It uses only IEEE additions, multiplications, divisions and fused multiply-adds, so that the bits do not
 * depend on a C library. Sources: Su et al., RoFormer (arXiv 2104.09864); YaRN: Peng et al. (arXiv
 * 2309.00071), with the roundings of Hugging Face's transformers (modeling_rope_utils.py), which llama3's
 * scaling is from too. Pairs are interleaved, (2i, 2i + 1); files that pair otherwise are put in order at
 * load (weights.h). */
#pragma once

#include "common/file/model_config.h"

typedef struct rope {
  int32_t dim;
  float times;                             /* sines and cosines times this */
  float frequency[MODEL_HEAD_DIM_MAX / 2]; /* [dim / 2] */
} rope;

/* frequency[i] is base ^ (-2 i / dim), as the scaling changes it, divided by factors[i] where factors [dim /
 * 2] is not NULL, rounded to f32. base > 0. False: a factor or a frequency that no model has. */
bool rope_init(rope *r, const model_config *c, const float *factors);

/* The angle of pair i is position * frequency[i], rounded to f32.
 * out [2][dim]: cosines, each twice; then sines as (-s, s), as the op table's rope_store wants them. */
void rope_row(const rope *r, int32_t position, float *out);
