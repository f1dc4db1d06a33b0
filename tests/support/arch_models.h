/* arch_models.h - the tiny models of tests/golden/arch, as the folders that they are and written again as
 * GGUF: the way llama.cpp's converter would (names, keys, the order of the rows of queries and keys), so that
 * both readers meet. */
#pragma once

#include "common/model/rope.h"
#include "kernels/cpu/cpu_math.h"
#include "tests/support/models.h"

#include <math.h>

typedef struct arch_case {
  const char *name;    /* of the folder */
  const char *in_gguf; /* the architecture's name there */
} arch_case;

static const arch_case ARCH_CASES[] = {
    {"llama-tied", "llama"}, {"llama-head-dim", "llama"}, {"llama3-rope", "llama"},
    {"llama-yarn", "llama"}, {"mistral-window", "llama"}, {"qwen2", "qwen2"},
    {"qwen3", "qwen3"},
};
enum { ARCH_COUNT = sizeof ARCH_CASES / sizeof *ARCH_CASES };

model_file *arch_open(const arch_case *a);

/* --- a GGUF of it --- */

typedef enum {
  ARCH_EXACT,
  ARCH_ROUNDED
} arch_frequencies; /* to bf16, as golden.json's were (tests/golden/README.md) */

/* Matrices of `type` (BF16, Q8_0), vectors of F32. The caller keeps `b` until it has closed the file, then
 * gb_free. */
model_file *arch_open_gguf(const arch_case *a, uint32_t type, arch_frequencies how, gguf_builder *b);
