#include "common/model/warmup.h"
#include "common/base/min.h"
#include "common/model/kv_rows.h"

#include <stdlib.h>

/* Over all forms: memory that one of them takes is another preparation for the others. */
#define PASSES_MAX 4

static const int32_t tokens[MODEL_ROWS_MAX];

/* The least power of two that is not less. */
static int32_t bucket(int32_t count) {
  int32_t end = 1;
  while (end < count) end *= 2;
  return end;
}

/* Each row below the one before it. */
static void set_rows(model_segment *s, int32_t seq, int32_t count, int32_t *parents) {
  for (int32_t i = 0; i < count; i++) parents[i] = i - 1;
  s->seq = seq;
  s->count = count;
  s->tokens = tokens;
  s->parents = s->kind == MODEL_TREE ? parents : NULL;
}

static bool stage(kv_cache *k, const model_segment *s) {
  return s->kind != MODEL_TREE || kv_stage(k, s->seq, s->parents, s->count) == ERR_OK;
}

/* A tree's first row is committed, as one that was guessed right is. */
static void drop_rows(kv_cache *k, const model_segment *s, bool ran) {
  static const int32_t first = 0;
  if (ran && s->kind == MODEL_TREE) kv_commit(k, s->seq, &first, 1);
  kv_rollback(k, s->seq, 0);
}

/* --- a model --- */

static bool run_form(model *m, kv_cache *k, int32_t seq, const warmup_form *form) {
  int32_t parents[MODEL_ROWS_MAX];
  bool prepared = false;
  for (int32_t rows = bucket(form->most); rows >= form->least; rows /= 2) {
    model_segment s = form->rows;
    set_rows(&s, seq, min_i32(rows, form->most), parents);
    bool ran = stage(k, &s) && model_forward(m, k, &s, 1) == ERR_OK;
    prepared |= ran && model_prepared(m);
    drop_rows(k, &s, ran);
  }
  return prepared;
}

void warmup_model(model *m, kv_cache *k, int32_t seq, const warmup_form *forms, int32_t count) {
  bool prepared = model_device(m)->prepares;
  for (int32_t pass = 0; pass < PASSES_MAX && prepared; pass++) {
    prepared = false;
    for (int32_t i = 0; i < count; i++) prepared |= run_form(m, k, seq, &forms[i]);
  }
}

/* --- a head --- */

static int32_t widest_input(const head_config *c) {
  int32_t taps = c->tap_count * c->target_embed;
  return taps > c->layer.embed ? taps : c->layer.embed;
}

static bool run_head_form(draft_head *h, kv_cache *k, int32_t seq, const warmup_head_form *form,
                          const float *zeros) {
  int32_t parents[MODEL_ROWS_MAX];
  bool prepared = false;
  for (int32_t rows = bucket(form->most); rows >= form->least; rows /= 2) {
    draft_head_segment s = form->rows;
    set_rows(&s.rows, seq, min_i32(rows, form->most), parents);
    s.values = zeros;
    bool ran = stage(k, &s.rows) && draft_head_forward(h, k, &s, 1) == ERR_OK;
    prepared |= ran && draft_head_prepared(h);
    drop_rows(k, &s.rows, ran);
  }
  return prepared;
}

void warmup_head(draft_head *h, kv_cache *k, int32_t seq, const warmup_head_form *forms, int32_t count) {
  const head_config *c = draft_head_shape(h);
  int32_t widest = widest_input(c);
  if (!kv_device(k)->prepares) return;
  float *zeros = calloc((size_t)MODEL_ROWS_MAX * (size_t)widest, sizeof *zeros);
  bool prepared = zeros != NULL;
  for (int32_t pass = 0; pass < PASSES_MAX && prepared; pass++) {
    prepared = false;
    for (int32_t i = 0; i < count; i++) prepared |= run_head_form(h, k, seq, &forms[i], zeros);
  }
  free(zeros);
}

/* --- fc --- */

void warmup_fusion(fusion *f) {
  bool prepared = fusion_device(f)->prepares;
  if (!prepared) return;
  float *zeros = calloc(FUSION_ROWS_MAX * (size_t)fusion_columns(f), sizeof *zeros);
  for (int32_t pass = 0; zeros && pass < PASSES_MAX && prepared; pass++) {
    prepared = false;
    for (int32_t rows = FUSION_ROWS_MAX; rows > 0; rows /= 2)
      prepared |= fusion_run(f, zeros, rows) == ERR_OK && fusion_prepared(f);
  }
  free(zeros);
}
