/* sampler.h - chooses a token from a row of logits: a pure function of (logits, options, seed, position).
 *
 * Order: penalties, bias, mask, temperature, top-k, top-p, min-p; then Gumbel-max over what is left. With
 * temperature 0, the choice is the argmax after penalties, bias and mask, and the lowest id wins ties; noise
 * and filters are not used.
 *
 * A row in which a logit is a NaN or +infinity is no row of numbers: nothing is chosen from it, whatever else
 * it holds. -infinity is allowed, and never chosen.
 *
 * The penalties change the logit x of a token of the row's history, in this order. If it is in the prompt or
 * in the output: x / repeat_penalty if x > 0, else x * repeat_penalty. If it is n > 0 times in the output:
 * x - frequency_penalty * n, then x - presence_penalty.
 *
 * common/base/noise.h defines the noise g of (seed, choice, position, token). `position` is the index in the
 * whole sequence of the token being chosen.
 *
 * The filters see the tokens ordered by logit, descending, ties by id, ascending; each keeps the first tokens
 * of that order. Everything is f32, with each operation rounded, in one fixed order, except that sums of
 * probabilities are sums of integers, whose order does not matter; so every device and language can give the
 * same bits. With z = logit * (1 / temperature), one rounding each, and e = sampler_exp(z - z_max):
 *
 * - top-k keeps the first k;
 * - top-p keeps the fewest whose sum of floor(e * 2^36) reaches top_p times that sum over all that top-k
 * left;
 * - min-p keeps those with z - z_max >= sampler_log(min_p);
 * - the choice is the largest z + g, ties by the lowest id.
 *
 * Sources: Gumbel-max (Maddison et al. 2014); filters as in the reference implementations of their papers
 * (nucleus: Holtzman et al. 2020; min-p: Nguyen et al. 2024). */
#pragma once

#include "common/base/err.h"
#include "common/base/ranking.h"
#include "common/base/portable.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sampler_options {
  float temperature;    /* 0 = greedy (and all below SAMPLER_TEMPERATURE_MIN); [0, 100] */
  int32_t top_k;        /* 0 = off */
  float top_p;          /* 1 = off; (0, 1]: smallest set of most probable tokens whose sum reaches it */
  float min_p;          /* 0 = off; [0, 1): keep p >= min_p * p_max */
  float repeat_penalty; /* 1 = off; (0, 10]: positive logits divided, negative multiplied, for tokens seen */
  float presence_penalty, frequency_penalty; /* 0 = off; [-2, 2]: of a token in the output, of each time */
  uint64_t seed;
  uint32_t choice;
} sampler_options;

#define SAMPLER_TEMPERATURE_MIN 1e-5f
#define SAMPLER_TEMPERATURE_MAX 100.0f
#define SAMPLER_PENALTY_MAX     10.0f
#define SAMPLER_COUNTED_MAX     2.0f /* of presence_penalty and frequency_penalty */
#define SAMPLER_BIAS_MAX        512  /* tokens that a request changes the logits of */
#define SAMPLER_BIAS_VALUE_MAX  100.0f
#define SAMPLER_VOCAB_MAX       (1 << 20)

#define SAMPLER_DEFAULTS ((sampler_options){.temperature = 0, .top_p = 1, .repeat_penalty = 1})

PORTABLE_C_BEGIN

/* ERR_ARG with the option's name and its range. */
int sampler_check(const sampler_options *o, err *e);
/* Does a penalty look at a row's history? */
bool sampler_penalises(const sampler_options *o);

/* What belongs to one row beside the options: its history, a logit bias and a grammar's mask. All of it is
 * optional. Tokens outside the vocabulary are ignored. */
typedef struct sampler_row {
  const int32_t *history; /* prompt and output up to this row's own token, its path in the tree included */
  int32_t history_count;
  const int32_t *extra; /* the rest of the history, after `history` (a tree row's path); NULL, 0 */
  int32_t extra_count;
  int32_t prompt_count;       /* so many of the history's first tokens are the prompt's, the rest is output */
  const int32_t *bias_tokens; /* [bias_count] */
  const float *bias_values;
  int32_t bias_count;
  const uint32_t *mask; /* bit (t % 32) of word t / 32 set = allowed; NULL = all */
} sampler_row;

