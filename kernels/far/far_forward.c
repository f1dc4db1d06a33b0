/* far_forward.c - the forward pass of a far device: checked and queued op by op, computed at `wait`. */
#include "kernels/far/far_batch.h"
#include "kernels/far/far_device.h"
#include "kernels/far/far_require.h"

#include <string.h>

#define WRONG_EPS 1.0f /* of a norm that is to give other bits */

/* --- arguments: checked, and translated to the inner device's --- */

static far_device *recording(device *d) {
  far_device *f = far_device_of(d);
  far_require(f->state == FAR_RECORDING, "ops are between begin and end");
  return f;
}

static const device_memory *inner_memory(const far_device *f, const device_memory *m, size_t at,
                                         size_t bytes) {
  const far_thing *t = far_handles_find(&f->handles, m, FAR_MEMORY);
  far_require(at % 64 == 0, "weights and vectors begin at multiples of 64");
  far_require(at <= t->bytes && bytes <= t->bytes - at, "weights and vectors lie in their memory");
  return t->inner;
}

static device_weight inner_weight(const far_device *f, const device_weight *w) {
  size_t bytes = f->table.packed_bytes(w->type, w->rows, w->columns);
  far_require(bytes > 0, "a weight has a size");
  device_weight out = *w;
  out.memory = inner_memory(f, w->memory, w->at, bytes);
  return out;
}

/* count floats, or none. */
static device_vector inner_vector(const far_device *f, device_vector v, int32_t count) {
  if (v.memory) v.memory = inner_memory(f, v.memory, v.at, (size_t)count * sizeof(float));
  return v;
}

static const far_thing *act_of(const far_device *f, const device_act *a, int32_t rows, int32_t columns) {
  const far_thing *t = far_handles_find(&f->handles, a, FAR_ACT);
  far_require(t->rows >= rows, "activations have room for the rows of the op");
  far_require(t->columns == columns, "activations have the columns that the op reads or writes");
  return t;
}

static const far_thing *input_of(const far_device *f, const device_act *a, int32_t rows, int32_t columns) {
  const far_thing *t = act_of(f, a, rows, columns);
  far_require(t->input, "a linear reads activations that were made as its input");
  return t;
}

static int32_t columns_of(const far_device *f, const device_act *a) {
  return far_handles_find(&f->handles, a, FAR_ACT)->columns;
}

/* --- begin and end --- */

typedef struct begin_args {
  device_kv *kv;
  ops_batch batch;
  _Alignas(8) char arrays[];
} begin_args;

static void keep_answer(far_device *f, const ops_answer *a) {
  int32_t count = f->forward.head_rows - f->forward.logit_rows - f->forward.ranked_rows;
  f->answer.device_us = a->device_us;
  f->answer.prepared = a->prepared;
  if (count == 0) return;
  f->ids = far_device_block((size_t)count * sizeof(int32_t));
  far_require(f->ids.at != NULL, "no memory for an answer");
  f->answer.ids = memcpy(f->ids.at, a->ids, f->ids.bytes);
}

static void run_end(void *context, void *p) {
  (void)p;
  far_device *f = context;
  ops_answer a = {0};
  f->inner->table->end(f->inner);
  f->code = f->inner->table->wait(f->inner, &a);
  f->lost = f->code == OPS_LOST;
  if (f->code == OPS_OK) keep_answer(f, &a);
}

static void run_begin(void *context, void *p) {
  far_device *f = context;
  begin_args *a = p;
  f->code = OPS_FAILED;
  bool begun = !far_faults_due(&f->faults.fail);
  if (begun && !f->inner->table->begin(f->inner, a->kv, &a->batch)) {
    begun = false;
    f->code = f->inner->table->wait(f->inner, NULL);
    f->lost = f->code == OPS_LOST;
    far_require(f->code != OPS_OK, "`wait` says why `begin` refused");
  }
  if (!begun) far_queue_skip(&f->queue, run_end);
}

static void forget_answer(far_device *f) {
  f->answer = (ops_answer){0};
  far_device_withdraw(f, &f->ids);
  far_device_withdraw(f, &f->logits);
  far_device_withdraw(f, &f->ranked);
  for (int32_t i = 0; i < OPS_CAPTURES_MAX; i++) far_device_withdraw(f, &f->captured[i]);
}

