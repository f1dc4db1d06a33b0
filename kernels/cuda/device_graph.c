/* device_graph.c - recorded ops go into the stream: as a graph that was captured before, as one that is
 * captured now, or one by one. */
#include "kernels/cuda/device_parts.h"
#include "kernels/cuda/host_kernels.h"

#include <string.h>

/* --- one op --- */

static void play_embed(cuda_device *d, const cuda_op *o) {
  cuda_embed(d->stream, o->rows, o->jobs[0].w, o->y);
}

static void play_supply(cuda_device *d, const cuda_op *o) {
  cuda_supply(d->stream, o->rows, o->k, o->count, o->y);
}

static void play_capture(cuda_device *d, const cuda_op *o) {
  cuda_capture(d->stream, o->rows, o->bucket, o->x.f32, o->count, o->y);
}

static void play_norm(cuda_device *d, const cuda_op *o) {
  cuda_norm(d->stream, o->rows, o->norm, o->count, o->y);
}

static void play_linear(cuda_device *d, const cuda_op *o) {
  cuda_store store = {o->kv, o->layer, o->rotary.dim, o->rotary.angles};
  cuda_linear(d->stream, o->rows, o->jobs, o->count, o->normed ? &o->norm : NULL, o->stores ? &store : NULL,
              o->x);
}

static void play_swiglu(cuda_device *d, const cuda_op *o) {
  cuda_linear_swiglu(d->stream, o->rows, o->jobs[0].w, o->jobs[1].w, o->normed ? &o->norm : NULL, o->x, o->y);
}

static void play_gated(cuda_device *d, const cuda_op *o) {
  cuda_put_gated(d->stream, o->rows, o->count, o->k, o->v, o->y);
}

static void play_rope(cuda_device *d, const cuda_op *o) {
  cuda_rope(d->stream, o->rows, o->frequency, o->count, o->times, o->y);
}

static void play_rope_store(cuda_device *d, const cuda_op *o) {
  cuda_rope_store(d->stream, o->rows, o->kv, o->layer, o->rotary, o->heads, o->y, o->k, o->v);
}

static void play_attention(cuda_device *d, const cuda_op *o) {
  cuda_attention(d->stream, o->rows, o->runs, o->kv, o->layer, o->view, o->heads, o->positions, o->x.f32,
                 o->y, o->scratch);
}

static void play_mass(cuda_device *d, const cuda_op *o) {
  cuda_mass(d->stream, o->rows, o->bucket, o->kv, o->layer, o->heads, o->positions, o->x.f32, o->add, o->y,
            o->scratch);
}

static void play_bound(cuda_device *d, const cuda_op *o) {
  cuda_bound(d->stream, o->rows, o->bucket, o->kv, o->layer, o->heads, o->positions, o->x.f32, o->mean,
             o->add, o->y);
}

static void play_sample(cuda_device *d, const cuda_op *o) {
  cuda_sample(d->stream, o->rows, o->count, o->x.f32, d->forward.ids, o->scratch);
}

static void play_rank(cuda_device *d, const cuda_op *o) {
  cuda_rank(d->stream, o->rankings, o->count, o->logits, o->ranked, o->scratch);
}

static const struct {
  const char *name;
  void (*play)(cuda_device *d, const cuda_op *o);
} players[CUDA_OP_KINDS] = {
    [CUDA_OP_EMBED] = {"embed", play_embed},
    [CUDA_OP_SUPPLY] = {"supply", play_supply},
    [CUDA_OP_CAPTURE] = {"capture", play_capture},
    [CUDA_OP_NORM] = {"norm", play_norm},
    [CUDA_OP_LINEAR] = {"linear", play_linear},
    [CUDA_OP_SWIGLU] = {"swiglu", play_swiglu},
    [CUDA_OP_GATED] = {"gated", play_gated},
    [CUDA_OP_ROPE] = {"rope", play_rope},
    [CUDA_OP_ROPE_STORE] = {"rope_store", play_rope_store},
    [CUDA_OP_ATTENTION] = {"attention", play_attention},
    [CUDA_OP_MASS] = {"mass", play_mass},
    [CUDA_OP_BOUND] = {"bound", play_bound},
    [CUDA_OP_SAMPLE] = {"sample", play_sample},
    [CUDA_OP_RANK] = {"rank", play_rank},
};

/* A launch that fails is the runtime's last error; a kernel that fails is known at the end of the forward. */
static void play(cuda_device *d) {
  const cuda_forward *f = &d->forward;
  for (int32_t i = 0; i < f->op_count; i++) {
    const cuda_op *o = &f->ops[i];
    cuda_range_push(players[o->kind].name);
    players[o->kind].play(d, o);
    cuda_range_pop();
  }
}

/* --- graphs --- */

static hash16 hash_of(const cuda_forward *f) {
  hash16 h = hash_bytes(f->ops, (size_t)f->op_count * sizeof *f->ops);
  return hash_fold(h, &f->ids, sizeof f->ids);
}

/* The graph of these ops, or else the slot that has not been used for longest. */
static cuda_graph *find(cuda_device *d, hash16 ops) {
  cuda_graph *oldest = &d->graphs[0];
  for (int32_t i = 0; i < CUDA_GRAPHS_MAX; i++) {
    cuda_graph *g = &d->graphs[i];
    if (g->exec && hash_equal(g->ops, ops)) return g;
    if (g->used < oldest->used) oldest = g;
  }
  if (oldest->exec) cudaGraphExecDestroy(oldest->exec);
  *oldest = (cuda_graph){.ops = ops};
  return oldest;
}

/* Relaxed: other threads of this process may go on using their devices meanwhile. Errors are looked at when
 * the capture has ended: nothing may be asked of the stream before. */
static bool capture(cuda_device *d, cuda_graph *g) {
  cudaGraph_t graph = NULL;
  if (!cuda_device_ok(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed))) return false;
  play(d);
  bool captured = cuda_device_ok(d, cudaStreamEndCapture(d->stream, &graph)) &&
                  cuda_device_ok(d, cudaGetLastError()) &&
                  cuda_device_ok(d, cudaGraphInstantiate(&g->exec, graph, 0));
  if (graph) cudaGraphDestroy(graph);
  if (!captured) g->exec = NULL;
  return captured;
}

static bool launch(cuda_device *d) {
  cuda_graph *g = find(d, hash_of(&d->forward));
  if (!g->exec) {
    d->forward.prepared = true;
    cuda_range_push("graph capture");
    bool captured = capture(d, g);
    cuda_range_pop();
    if (!captured) return false;
  }
  g->used = ++d->base.counters.launches;
  d->forward.graph = g;
  return cuda_device_ok(d, cudaGraphLaunch(g->exec, d->stream));
}

void cuda_graph_flush(cuda_device *d) {
  cuda_forward *f = &d->forward;
  if (f->op_count == 0) return;
  f->prepared = d->use_graphs; /* the next forward of its kind is a graph */
  d->base.counters.launches += (uint64_t)f->op_count;
  play(d);
  if (!cuda_device_ok(d, cudaGetLastError())) f->failed = true;
  f->op_count = 0;
}

void cuda_graph_run(cuda_device *d) {
  cuda_fold(d);
  if (!d->use_graphs) {
    cuda_graph_flush(d);
  } else if (d->forward.op_count > 0 && !launch(d)) {
    d->forward.failed = true;
  }
}

void cuda_graph_close(cuda_device *d) {
  for (int32_t i = 0; i < CUDA_GRAPHS_MAX; i++)
    if (d->graphs[i].exec) cudaGraphExecDestroy(d->graphs[i].exec);
}
