/* synthetic.h - models of random weights that have the shapes of real ones, so that their speed can be
 * measured where no file of theirs is. They know no text: a synthetic model has no vocabulary and takes ids.
 *
 * The name is "synth:MODEL[:TYPE][:SEED]", for example synth:llama-3.1-8b:Q8_0. TYPE is a type of GGUF
 * tensors, or Q4_K_M (the default), which is Q4_K with Q6_K where llama.cpp's mixture of the smaller models
 * has it. The same name means the same weights on every machine. They are some megabytes of random blocks,
 * whose pages are mapped again and again: even the largest model takes no more memory before it is loaded.
 * So rows of a large matrix repeat, and logits tie exactly: how long steps take can be measured, but not what
 * sampling or a list of a draft's best tokens costs. */
#pragma once

#include "common/base/hash.h"
#include "common/file/gguf.h"
#include <jansson.h>

typedef struct synthetic synthetic;

/* What a tensor is to the model, which decides its type and its values. */
typedef enum synthetic_kind {
  SYNTHETIC_MATRIX,
  SYNTHETIC_FINE,   /* a matrix that Q4_K_M makes finer in some layers */
  SYNTHETIC_OUTPUT, /* a matrix that makes logits, which Q4_K_M makes finer */
  SYNTHETIC_NORM,   /* a vector of ones */
  SYNTHETIC_BIAS    /* a vector of zeros */
} synthetic_kind;

/* Is it such a name, rather than a path? */
bool synthetic_is(const char *name);
/* ERR_ARG: says which models and types there are. ERR_NOMEM; *out NULL then. */
int synthetic_open(synthetic **out, const char *name, err *e);
void synthetic_close(synthetic *s); /* NULL is allowed */

/* What config.json of the real model says of its shapes. The model's own. */
const json_t *synthetic_config(const synthetic *s);
/* Of the model, the type and the seed: equal where the weights are. */
hash16 synthetic_hash(const synthetic *s);
/* Makes a tensor, which lives until close; rows 0: a vector. NULL: no memory (e), or a row is no whole number
 * of the type's blocks. */
const gguf_tensor *synthetic_tensor(synthetic *s, const char *name, synthetic_kind kind, int32_t layer,
                                    int64_t columns, int64_t rows, err *e);
