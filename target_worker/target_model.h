/* target_model.h - the model of a target and the cache of its sessions, as the command line wants them. */
#pragma once

#include "common/base/mem.h"
#include "common/model/fusion.h"
#include "common/model/model.h"
#include "target_worker/partial_kv.h"
#include "target_worker/taps.h"
#include "common/grammar/grammar_vocabulary.h"
#include "target_worker/target_arguments.h"

typedef struct target_model {
  mem memory;
  model_file *file;
  device *device;
  model *model;
  kv_cache *kv;
  fusion *fusion;                 /* fc of the head that it was given; NULL: none */
  partial_options partial;        /* as the flags have it; */
  bool has_partial;               /* and whether it is on */
  taps_offer taps;                /* the features that drafts may be granted */
  grammar_vocabulary *vocabulary; /* from the first grammar on */
} target_model;

/* Loads the model and opens its cache. Fills in the context and the number of blocks where they were left
 * open. ERR_ARG: the command line asks for what this model, or this machine, does not have; the other errors
 * are those of model_file_open, device_open, model_open and kv_open. */
int target_model_open(target_model *m, target_arguments *a, const logger *log, err *e);
/* Of its tokens, for grammars: session_grammar_source.open, whose context is the target_model. */
const grammar_vocabulary *target_model_vocabulary(void *context, err *e);
/* On the engine's thread, before its first batch (warmup.h). blocks: of KV_BLOCK rows, that a sequence can
 * have. */
void target_model_warmup(target_model *m, int32_t blocks);
/* Rows of a prompt that a forward reads where it has no others: ENGINE_CHUNK, or more. */
int32_t target_model_prompt_rows(const target_model *m);
void target_model_close(target_model *m); /* one that was never opened, or not wholly, is allowed */

/* How the cache of a model with this arithmetic keeps its rows. */
kv_type target_model_kv_type(int32_t math); /* as model_math has it */
