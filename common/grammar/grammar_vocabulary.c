#include "common/grammar/grammar_vocabulary.h"

#include <stdlib.h>
#include <string.h>

const uint8_t *grammar_vocabulary_bytes(const grammar_vocabulary *v, int32_t id, size_t *size) {
  size_t first = id > 0 ? v->ends[id - 1] : 0;
  *size = v->ends[id] - first;
  return v->bytes + first;
}

void grammar_vocabulary_free(grammar_vocabulary *v) {
  if (!v) return;
  free(v->nodes);
  free(v->ordered);
  free(v->ends);
  free(v->bytes);
  free(v);
}

static bool copy_bytes(grammar_vocabulary *v, int32_t count, grammar_piece piece, const void *context) {
  size_t all = 0, size;
  for (int32_t pass = 0; pass < 2; pass++, all = 0) {
    for (int32_t i = 0; i < count; i++) {
      const char *bytes = piece(context, i, &size);
      if (size > GRAMMAR_TOKEN_MAX) size = 0;
      if (pass && size > 0) memcpy(v->bytes + all, bytes, size);
      all += size;
      if (pass) v->ends[i] = all;
    }
    if (pass) break;
    v->bytes = malloc(all + 1);
    v->ends = malloc((size_t)count * sizeof *v->ends);
    if (!v->bytes || !v->ends) return false;
  }
  v->token_count = count;
  return true;
}

/* --- the order --- */

static int compare(const void *a, const void *b, void *context) {
  const grammar_vocabulary *v = context;
  size_t x_size, y_size;
  const uint8_t *x = grammar_vocabulary_bytes(v, *(const int32_t *)a, &x_size),
                *y = grammar_vocabulary_bytes(v, *(const int32_t *)b, &y_size);
  int order = memcmp(x, y, x_size < y_size ? x_size : y_size);
  return order ? order : (x_size > y_size) - (x_size < y_size);
}

/* The tokens that have bytes; returns how many. */
static int32_t order_tokens(grammar_vocabulary *v) {
  int32_t n = 0;
  for (int32_t i = 0; i < v->token_count; i++)
    if (v->ends[i] > (i > 0 ? v->ends[i - 1] : 0)) v->ordered[n++] = i;
  qsort_r(v->ordered, (size_t)n, sizeof *v->ordered, compare, v);
  return n;
}

/* --- the tree --- */

static size_t common_bytes(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size) {
  size_t n = 0;
  while (n < a_size && n < b_size && a[n] == b[n]) n++;
  return n;
}

/* Nodes without memory: only counts them. open[d]: the node of depth d that is being filled. */
static int32_t grow(grammar_vocabulary *v, int32_t ordered) {
  int32_t open[GRAMMAR_TOKEN_MAX + 1], n = 0;
  const uint8_t *before = NULL;
  size_t before_size = 0;
  for (int32_t i = 0; i < ordered; i++) {
    size_t size;
    const uint8_t *bytes = grammar_vocabulary_bytes(v, v->ordered[i], &size);
    size_t shared = common_bytes(before, before_size, bytes, size);
    for (size_t d = shared + 1; v->nodes && d <= before_size; d++) v->nodes[open[d]].next = n;
    for (size_t d = shared + 1; d <= size; d++, n++) {
      open[d] = n;
      if (v->nodes) v->nodes[n] = (grammar_node){.byte = bytes[d - 1], .depth = (uint16_t)d, .first = i};
    }
    if (v->nodes) v->nodes[open[size]].count++;
    before = bytes;
    before_size = size;
  }
  for (size_t d = 1; v->nodes && d <= before_size; d++) v->nodes[open[d]].next = n;
  return n;
}

static int no_memory(err *e) {
  return err_set(e, ERR_NOMEM, "no memory for the vocabulary's bytes");
}

int grammar_vocabulary_make(grammar_vocabulary **out, int32_t count, grammar_piece piece, const void *context,
                            err *e) {
  *out = NULL;
  grammar_vocabulary *v = calloc(1, sizeof *v);
  bool ok = v && copy_bytes(v, count, piece, context) &&
            (v->ordered = malloc((size_t)(count + 1) * sizeof *v->ordered));
  if (ok) {
    int32_t ordered = order_tokens(v);
    v->node_count = grow(v, ordered);
    v->nodes = malloc((size_t)(v->node_count + 1) * sizeof *v->nodes);
    ok = v->nodes != NULL;
    if (ok) grow(v, ordered);
  }
  if (!ok) {
    grammar_vocabulary_free(v);
    return no_memory(e);
  }
  *out = v;
  return ERR_OK;
}

static const char *text_piece(const void *context, int32_t id, size_t *size) {
  const tokenizer *t = context;
  const char *bytes = tokenizer_piece(t, id, size);
  if (!bytes || tokenizer_is_special(t, id)) *size = 0;
  return bytes;
}

int grammar_vocabulary_open(grammar_vocabulary **out, const tokenizer *t, int32_t count, err *e) {
  return grammar_vocabulary_make(out, count, text_piece, t, e);
}
