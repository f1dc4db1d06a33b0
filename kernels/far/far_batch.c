#include "kernels/far/far_batch.h"
#include "kernels/far/far_require.h"

#include <string.h>

#define ALIGNMENT ((size_t)8)

/* --- in one piece --- */

typedef struct piece {
  char *to; /* NULL: only count */
  size_t bytes;
} piece;

static void *put(piece *p, const void *array, int32_t count, size_t each) {
  size_t bytes = (size_t)count * each;
  char *to = p->to ? p->to + p->bytes : NULL;
  if (to && bytes > 0) memcpy(to, array, bytes);
  p->bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return to;
}

size_t far_batch_copy(ops_batch *out, const ops_batch *b, void *to) {
  piece p = {.to = to};
  *out = *b;
  out->rows = put(&p, b->rows, b->row_count, sizeof *b->rows);
  out->paths = put(&p, b->paths, b->path_length, sizeof *b->paths);
  for (int32_t i = 0; i < b->view_count; i++) {
    const ops_view *v = &b->views[i];
    out->views[i].first = put(&p, v->first, b->row_count + 1, sizeof *v->first);
    out->views[i].spans = put(&p, v->spans, v->first[b->row_count], sizeof *v->spans);
  }
  out->head_rows = put(&p, b->head_rows, b->head_count, sizeof *b->head_rows);
  out->rankings = put(&p, b->rankings, b->rank_count, sizeof *b->rankings);
  out->tokens = put(&p, b->tokens, b->token_count, sizeof *b->tokens);
  out->bias_tokens = put(&p, b->bias_tokens, b->bias_count, sizeof *b->bias_tokens);
  out->bias_values = put(&p, b->bias_values, b->bias_count, sizeof *b->bias_values);
  out->choices = put(&p, b->choices, ops_choice_count(b), sizeof *b->choices);
  out->capture_rows = put(&p, b->capture_rows, b->capture_count, sizeof *b->capture_rows);
  return p.bytes;
}

/* --- the rules --- */

static void check_counts(const ops_batch *b) {
  far_require(b->row_count >= 1, "a batch has at least one row");
  far_require(b->path_length >= 0 && b->view_count >= 0 && b->view_count <= OPS_VIEWS_MAX,
              "a batch's counts are in their ranges");
  far_require(b->logit_count >= 0 && b->rank_count >= 0 && ops_choice_count(b) >= 0,
              "logit_count and rank_count are at least 0, and together at most head_count");
  for (int32_t i = 0; i < b->head_count; i++)
    far_require(b->head_rows[i] >= 0 && b->head_rows[i] < b->row_count, "a head row is a row of the batch");
  far_require(b->capture_count >= 0 && b->capture_count <= b->row_count,
              "no more rows are captured than there are");
  far_require(b->weigh_count >= 0 && b->weigh_count <= b->capture_count,
              "rows that are weighed are captured");
  for (int32_t i = 0; i < b->capture_count; i++)
    far_require(b->capture_rows[i] >= 0 && b->capture_rows[i] < b->row_count,
                "a captured row is a row of the batch");
}

static void check_ranking(const ops_batch *b, const ops_ranking *r) {
  far_require(r->count >= 1 && r->count <= SAMPLER_RANKED_MAX, "a ranking wants 1 to 16 tokens");
  far_require(sampler_check(&r->options, NULL) == ERR_OK, "a ranking's options are in their ranges");
  for (int32_t i = 0; i < 2; i++) {
    const ops_slice *s = &r->history[i];
    far_require(s->count == 0 || (s->first >= 0 && s->count > 0 && s->count <= b->token_count - s->first),
                "a ranking's history lies in the tokens");
  }
  far_require(r->prompt_count >= 0, "a prompt has at least no tokens");
  far_require(r->bias.count == 0 ||
                  (r->bias.first >= 0 && r->bias.count > 0 && r->bias.count <= b->bias_count - r->bias.first),
              "a ranking's bias lies in the biases");
  far_require(r->own.count == 0 ||
                  (r->own.first >= 0 && r->own.count > 0 && r->own.count <= SAMPLER_VOCAB_MAX - r->own.first),
              "a ranking's own outputs are a range");
}