static void note_own_outputs(far_forward *f, const ops_batch *b) {
  f->own_first = INT32_MAX;
  for (int32_t i = 0; i < b->rank_count; i++) {
    const ops_slice *s = &b->rankings[i].own;
    if (s->count == 0) continue;
    if (s->first < f->own_first) f->own_first = s->first;
    if (s->first + s->count > f->own_end) f->own_end = s->first + s->count;
  }
}

static bool far_begin(device *d, device_kv *k, const ops_batch *b) {
  far_device *f = far_device_of(d);
  far_require(f->state == FAR_IDLE, "a forward is waited for before the next begins");
  far_require(!f->window.at, "a window is filled before a forward begins");
  forget_answer(f);
  const far_thing *kv = k ? far_handles_find(&f->handles, k, FAR_KV) : NULL;
  far_batch_check(b, kv);
  f->forward = (far_forward){.kv = kv,
                             .rows = b->row_count,
                             .views = b->view_count,
                             .head_rows = b->head_count,
                             .logit_rows = b->logit_count,
                             .ranked_rows = b->rank_count,
                             .captured_rows = b->capture_count,
                             .weighed_rows = b->weigh_count};
  note_own_outputs(&f->forward, b);
  f->code = OPS_FAILED;
  f->refused = f->lost || far_faults_due(&f->faults.refuse_begin);
  if (f->refused) return false;
  ops_batch unused;
  begin_args *args = far_queue_add(&f->queue, run_begin, sizeof *args + far_batch_copy(&unused, b, NULL));
  args->kv = kv ? kv->inner : NULL;
  far_batch_copy(&args->batch, b, args->arrays);
  f->state = FAR_RECORDING;
  return true;
}

static void far_end(device *d) {
  far_device *f = recording(d);
  far_queue_add(&f->queue, run_end, 0);
  f->state = FAR_ENDED;
}

/* --- ops --- */

typedef struct embed_args {
  device_weight w;
  device_act *x;
} embed_args;

static void run_embed(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  embed_args *a = p;
  inner->table->embed(inner, &a->w, a->x);
}

static void far_embed(device *d, const device_weight *w, device_act *x) {
  far_device *f = recording(d);
  embed_args a = {inner_weight(f, w), act_of(f, x, f->forward.rows, w->columns)->inner};
  *(embed_args *)far_queue_add(&f->queue, run_embed, sizeof a) = a;
}

typedef struct supply_args {
  device_act *y;
  float values[];
} supply_args;

static void run_supply(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  supply_args *a = p;
  inner->table->supply(inner, a->values, a->y);
}

static void far_supply(device *d, const float *values, device_act *y) {
  far_device *f = recording(d);
  int32_t columns = columns_of(f, y), rows = f->forward.rows;
  size_t bytes = (size_t)rows * (size_t)columns * sizeof *values;
  device_act *inner = act_of(f, y, rows, columns)->inner;
  supply_args *a = far_queue_add(&f->queue, run_supply, sizeof *a + bytes);
  a->y = inner;
  memcpy(a->values, values, bytes);
}

static void run_capture(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  inner->table->capture(inner, *(device_act **)p);
}

static void far_capture(device *d, const device_act *x) {
  far_device *f = recording(d);
  int32_t columns = columns_of(f, x);
  far_require(f->forward.captured_rows > 0, "a capture has rows to keep");
  far_require(f->forward.captures < OPS_CAPTURES_MAX, "a forward has 9 captures at most");
  device_act *inner = act_of(f, x, f->forward.rows, columns)->inner;
  *(device_act **)far_queue_add(&f->queue, run_capture, sizeof inner) = inner;
  f->forward.capture_columns[f->forward.captures++] = columns;
}

typedef struct norm_args {
  device_act *x, *y;
  bool head;
  device_vector w;
  float eps;
} norm_args;

static void run_norm(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  norm_args *a = p;
  inner->table->norm(inner, a->x, a->head, a->w, a->eps, a->y);
}

