#include "bench/probe.h"

#include <assert.h>
#include <string.h>
#include <time.h>

uint64_t probe_clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The device's table is the probe's first member. */
static probe *probe_of(const ops *o) {
  return (probe *)(uintptr_t)o->table;
}

static void add_time(probe *p, probe_op op, uint64_t begin) {
  p->ns[op] += probe_clock_ns() - begin;
}

/* --- linears --- */

static probe_op kind_of(const probe *p, int32_t job_count) {
  if (job_count > 1) return PROBE_QKV;
  return p->last == PROBE_QKV ? PROBE_OUTPUT : p->last == PROBE_GATE_UP ? PROBE_DOWN : PROBE_HEAD;
}

static void count_work(probe *p, probe_op op, const ops_linear *jobs, int32_t job_count, int32_t rows) {
  for (int32_t i = 0; i < job_count; i++) {
    const ops_weight *w = jobs[i].w;
    p->bytes[op] += p->real->packed_bytes(w->type, w->rows, w->columns);
    p->macs[op] += (uint64_t)rows * (uint64_t)w->rows * (uint64_t)w->columns;
  }
}

/* Pointers to weights and activations are the model's and outlive the call; the jobs do not. */
static probe_call *keep(probe *p, const ops_linear *jobs, int32_t job_count, const ops_act *x,
                        int32_t count) {
  assert(p->call_count < PROBE_CALLS_MAX && job_count <= PROBE_JOBS_MAX);
  probe_call *c = &p->calls[p->call_count++];
  *c = (probe_call){.job_count = job_count, .count = count, .x = *x};
  memcpy(c->jobs, jobs, (size_t)job_count * sizeof *jobs);
  return c;
}

static void on_linear(ops *o, const ops_linear *jobs, int32_t job_count, const ops_act *x, int32_t count) {
  probe *p = probe_of(o);
  if (p->mode == PROBE_SKIP) return;
  if (p->mode == PROBE_KEEP) keep(p, jobs, job_count, x, count);
  probe_op op = p->last = kind_of(p, job_count);
  count_work(p, op, jobs, job_count, count);
  uint64_t begin = probe_clock_ns();
  p->real->linear(o, jobs, job_count, x, count);
  add_time(p, op, begin);
}

static void on_linear_swiglu(ops *o, const ops_weight *gate, const ops_weight *up, const ops_act *x,
                             int32_t count, ops_act *y) {
  probe *p = probe_of(o);
  const ops_linear jobs[] = {{.w = gate}, {.w = up}};
  if (p->mode == PROBE_SKIP) return;
  if (p->mode == PROBE_KEEP) keep(p, jobs, 2, x, count)->swiglu = y;
  p->last = PROBE_GATE_UP;
  count_work(p, PROBE_GATE_UP, jobs, 2, count);
  uint64_t begin = probe_clock_ns();
  p->real->linear_swiglu(o, gate, up, x, count, y);
  add_time(p, PROBE_GATE_UP, begin);
}

static void on_sample(ops *o, const ops_weight *w, const ops_act *x, int32_t count,
                      const ops_sampling *choices, int32_t *ids) {
  probe *p = probe_of(o);
  const ops_linear head = {.w = w};
  if (p->mode == PROBE_SKIP) return;
  if (p->mode == PROBE_KEEP) {
    probe_call *c = keep(p, &head, 1, x, count);
    c->choices = choices;
    c->ids = ids;
  }
  p->last = PROBE_HEAD;
  count_work(p, PROBE_HEAD, &head, 1, count);
  uint64_t begin = probe_clock_ns();
  p->real->sample(o, w, x, count, choices, ids);
  add_time(p, PROBE_HEAD, begin);
}

void probe_replay(probe *p) {
  for (int32_t i = 0; i < p->call_count; i++) {
    const probe_call *c = &p->calls[i];
    if (c->swiglu)
      p->real->linear_swiglu(p->device, c->jobs[0].w, c->jobs[1].w, &c->x, c->count, c->swiglu);
    else if (c->choices)
      p->real->sample(p->device, c->jobs[0].w, &c->x, c->count, c->choices, c->ids);
    else
      p->real->linear(p->device, c->jobs, c->job_count, &c->x, c->count);
  }
}

/* --- the others: their time --- */

#define PASS_ON(op, call)                                                                                    \
  probe *p = probe_of(o);                                                                                    \
  uint64_t begin = probe_clock_ns();                                                                         \
  p->real->call;                                                                                             \
  add_time(p, op, begin);

static void on_embed(ops *o, const ops_row *rows, int32_t count, const ops_weight *w, float *x) {
  PASS_ON(PROBE_EMBED, embed(o, rows, count, w, x))
}

static void on_norm(ops *o, const float *x, const int32_t *index, int32_t count, const float *w, float eps,
                    ops_act *y) {
  PASS_ON(PROBE_NORM, norm(o, x, index, count, w, eps, y))
}

static void on_rope_store(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                          int32_t heads, const ops_rotary *rotary, float *q, const float *k, const float *v) {
  PASS_ON(PROBE_ROPE, rope_store(o, s, layer, rows, count, heads, rotary, q, k, v))
}

static void on_attention(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                         int32_t heads, int32_t window, const float *q, ops_act *y, float *scratch) {
  PASS_ON(PROBE_ATTENTION, attention(o, s, layer, rows, count, heads, window, q, y, scratch))
}

static void on_commit(ops *o, const ops_kv_shape *s, const ops_kv *kv, const int32_t *path, int32_t count,
                      int32_t length) {
  PASS_ON(PROBE_COMMIT, commit(o, s, kv, path, count, length))
}

/* --- the probe --- */

void probe_attach(probe *p, ops *device) {
  p->device = device;
  p->real = device->table;
  p->table = *device->table;
  p->table.embed = on_embed;
  p->table.norm = on_norm;
  p->table.linear = on_linear;
  p->table.linear_swiglu = on_linear_swiglu;
  p->table.sample = on_sample;
  p->table.rope_store = on_rope_store;
  p->table.attention = on_attention;
  p->table.commit = on_commit;
  probe_reset(p, PROBE_TIME);
  device->table = &p->table;
}

void probe_detach(probe *p) {
  p->device->table = p->real;
}

void probe_reset(probe *p, probe_mode mode) {
  p->mode = mode;
  p->last = PROBE_HEAD;
  p->call_count = 0;
  memset(p->ns, 0, sizeof p->ns);
  memset(p->bytes, 0, sizeof p->bytes);
  memset(p->macs, 0, sizeof p->macs);
}

const char *probe_name(probe_op op) {
#define PROBE_TEXT(name, text) [PROBE_##name] = text,
  static const char *const names[] = {PROBE_LIST(PROBE_TEXT)};
#undef PROBE_TEXT
  return names[op];
}