typedef struct sampler sampler; /* scratch for one thread */
/* In the caller's memory of sampler_bytes(vocab), aligned to 8 bytes, where it begins; vocab is in [1,
 * SAMPLER_VOCAB_MAX]. */
size_t sampler_bytes(int32_t vocab);
sampler *sampler_init(void *memory, int32_t vocab);
int sampler_alloc(sampler **out, int32_t vocab); /* ERR_NOMEM, ERR_ARG (vocab not in [1, max]): *out NULL */
void sampler_free(sampler *s);                   /* of sampler_alloc; NULL is allowed */

/* False: a logit is a NaN or +infinity, as where a sum went beyond the largest float. */
bool sampler_are_numbers(const float *logits, int32_t count);

/* logits [vocab], not changed; `row` may be NULL. -1: the logits are no numbers, also after penalties and
 * bias, or nothing that may be chosen is above -infinity. */
int32_t sampler_pick(sampler *s, const sampler_options *o, const sampler_row *row, const float *logits,
                     int32_t position);

#define SAMPLER_RANKED_MAX 16

/* The `count` (1 to SAMPLER_RANKED_MAX) largest values among what sampler_pick chooses from, the largest,
 * which is its choice, first; ties by the lowest id. Returns how many there are; 0: no token is left. A draft
 * uses it to rank its candidates as the target would if these logits were the target's. */
int32_t sampler_rank(sampler *s, const sampler_options *o, const sampler_row *row, const float *logits,
                     int32_t position, int32_t count, ranking_token *out);

#define SAMPLER_LOGPROBS_MAX 20

/* Log-probabilities, the log-softmax of the logits as they are: out[0] is of `token`, out[1] to out[count] of
 * the `count` (0 to SAMPLER_LOGPROBS_MAX) likeliest tokens, the likeliest first, ties by the lowest id; token
 * -1 with the value 0 where there are fewer. With m the largest logit and S the sum of floor(sampler_exp(x -
 * m) * 2^36), in which a token below m - 25 is left out: x - m - sampler_log(S / 2^36), each operation in
 * f32, and -FLT_MAX at least. The errors add up to about 3e-6. */
void sampler_logprobs(sampler *s, const float *logits, int32_t token, int32_t count, ranking_token *out);

/* Tokens with a logit each, in any order. */
typedef struct sampler_listed {
  const int32_t *tokens; /* [count] below vocab; negative: none, whose logit counts for nothing */
  const float *logits;   /* [count] */
  int32_t count;
} sampler_listed;

/* As sampler_rank where all other tokens have a logit of -infinity. No token is listed twice. Without
 * penalties, bias and mask it takes the time of the listed tokens, not of the vocabulary. */
int32_t sampler_rank_listed(sampler *s, const sampler_options *o, const sampler_row *row,
                            const sampler_listed *lists, int32_t list_count, int32_t position, int32_t count,
                            ranking_token *out);

/* The factor of the logits: 1 / temperature, or 0 for greedy. */
float sampler_scale(const sampler_options *o);
/* False: the choice is the largest logit * scale + noise of the whole vocabulary (if scale is 0, the largest
 * logit), so a device can choose while it computes the logits, without keeping them. */
bool sampler_needs_logits(const sampler_options *o, const sampler_row *row, int32_t vocab);

/* These are polynomials of our own, so that every device and language agrees: f32 operations only, rounded to
 * nearest, not contracted. sampler_log is noise_log: x > 0 and normal; error at most 2 ulp. sampler_exp: x in
 * [-80, 0]; at most 2 ulp; the filters ignore a token below FILTER_EXP_MIN as too improbable to count. */
float sampler_log(float x);
float sampler_exp(float x);
/* g of the header, for golden tests and for a draft that ranks its candidates. */
float sampler_gumbel(uint64_t seed, uint32_t choice, uint32_t position, uint32_t token);

PORTABLE_C_END
