/* engine.h - computes batches of jobs on the device.
 *
 * The worker machine fills an engine_batch, one job a session, and gets engine_results: the rows of all jobs
 * go through the model in one forward. Tests put a toy in the engine's place. */
#pragma once

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/model/fusion.h"
#include "common/model/model.h"
#include "target_worker/engine_job.h"
#include "target_worker/partial_kv.h"

/* --- the engine --- */

#define ENGINE_GAPS_MAX 1024 /* gaps remembered */

/* For tests: makes something happen that must never happen, once or from then on. */
typedef enum {
  ENGINE_FAULT_NONE,
  ENGINE_FAULT_KV_ROLLBACK,
  ENGINE_FAULT_SLOW_STEP,
  ENGINE_FAULT_STEP_ERROR,
  ENGINE_FAULT_VERIFY_ERROR,
  ENGINE_FAULT_WRONG_TOKEN
} engine_fault_kind;
typedef struct engine_fault {
  engine_fault_kind kind;
  /* KV_ROLLBACK: before the after-th VERIFY job; STEP_ERROR: in it and all later ones; SLOW_STEP: so many
   * milliseconds before each; the others: in the after-th with nodes; from 1 */
  uint64_t after;
  int32_t rows; /* KV_ROLLBACK: so many rows of its sequence are dropped */
} engine_fault;

/* "kv-rollback:AFTER:BY", "slow-step:MS", "step-error:AFTER" and "verify-error:AFTER" (ERR_INTERNAL) or
 * "wrong-token:AFTER" (the step's first token is not the model's, which only a selfcheck notices); NULL or ""
 * is none. ERR_ARG. */
int engine_fault_parse(engine_fault *f, const char *text, err *e);

typedef struct engine_options {
  model *model; /* both belong to the engine from open to close; every sequence of kv is free at open */
  kv_cache *kv;
  fusion *fusion;                 /* fc, for jobs of ENGINE_FUSE; NULL: there are none */
  int32_t sequences;              /* of kv */
  const partial_options *partial; /* copied; NULL: no partial KV. Else kv has as many views as sequences */
  int32_t context;                /* of a sequence; only for partial KV */
  engine_fault fault;
  const logger *log; /* why a job failed */
} engine_options;

typedef struct engine_counters {
  uint64_t batches;              /* those of prefill alone included */
  uint64_t prefills, verifies;   /* jobs */
  uint64_t selfchecks, failures; /* failures: ERR_INTERNAL, ERR_DEVICE */
  uint64_t measured_rows;        /* of prompts, whose tokens were chosen and dropped */
  uint64_t forwards;    /* plain and verify steps that succeeded, counted by job, without selfchecks */
  uint64_t accepted;    /* tree nodes */
  uint64_t tapped_rows; /* whose states went to drafts, */
  uint64_t fused_rows;  /* those of them to which fc was applied, */
  uint64_t fuse_us;     /* and the time that this took in batches of its own */
  uint64_t tokens;      /* sampled: forwards + accepted, unless a selfcheck cut some */
  /* Round overhead: the time from the end of one VERIFY's forward to the start of the next one's. It is
   * measured only if each was alone in its batch, both have the same slot, and the second has nodes and came
   * at once. */
  uint64_t gaps;
  uint32_t gap_us[ENGINE_GAPS_MAX]; /* the last ENGINE_GAPS_MAX of them, the n-th at n modulo that */
  /* How long the device had nothing to compute meanwhile: from the end of the first forward, as the host saw
   * it, to that of the second, less what the second took on the device. Beside the gap this is what the host
   * needs to queue a forward and to see its end. */
  uint32_t idle_us[ENGINE_GAPS_MAX];
} engine_counters;

typedef struct engine engine;

int engine_open(engine **out, const engine_options *o, err *e); /* ERR_NOMEM, ERR_FULL, ERR_IO */
/* Frees it. Model and cache are the caller's again. NULL is allowed. */
void engine_close(engine *g);

/* Computes a batch. One thread at a time. */
void engine_run(engine *g, const engine_batch *batch, engine_results *out);
/* NULL: it has no partial KV. Both only while no batch is under way. */
const partial_counters *engine_count_partial(const engine *g);
const engine_counters *engine_count(const engine *g);