static void far_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  far_device *f = recording(d);
  int32_t columns = columns_of(f, x), rows = f->forward.rows;
  far_require(x != y, "norm writes other activations than it reads");
  far_require(w.memory != NULL, "norm has a weight");
  norm_args a = {.x = act_of(f, x, rows, columns)->inner,
                 .y = act_of(f, y, head ? f->forward.head_rows : rows, columns)->inner,
                 .head = head,
                 .w = inner_vector(f, w, columns),
                 .eps = far_faults_due(&f->faults.wrong) ? WRONG_EPS : eps};
  *(norm_args *)far_queue_add(&f->queue, run_norm, sizeof a) = a;
}

typedef struct linear_args {
  device_act *x;
  int32_t count;
  device_linear jobs[]; /* [count] */
} linear_args;

static void run_linear(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  linear_args *a = p;
  inner->table->linear(inner, a->jobs, a->count, a->x);
}

static void far_linear(device *d, const device_linear *jobs, int32_t count, const device_act *x) {
  far_device *f = recording(d);
  far_require(count >= 1, "a linear has a matrix");
  linear_args *a = far_queue_add(&f->queue, run_linear, sizeof *a + (size_t)count * sizeof *jobs);
  a->count = count;
  for (int32_t i = 0; i < count; i++) {
    const device_linear *j = &jobs[i];
    far_require(j->y != x, "a linear writes other activations than it reads");
    a->x = input_of(f, x, f->forward.rows, j->w.columns)->inner;
    a->jobs[i] = (device_linear){.w = inner_weight(f, &j->w),
                                 .y = act_of(f, j->y, f->forward.rows, j->w.rows)->inner,
                                 .add = j->add,
                                 .bias = inner_vector(f, j->bias, j->w.rows)};
  }
}

typedef struct swiglu_args {
  device_weight gate, up;
  device_act *x, *y;
} swiglu_args;

static void run_swiglu(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  swiglu_args *a = p;
  inner->table->linear_swiglu(inner, &a->gate, &a->up, a->x, a->y);
}

static void far_linear_swiglu(device *d, const device_weight *gate, const device_weight *up,
                              const device_act *x, device_act *y) {
  far_device *f = recording(d);
  int32_t rows = f->forward.rows;
  far_require(x != y, "a linear writes other activations than it reads");
  far_require(gate->rows == up->rows && gate->columns == up->columns, "gate and up have the same shape");
  swiglu_args a = {inner_weight(f, gate), inner_weight(f, up), input_of(f, x, rows, gate->columns)->inner,
                   act_of(f, y, rows, gate->rows)->inner};
  *(swiglu_args *)far_queue_add(&f->queue, run_swiglu, sizeof a) = a;
}

static void run_rope(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  inner->table->rope(inner, p);
}

static void far_rope(device *d, const device_rope *r) {
  far_device *f = recording(d);
  far_require(r->dim >= 2 && r->dim % 2 == 0, "rope rotates pairs");
  far_require(r->frequency.memory != NULL, "rope has frequencies");
  device_rope a = {inner_vector(f, r->frequency, r->dim / 2), r->dim, r->times};
  *(device_rope *)far_queue_add(&f->queue, run_rope, sizeof a) = a;
  f->forward.roped = true;
}

static const ops_kv_shape *shape_for(const far_device *f, int32_t layer) {
  far_require(f->forward.kv != NULL, "rope_store and attention need a cache");
  const ops_kv_shape *s = &f->forward.kv->shape;
  far_require(layer >= 0 && layer < s->layers, "the layer is one of the cache");
  return s;
}

typedef struct store_args {
  int32_t layer;
  device_rotary r;
  device_act *q, *k, *v;
} store_args;

static void run_rope_store(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  store_args *a = p;
  inner->table->rope_store(inner, a->layer, &a->r, a->q, a->k, a->v);
}

static int32_t query_columns(const far_device *f, const device_act *q, const ops_kv_shape *s) {
  int32_t columns = columns_of(f, q);
  far_require(columns % (s->head_dim * s->kv_heads) == 0,
              "queries are whole heads, as many for each key head");
  return columns;
}

