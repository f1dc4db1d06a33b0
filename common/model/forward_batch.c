#include "common/model/forward_batch.h"
#include "common/model/device_error.h"
#include "common/model/kv_rows.h"

#include <assert.h>
#include <string.h>

#define TOKENS_AT_FIRST 4096

void forward_open(forward_batch *b) {
  for (int32_t i = 0; i <= MODEL_ROWS_MAX; i++) b->span_first[i] = i;
}

void forward_close(forward_batch *b) {
  mem_free(b->paths);
  mem_free(b->tokens);
  mem_free(b->bias_tokens);
  mem_free(b->bias_values);
}

/* --- the batch: checked whole before anything is written --- */

static int check_segment(const kv_cache *k, const model_segment *s, int32_t vocab) {
  if (s->count < 1) return ERR_ARG;
  for (int32_t i = 0; i < s->count; i++) {
    if (s->tokens[i] < 0 || s->tokens[i] >= vocab) return ERR_ARG;
  }
  if (s->kind == MODEL_APPEND) return kv_check_append(k, s->seq, s->count);
  return kv_check_tree(k, s->seq, s->parents, s->count);
}

static bool seen_before(const model_segment *segments, int32_t i) {
  for (int32_t j = 0; j < i; j++) {
    if (segments[j].seq == segments[i].seq) return true;
  }
  return false;
}

int forward_check(const kv_cache *k, const model_segment *segments, int32_t count, int32_t vocab) {
  if (count < 1) return ERR_ARG;
  int64_t rows = 0;
  for (int32_t i = 0; i < count; i++) {
    rows += segments[i].count;
    if (rows > MODEL_ROWS_MAX) return ERR_LIMIT;
    int rc = check_segment(k, &segments[i], vocab);
    if (rc != ERR_OK) return rc;
    if (seen_before(segments, i)) return ERR_ARG;
  }
  return ERR_OK;
}

static bool wants_logits(const model_segment *s, int32_t row) {
  return !s->no_logits && (s->all_logits || row == s->count - 1);
}

static bool has_tree(const model_segment *segments, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    if (segments[i].kind == MODEL_TREE) return true;
  }
  return false;
}

/* What only trees ask for is taken with the first one, and booked as such. */
static int take_paths(forward_batch *b, mem *m) {
  if (!b->paths)
    b->paths = mem_alloc(m, MEM_SPECULATION, (size_t)MODEL_ROWS_MAX * KV_STAGE_MAX * sizeof *b->paths);
  return b->paths ? ERR_OK : ERR_NOMEM;
}

static bool has_history(const model_segment *s) {
  return s->ranking && sampler_penalises(&s->ranking->options);
}

static int64_t history_tokens(const model_segment *s) {
  int64_t all = has_history(s) ? s->ranking->history_count : 0;
  for (int32_t r = 0, i = 0; has_history(s) && s->ranking->paths && r < s->count; r++)
    if (wants_logits(s, r)) all += s->ranking->paths[i++].count;
  return all;
}

/* Room for all histories, which grow with their sequences. */
static int take_tokens(forward_batch *b, const model_segment *segments, int32_t count, mem *m) {
  int64_t all = 0, room = b->token_room ? b->token_room : TOKENS_AT_FIRST;
  for (int32_t i = 0; i < count; i++) all += history_tokens(&segments[i]);
  if (all <= b->token_room) return ERR_OK;
  while (room < all) room *= 2;
  int32_t *tokens = room <= INT32_MAX ? mem_alloc(m, MEM_GENERAL, (size_t)room * sizeof *tokens) : NULL;
  if (!tokens) return ERR_NOMEM;
  mem_free(b->tokens);
  b->tokens = tokens;
  b->token_room = (int32_t)room;
  return ERR_OK;
}

