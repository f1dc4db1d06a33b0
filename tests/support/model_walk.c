#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/model_walk.h"
#include "tests/support/random.h"

static int32_t roll(walk *w, int32_t below) {
  return (int32_t)random_below(&w->random, (uint32_t)below);
}

void compare(walk *w, int32_t text_index, int32_t position, const float *logits) {
  const text *t = w->t;
  assert_non_null(logits);
  w->compared++;
  const float *expected = t->logits[text_index] + (size_t)position * (size_t)t->vocab;
  if (memcmp(logits, expected, (size_t)t->vocab * sizeof *logits) != 0) {
    fail_msg("the logits of position %d of text %d are other bits than plain decoding's", position,
             text_index);
  }
}

/* --- the reference --- */

static text *make_text(const model *m, int32_t length) {
  text *t = calloc(1, sizeof *t);
  uint64_t state = 5;
  t->vocab = model_shape(m)->vocab;
  for (int32_t s = 0; s < SEQUENCES; s++) {
    t->length[s] = s ? length / 10 : length;
    for (int32_t i = 0; i < t->length[s]; i++)
      t->tokens[s][i] = (int32_t)random_below(&state, (uint32_t)t->vocab);
  }
  return t;
}

void free_text(text *t) {
  for (int32_t s = 0; s < SEQUENCES; s++) free(t->logits[s]);
  free(t);
}

/* Decodes text `s` up to its length, one row a forward. */
static void decode(text *t, model *m, kv_cache *k, int32_t s) {
  int32_t seq = kv_acquire(k), length = t->length[s];
  size_t row = (size_t)t->vocab * sizeof(float);
  t->logits[s] = malloc((size_t)length * row);
  for (int32_t i = 0; i < length; i++) {
    model_segment g = {.seq = seq, .kind = MODEL_APPEND, .count = 1, .tokens = &t->tokens[s][i]};
    assert_int_equal(model_forward(m, k, &g, 1), ERR_OK);
    memcpy(t->logits[s] + (size_t)i * (size_t)t->vocab, model_logits(m, 0, 0), row);
  }
  kv_release(k, seq);
}

/* --- prefill in any chunking --- */

void check_prefill(walk *w, int32_t chunk, bool random_chunks) {
  const text *t = w->t;
  int32_t seq = w->seq[0];
  assert_int_equal(kv_rollback(w->k, seq, 0), ERR_OK);
  for (int32_t at = 0, n; at < t->length[0]; at += n) {
    n = random_chunks ? 1 + roll(w, chunk) : chunk;
    if (n > t->length[0] - at) n = t->length[0] - at;
    model_segment g = {
        .seq = seq, .kind = MODEL_APPEND, .count = n, .tokens = t->tokens[0] + at, .all_logits = true};
    assert_int_equal(model_forward(w->m, w->k, &g, 1), ERR_OK);
    for (int32_t i = 0; i < n; i++) compare(w, 0, at + i, model_logits(w->m, 0, i));
  }
  assert_int_equal(kv_rollback(w->k, seq, 0), ERR_OK);
}

/* --- the random walk --- */

/* Row 0 is the text's next token; then, in random order, its continuation and rows with any token under any
 * row: siblings and children of siblings. */
static void make_tree(walk *w, int32_t s, int32_t at, int32_t count, tree_delta *b) {
  int32_t wanted = 1 + roll(w, count);
  b->count = count;
  b->chain_count = 1;
  b->chain[0] = 0;
  b->parents[0] = -1;
  b->tokens[0] = w->t->tokens[s][at];
  for (int32_t i = 1; i < count; i++) {
    bool goes_on = b->chain_count < wanted && at + b->chain_count < w->t->length[s] &&
                   (count - i <= wanted - b->chain_count || roll(w, 2));
    b->parents[i] = goes_on ? b->chain[b->chain_count - 1] : roll(w, i);
    b->tokens[i] = goes_on ? w->t->tokens[s][at + b->chain_count] : roll(w, w->t->vocab);
    if (goes_on) b->chain[b->chain_count++] = i;
  }
}

