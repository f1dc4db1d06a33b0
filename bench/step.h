/* step.h - a model with filled caches, and the steps of it that benchmarks time. A step does what the
 * target's engine does with a round: a plain row is appended, a tree's rows are staged, run and committed,
 * and every row chooses its token as in greedy decoding. After each step the caches are as before. */
#pragma once

#include "common/model/model.h"
#include "target_worker/engine_job.h"

#define STEP_ROWS_MAX      KV_STAGE_MAX
#define STEP_SEQUENCES_MAX 16

typedef enum {
  STEP_CHAIN,     /* count rows of one sequence: one row is appended, several are a tree without branches */
  STEP_SEQUENCES, /* one row of each of count sequences, in one forward */
  STEP_PROMPT, /* the first token after a prompt of count tokens: chunks of the engine's size, then a row */
  STEP_DECODE  /* count plain steps, one after the other */
} step_kind;

typedef struct step_item {
  step_kind kind;
  int32_t count;
} step_item;

/* How the rows of the caches lie: SCATTERED: virtual, and no two blocks of a sequence lie side by side. */
typedef enum { STEP_STATIC, STEP_SCATTERED } step_layout;

/* "N", "seq:N", "prompt:N" or "decode:N". False: none of these, or N beyond its limit. */
bool step_parse(const char *text, step_item *out);

typedef struct step_bench {
  int32_t context; /* rows of each sequence before a step */
  mem mem;
  model_file *file;
  device *device;
  model *model;
  kv_cache *kv;
  int32_t sequences[STEP_SEQUENCES_MAX], sequence_count;
  bool no_copy;  /* a tree's rows are dropped, not committed: what commit by copy costs, by difference */
  int32_t empty; /* a sequence without rows, for prompts; -1: none was asked for */
  int32_t tokens[ENGINE_CHUNK_MAX], parents[STEP_ROWS_MAX], path[STEP_ROWS_MAX];
} step_bench;

/* Opens the model on the named device, with math as model_math has it, with as many caches as the items need,
 * and fills them. step_close also after an error. */
int step_open(step_bench *b, const char *path, const char *name, int32_t math, int32_t threads,
              int32_t context, step_layout layout, const step_item *items, int32_t count, err *e);
/* For programs without a flag for it: the environment's TANDEM_TEST_DEVICE, or the processors' best. */
const char *step_device(void);
void step_close(step_bench *b);

/* One step; *ns its time. */
int step_run(step_bench *b, step_item item, uint64_t *ns);
/* The forward of a chain alone: as in its step, *ns of model_forward only, and nothing is committed. */
int step_forward(step_bench *b, int32_t rows, uint64_t *ns);

/* The forwards of a step of several rows: a tree of rows below sequence 0, whose parents are b->parents, or
 * the same tokens appended to it. Each row has chosen its token. The caller commits the tree's rows, or
 * rolls the sequence back to its context. */
int step_tree(step_bench *b, int32_t rows);
int step_append(step_bench *b, int32_t rows);

/* What a token's forward reads: every packed weight once, but of an input embedding of its own a single row;
 * and all keys and values of `context` rows. */
uint64_t step_weight_bytes(const step_bench *b);
uint64_t step_kv_bytes(const step_bench *b);
/* Multiply-adds of floats by which so many rows attend to the `context` rows before them. */
uint64_t step_attention_macs(const step_bench *b, int32_t rows);