static int take_biases(forward_batch *b, const model_segment *segments, int32_t count, mem *m) {
  int64_t all = 0, room = b->bias_room ? b->bias_room : SAMPLER_BIAS_MAX;
  for (int32_t i = 0; i < count; i++) all += segments[i].ranking ? segments[i].ranking->bias_count : 0;
  if (all <= b->bias_room) return ERR_OK;
  while (room < all) room *= 2;
  int32_t *tokens = mem_alloc(m, MEM_GENERAL, (size_t)room * sizeof *tokens);
  float *values = mem_alloc(m, MEM_GENERAL, (size_t)room * sizeof *values);
  mem_free(b->bias_tokens);
  mem_free(b->bias_values);
  b->bias_tokens = tokens;
  b->bias_values = values;
  b->bias_room = tokens && values ? (int32_t)room : 0;
  return b->bias_room ? ERR_OK : ERR_NOMEM;
}

static ops_row append_row(const kv_cache *k, const model_segment *s, int32_t i) {
  int32_t position = kv_length(k, s->seq) + i;
  return (ops_row){.token = s->tokens[i],
                   .position = position,
                   .sequence = s->seq,
                   .length = position + 1,
                   .rope_shift = s->rope_shift};
}

static ops_row tree_row(forward_batch *b, const kv_cache *k, const model_segment *s, int32_t i) {
  int32_t at = b->plain.path_length, count = kv_path(k, s->seq, i, b->paths + at);
  int32_t length = kv_length(k, s->seq);
  b->plain.path_length += count;
  return (ops_row){.token = s->tokens[i],
                   .position = length + count - 1,
                   .sequence = s->seq,
                   .length = length,
                   .path_at = at,
                   .path_count = count,
                   .rope_shift = s->rope_shift};
}

static ops_slice add_tokens(forward_batch *b, const int32_t *tokens, int32_t count) {
  ops_slice s = {b->plain.token_count, count};
  if (count > 0) memcpy(b->tokens + s.first, tokens, (size_t)count * sizeof *tokens);
  b->plain.token_count += count;
  return s;
}

static ops_slice add_biases(forward_batch *b, const model_ranking *k) {
  ops_slice s = {b->plain.bias_count, k->bias_count};
  if (k->bias_count > 0) {
    memcpy(b->bias_tokens + s.first, k->bias_tokens, (size_t)k->bias_count * sizeof *k->bias_tokens);
    memcpy(b->bias_values + s.first, k->bias_values, (size_t)k->bias_count * sizeof *k->bias_values);
  }
  b->plain.bias_count += k->bias_count;
  return s;
}

static ops_sampling choice_of(const model_sampling *s, int32_t position) {
  return (ops_sampling){s->scale, s->seed, s->choice, (uint32_t)position};
}

/* The rows of the segment that want logits go to the end of head_rows. */
static void list_head_rows(forward_batch *b, const model_segment *s, int32_t first) {
  ops_batch *plain = &b->plain;
  const model_ranking *k = s->ranking;
  bool history = has_history(s);
  ops_slice bias = k ? add_biases(b, k) : (ops_slice){0};
  ops_slice shared = history ? add_tokens(b, k->history, k->history_count) : (ops_slice){0};
  for (int32_t r = 0, i = 0; r < s->count; r++) {
    if (!wants_logits(s, r)) continue;
    int32_t row = first + r, line = plain->head_count++, position = b->rows[row].position + 1 + s->shift;
    b->head_rows[line] = row;
    b->head_line[row] = line;
    if (s->sampling)
      b->choices[line - plain->logit_count - plain->rank_count] = choice_of(s->sampling, position);
    if (!k) continue;
    ops_ranking *to = &b->rankings[plain->rank_count++];
    *to = (ops_ranking){.options = k->options,
                        .position = position,
                        .count = k->count,
                        .history = {shared},
                        .prompt_count = k->prompt_count,
                        .bias = bias};
    if (history && k->paths) to->history[1] = add_tokens(b, k->paths[i].tokens, k->paths[i].count);
    i++;
  }
}

typedef enum { HEAD_KEEPS, HEAD_RANKS, HEAD_CHOOSES, HEAD_USES } head_use;

static head_use use_of(const model_segment *s) {
  assert(!s->sampling || !s->ranking);
  return s->sampling ? HEAD_CHOOSES : s->ranking ? HEAD_RANKS : HEAD_KEEPS;
}