static void check_view(const ops_batch *b, const ops_view *v) {
  far_require(v->first[0] == 0, "a view's first row has the first span");
  for (int32_t i = 0; i < b->row_count; i++) {
    int32_t end = 0;
    far_require(v->first[i + 1] > v->first[i], "each row of a view has a span");
    for (int32_t j = v->first[i]; j < v->first[i + 1]; j++) {
      const ops_span *s = &v->spans[j];
      far_require(s->first >= end && s->end > s->first, "spans ascend, are not empty and do not overlap");
      end = s->end;
    }
    far_require(end == b->rows[i].position + 1, "a row's last span ends with its own position");
  }
}

static void check_appended(const ops_row *r, const far_thing *kv) {
  far_require(r->length == r->position + 1, "an appended row's length is its position + 1");
  far_require(r->position < kv->mapped[r->sequence] * OPS_TILE, "the block of an appended row is mapped");
}

/* kv->writer[slot]: 1 + the row of this batch that writes the slot, 0 for none so far. */
static void check_staged(const ops_batch *b, int32_t row, const far_thing *kv) {
  const ops_row *r = &b->rows[row];
  far_require(kv->staged, "staged rows need kv_stage first");
  far_require(r->path_at >= 0 && r->path_count <= b->path_length - r->path_at, "a path lies in the paths");
  far_require(r->position == r->length + r->path_count - 1, "a staged row stands at the end of its path");
  far_require(r->length <= kv->mapped[r->sequence] * OPS_TILE, "the blocks of a row's keys are mapped");
  for (int32_t i = 0; i < r->path_count; i++) {
    int32_t slot = b->paths[r->path_at + i];
    far_require(slot >= 0 && slot < kv->shape.stage, "a path is made of staged rows");
    if (i + 1 < r->path_count) continue;
    far_require(kv->writer[slot] == 0, "two rows of a batch have staged rows of their own");
    kv->writer[slot] = row + 1;
  }
}

static void check_shared(const ops_batch *b, int32_t row) {
  const ops_row *r = &b->rows[row];
  const int32_t before = row > 0 && r[-1].sequence != r->sequence ? r[-1].length : 0;
  far_require(r->shared >= 0 && r->shared % OPS_TILE == 0 && r->shared <= r->length && r->shared <= before,
              "a row shares whole tiles of committed rows with a row of another sequence before it");
}

/* The rows of this batch that a path goes through come before its own. */
static void check_path_order(const ops_batch *b, int32_t row, const int32_t *writer) {
  const ops_row *r = &b->rows[row];
  for (int32_t i = 0; i + 1 < r->path_count; i++)
    far_require(writer[b->paths[r->path_at + i]] <= row, "a path's rows ascend");
}

static void check_row(const ops_batch *b, int32_t row, const far_thing *kv) {
  const ops_row *r = &b->rows[row];
  far_require(r->sequence >= 0 && r->sequence < kv->shape.sequences, "a row's sequence is one of the cache");
  far_require(r->position >= 0 && r->position < kv->shape.context && r->length >= 0 && r->path_count >= 0,
              "a row's numbers are in their ranges");
  far_require(r->rope_shift >= -r->position && r->rope_shift <= INT32_MAX - r->position,
              "a row's rotary position is a position");
  if (row == 0 || b->rows[row - 1].sequence != r->sequence) {
    far_require(!kv->seen[r->sequence], "rows of one sequence are side by side");
    kv->seen[r->sequence] = true;
  }
  check_shared(b, row);
  if (r->path_count == 0)
    check_appended(r, kv);
  else
    check_staged(b, row, kv);
}

static void check_rows(const ops_batch *b, const far_thing *kv) {
  memset(kv->seen, 0, (size_t)kv->shape.sequences * sizeof *kv->seen);
  memset(kv->writer, 0, (size_t)kv->shape.stage * sizeof *kv->writer);
  for (int32_t i = 0; i < b->row_count; i++) check_row(b, i, kv);
  for (int32_t i = 0; i < b->row_count; i++) check_path_order(b, i, kv->writer);
}

void far_batch_check(const ops_batch *b, const far_thing *kv) {
  check_counts(b);
  if (kv) check_rows(b, kv);
  for (int32_t i = 0; i < b->view_count; i++) check_view(b, &b->views[i]);
  for (int32_t i = 0; i < b->rank_count; i++) check_ranking(b, &b->rankings[i]);
}