static void make_part(walk *w, int32_t s, int32_t rows, part *p) {
  int32_t seq = w->seq[s], at = kv_length(w->k, seq), left = w->t->length[s] - at;
  *p = (part){.text = s, .at = at};
  if (roll(w, 3) == 0 || left < 2) {
    p->segment = (model_segment){.seq = seq,
                                 .kind = MODEL_APPEND,
                                 .count = rows < left ? rows : left,
                                 .tokens = w->t->tokens[s] + at,
                                 .all_logits = true};
    return;
  }
  make_tree(w, s, at, rows, &p->tree);
  assert_int_equal(kv_stage(w->k, seq, p->tree.parents, rows), ERR_OK);
  w->trees++;
  w->tree_rows += rows;
  p->segment = (model_segment){.seq = seq,
                               .kind = MODEL_TREE,
                               .count = rows,
                               .tokens = p->tree.tokens,
                               .parents = p->tree.parents,
                               .all_logits = true};
}

static void check_part(walk *w, int32_t index, const part *p) {
  if (p->segment.kind == MODEL_APPEND) {
    for (int32_t i = 0; i < p->segment.count; i++)
      compare(w, p->text, p->at + i, model_logits(w->m, index, i));
    return;
  }
  const tree_delta *b = &p->tree;
  for (int32_t i = 0; i < b->chain_count; i++) {
    compare(w, p->text, p->at + i, model_logits(w->m, index, b->chain[i]));
  }
  int32_t keep = roll(w, b->chain_count + 1);
  assert_int_equal(kv_commit(w->k, w->seq[p->text], b->chain, keep), ERR_OK);
}

void step(walk *w, int32_t rows) {
  part *parts = calloc(SEQUENCES, sizeof *parts);
  model_segment segments[SEQUENCES];
  int32_t count = 0;
  for (int32_t s = 0; s < SEQUENCES; s++) {
    int32_t length = kv_length(w->k, w->seq[s]);
    if (s > 0 && roll(w, 2)) continue;
    if (length == w->t->length[s]) assert_int_equal(kv_rollback(w->k, w->seq[s], roll(w, length)), ERR_OK);
    make_part(w, s, s ? 1 + roll(w, 9) : rows, &parts[count]);
    w->companions += s > 0;
    count++;
  }
  for (int32_t i = count - 1; i > 0; i--) { /* any order in the batch */
    int32_t j = roll(w, i + 1);
    part swap = parts[i];
    parts[i] = parts[j];
    parts[j] = swap;
  }
  for (int32_t i = 0; i < count; i++) {
    segments[i] = parts[i].segment;
    if (segments[i].kind == MODEL_TREE) { /* the swap moved the arrays */
      segments[i].tokens = parts[i].tree.tokens;
      segments[i].parents = parts[i].tree.parents;
    }
  }
  assert_int_equal(model_forward(w->m, w->k, segments, count), ERR_OK);
  for (int32_t i = 0; i < count; i++) check_part(w, i, &parts[i]);
  free(parts);
}

void random_walk(walk *w) {
  while (kv_length(w->k, w->seq[0]) < w->t->length[0]) {
    step(w, widths[roll(w, WIDTHS)]);
    int32_t length = kv_length(w->k, w->seq[0]);
    if (roll(w, 12) == 0) { /* replay what was there */
      assert_int_equal(kv_rollback(w->k, w->seq[0], length - roll(w, length < 60 ? length + 1 : 60)), ERR_OK);
      w->rollbacks++;
    }
  }
}

/* --- the cases --- */

/* A virtual sequence whose first half lies block by block among the others', the rest side by side. The
 * reference's lies side by side as a whole: its cache is static. */
static int32_t acquire_mapped(kv_cache *k, int32_t s, int32_t each) {
  int32_t seq = kv_acquire(k), blocks[MODEL_CONTEXT_MAX / KV_BLOCK], half = each / 2;
  for (int32_t i = 0; i < each; i++)
    blocks[i] = i < half ? i * SEQUENCES + s : half * SEQUENCES + s * (each - half) + i - half;
  kv_map(k, seq, blocks, each, 0);
  return seq;
}

