/* engine_job.h - what the engine computes and gives back: jobs, one a session, and their results. */
#pragma once

#include "common/base/min.h"
#include "common/base/sampler.h"
#include "common/grammar/grammar_matcher.h"
#include "target_worker/partial_kv.h"
#include "target_worker/taps.h"
#include "wire/message.h"

#define ENGINE_ROWS_MAX (WIRE_BUDGET_MAX + 1) /* rows of a verify: root and nodes */
#define ENGINE_CHUNK    128                   /* rows of a prefill job, as a rule */
/* Of one that holds up nobody, on a device that does best with more (device.h: prompt_rows) */
#define ENGINE_CHUNK_MAX 512
#define ENGINE_JOBS_MAX  32 /* of a batch; their rows together are MODEL_ROWS_MAX at most */

/* Rows of a prefill job that holds up nobody. best: the device's, 0 where any number will do */
static inline int32_t engine_prompt_rows(int32_t best) {
  return best == 0 ? ENGINE_CHUNK : min_i32(best, ENGINE_CHUNK_MAX);
}

typedef enum {
  ENGINE_PREFILL,
  ENGINE_VERIFY,
  ENGINE_FUSE /* applies fc to the states of rows that the last batch has committed; never beside others */
} engine_kind;

typedef struct engine_job {
  engine_kind kind;
  uint64_t serial;   /* returned in the result */
  uint64_t session;  /* for traces */
  int32_t slot;      /* sequence of the cache */
  int32_t kv_length; /* rows that the job starts from: a longer cache is rolled back to this length, a shorter
                        one gives ERR_DESYNC */
  const int32_t *blocks; /* virtual cache: [block_count] the slot's new block table, valid until the result;
                            NULL: it is unchanged */
  int32_t block_count;
  bool rows_given; /* with blocks: these already hold the kv_length rows, whatever the slot had before */
  int32_t count; /* PREFILL: [1, ENGINE_CHUNK_MAX], with taps and for FUSE [1, ENGINE_CHUNK]; VERIFY: root and
                    nodes, [1, ENGINE_ROWS_MAX] */
  int32_t tokens[ENGINE_CHUNK_MAX];
  int32_t parents[ENGINE_ROWS_MAX]; /* VERIFY: parents[0] = -1, others an earlier row */
  sampler_options sampling;         /* VERIFY */
  const int32_t
      *history; /* VERIFY with a penalty or a grammar: C [kv_length + 1], valid until the result; else NULL */
  int32_t prompt_length;      /* of C: what is beyond it is output */
  const int32_t *bias_tokens; /* VERIFY: [bias_count] valid until the result */
  const float *bias_values;
  int32_t bias_count;
  grammar_matcher *grammar; /* VERIFY: of the output, the engine's until the result; NULL: none */
  int32_t logprobs;         /* VERIFY: log-probabilities wanted of each token, as in msg_options */
  int32_t stops[WIRE_STOPS_MAX];
  int32_t stop_count;
  int32_t sampled_max; /* VERIFY: most tokens to take, >= 1 */
  /* VERIFY where the engine has partial KV: most nodes that it may put in place of the job's by itself, all
   * of which may be taken; 0: none, and what blocks weigh is not looked at */
  int32_t partial_most;
  bool partial_drafted; /* drafts feed the session's tree, though this job may have none of their nodes */
  msg_partial partial;  /* how, with partial_most; */
  partial_reason partial_why; /* why there are none; */
  /* of C, from text_from on, [kv_length + 1 - text_from], valid until the result; what lies before is as the
   * slot's last job with a text had it. NULL: there is none */
  const int32_t *text;
  int32_t text_from;
  bool selfcheck; /* decode the round again plainly and compare */
  bool measures; /* PREFILL: choose a token at every row, as a verify does, and drop it, so that the time of a
                    verify is measured */
  taps_set taps; /* the features wanted of its rows; count 0: none */
  bool fuses;    /* PREFILL, VERIFY: the forward applies fc to them itself */
  int32_t taps_from;   /* of positions from here on */
  const float *states; /* FUSE: of an engine_result, of `count` rows from position kv_length on */
  uint64_t ready_us;   /* when the session was ready for it */
} engine_job;

typedef struct engine_batch {
  int32_t count; /* >= 1, each of another slot */
  bool at_once;  /* made in the step that took the previous results, so nothing was waited for */
  bool beside;   /* a draft computes on the target's processors meanwhile, with threads of its own */
  engine_job jobs[ENGINE_JOBS_MAX]; /* [count] */
} engine_batch;

typedef struct engine_result {
  engine_kind kind;
  uint64_t serial;
  int code; /* ERR_OK, ERR_DESYNC (kv_length tells), ERR_LIMIT (the grammar allows no token), ERR_FORMAT (no
               output is the largest: they are no numbers), ERR_INTERNAL,
               ERR_DEVICE (lost: no job will succeed any more): nothing was committed */
  int32_t kv_length;     /* rows committed afterwards */
  int32_t node_count;    /* VERIFY: rows beside the root, */
  int32_t guessed;       /* all of which, or none, the engine has guessed over partial KV; */
  int32_t lossy;         /* so many tokens are not those that the whole cache gives */
  int32_t drafted_count; /* with guesses: tokens of `sampled` that the job's nodes would have given */
  int32_t sampled[ENGINE_ROWS_MAX]; /* VERIFY: new tokens, the last one the bonus */
  int32_t sampled_count;
  const ranking_token *logprobs; /* [sampled_count][the job's logprobs], valid until the next batch */
  bool selfcheck_differs;
  /* Features of the positions [feature_base, feature_base + feature_count), all of them committed: rows of
   * feature_bytes each, valid until the next batch. None were wanted, or they could not be had: count 0.
   * Fused ones are not there yet, unless the job fuses: their states, f32, wait for a batch of ENGINE_FUSE,
   * which must be the next. */
  const uint8_t *features; /* or NULL */
  const float *states;     /* or NULL */
  size_t feature_bytes;
  int32_t feature_base, feature_count;
  uint64_t queue_us, accept_us, commit_us;
  uint64_t forward_us; /* of the forward that it shared with the batch's other jobs */
  bool prepared;       /* model_prepared: it is not what such a forward usually takes */
} engine_result;

typedef struct engine_results {
  int32_t count; /* as many as the batch has jobs, in their order */
  engine_result of[ENGINE_JOBS_MAX];
} engine_results;
