/* toy.h - a model, an engine and a drafter small enough to be certain of: the next token is a hash of all tokens
 * before it. The engine keeps the tokens of its rows, as a cache would, so that a worker that trusts stale rows
 * gives wrong answers. */
#pragma once

#include "draft_worker/batch.h"
#include "target_worker/engine.h"

#define TOY_VOCABULARY 7
#define TOY_END 6 /* end of sequence */
#define TOY_CONTEXT 160
#define TOY_SLOTS 4

int32_t toy_next(const int32_t *tokens, int32_t count);

typedef struct toy_engine {
  int32_t rows[TOY_SLOTS][TOY_CONTEXT];
  int32_t length[TOY_SLOTS];
} toy_engine;

void toy_run(toy_engine *engine, const engine_job *job, engine_result *result);

/* Right about two times in three, wrong with the right one as a sibling in half of the other cases. */
extern const drafter_kind toy_drafter;

/* The same guesses by batches, with C as the batches told it: a worker that tells it wrongly is found out. */
typedef struct toy_model {
  int32_t tokens[TOY_SLOTS][TOY_CONTEXT * 2];
  int32_t length[TOY_SLOTS];
} toy_model;

void toy_answer(toy_model *m, const draft_batch *batch, draft_results *results);
extern const drafter_kind toy_batches;
