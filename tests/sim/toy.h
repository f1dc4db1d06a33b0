/* toy.h - a model, an engine and a drafter small enough to be certain of: the next token is a hash of all
 * tokens before it. The engine keeps the tokens of its rows, as a cache would, so that a worker that trusts
 * stale rows gives wrong answers. */
#pragma once

#include "draft_worker/drafters/immediate.h"
#include "draft_worker/drafters/draft_batch.h"
#include "target_worker/engine.h"

#define TOY_VOCABULARY     7
#define TOY_END            6 /* end of sequence */
#define TOY_CONTEXT        400
#define TOY_SLOTS          2
#define TOY_EACH           (TOY_CONTEXT / KV_BLOCK)
#define TOY_BLOCKS         (TOY_SLOTS * TOY_EACH)
#define TOY_READERS        12 /* sessions of a draft at a time */
#define TOY_BLOCKS_VIRTUAL 11 /* too few for all at once */

int32_t toy_next(const int32_t *tokens, int32_t count);

#define TOY_LAYERS 3
#define TOY_EMBED  2
#define TOY_TAPS   2 /* of the drafts that read features */
#define TOY_WIDTH  (TOY_TAPS * TOY_EMBED)
/* The states of the last of these tokens: a whole number that bf16 can hold, so that every type gives it. */
void toy_features(const int32_t *tokens, int32_t count, float out[TOY_WIDTH]);

typedef struct toy_engine {
  int32_t pool[TOY_BLOCKS][KV_BLOCK];
  int32_t map[TOY_SLOTS][TOY_EACH], map_count[TOY_SLOTS];
  int32_t length[TOY_SLOTS];
  /* of the last batch's jobs; somebody may have asked for more than a draft reads */
  uint8_t features[TOY_SLOTS][ENGINE_CHUNK * WIRE_TAPS_MAX * TOY_EMBED * sizeof(float)];
  uint64_t tapped; /* rows whose states were asked for */
} toy_engine;

void toy_start(toy_engine *engine, bool is_virtual);
int32_t *toy_row(toy_engine *engine, int32_t slot, int32_t position);
void toy_run(toy_engine *engine, const engine_job *job, engine_result *result);

/* What a draft of a session knows of C, to compare the features that come with it. */
typedef struct toy_reader {
  int32_t tokens[TOY_READERS][TOY_CONTEXT * 2], length[TOY_READERS];
  float rows[TOY_READERS][TOY_CONTEXT][TOY_WIDTH];
  bool has[TOY_READERS][TOY_CONTEXT];           /* came, and not compared yet */
  int32_t first[TOY_READERS], end[TOY_READERS]; /* of rows it has, as a head has them */
  uint64_t compared, wrong;                     /* rows */
  uint64_t kept;                                /* rows that served another session or epoch */
  drafter_kind kind;
  drafter inner; /* whose candidates it gives */
} toy_reader;

/* Makes a drafter read features, and compares every row with what the states of that position are. */
void toy_read_features(drafter *d, toy_reader *r, wire_type type);

/* Right about two times in three, wrong with the right one as a sibling in half of the other cases. */
extern const immediate_kind toy_drafter;

/* The same candidates for the batches of a model drafter, with C as the batches brought it: a worker that
 * sends it wrongly is found out. */
typedef struct toy_model {
  int32_t tokens[TOY_SLOTS][TOY_CONTEXT * 2];
  int32_t length[TOY_SLOTS];
} toy_model;

void toy_compute(toy_model *m, const draft_batch *batch, draft_results *results);
