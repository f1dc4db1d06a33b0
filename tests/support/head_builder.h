/* head_builder.h - small draft heads for tests: folders in the EAGLE and the speculators layout with any
 * values. Include after cmocka.h. */
#pragma once

#include "common/file/head_file.h"
#include "tests/support/folder_builder.h"

typedef struct head_shape {
  int embed, target_embed, heads, kv_heads, head_dim, ffn, vocab, draft_vocab, taps[HEAD_TAPS_MAX], tap_count;
} head_shape;

static const head_shape HEAD_SMALL = {32, 32, 2, 1, 16, 64, 96, 24, {1, 2, 4}, 3};

/* The target of a shape, as far as a head depends on it. */
model_config head_target(const head_shape *s);

typedef struct head_builder {
  const char *prefix; /* of the layer's tensors */
  const char *skip;   /* a tensor that is left out; or NULL */
  const char *spoilt; /* a tensor whose second value is no number; or NULL */
  const char *odd;    /* a tensor with a row (of a vector: an element) too many; or NULL */
  const char *extra;  /* a vector too many; or NULL */
  const int64_t *ids; /* [draft_vocab] of d2t as it is written; NULL: 1, 2, ..., which is 2 i + 1 */
  char header[4096];
  uint8_t data[1 << 16];
  size_t used;
} head_builder;

/* Value i of a tensor: exact in F16 and BF16, different for each name. */
float head_value(const char *name, size_t i);

void head_put(head_builder *b, const char *name, const char *dtype, int rows, int columns, const void *data,
              size_t bytes);

/* BF16, rows 0: a vector. */
void head_weights(head_builder *b, const char *name, int rows, int columns);

/* A folder in the EAGLE layout; `keys` ("" or "\"key\":value,...,") come first in config.json. */
folder head_folder(head_builder *b, const head_shape *s, const char *keys);
