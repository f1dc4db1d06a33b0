#include "bench/policy_replay/drafts.h"

#include "bench/policy_replay/steps.h"
#include "common/base/rng.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 0.01 /* scores stay finite, as those of the replay draft */

struct immediate_session {
  const draft_context *shared;
  const recording *of;
  int32_t length;
};

static bool is_right(const recorded_draft *d, const recording *r, int32_t position) {
  const uint32_t counter[4] = {(uint32_t)position, (uint32_t)r->length, 0, 0}, key[2] = {7, 11};
  double right = position - r->prompt_length < d->change ? d->right : d->later;
  return (double)philox_unit(philox4x32(counter, key).lane[0]) < right;
}

static double claim(const recorded_draft *d) {
  double p = d->claims < 0 ? d->right : d->claims;
  return p > LEAST ? p : LEAST;
}

static int32_t guess(const recorded_draft *d, const recording *r, int32_t position) {
  int32_t token = r->tokens[position];
  return is_right(d, r, position) ? token : token + 1;
}

static const recording *fitting(const draft_context *x, const prefix *c) {
  for (int32_t i = 0; i < x->count; i++)
    if (x->list[i].length >= c->length &&
        memcmp(x->list[i].tokens, c->tokens, (size_t)c->length * sizeof *c->tokens) == 0)
      return &x->list[i];
  return NULL;
}

static immediate_session *replay_open(void *shared, const prefix *c, int32_t prompt_length,
                                      const msg_options *options) {
  (void)prompt_length, (void)options;
  immediate_session *d = malloc(sizeof *d);
  if (d) *d = (immediate_session){shared, fitting(shared, c), c->length};
  return d;
}

static void replay_close(immediate_session *d) {
  free(d);
}

static void replay_advance(immediate_session *d, const prefix *c) {
  d->length = c->length;
}

static int32_t replay_candidates(immediate_session *d, const int32_t *path, int32_t depth,
                                 draft_candidate *out) {
  if (d->of && d->shared->draft->kind == RECORDED_STEPS)
    return steps_candidates(d->of, d->length, path, depth, out);
  if (!d->of || d->length + depth >= d->of->length) return 0;
  *out = (draft_candidate){.token = guess(d->shared->draft, d->of, d->length + depth),
                           .score = (float)log(claim(d->shared->draft))};
  return 1;
}

const immediate_kind recorded_replay = {"replay",       replay_open,       replay_close,
                                        replay_advance, replay_candidates, NULL};

/* The best candidate has the share of exp(value) that the draft claims, another one the rest. */
static void compute_query(const draft_context *x, int32_t slot, const draft_query *p, draft_result *a) {
  const recording *r = x->current;
  int32_t position = x->lengths[slot] + p->depth;
  *a = (draft_result){.slot = slot, .handle = p->handle};
  if (!r || position >= r->length) return;
  double share = claim(x->draft) < 0.99 ? claim(x->draft) : 0.99;
  a->count = 2;
  a->list[0] = (ranking_token){guess(x->draft, r, position), (float)log(share)};
  a->list[1] = (ranking_token){r->tokens[position] + 2, (float)log(1 - share)};
  if (a->list[0].value < a->list[1].value) a->list[1].value = a->list[0].value;
}

void recorded_compute(draft_context *x, const draft_batch *b, draft_results *r) {
  r->result_count = b->query_count;
  r->failure_count = 0;
  for (int32_t i = 0; i < b->job_count; i++) {
    const draft_job *j = &b->jobs[i];
    x->lengths[j->slot] = j->base + j->count;
    for (int32_t k = j->first_query; k < j->first_query + j->query_count; k++)
      compute_query(x, j->slot, &b->queries[k], &r->results[k]);
  }
}
