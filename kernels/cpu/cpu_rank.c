/* cpu_rank.c - op rank: by a kernel, or, with penalties or filters, by the sampler's own code. `rank` takes
 * memory; a list is made when it is asked for: a target asks for the rows of its walk alone, one after the
 * other, a draft for all of them at once. */
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <math.h>

#define ALIGNMENT 64

static size_t aligned(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *ranker_at(const cpu_rankers *r, int32_t thread) {
  return (uint8_t *)r->memory.data + (size_t)thread * aligned(sampler_bytes(r->vocabulary));
}

/* One row is ranked by the calling thread, several by all threads. */
static void open_rankers(cpu_device *c, device_ids ids) {
  cpu_rankers *r = &c->rankers;
  int32_t count = c->batch.rank_count > 1 ? c->base.threads : 1;
  if (r->count >= count && r->vocabulary == ids.count) return;
  *r = (cpu_rankers){.memory = r->memory, .vocabulary = ids.count};
  if (!cpu_op_grow(c, &r->memory, (size_t)count * aligned(sampler_bytes(ids.count)))) return;
  for (; r->count < count; r->count++) sampler_init(ranker_at(r, r->count), r->vocabulary);
}

void cpu_rank(device *d, device_ids ids) {
  cpu_device *c = cpu_of(d);
  const cpu_batch *b = &c->batch;
  assert(c->running && ids.count > 0 && (ids.memory ? ids.common : ids.count) <= c->vocab);
  for (int32_t i = 0; i < b->rank_count; i++) {
    const ops_slice *own = &b->rankings[i].own;
    assert(own->count == 0 || (ids.memory && own->first >= ids.common && own->count > 0 &&
                               own->count <= cpu_min(ids.outputs, c->vocab) - own->first));
  }
  open_rankers(c, ids);
  c->rankers.tokens = ids.memory ? (const int32_t *)(const void *)(ids.memory->data + ids.at) : NULL;
  c->rankers.common = ids.common;
}

typedef struct rank_job {
  const cpu_device *c;
  int32_t first;
} rank_job;

static const int32_t *history_at(const cpu_batch *b, ops_slice s) {
  return s.count > 0 ? b->tokens + s.first : NULL;
}

/* The list of what no penalty, bias, mask or filter changes. */
static int32_t rank_outputs(const cpu_device *c, const ops_ranking *r, const float *logits,
                            ranking_token *out) {
  const cpu_rankers *k = &c->rankers;
  const ops_sampling choice = {.scale = sampler_scale(&r->options),
                               .seed = r->options.seed,
                               .choice = r->options.choice,
                               .position = (uint32_t)r->position};
  ranking_list best;
  ranking_init(&best, out, r->count);
  bool numbers =
      c->kernels->rank(logits, k->tokens, 0, k->tokens ? k->common : k->vocabulary, &choice, &best);
  if (k->tokens && r->own.count > 0)
    numbers &=
        c->kernels->rank(logits + r->own.first, k->tokens + r->own.first, 0, r->own.count, &choice, &best);
  return numbers ? ranking_count(&best) : 0;
}

static int32_t rank_adjusted(const cpu_rankers *k, int32_t thread, const ops_ranking *r,
                             const sampler_row *row, const float *logits, ranking_token *out) {
  sampler *s = ranker_at(k, thread);
  if (!k->tokens) return sampler_rank(s, &r->options, row, logits, r->position, r->count, out);
  const sampler_listed lists[] = {{k->tokens, logits, k->common},
                                  {k->tokens + r->own.first, logits + r->own.first, r->own.count}};
  return sampler_rank_listed(s, &r->options, row, lists, 2, r->position, r->count, out);
}

static void rank_one(void *context, int32_t i, int32_t thread) {
  const rank_job *j = context;
  const cpu_device *c = j->c;
  const cpu_batch *b = &c->batch;
  const ops_ranking *r = &b->rankings[j->first + i];
  ops_ranked *out = &b->ranked[j->first + i];
  if (out->count >= 0) return;
  const sampler_row row = {.history = history_at(b, r->history[0]),
                           .history_count = r->history[0].count,
                           .extra = history_at(b, r->history[1]),
                           .extra_count = r->history[1].count,
                           .prompt_count = r->prompt_count,
                           .bias_tokens = r->bias.count ? b->bias_tokens + r->bias.first : NULL,
                           .bias_values = r->bias.count ? b->bias_values + r->bias.first : NULL,
                           .bias_count = r->bias.count};
  size_t line = (size_t)b->logit_count + (size_t)(j->first + i);
  const float *logits = (const float *)c->logits.data + line * (size_t)c->vocab;
  if (sampler_needs_logits(&r->options, &row, c->rankers.vocabulary))
    out->count = rank_adjusted(&c->rankers, thread, r, &row, logits, out->list);
  else
    out->count = rank_outputs(c, r, logits, out->list);
}

const ops_ranked *cpu_ranked(device *d, int32_t first, int32_t count) {
  cpu_device *c = cpu_of(d);
  rank_job j = {c, first};
  assert(!c->running && !c->failed && first >= 0 && count >= 1 && count <= c->batch.rank_count - first);
  if (count == 1)
    rank_one(&j, 0, 0);
  else
    thread_pool_run(c->pool, count, rank_one, &j);
  return c->batch.ranked + first;
}
