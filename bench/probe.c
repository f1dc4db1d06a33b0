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
static probe *probe_of(const device *d) {
  return (probe *)(uintptr_t)d->table;
}

static void add_time(probe *p, probe_op op, uint64_t begin) {
  p->ns[op] += probe_clock_ns() - begin;
}

/* --- a forward's numbers --- */

static bool on_begin(device *d, device_kv *k, const ops_batch *b) {
  probe *p = probe_of(d);
  int32_t choices = b->head_count - b->logit_count;
  assert(b->row_count <= PROBE_ROWS_MAX);
  p->batch =
      (ops_batch){.row_count = b->row_count, .head_count = b->head_count, .logit_count = b->logit_count};
  if (choices > 0) memcpy(p->choices, b->choices, (size_t)choices * sizeof *b->choices);
  return p->real->begin(d, k, b);
}

/* --- linears --- */

static probe_op kind_of(const probe *p, int32_t job_count) {
  if (job_count > 1) return PROBE_QKV;
  return p->last == PROBE_QKV ? PROBE_OUTPUT : PROBE_DOWN;
}

static void count_work(probe *p, probe_op op, const probe_call *c) {
  uint64_t rows = (uint64_t)(c->head ? p->batch.head_count : p->batch.row_count);
  for (int32_t i = 0; i < c->job_count; i++) {
    const device_weight *w = &c->jobs[i].w;
    p->bytes[op] += p->real->packed_bytes(w->type, w->rows, w->columns);
    p->macs[op] += rows * (uint64_t)w->rows * (uint64_t)w->columns;
  }
}

static void run_call(probe *p, const probe_call *c) {
  device *d = p->device;
  if (c->head)
    p->real->head(d, &c->jobs[0].w, c->x);
  else if (c->swiglu)
    p->real->linear_swiglu(d, &c->jobs[0].w, &c->jobs[1].w, c->x, c->swiglu);
  else
    p->real->linear(d, c->jobs, c->job_count, c->x);
}

static bool runs(const probe *p, probe_op op) {
  return p->mode != PROBE_ONLY || p->only == op;
}

static void run_norm(probe *p) {
  const probe_norm *n = &p->norm;
  if (n->waits) p->real->norm(p->device, n->x, n->head, n->w, n->eps, n->y);
}

static void on_call(probe *p, probe_op op, const probe_call *c) {
  if (p->mode == PROBE_SKIP) return;
  p->last = op;
  if (runs(p, op)) run_norm(p);
  p->norm.waits = false;
  if (!runs(p, op)) return;
  if (p->mode == PROBE_KEEP) {
    assert(p->call_count < PROBE_CALLS_MAX);
    p->calls[p->call_count++] = *c;
  }
  count_work(p, op, c);
  uint64_t begin = probe_clock_ns();
  run_call(p, c);
  add_time(p, op, begin);
}

static void on_linear(device *d, const device_linear *jobs, int32_t count, const device_act *x) {
  probe *p = probe_of(d);
  probe_call c = {.job_count = count, .x = x};
  assert(count <= PROBE_JOBS_MAX);
  memcpy(c.jobs, jobs, (size_t)count * sizeof *jobs);
  on_call(p, kind_of(p, count), &c);
}

static void on_linear_swiglu(device *d, const device_weight *gate, const device_weight *up,
                             const device_act *x, device_act *y) {
  const probe_call c = {.jobs = {{.w = *gate}, {.w = *up}}, .job_count = 2, .x = x, .swiglu = y};
  on_call(probe_of(d), PROBE_GATE_UP, &c);
}

static void on_head(device *d, const device_weight *w, const device_act *x) {
  const probe_call c = {.jobs = {{.w = *w}}, .job_count = 1, .x = x, .head = true};
  on_call(probe_of(d), PROBE_HEAD, &c);
}

void probe_replay(probe *p) {
  ops_row rows[PROBE_ROWS_MAX];
  int32_t head_rows[PROBE_ROWS_MAX];
  ops_batch b = p->batch;
  for (int32_t i = 0; i < b.row_count; i++) {
    rows[i] = (ops_row){.length = 1};
    head_rows[i] = i;
  }
  b.rows = rows;
  b.head_rows = head_rows;
  b.choices = p->choices;
  if (!p->real->begin(p->device, NULL, &b)) return;
  for (int32_t i = 0; i < p->call_count; i++) run_call(p, &p->calls[i]);
  p->real->end(p->device);
  p->real->wait(p->device, NULL);
}

/* --- the others: their time --- */

#define TIMED(op, call)                                                                                      \
  probe *p = probe_of(d);                                                                                    \
  uint64_t begin = probe_clock_ns();                                                                         \
  p->real->call;                                                                                             \
  add_time(p, op, begin);

#define PASS_ON(op, call)                                                                                    \
  if (!runs(probe_of(d), op)) return;                                                                        \
  TIMED(op, call)

static void on_embed(device *d, const device_weight *w, device_act *x) {
  PASS_ON(PROBE_EMBED, embed(d, w, x))
}

static void on_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  probe_of(d)->norm = (probe_norm){x, head, probe_of(d)->mode == PROBE_ONLY, w, eps, y};
  PASS_ON(PROBE_NORM, norm(d, x, head, w, eps, y))
}

static void on_rope(device *d, const device_rope *r) {
  TIMED(PROBE_ROPE, rope(d, r))
}

static void on_rope_store(device *d, int32_t layer, const device_rotary *r, device_act *q,
                          const device_act *k, const device_act *v) {
  const probe_op op = probe_of(d)->mode == PROBE_ONLY ? PROBE_QKV : PROBE_ROPE;
  PASS_ON(op, rope_store(d, layer, r, q, k, v))
}

static void on_attention(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  PASS_ON(PROBE_ATTENTION, attention(d, layer, view, q, y))
}

static void on_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                      int32_t length) {
  TIMED(PROBE_COMMIT, kv_commit(d, k, sequence, path, count, length))
}

/* --- the probe --- */

void probe_attach(probe *p, device *d) {
  p->device = d;
  p->real = d->table;
  p->table = *d->table;
  p->table.begin = on_begin;
  p->table.embed = on_embed;
  p->table.norm = on_norm;
  p->table.linear = on_linear;
  p->table.linear_swiglu = on_linear_swiglu;
  p->table.head = on_head;
  p->table.rope = on_rope;
  p->table.rope_store = on_rope_store;
  p->table.attention = on_attention;
  p->table.kv_commit = on_commit;
  probe_reset(p, PROBE_TIME);
  d->table = &p->table;
}

void probe_detach(probe *p) {
  p->device->table = p->real;
}

void probe_reset(probe *p, probe_mode mode) {
  p->mode = mode;
  p->last = PROBE_HEAD;
  p->norm.waits = false;
  p->call_count = 0;
  memset(p->ns, 0, sizeof p->ns);
  memset(p->bytes, 0, sizeof p->bytes);
  memset(p->macs, 0, sizeof p->macs);
}

void probe_only(probe *p, probe_op op) {
  probe_reset(p, PROBE_ONLY);
  p->only = op;
}

const char *probe_name(probe_op op) {
#define PROBE_TEXT(name, text) [PROBE_##name] = text,
  static const char *const names[] = {PROBE_LIST(PROBE_TEXT)};
#undef PROBE_TEXT
  return names[op];
}
