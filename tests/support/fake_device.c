#include "tests/support/fake_device.h"

fake_device *fake_of(const device *d) {
  return (fake_device *)(uintptr_t)d;
}

static void __attribute__((format(printf, 2, 3))) fake_log(device *d, const char *format, ...) {
  fake_device *f = fake_of(d);
  va_list args;
  va_start(args, format);
  int n = vsnprintf(f->log + f->used, sizeof f->log - f->used, format, args);
  va_end(args);
  if (n > 0 && f->used + (size_t)n < sizeof f->log) f->used += (size_t)n;
}

static const char *fake_numbers(const int32_t *numbers, int32_t count) {
  static char text[256];
  int at = 0;
  text[0] = 0;
  for (int32_t i = 0; i < count && at < 200; i++)
    at += snprintf(text + at, sizeof text - (size_t)at, "%s%d", i ? "," : "", numbers[i]);
  return text;
}

/* --- memory: plain bytes --- */

static device_memory *fake_take(device *d, mem_tag tag, size_t bytes) {
  (void)d, (void)tag;
  return calloc(1, bytes);
}

static void fake_drop(device *d, device_memory *m) {
  (void)d;
  free(m);
}

static size_t fake_left(const device *d) {
  (void)d;
  return SIZE_MAX;
}

static void *fake_fill(device *d, device_memory *m, size_t at, size_t bytes) {
  (void)d, (void)bytes;
  return (char *)m + at;
}

static int fake_filled(device *d) {
  (void)d;
  return OPS_OK;
}

static size_t fake_window_max(const device *d) {
  (void)d;
  return SIZE_MAX;
}

static int fake_read(device *d, const device_memory *m, size_t at, size_t bytes, void *out) {
  fake_log(d, "read ");
  memcpy(out, (const char *)m + at, bytes);
  return OPS_OK;
}

static size_t fake_packed_bytes(ops_type type, int32_t rows, int32_t columns) {
  (void)type;
  return (size_t)rows * (size_t)columns * sizeof(float);
}

static device_act *fake_act(device *d, int32_t rows, int32_t columns, bool input) {
  (void)input;
  return (device_act *)fake_take(d, MEM_ACTIVATIONS, (size_t)rows * (size_t)columns * sizeof(float));
}

static void fake_act_drop(device *d, device_act *a) {
  (void)d;
  free(a);
}

static int fake_act_read(device *d, const device_act *a, int32_t rows, float *to) {
  fake_log(d, "act_read ");
  memcpy(to, a, (size_t)rows * sizeof *to);
  return OPS_OK;
}

/* --- the cache --- */

static device_kv *fake_kv_open(device *d, const ops_kv_shape *s) {
  (void)d;
  return calloc(1, sizeof *s);
}

static void fake_kv_close(device *d, device_kv *k) {
  fake_log(d, "kv_close ");
  free(k);
}

static bool fake_kv_stage(device *d, device_kv *k) {
  (void)k;
  fake_log(d, "stage ");
  return true;
}

static void fake_kv_map(device *d, device_kv *k, int32_t sequence, const int32_t *blocks, int32_t count) {
  (void)k;
  fake_of(d)->kept_map = blocks;
  fake_log(d, "map:%d:%s ", sequence, fake_numbers(blocks, count));
}

static void fake_kv_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                           int32_t length) {
  (void)k;
  fake_log(d, "commit:%d:%s:%d ", sequence, fake_numbers(path, count), length);
}

/* --- a forward --- */

static bool fake_begin(device *d, device_kv *k, const ops_batch *b) {
  (void)k;
  fake_device *f = fake_of(d);
  f->kept = b->rows;
  if (ops_choice_count(b) > 0) f->choice = b->choices[0];
  if (b->rank_count > 0) f->ranking = b->rankings[0];
  if (b->token_count > 0) f->token = *(f->kept_tokens = b->tokens);
  fake_log(d, f->refuses ? "refuse " : "begin:%d:%d ", b->rows[0].token, b->row_count);
  return !f->refuses;
}

static void fake_embed(device *d, const device_weight *w, device_act *x) {
  (void)x;
  fake_log(d, "embed:%d ", w->rows);
}

static void fake_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  (void)x, (void)w, (void)y;
  fake_log(d, "norm:%d:%g ", head, (double)eps);
}