static void build_head(forward_batch *b, const model_segment *segments, int32_t count) {
  ops_batch *plain = &b->plain;
  for (int32_t i = 0; i < plain->row_count; i++) b->head_line[i] = -1;
  for (head_use use = HEAD_KEEPS; use < HEAD_USES; use++) {
    for (int32_t i = 0; i < count; i++)
      if (use_of(&segments[i]) == use) list_head_rows(b, &segments[i], b->segment_first[i]);
    if (use == HEAD_KEEPS) plain->logit_count = plain->head_count;
  }
}

/* A row sees the positions of its window, or all of them, up to its own. */
static void build_views(forward_batch *b, const int32_t *windows, int32_t count) {
  b->plain.view_count = count;
  for (int32_t v = 0; v < count; v++) {
    int32_t window = windows[v];
    b->plain.views[v] = (ops_view){b->span_first, b->spans[v]};
    for (int32_t i = 0; i < b->plain.row_count; i++) {
      int32_t end = b->rows[i].position + 1;
      b->spans[v][i] = (ops_span){window > 0 && end > window ? end - window : 0, end};
    }
  }
}

int forward_reserve(forward_batch *b, const model_segment *segments, int32_t count, mem *m) {
  int rc = has_tree(segments, count) ? take_paths(b, m) : ERR_OK;
  if (rc == ERR_OK) rc = take_tokens(b, segments, count, m);
  return rc == ERR_OK ? take_biases(b, segments, count, m) : rc;
}

static void build_rows(forward_batch *b, const kv_cache *k, const model_segment *segments, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    const model_segment *s = &segments[i];
    b->segment_first[i] = b->plain.row_count;
    for (int32_t r = 0; r < s->count; r++) {
      ops_row *row = &b->rows[b->plain.row_count++];
      *row = s->kind == MODEL_APPEND ? append_row(k, s, r) : tree_row(b, k, s, r);
      if (r == 0 && i > 0) row->shared = kv_shared(k, segments[i - 1].seq, s->seq, INT32_MAX);
    }
  }
  b->segment_first[count] = b->plain.row_count;
}

void forward_build(forward_batch *b, const kv_cache *k, const model_segment *segments, int32_t count,
                   const int32_t *windows, int32_t view_count) {
  b->plain = (ops_batch){.rows = b->rows,
                         .paths = b->paths,
                         .head_rows = b->head_rows,
                         .rankings = b->rankings,
                         .tokens = b->tokens,
                         .bias_tokens = b->bias_tokens,
                         .bias_values = b->bias_values,
                         .choices = b->choices,
                         .capture_rows = b->capture_rows};
  build_rows(b, k, segments, count);
  build_head(b, segments, count);
  build_views(b, windows, view_count);
}

/* --- a forward --- */

int forward_run(forward_batch *b, device *d, kv_cache *k, void (*ops)(void *context), void *context,
                ops_answer *answer) {
  if (!d->table->begin(d, kv_rows(k), &b->plain))
    return d->table->wait(d, NULL) == OPS_LOST ? ERR_DEVICE : ERR_NOMEM;
  ops(context);
  d->table->end(d);
  return device_error(d->table->wait(d, answer));
}

void forward_done(forward_batch *b, kv_cache *k, const model_segment *segments, int32_t count) {
  b->segment_count = count;
  for (int32_t i = 0; i < count; i++) {
    if (segments[i].kind == MODEL_APPEND)
      kv_appended(k, segments[i].seq, segments[i].count);
    else
      kv_staged(k, segments[i].seq);
  }
}

int32_t forward_row(const forward_batch *b, int32_t segment, int32_t row) {
  if (segment < 0 || segment >= b->segment_count || row < 0) return -1;
  int32_t at = b->segment_first[segment] + row;
  return at < b->segment_first[segment + 1] ? at : -1;
}

const ops_ranked *forward_ranked(const forward_batch *b, device *d, int32_t segment, int32_t row) {
  int32_t at = forward_row(b, segment, row), ranking = at < 0 ? -1 : b->head_line[at] - b->plain.logit_count;
  if (ranking < 0 || ranking >= b->plain.rank_count) return NULL;
  return d->table->ranked(d, ranking, 1);
}

void forward_rank_all(const forward_batch *b, device *d) {
  if (b->segment_count > 0 && b->plain.rank_count > 0) d->table->ranked(d, 0, b->plain.rank_count);
}