walk open_walk(const bits_case *c, const text *t, const char *name, int32_t threads) {
  walk w = {.t = t, .random = (uint32_t)(threads * 2 + (strcmp(name, "cpu:c") == 0))};
  w.m = support_open_model(c->g, c->math, name, threads);
  int32_t context = t->length[0] + TREE_MAX, each = (context + KV_BLOCK - 1) / KV_BLOCK;
  err e = {0};
  kv_options o = {.sequences = SEQUENCES, .context = context, .type = c->type, .blocks = SEQUENCES * each};
  if (kv_open(&w.k, model_device(w.m), model_shape(w.m), &o, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  for (int32_t s = 0; s < SEQUENCES; s++) w.seq[s] = acquire_mapped(w.k, s, each);
  return w;
}

void close_walk(walk *w) {
  kv_close(w->k);
  support_close_model(w->m);
}

void report(const walk *w, const bits_case *c, int32_t threads) {
  print_message(
      "%s on %s, %d threads: %d positions compared; %d trees of %d rows, %d rollbacks, %d companions;",
      model_numerics(w->m, c->type), model_device_name(w->m), threads, w->compared, w->trees, w->tree_rows,
      w->rollbacks, w->companions);
  for (int32_t i = 0; i < WIDTHS; i++)
    print_message(" %d: %s%s", widths[i], model_variant(w->m, widths[i]), i + 1 < WIDTHS ? "," : "\n");
}

text *reference(const bits_case *c, const char *name, int32_t length, int32_t threads) {
  model *m = support_open_model(c->g, c->math, name, threads);
  text *t = make_text(m, length);
  kv_cache *k = support_open_cache(m, 1, length, c->type);
  for (int32_t s = 0; s < SEQUENCES; s++) decode(t, m, k, s);
  kv_close(k);
  support_close_model(m);
  return t;
}

/* --- all of it --- */

/* Every row of a tree, siblings too, against plain decoding of its own path. */
static void check_every_row(walk *w, const float *tree_logits, const tree_delta *b, int32_t at) {
  int32_t seq = w->seq[0], path[TREE_MAX];
  for (int32_t i = 0; i < b->count; i++) {
    int32_t depth = 0;
    for (int32_t r = i; r >= 0; r = b->parents[r]) path[depth++] = b->tokens[r];
    assert_int_equal(kv_rollback(w->k, seq, at), ERR_OK);
    while (depth-- > 0) {
      model_segment g = {.seq = seq, .kind = MODEL_APPEND, .count = 1, .tokens = &path[depth]};
      assert_int_equal(model_forward(w->m, w->k, &g, 1), ERR_OK);
    }
    size_t row = (size_t)w->t->vocab;
    if (memcmp(tree_logits + (size_t)i * row, model_logits(w->m, 0, 0), row * sizeof(float)) != 0) {
      fail_msg("row %d of a tree of %d has other bits than its path decoded", i, b->count);
    }
    w->compared++;
  }
}

static void check_siblings(walk *w, int32_t at, int32_t rows) {
  tree_delta b;
  size_t row = (size_t)w->t->vocab;
  float *logits = malloc((size_t)rows * row * sizeof *logits);
  assert_int_equal(kv_rollback(w->k, w->seq[0], 0), ERR_OK);
  support_prefill(w->m, w->k, w->seq[0], w->t->tokens[0], at, MODEL_ROWS_MAX);
  make_tree(w, 0, at, rows, &b);
  assert_int_equal(kv_stage(w->k, w->seq[0], b.parents, rows), ERR_OK);
  model_segment g = {.seq = w->seq[0],
                     .kind = MODEL_TREE,
                     .count = rows,
                     .tokens = b.tokens,
                     .parents = b.parents,
                     .all_logits = true};
  assert_int_equal(model_forward(w->m, w->k, &g, 1), ERR_OK);
  for (int32_t i = 0; i < rows; i++)
    memcpy(logits + (size_t)i * row, model_logits(w->m, 0, i), row * sizeof(float));
  check_every_row(w, logits, &b, at);
  free(logits);
}

void check_device(const bits_case *c, const text *t, const char *name, int32_t threads) {
  walk w = open_walk(c, t, name, threads);
  random_walk(&w);
  check_prefill(&w, 64 + threads, true);
  check_prefill(&w, threads == 1 ? MODEL_ROWS_MAX : widths[threads], false);
  check_siblings(&w, t->length[0] / 3, 24);
  report(&w, c, threads);
  assert_true(w.trees > 0 && w.companions > 0);
  close_walk(&w);
}