static void far_rope_store(device *d, int32_t layer, const device_rotary *r, device_act *q,
                           const device_act *k, const device_act *v) {
  far_device *f = recording(d);
  const ops_kv_shape *s = shape_for(f, layer);
  int32_t rows = f->forward.rows, keys = s->kv_heads * s->head_dim;
  far_require(f->forward.roped, "rope comes before rope_store");
  store_args a = {
      .layer = layer,
      .r = {inner_vector(f, r->q_norm, s->head_dim), inner_vector(f, r->k_norm, s->head_dim), r->eps},
      .q = act_of(f, q, rows, query_columns(f, q, s))->inner,
      .k = act_of(f, k, rows, keys)->inner,
      .v = act_of(f, v, rows, keys)->inner};
  *(store_args *)far_queue_add(&f->queue, run_rope_store, sizeof a) = a;
}

typedef struct attention_args {
  int32_t layer, view;
  device_act *q, *y;
} attention_args;

static void run_attention(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  attention_args *a = p;
  inner->table->attention(inner, a->layer, a->view, a->q, a->y);
}

static void far_attention(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  far_device *f = recording(d);
  int32_t columns = query_columns(f, q, shape_for(f, layer)), rows = f->forward.rows;
  far_require(view >= 0 && view < f->forward.views, "the view is one of the batch");
  far_require(q != y, "attention writes other activations than it reads");
  attention_args a = {layer, view, act_of(f, q, rows, columns)->inner, act_of(f, y, rows, columns)->inner};
  *(attention_args *)far_queue_add(&f->queue, run_attention, sizeof a) = a;
}

typedef struct weighing_args {
  int32_t layer;
  ops_weighing how;
  device_act *q, *y;
  bool add;
} weighing_args;

static void run_mass(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  weighing_args *a = p;
  inner->table->mass(inner, a->layer, a->q, a->add, a->y);
}

static void run_bound(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  weighing_args *a = p;
  inner->table->bound(inner, a->layer, a->how, a->q, a->add, a->y);
}

static weighing_args weighing_of(far_device *f, int32_t layer, ops_weighing how, const device_act *q,
                                 bool add, device_act *y) {
  const ops_kv_shape *s = shape_for(f, layer);
  int32_t columns = query_columns(f, q, s), rows = f->forward.rows;
  far_require(f->forward.weighed_rows > 0, "what weighs keys has rows for which it weighs them");
  far_require(q != y, "what weighs keys writes other activations than it reads");
  return (weighing_args){layer, how, act_of(f, q, rows, columns)->inner,
                         act_of(f, y, rows, s->context / OPS_TILE)->inner, add};
}

static void far_mass(device *d, int32_t layer, const device_act *q, bool add, device_act *y) {
  far_device *f = recording(d);
  const weighing_args a = weighing_of(f, layer, OPS_WEIGH_MASS, q, add, y);
  *(weighing_args *)far_queue_add(&f->queue, run_mass, sizeof a) = a;
}

static void far_bound(device *d, int32_t layer, ops_weighing how, const device_act *q, bool add,
                      device_act *y) {
  far_device *f = recording(d);
  const weighing_args a = weighing_of(f, layer, how, q, add, y);
  *(weighing_args *)far_queue_add(&f->queue, run_bound, sizeof a) = a;
}

static void run_head(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  embed_args *a = p;
  inner->table->head(inner, &a->w, a->x);
}

static void far_head(device *d, const device_weight *w, const device_act *x) {
  far_device *f = recording(d);
  far_require(f->forward.head_rows > 0, "a head has head rows");
  embed_args a = {inner_weight(f, w), input_of(f, x, f->forward.head_rows, w->columns)->inner};
  *(embed_args *)far_queue_add(&f->queue, run_head, sizeof a) = a;
  f->forward.vocabulary = w->rows;
}

static void run_rank(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  device_ids *a = p;
  inner->table->rank(inner, *a);
}

static void check_outputs(const far_forward *f, const device_ids *ids) {
  if (!ids->memory) {
    far_require(ids->count <= f->vocabulary && f->own_end == 0, "tokens are outputs, or have ids");
    return;
  }
  far_require(ids->common >= 0 && ids->common <= ids->outputs && ids->common <= f->vocabulary,
              "the outputs that all rows are ranked by are outputs of the head and have ids");
  far_require(f->own_first >= ids->common && f->own_end <= ids->outputs && f->own_end <= f->vocabulary,
              "a ranking's own outputs are outputs of the head behind the common ones, and have ids");
}

