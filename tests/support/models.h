/* models.h - what the tests of the forward pass share: the default model, goldens, a small random
 * model. */
#pragma once

#include "common/model/model.h"
#include "kernels/devices/devices.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/source_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SUPPORT_MODEL    "models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define SUPPORT_GOLDEN   "tests/golden/"
#define SUPPORT_PATH_MAX 512
#define SUPPORT_LINE_MAX (1 << 20)
#define SUPPORT_IDS_MAX  1024

model_file *support_open_file(void);

/* What the tests compute on: the environment's TANDEM_TEST_DEVICE, or the best instruction set. */
const char *support_device(void);

/* The i-th device for tests of them all: the environment's alone, or every one of this machine; or NULL. */
const char *support_device_at(int32_t i);

device *support_open_device(const char *name, ops_math math, int32_t threads, mem *m);

/* On a device of its own. */
model *support_open_model(const model_file *g, ops_math math, const char *name, int32_t threads);

void support_close_model(model *m);

kv_cache *support_open_cache(const model *m, int32_t sequences, int32_t context, kv_type type);

/* The id of the largest logit of a row (ties: the lowest id), or -1 for a row without logits. */
int32_t support_argmax(const model *m, int32_t segment, int32_t row);

typedef struct support_golden {
  int32_t id, prompt_count, output_count;
  int32_t prompt[SUPPORT_IDS_MAX], output[SUPPORT_IDS_MAX];
  double margins[SUPPORT_IDS_MAX];
} support_golden;

/* Calls body for every golden prompt; returns how many there were. */
int32_t support_each_golden(void (*body)(const support_golden *g, void *context), void *context);

/* Appends tokens in batches of at most `step` rows; logits of the last row alone. */
void support_prefill(model *m, kv_cache *k, int32_t seq, const int32_t *tokens, int32_t count, int32_t step);

/* --- a small model with random weights: every weight type, GQA, sizes that fill no group --- */

enum {
  SUPPORT_TINY_LAYERS = 2,
  SUPPORT_TINY_EMBED = 96,
  SUPPORT_TINY_HEADS = 6,
  SUPPORT_TINY_KV_HEADS = 2,
  SUPPORT_TINY_DIM = 16,
  SUPPORT_TINY_FFN = 160,
  SUPPORT_TINY_VOCAB = 250
};

/* Its shape, and the tensors of a layer. */
void support_tiny_keys(gguf_builder *b);
void support_tiny_layer(gguf_builder *b, int32_t layer);

void support_fill_tensor(const gguf_tensor *t, uint64_t *state);

/* The caller keeps `b` until it has closed the file, then gb_free. */
model_file *support_tiny_file(gguf_builder *b);
