#include "draft_worker/drafters/eagle3_engine.h"

#include "common/base/clock.h"
#include "common/base/min.h"
#include "draft_worker/drafters/staged_rows.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ROOT_STATE KV_STAGE_MAX /* index of the last committed row's state */

/* One session's C and its rows. */
typedef struct session {
  int32_t seq;
  int32_t *tokens; /* [length_max + 1] */
  int32_t length;  /* of C */
  int32_t first;   /* position of row 0 */
  bool ranked;     /* `root` tells what follows C */
  staged_rows staged;
  float *states; /* [KV_STAGE_MAX + 1][embed]: of each staged row, and of the last committed one */
  draft_result root;
} session;

struct eagle3_engine {
  eagle3_engine_options options;
  int32_t embed;
  session *sessions; /* [sequences] */
  float *inputs;     /* [DRAFT_QUERIES_MAX][embed]: the states of the parents of a batch's rows */
  eagle3_engine_counters counters;
};

/* A job while its batch runs. */
typedef struct job_run {
  eagle3_engine *g;
  const draft_batch *batch;
  const draft_job *job;
  session *s;
  int32_t segment;                    /* of the forward, or -1 */
  int32_t queries[DRAFT_QUERIES_MAX]; /* of the batch: that of each row of a tree */
  int32_t slots[DRAFT_QUERIES_MAX], tokens[DRAFT_QUERIES_MAX], parents[DRAFT_QUERIES_MAX];
  float *inputs; /* [DRAFT_QUERIES_MAX][embed]: the states of the parents */
  model_ranking ranking;
  model_path paths[DRAFT_QUERIES_MAX];
} job_run;

/* --- C and its rows --- */

static int32_t rows_of(const eagle3_engine *g, const session *s) {
  return kv_length(g->options.kv, s->seq);
}

static void keep_rows(const eagle3_engine *g, session *s, int32_t rows) {
  int rc = kv_rollback(g->options.kv, s->seq, min_i32(rows, rows_of(g, s)));
  assert(rc == ERR_OK);
  (void)rc;
  s->ranked = false;
}

static float *state_of(const eagle3_engine *g, const session *s, int32_t row) {
  return s->states + (size_t)(row < 0 ? ROOT_STATE : row) * (size_t)g->embed;
}

/* C as the job says. A row is of its position's next token too, so that of the last token that stays goes. */
static int set_text(const job_run *w) {
  session *s = w->s;
  const draft_job *j = w->job;
  if (j->base > s->length || j->count > w->g->options.length_max + 1 - j->base) return ERR_LIMIT;
  if (j->base < s->length) keep_rows(w->g, s, j->base > s->first ? j->base - 1 - s->first : 0);
  bool grows = j->base > 0 && j->base == s->length;
  memcpy(s->tokens + j->base, w->batch->tokens + j->first, (size_t)j->count * sizeof *s->tokens);
  s->length = j->base + j->count;
  if (!grows) draft_head_clear_text(w->g->options.head, s->seq);
  int32_t known = grows ? j->base : 0;
  draft_head_add_text(w->g->options.head, s->seq, s->tokens + known, s->length - known);
  if (j->count > 0) s->ranked = false;
  return ERR_OK;
}

/* --- rows of a job --- */

/* Are there rows of all of C but its last token, and is the last one's state known? It is not where C has
 * become shorter. */
static bool is_complete(const job_run *w) {
  return w->s->ranked && rows_of(w->g, w->s) > 0 && w->s->first + rows_of(w->g, w->s) == w->s->length - 1;
}

/* Rows of C from features. The last one is ranked if it tells what follows C. */
static int feature_rows(job_run *w, draft_head_segment *m) {
  const draft_job *j = w->job;
  session *s = w->s;
  int32_t next = s->first + rows_of(w->g, s), end = j->feature_base + j->feature_count;
  if (j->feature_base < s->first || j->feature_base > next) {
    keep_rows(w->g, s, 0);
    s->first = j->feature_base;
  }
  keep_rows(w->g, s, j->feature_base - s->first);
  if (end > s->length - 1 || end - s->first > w->g->options.length_max) return ERR_LIMIT;
  *m = (draft_head_segment){.rows = {.seq = s->seq,
                                     .kind = MODEL_APPEND,
                                     .count = j->feature_count,
                                     .tokens = s->tokens + j->feature_base + 1,
                                     .shift = s->first + 1,
                                     .no_logits = end < s->length - 1},
                            .input = j->fused ? DRAFT_HEAD_STATES : DRAFT_HEAD_TAPS,
                            .values = j->features};
  w->g->counters.feature_rows += (uint64_t)j->feature_count;
  return ERR_OK;
}

