/* engine.h - computes batches of jobs on the device.
 *
 * The worker machine fills an engine_batch, one job a session, and gets engine_results: the rows of all jobs
 * go through the model in one forward. Tests put a toy in the engine's place. */
#pragma once

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/model/model.h"
#include "common/base/sampler.h"
#include "target_worker/taps.h"
#include "wire/message.h"

#define ENGINE_ROWS_MAX (WIRE_BUDGET_MAX + 1) /* rows of a verify: root and nodes */
#define ENGINE_CHUNK    128                   /* rows of one prefill job */
#define ENGINE_JOBS_MAX 32                    /* of a batch; their rows together are MODEL_ROWS_MAX at most */

typedef enum { ENGINE_PREFILL, ENGINE_VERIFY } engine_kind;

typedef struct engine_job {
  engine_kind kind;
  uint64_t serial;   /* returned in the result */
  int32_t slot;      /* sequence of the cache */
  int32_t kv_length; /* rows that the job starts from: a longer cache is rolled back to this length, a shorter
                        one gives ERR_DESYNC */
  const int32_t *blocks; /* virtual cache: [block_count] the slot's new block table, valid until the result;
                            NULL: it is unchanged */
  int32_t block_count;
  bool rows_given; /* with blocks: these already hold the kv_length rows, whatever the slot had before */
  int32_t count;   /* PREFILL: [1, ENGINE_CHUNK]; VERIFY: root and nodes, [1, ENGINE_ROWS_MAX] */
  int32_t tokens[ENGINE_CHUNK];
  int32_t parents[ENGINE_ROWS_MAX]; /* VERIFY: parents[0] = -1, others an earlier row */
  sampler_options sampling;         /* VERIFY */
  const int32_t *history; /* VERIFY with a penalty: C [kv_length + 1], valid until the result; else NULL */
  int32_t stops[WIRE_STOPS_MAX];
  int32_t stop_count;
  int32_t sampled_max; /* VERIFY: most tokens to take, >= 1 */
  bool selfcheck;      /* decode the round again plainly and compare */
  bool measures; /* PREFILL: choose a token at every row, as a verify does, and drop it, so that the time of a
                    verify is measured */
  taps_set taps; /* the features wanted of its rows; count 0: none */
  int32_t taps_from; /* of positions from here on */
  uint64_t ready_us; /* when the session was ready for it */
} engine_job;

typedef struct engine_batch {
  int32_t count; /* >= 1, each of another slot */
  bool at_once;  /* made in the step that took the previous results, so nothing was waited for */
  engine_job jobs[ENGINE_JOBS_MAX]; /* [count] */
} engine_batch;

typedef struct engine_result {
  engine_kind kind;
  uint64_t serial;
  int code; /* ERR_OK, ERR_DESYNC (kv_length tells), ERR_INTERNAL, ERR_DEVICE (lost: no job will succeed any
               more): nothing was committed */
  int32_t kv_length;                /* rows committed afterwards */
  int32_t node_count;               /* VERIFY: rows beside the root */
  int32_t sampled[ENGINE_ROWS_MAX]; /* VERIFY: new tokens, the last one the bonus */
  int32_t sampled_count;
  bool selfcheck_differs;
  /* Features of the positions [feature_base, feature_base + feature_count), all of them committed: rows of
   * feature_bytes each, valid until the next batch. None were wanted, or they could not be had: count 0. */
  const uint8_t *features;
  size_t feature_bytes;
  int32_t feature_base, feature_count;
  uint64_t queue_us, accept_us, commit_us;
  uint64_t forward_us; /* of the forward that it shared with the batch's other jobs */
} engine_result;

typedef struct engine_results {
  int32_t count; /* as many as the batch has jobs, in their order */
  engine_result of[ENGINE_JOBS_MAX];
} engine_results;

/* --- the engine --- */

#define ENGINE_GAPS_MAX 1024 /* gaps remembered */

/* For tests: makes something happen once that must never happen. */
typedef enum {
  ENGINE_FAULT_NONE,
  ENGINE_FAULT_KV_ROLLBACK,
  ENGINE_FAULT_VERIFY_ERROR,
  ENGINE_FAULT_WRONG_TOKEN
} engine_fault_kind;
typedef struct engine_fault {
  engine_fault_kind kind;
  /* KV_ROLLBACK: before the after-th VERIFY job; the others: in the after-th with nodes; from 1 */
  uint64_t after;
  int32_t rows; /* KV_ROLLBACK: so many rows of its sequence are dropped */
} engine_fault;

/* "kv-rollback:AFTER:BY", "verify-error:AFTER" (ERR_INTERNAL) or "wrong-token:AFTER" (the step's first token
 * is not the model's, which only a selfcheck notices); NULL or "" is none. ERR_ARG. */
int engine_fault_parse(engine_fault *f, const char *text, err *e);

typedef struct engine_options {
  model *model; /* both belong to the engine from open to close; every sequence of kv is free at open */
  kv_cache *kv;
  int32_t sequences; /* of kv */
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
  uint64_t tapped_rows; /* whose states went to drafts */
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
/* Only while no batch is under way. */
const engine_counters *engine_count(const engine *g);
