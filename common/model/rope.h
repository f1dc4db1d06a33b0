/* rope.h - rotary position embedding: frequencies and the sines and cosines of a position.
 *
 * Built from IEEE additions, multiplications, divisions and fused multiply-adds alone, so that the bits do
 * not depend on a C library. Source: Su et al., RoFormer (arXiv 2104.09864); interleaved pairs (2i, 2i + 1),
 * as GGUF's llama files have them. */
#pragma once

#include <stdint.h>

/* out [dim / 2]: base ^ (-2 i / dim), rounded to f32. base > 0. */
void rope_frequencies(float base, int32_t dim, float *out);

/* The angle of pair i is position * frequencies[i], rounded to f32.
 * out [2][dim]: cosines, each twice; then sines as (-s, s), as the op table's rope_store wants them. */
void rope_row(const float *frequencies, int32_t dim, int32_t position, float *out);