/* A row that an earlier forward has computed needs no other. */
static void add_tree_row(job_run *w, int32_t query, draft_head_segment *m, draft_results *out) {
  const draft_query *p = &w->batch->queries[query];
  const kv_cache *kv = w->g->options.kv;
  if (p->depth == 0) return;
  int32_t parent = staged_rows_end(&w->s->staged, kv, w->s->seq, p->path, p->depth - 1);
  if (parent == STAGED_ROWS_NONE) return;
  int32_t row = staged_rows_child(&w->s->staged, kv, w->s->seq, parent, p->path[p->depth - 1]);
  if (row != STAGED_ROWS_NONE) {
    staged_rows_reply(&w->s->staged, row, &out->results[query]);
    return;
  }
  w->parents[m->rows.count] = parent;
  w->tokens[m->rows.count] = p->path[p->depth - 1];
  w->queries[m->rows.count] = query;
  memcpy(w->inputs + (size_t)m->rows.count * (size_t)w->g->embed, state_of(w->g, w->s, parent),
         (size_t)w->g->embed * sizeof *w->inputs);
  m->rows.count++;
}

/* Rows of the queried paths: a path of which more than the end is missing gets no candidates. */
static void tree_rows(job_run *w, draft_head_segment *m, draft_results *out) {
  const draft_job *j = w->job;
  *m = (draft_head_segment){.rows = {.seq = w->s->seq,
                                     .kind = MODEL_TREE,
                                     .tokens = w->tokens,
                                     .parents = w->parents,
                                     .shift = w->s->first + 1,
                                     .all_logits = true},
                            .input = DRAFT_HEAD_STATES,
                            .values = w->inputs};
  for (int32_t i = 0; i < j->query_count && is_complete(w); i++) add_tree_row(w, j->first_query + i, m, out);
  if (m->rows.count == 0 ||
      kv_grow(w->g->options.kv, w->s->seq, w->parents, m->rows.count, w->slots) != ERR_OK) {
    m->rows.count = 0; /* the context's end: nothing follows */
    return;
  }
  for (int32_t i = 0; i < m->rows.count; i++) staged_rows_add(&w->s->staged, w->slots[i], w->tokens[i]);
  w->g->counters.queried_rows += (uint64_t)m->rows.count;
}

/* The device ranks each queried row's tokens as the target would choose among them. */
static void set_ranking(job_run *w, draft_head_segment *m) {
  for (int32_t i = 0; m->rows.kind == MODEL_TREE && i < m->rows.count; i++) {
    const draft_query *p = &w->batch->queries[w->queries[i]];
    w->paths[i] = (model_path){p->path, p->depth};
  }
  w->ranking = (model_ranking){.options = w->job->sampling,
                               .count = DRAFT_CANDIDATES_MAX,
                               .history = w->s->tokens,
                               .history_count = w->s->length,
                               .prompt_count = w->job->prompt_length,
                               .bias_tokens = w->job->bias_tokens,
                               .bias_values = w->job->bias_values,
                               .bias_count = w->job->bias_count,
                               .paths = m->rows.kind == MODEL_TREE ? w->paths : NULL};
  m->rows.ranking = &w->ranking;
}

/* What the job wants of the forward; a segment of no rows: nothing. */
static int make_rows(job_run *w, draft_head_segment *m, draft_results *out) {
  int rc = set_text(w);
  m->rows.count = 0;
  if (rc == ERR_OK && w->job->feature_count > 0)
    rc = feature_rows(w, m);
  else if (rc == ERR_OK && w->job->query_count > 0)
    tree_rows(w, m, out);
  if (rc == ERR_OK && m->rows.count > 0) set_ranking(w, m);
  return rc;
}

static void fail(const job_run *w, draft_results *out, int code) {
  if (code != ERR_DEVICE)
    log_line(w->g->options.log, LOG_ERROR, "a forward of the draft head failed: %s", err_name(code));
  out->failures[out->failure_count++] = (draft_failure){w->job->slot, code};
  for (int32_t i = 0; i < w->job->query_count; i++) out->results[w->job->first_query + i].count = 0;
  keep_rows(w->g, w->s, 0);
  w->s->length = w->s->first = 0;
  w->g->counters.failures++;
}

/* --- candidates --- */

static void set_candidates(draft_result *to, const ops_ranked *best) {
  to->count = best ? best->count : 0; /* the device is lost: there are none */
  if (best) memcpy(to->list, best->list, (size_t)best->count * sizeof *to->list);
}

static void keep_state(const job_run *w, int32_t row, int32_t slot) {
  const float *state = draft_head_state(w->g->options.head, w->segment, row);
  if (state) memcpy(state_of(w->g, w->s, slot), state, (size_t)w->g->embed * sizeof *state);
}

/* What a segment of the last forward gave. */
static void take_rows(const job_run *w, const draft_head_segment *m, draft_results *out) {
  const draft_head *h = w->g->options.head;
  if (m->rows.kind == MODEL_APPEND) {
    keep_state(w, m->rows.count - 1, -1);
    w->s->ranked = !m->rows.no_logits;
    if (w->s->ranked) set_candidates(&w->s->root, draft_head_ranked(h, w->segment, m->rows.count - 1));
    return;
  }
  for (int32_t i = 0; i < m->rows.count; i++) {
    keep_state(w, i, w->slots[i]);
    staged_rows_rank(&w->s->staged, w->slots[i], draft_head_ranked(h, w->segment, i));
    staged_rows_reply(&w->s->staged, w->slots[i], &out->results[w->queries[i]]);
  }
}