static void far_rank(device *d, device_ids ids) {
  far_device *f = recording(d);
  far_require(f->forward.vocabulary > 0, "head comes before rank");
  far_require(f->forward.ranked_rows > 0, "a rank has rows to rank");
  far_require(ids.count > 0 && ids.count <= SAMPLER_VOCAB_MAX, "a rank has tokens, and not too many");
  check_outputs(&f->forward, &ids);
  if (ids.memory) ids.memory = inner_memory(f, ids.memory, ids.at, (size_t)ids.outputs * sizeof(int32_t));
  *(device_ids *)far_queue_add(&f->queue, run_rank, sizeof ids) = ids;
  f->forward.ranked = true;
}

/* --- the answer --- */

static ops_code far_wait(device *d, ops_answer *a) {
  far_device *f = far_device_of(d);
  far_require(f->state == FAR_ENDED || f->refused, "a wait is for a forward that has ended, or was refused");
  f->state = FAR_IDLE;
  f->refused = false;
  if (far_faults_due(&f->faults.hang)) far_faults_hang();
  if (far_faults_due(&f->faults.lose)) f->lost = true;
  if (f->lost)
    far_queue_clear(&f->queue);
  else
    far_device_run(f);
  if (a) *a = f->answer;
  return f->lost ? OPS_LOST : f->code;
}

/* Copies items [first, first + count) of `all` that the inner device has given. NULL: it is lost. */
static void *keep_items(far_device *f, far_block *to, int32_t all, int32_t first, int32_t count, size_t each,
                        const void *from) {
  f->base.counters.logit_lines = f->inner->counters.logit_lines;
  if (!from) return NULL;
  if (!to->at) *to = far_device_block((size_t)all * each);
  if (!to->at) return NULL;
  return memcpy((char *)to->at + (size_t)first * each, from, (size_t)count * each);
}

static const float *far_logits(device *d, int32_t line) {
  far_device *f = far_device_of(d);
  far_require(f->state == FAR_IDLE, "logits are there after `wait`");
  if (f->lost) return NULL;
  far_require(f->code == OPS_OK && line >= 0 && line < f->forward.logit_rows, "this line of logits was kept");
  return keep_items(f, &f->logits, f->forward.logit_rows, line, 1,
                    (size_t)f->forward.vocabulary * sizeof(float), f->inner->table->logits(f->inner, line));
}

static const ops_ranked *far_ranked(device *d, int32_t first, int32_t count) {
  far_device *f = far_device_of(d);
  far_require(f->state == FAR_IDLE, "ranked tokens are there after `wait`");
  if (f->lost) return NULL;
  far_require(f->code == OPS_OK && f->forward.ranked && first >= 0 && count >= 1 &&
                  count <= f->forward.ranked_rows - first,
              "these rows were ranked");
  return keep_items(f, &f->ranked, f->forward.ranked_rows, first, count, sizeof(ops_ranked),
                    f->inner->table->ranked(f->inner, first, count));
}

static const float *far_captured(device *d, int32_t capture, int32_t line) {
  far_device *f = far_device_of(d);
  const far_forward *w = &f->forward;
  far_require(f->state == FAR_IDLE, "captured rows are there after `wait`");
  if (f->lost) return NULL;
  far_require(f->code == OPS_OK && capture >= 0 && capture < w->captures && line >= 0 &&
                  line < w->captured_rows,
              "this row was captured");
  return keep_items(f, &f->captured[capture], w->captured_rows, line, 1,
                    (size_t)w->capture_columns[capture] * sizeof(float),
                    f->inner->table->captured(f->inner, capture, line));
}

void far_device_forward_functions(device_table *t) {
  t->begin = far_begin;
  t->supply = far_supply;
  t->embed = far_embed;
  t->capture = far_capture;
  t->mass = far_mass;
  t->bound = far_bound;
  t->norm = far_norm;
  t->linear = far_linear;
  t->linear_swiglu = far_linear_swiglu;
  t->rope = far_rope;
  t->rope_store = far_rope_store;
  t->attention = far_attention;
  t->head = far_head;
  t->rank = far_rank;
  t->end = far_end;
  t->wait = far_wait;
  t->logits = far_logits;
  t->ranked = far_ranked;
  t->captured = far_captured;
}