static void fake_linear(device *d, const device_linear *jobs, int32_t count, const device_act *x) {
  (void)x;
  fake_log(d, "linear:");
  for (int32_t i = 0; i < count; i++) fake_log(d, "%d:%d ", jobs[i].w.rows, jobs[i].add);
}

static void fake_swiglu(device *d, const device_weight *gate, const device_weight *up, const device_act *x,
                        device_act *y) {
  (void)up, (void)x, (void)y;
  fake_log(d, "swiglu:%d ", gate->rows);
}

static void fake_rope(device *d, const device_rope *r) {
  fake_log(d, "rope:%d ", r->dim);
}

static void fake_rope_store(device *d, int32_t layer, const device_rotary *r, device_act *q,
                            const device_act *k, const device_act *v) {
  (void)r, (void)q, (void)k, (void)v;
  fake_log(d, "store:%d ", layer);
}

static void fake_attention(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  (void)q, (void)y;
  fake_log(d, "attention:%d:%d ", layer, view);
}

static void fake_mass(device *d, int32_t layer, const device_act *q, bool add, device_act *y) {
  (void)q, (void)y;
  fake_log(d, "mass:%d:%d ", layer, add);
}

static void fake_bound(device *d, int32_t layer, ops_weighing how, const device_act *q, bool add,
                       device_act *y) {
  (void)q, (void)y;
  fake_log(d, "bound:%d:%d:%d ", layer, how, add);
}

static void fake_head(device *d, const device_weight *w, const device_act *x) {
  (void)x;
  fake_log(d, "head:%d ", w->rows);
}

static void fake_rank(device *d, device_ids ids) {
  fake_log(d, "rank:%d ", ids.outputs);
}

static void fake_end(device *d) {
  d->counters.forwards++;
  fake_log(d, "end ");
}

static ops_code fake_wait(device *d, ops_answer *a) {
  fake_device *f = fake_of(d);
  fake_log(d, "wait ");
  if (a) *a = (ops_answer){.ids = f->ids, .device_us = 7, .prepared = f->prepared};
  return f->code;
}

static const float *fake_logits(device *d, int32_t line) {
  (void)line;
  return fake_of(d)->logits;
}

static const ops_ranked *fake_ranked(device *d, int32_t first, int32_t count) {
  (void)count;
  return fake_of(d)->ranked + first;
}

static void fake_close(device *d) {
  *fake_of(d)->closed = true;
  free(d);
}

device *fake_open(bool *closed) {
  static const device_table table = {.name = "fake",
                                     .layout = "fake-1",
                                     .take = fake_take,
                                     .drop = fake_drop,
                                     .left = fake_left,
                                     .fill = fake_fill,
                                     .filled = fake_filled,
                                     .window_max = fake_window_max,
                                     .read = fake_read,
                                     .packed_bytes = fake_packed_bytes,
                                     .act = fake_act,
                                     .act_drop = fake_act_drop,
                                     .act_read = fake_act_read,
                                     .kv_open = fake_kv_open,
                                     .kv_close = fake_kv_close,
                                     .kv_stage = fake_kv_stage,
                                     .kv_map = fake_kv_map,
                                     .kv_commit = fake_kv_commit,
                                     .begin = fake_begin,
                                     .embed = fake_embed,
                                     .norm = fake_norm,
                                     .linear = fake_linear,
                                     .linear_swiglu = fake_swiglu,
                                     .rope = fake_rope,
                                     .rope_store = fake_rope_store,
                                     .attention = fake_attention,
                                     .mass = fake_mass,
                                     .bound = fake_bound,
                                     .head = fake_head,
                                     .rank = fake_rank,
                                     .end = fake_end,
                                     .wait = fake_wait,
                                     .logits = fake_logits,
                                     .ranked = fake_ranked,
                                     .close = fake_close};
  fake_device *f = calloc(1, sizeof *f);
  f->base = (device){.table = &table, .threads = 1};
  f->closed = closed;
  *closed = false;
  for (int32_t i = 0; i < FAKE_ROWS_MAX; i++) f->ids[i] = 100 + i;
  for (int32_t i = 0; i < FAKE_ROWS_MAX; i++) f->ranked[i] = (ops_ranked){1, {{200 + i, 0.5f}}};
  for (int32_t i = 0; i < FAKE_VOCABULARY; i++) f->logits[i] = (float)i;
  return &f->base;
}