/* Queries about C itself. */
static void reply_root(const job_run *w, draft_results *out) {
  const draft_job *j = w->job;
  for (int32_t i = j->first_query; i < j->first_query + j->query_count; i++) {
    if (w->batch->queries[i].depth > 0 || !w->s->ranked) continue;
    out->results[i].count = w->s->root.count;
    memcpy(out->results[i].list, w->s->root.list, sizeof w->s->root.list);
  }
}

/* --- a batch --- */

static int run_forward(eagle3_engine *g, const draft_head_segment *segments, int32_t count,
                       draft_results *out) {
  uint64_t start = clock_us();
  int32_t rows = 0;
  int rc = draft_head_forward(g->options.head, g->options.kv, segments, count);
  bool may_pass = rc != ERR_OK && rc != ERR_DEVICE; /* as a lack of memory may */
  if (may_pass) rc = draft_head_forward(g->options.head, g->options.kv, segments, count);
  if (rc != ERR_OK) return rc;
  draft_head_rank_all(g->options.head);
  for (int32_t i = 0; i < count; i++) rows += segments[i].rows.count;
  if (rows <= DRAFT_QUERIES_MAX) out->us = clock_us() - start;
  g->counters.forwards++;
  g->counters.forward_us += out->us;
  return ERR_OK;
}

static void begin_job(eagle3_engine *g, const draft_batch *b, int32_t i, job_run *w, draft_results *out) {
  const draft_job *j = &b->jobs[i];
  assert(j->slot >= 0 && j->slot < g->options.sequences);
  float *inputs = g->inputs + (size_t)j->first_query * (size_t)g->embed;
  *w = (job_run){.g = g, .batch = b, .job = j, .s = &g->sessions[j->slot], .segment = -1, .inputs = inputs};
  for (int32_t k = j->first_query; k < j->first_query + j->query_count; k++)
    out->results[k] = (draft_result){.slot = j->slot, .handle = b->queries[k].handle};
}

void eagle3_engine_run(eagle3_engine *g, const draft_batch *b, draft_results *out) {
  job_run runs[DRAFT_JOBS_MAX];
  draft_head_segment segments[DRAFT_JOBS_MAX];
  int32_t count = 0;
  *out = (draft_results){.result_count = b->query_count};
  for (int32_t i = 0; i < b->job_count; i++) {
    begin_job(g, b, i, &runs[i], out);
    int rc = make_rows(&runs[i], &segments[count], out);
    if (rc != ERR_OK) fail(&runs[i], out, rc);
    if (rc == ERR_OK && segments[count].rows.count > 0) runs[i].segment = count++;
  }
  int rc = count > 0 ? run_forward(g, segments, count, out) : ERR_OK;
  for (int32_t i = 0; i < b->job_count; i++) {
    bool computed = runs[i].segment >= 0;
    if (computed && rc == ERR_OK) take_rows(&runs[i], &segments[runs[i].segment], out);
    if (computed && rc != ERR_OK) fail(&runs[i], out, rc);
    reply_root(&runs[i], out);
  }
  g->counters.batches++;
}

/* --- life --- */

static int open_sessions(eagle3_engine *g, err *e) {
  const eagle3_engine_options *o = &g->options;
  g->sessions = calloc((size_t)o->sequences, sizeof *g->sessions);
  g->inputs = calloc(DRAFT_QUERIES_MAX * (size_t)g->embed, sizeof *g->inputs);
  for (int32_t i = 0; g->sessions && i < o->sequences; i++) {
    session *s = &g->sessions[i];
    s->seq = kv_acquire(o->kv);
    s->tokens = calloc((size_t)o->length_max + 1, sizeof *s->tokens);
    s->states = calloc((KV_STAGE_MAX + 1) * (size_t)g->embed, sizeof *s->states);
    if (s->seq < 0 || !s->tokens || !s->states)
      return err_set(e, ERR_NOMEM, "no memory for %d sessions of a draft", o->sequences);
  }
  return g->sessions && g->inputs ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the engine");
}

int eagle3_engine_open(eagle3_engine **out, const eagle3_engine_options *o, err *e) {
  *out = NULL;
  eagle3_engine *g = calloc(1, sizeof *g);
  if (!g) return err_set(e, ERR_NOMEM, "no memory for the engine");
  g->options = *o;
  g->embed = draft_head_shape(o->head)->layer.embed;
  int rc = open_sessions(g, e);
  if (rc == ERR_OK)
    *out = g;
  else
    eagle3_engine_close(g);
  return rc;
}

void eagle3_engine_close(eagle3_engine *g) {
  if (!g) return;
  for (int32_t i = 0; g->sessions && i < g->options.sequences; i++) {
    session *s = &g->sessions[i];
    if (s->states && s->seq >= 0) kv_release(g->options.kv, s->seq);
    free(s->tokens);
    free(s->states);
  }
  free(g->sessions);
  free(g->inputs);
  free(g);
}

const eagle3_engine_counters *eagle3_engine_count(const eagle3_engine *g) {
  return &g->counters;
}
