/* device_wait.c - the end of a forward: the answer, the time it took, logits on demand. */
#include "kernels/cuda/device_parts.h"
#include "common/base/clock.h"

#include <assert.h>
#include <string.h>
#include <time.h>

#define POLL_FROM_US  100  /* before the expected end: a thread that slept may be this late */
#define POLL_UNTIL_US 2000 /* after it: then the forward is an unusual one, and a processor is worth more */
#define POLL_REST_US  50
#define GROWTH        8 /* one part in so many of what a forward took longer than expected is expected next */

/* --- how long a graph usually takes: it follows shorter times at once, because who sleeps too long is late
 * --- */

static uint64_t usual(const cuda_device *d) {
  return d->forward.graph ? d->forward.graph->usual_us : 0;
}

/* A forward that captures its graph takes longer than one that only runs it. */
static void learn(cuda_device *d, uint64_t us) {
  cuda_graph *g = d->forward.graph;
  if (g && !d->forward.prepared)
    g->usual_us = g->usual_us > 0 && us > g->usual_us ? g->usual_us + (us - g->usual_us) / GROWTH : us;
}

/* --- waiting --- */

static void sleep_us(uint64_t us) {
  struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
  nanosleep(&t, NULL);
}

/* Asking is cheap, and the answer comes at once; an event that wakes a thread is 30 to 70 us late. */
static bool wait_last(cuda_device *d) {
  uint64_t expected = d->forward.queued_us + usual(d), now = clock_us();
  if (expected > now + POLL_FROM_US) sleep_us(expected - POLL_FROM_US - now);
  for (;;) {
    cudaError_t code = cudaEventQuery(d->forward.last);
    if (code != cudaErrorNotReady) return cuda_device_ok(d, code);
    if (clock_us() > expected + POLL_UNTIL_US) sleep_us(POLL_REST_US);
  }
}

void cuda_wait_end(device *base) {
  cuda_device *d = cuda_device_enter(base);
  cuda_forward *f = &d->forward;
  assert(f->begun);
  f->range = cuda_range_start("forward", f->row_count);
  if (f->failed) return;
  f->failed = !cuda_device_ok(
      d, cudaEventRecord(f->first, d->stream)); /* only now: recording ops is no device's time */
  cuda_graph_run(d);
  f->failed = f->failed || !cuda_device_ok(d, cudaEventRecord(f->last, d->stream));
  f->queued_us = clock_us();
}

static ops_code fail(cuda_device *d) {
  d->forward.failed = false;
  if (!d->lost) cuda_device_ok(d, cudaStreamSynchronize(d->stream)); /* what was queued of it */
  return d->lost ? OPS_LOST : OPS_FAILED;
}

static ops_code answer(cuda_device *d, ops_answer *a) {
  cuda_forward *f = &d->forward;
  bool ran = f->begun && !f->failed;
  float ms = 0;
  f->begun = false;
  if (a) *a = (ops_answer){0};
  if (d->lost || !ran || !wait_last(d) || !cuda_device_ok(d, cudaEventElapsedTime(&ms, f->first, f->last)))
    return fail(d);
  uint64_t us = (uint64_t)(1000.0f * ms);
  learn(d, us);
  if (a) *a = (ops_answer){.ids = f->ids, .device_us = us, .prepared = f->prepared};
  return OPS_OK;
}

ops_code cuda_wait_answer(device *base, ops_answer *a) {
  cuda_device *d = cuda_device_enter(base);
  bool begun = d->forward.begun;
  ops_code code = answer(d, a);
  if (begun) cuda_range_end(d->forward.range);
  return code;
}

/* --- logits: all lines are downloaded when the first one is wanted --- */

static bool kept_grow(cuda_device *d, size_t bytes) {
  cuda_forward *f = &d->forward;
  if (bytes <= f->kept_bytes) return true;
  cuda_memory_unpin(f->kept);
  f->kept = cuda_memory_pinned(d, bytes);
  f->kept_bytes = f->kept ? bytes : 0;
  return f->kept != NULL;
}

static bool download(cuda_device *d) {
  cuda_forward *f = &d->forward;
  size_t bytes = (size_t)f->logit_count * (size_t)f->vocabulary * sizeof(float);
  f->downloaded =
      !d->lost && kept_grow(d, bytes) &&
      cuda_device_ok(d, cudaMemcpyAsync(f->kept, f->logits->at, bytes, cudaMemcpyDeviceToHost, d->stream)) &&
      cuda_device_ok(d, cudaStreamSynchronize(d->stream));
  return f->downloaded;
}

const float *cuda_wait_logits(device *base, int32_t line) {
  cuda_device *d = cuda_device_enter(base);
  cuda_forward *f = &d->forward;
  assert(line >= 0 && line < f->logit_count);
  if (!f->downloaded && !download(d)) return NULL;
  base->counters.logit_lines++;
  return f->kept + (size_t)line * (size_t)f->vocabulary;
}

/* The device has written them into the host's memory. */
const ops_ranked *cuda_wait_ranked(device *base, int32_t first, int32_t count) {
  const cuda_device *d = cuda_device_of(base);
  assert(first >= 0 && count >= 1 && count <= d->forward.rank_count - first);
  return d->lost ? NULL : d->forward.ranked + first;
}

const float *cuda_wait_captured(device *base, int32_t capture, int32_t line) {
  const cuda_device *d = cuda_device_of(base);
  const cuda_forward *f = &d->forward;
  assert(capture >= 0 && capture < f->captures_made && line >= 0 && line < f->capture_count);
  const cuda_captured *from = &f->captures[capture];
  return d->lost ? NULL : from->rows + (size_t)line * (size_t)from->columns;
}
