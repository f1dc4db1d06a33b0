/* cpu_rank.c - op rank, by the sampler's own code. `rank` takes memory; a list is made when it is asked for:
 * a target asks for the rows of its walk alone, one after the other, a draft for all of them at once. */
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <math.h>

#define ALIGNMENT 64

static size_t aligned(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* A thread's sampler, and after it its renamed logits. */
static size_t ranker_bytes(const cpu_rankers *r) {
  size_t renamed = r->renames ? (size_t)r->vocabulary * sizeof(float) : 0;
  return aligned(sampler_bytes(r->vocabulary)) + aligned(renamed);
}

static void *ranker_at(const cpu_rankers *r, int32_t thread) {
  return (uint8_t *)r->memory.data + (size_t)thread * ranker_bytes(r);
}

/* One row is ranked by the calling thread, several by all threads. */
static void open_rankers(cpu_device *c, device_ids ids) {
  cpu_rankers *r = &c->rankers;
  int32_t count = c->batch.rank_count > 1 ? c->base.threads : 1;
  if (r->count >= count && r->vocabulary == ids.count && r->renames == (ids.memory != NULL)) return;
  *r = (cpu_rankers){.memory = r->memory, .vocabulary = ids.count, .renames = ids.memory != NULL};
  if (!cpu_op_grow(c, &r->memory, (size_t)count * ranker_bytes(r))) return;
  for (; r->count < count; r->count++) sampler_init(ranker_at(r, r->count), r->vocabulary);
}

void cpu_rank(device *d, device_ids ids) {
  cpu_device *c = cpu_of(d);
  assert(c->running && ids.count > 0 && (ids.memory || ids.count <= c->vocab));
  open_rankers(c, ids);
  c->rankers.ids = ids.memory ? (const int32_t *)(const void *)(ids.memory->data + ids.at) : NULL;
}

typedef struct rank_job {
  const cpu_device *c;
  int32_t first;
} rank_job;

/* By the tokens' own ids; a token that is no output is never listed. */
static const float *renamed(const cpu_rankers *r, int32_t thread, const float *logits) {
  if (!r->ids) return logits;
  float *to = (float *)((uint8_t *)ranker_at(r, thread) + aligned(sampler_bytes(r->vocabulary)));
  for (int32_t t = 0; t < r->vocabulary; t++) to[t] = r->ids[t] < 0 ? -INFINITY : logits[r->ids[t]];
  return to;
}

static const int32_t *history_at(const cpu_batch *b, ops_slice s) {
  return s.count > 0 ? b->tokens + s.first : NULL;
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
                           .extra_count = r->history[1].count};
  size_t line = (size_t)b->logit_count + (size_t)(j->first + i);
  const float *logits = (const float *)c->logits.data + line * (size_t)c->vocab;
  out->count = sampler_rank(ranker_at(&c->rankers, thread), &r->options, &row,
                            renamed(&c->rankers, thread, logits), r->position, r->count, out->list);
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
