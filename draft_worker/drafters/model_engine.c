#include "draft_worker/drafters/model_engine.h"

#include "common/base/clock.h"
#include "draft_worker/drafters/staged_rows.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One session's C and the rows of the cache. Rows [0, kv_length) are those of the first tokens, whether C has
 * them now or had them: another C may begin alike. */
typedef struct session {
  int32_t seq;
  int32_t *tokens; /* [length_max] */
  int32_t length;  /* of C */
  staged_rows staged;
} session;

struct model_engine {
  model_engine_options options;
  session *sessions; /* [sequences] */
  model_engine_counters counters;
};

/* A job while its batch runs. */
typedef struct job_run {
  model_engine *g;
  const draft_batch *batch;
  const draft_job *job;
  session *s;
  int code;
  int32_t segment; /* of the forward, or -1 */
  int32_t row_count;
  int32_t queries[DRAFT_QUERIES_MAX]; /* of the batch: whose candidates the forward's last rows give */
  int32_t slots[DRAFT_QUERIES_MAX];   /* of the rows of a tree */
  bool in_tree;
  int32_t first; /* the segment's first row that is ranked */
  model_ranking ranking;
  model_path paths[DRAFT_QUERIES_MAX]; /* of these queries */
} job_run;

/* --- C and its rows --- */

static int32_t rows_of(const model_engine *g, const session *s) {
  return kv_length(g->options.kv, s->seq);
}

static void drop_stage(const model_engine *g, const session *s, int32_t rows) {
  int rc = kv_rollback(g->options.kv, s->seq, rows);
  assert(rc == ERR_OK);
  (void)rc;
}

/* C goes on with the batch's tokens: rows that are there already are found, along the cache and then along
 * the stage. */
static void extend(job_run *w) {
  model_engine *g = w->g;
  session *s = w->s;
  int32_t path[KV_STAGE_MAX], count = 0;
  bool staged = s->length == rows_of(g, s);
  for (int32_t i = 0; i < w->job->count; i++) {
    int32_t token = w->batch->tokens[w->job->first + i], at = s->length++;
    if (at < rows_of(g, s) && s->tokens[at] == token) continue;
    if (at < rows_of(g, s)) drop_stage(g, s, at);
    s->tokens[at] = token;
    int32_t parent = count ? path[count - 1] : -1,
            slot = staged ? staged_rows_child(&s->staged, g->options.kv, s->seq, parent, token) : -1;
    staged = slot >= 0;
    if (staged) path[count++] = slot;
  }
  int rc = kv_commit_keep(g->options.kv, s->seq, path, count);
  assert(rc == ERR_OK);
  (void)rc;
  g->counters.kept_rows += (uint64_t)count;
}

/* C as the job says, with whatever rows there are of it; at most as many as it has tokens. */
static int set_text(job_run *w) {
  model_engine *g = w->g;
  session *s = w->s;
  const draft_job *j = w->job;
  if (j->base > s->length || j->count > g->options.length_max - j->base) return ERR_LIMIT;
  if (j->base < s->length || rows_of(g, s) != s->length) drop_stage(g, s, rows_of(g, s));
  s->length = j->base;
  extend(w);
  int32_t rows = rows_of(g, s);
  if (j->whole && rows > s->length) drop_stage(g, s, s->length);
  return ERR_OK;
}

static int32_t draft_id(const model_engine *g, int32_t token) {
  const vocabulary_map *b = g->options.bridge;
  if (b->same || token < 0 || token >= b->target_count) return token;
  return b->to_draft[token];
}

/* --- rows of a job --- */

typedef struct rows {
  int32_t tokens[MODEL_ROWS_MAX], parents[DRAFT_QUERIES_MAX];
} rows;

/* Rows of C that are missing, the last one again if its candidates are wanted. */
static int append_rows(job_run *w, bool queried, rows *r, model_segment *m) {
  model_engine *g = w->g;
  session *s = w->s;
  int32_t from = rows_of(g, s);
  if (queried && from == s->length) from--;
  drop_stage(g, s, from);
  m->kind = MODEL_APPEND;
  m->count = s->length - from;
  m->no_logits = !queried;
  if (m->count > MODEL_ROWS_MAX) return ERR_LIMIT;
  for (int32_t i = 0; i < m->count; i++) {
    r->tokens[i] = draft_id(g, s->tokens[from + i]);
    if (r->tokens[i] < 0) return ERR_MISMATCH;
  }
  w->row_count = queried;
  w->queries[0] = w->job->first_query;
  w->first = m->count - 1;
  g->counters.prefilled_rows += (uint64_t)m->count;
  return ERR_OK;
}

/* A row that an earlier forward has computed needs no other. */
static void add_tree_row(job_run *w, int32_t query, rows *r, model_segment *m, draft_results *out) {
  const draft_query *p = &w->batch->queries[query];
  const kv_cache *kv = w->g->options.kv;
  int32_t token = p->depth > 0 ? draft_id(w->g, p->path[p->depth - 1]) : -1;
  if (token < 0) return;
  int32_t parent = staged_rows_end(&w->s->staged, kv, w->s->seq, p->path, p->depth - 1);
  if (parent == STAGED_ROWS_NONE) return;
  int32_t row = staged_rows_child(&w->s->staged, kv, w->s->seq, parent, p->path[p->depth - 1]);
  if (row != STAGED_ROWS_NONE) {
    staged_rows_reply(&w->s->staged, row, &out->results[query]);
    return;
  }
  r->parents[m->count] = parent;
  r->tokens[m->count] = token;
  w->queries[m->count++] = query;
}

/* Rows of the queried paths: a path of which more than the end is missing gets no candidates. */
static int tree_rows(job_run *w, rows *r, model_segment *m, draft_results *out) {
  const draft_job *j = w->job;
  m->kind = MODEL_TREE;
  m->all_logits = true;
  for (int32_t i = 0; i < j->query_count; i++) add_tree_row(w, j->first_query + i, r, m, out);
  if (m->count == 0 || kv_grow(w->g->options.kv, w->s->seq, r->parents, m->count, w->slots) != ERR_OK) {
    m->count = 0; /* the context's end: nothing follows */
    return ERR_OK;
  }
  for (int32_t i = 0; i < m->count; i++) {
    const draft_query *p = &w->batch->queries[w->queries[i]];
    staged_rows_add(&w->s->staged, w->slots[i], p->path[p->depth - 1]);
  }
  w->row_count = m->count;
  w->in_tree = true;
  w->g->counters.queried_rows += (uint64_t)m->count;
  return ERR_OK;
}

/* What the job wants of the forward; a segment of no rows: nothing. */
static int make_rows(job_run *w, rows *r, model_segment *m, draft_results *out) {
  const draft_job *j = w->job;
  bool root = j->query_count > 0 && w->batch->queries[j->first_query].depth == 0;
  *m = (model_segment){.seq = w->s->seq, .tokens = r->tokens, .parents = r->parents};
  if (j->base + j->count > w->g->options.length_max) return ERR_LIMIT;
  if (root || rows_of(w->g, w->s) < w->s->length) return append_rows(w, root, r, m);
  return j->query_count ? tree_rows(w, r, m, out) : ERR_OK;
}

/* The device ranks each queried row's tokens as the target would choose among them. */
static void set_ranking(job_run *w, model_segment *m) {
  for (int32_t i = 0; i < w->row_count; i++) {
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
                               .paths = w->paths};
  m->ranking = &w->ranking;
}

static void fail(job_run *w, draft_results *out, int code) {
  const model_engine_options *o = &w->g->options;
  if (code != ERR_MISMATCH && code != ERR_DEVICE)
    log_line(o->log, LOG_ERROR, "a forward of the draft failed: %s", err_name(code));
  w->code = code;
  out->failures[out->failure_count++] = (draft_failure){w->job->slot, code};
  for (int32_t i = 0; i < w->job->query_count; i++) out->results[w->job->first_query + i].count = 0;
  drop_stage(w->g, w->s, 0);
  w->s->length = 0;
  w->g->counters.failures++;
}

/* --- candidates --- */

_Static_assert(DRAFT_CANDIDATES_MAX <= SAMPLER_RANKED_MAX, "a ranking lists all candidates");

/* Of all rows of the last forward that belong to queries. */
static void take_candidates(const model_engine *g, const job_run *runs, int32_t count,
                            draft_result *results) {
  model_rank_all(g->options.model);
  for (int32_t i = 0; i < count; i++) {
    const job_run *w = &runs[i];
    for (int32_t k = 0; w->segment >= 0 && k < w->row_count; k++) {
      const ops_ranked *best = model_ranked(g->options.model, w->segment, w->first + k);
      draft_result *to = &results[w->queries[k]];
      if (!best) continue; /* the device is lost: there are no candidates */
      to->count = best->count;
      memcpy(to->list, best->list, (size_t)best->count * sizeof *to->list);
      if (w->in_tree) staged_rows_rank(&w->s->staged, w->slots[k], best);
    }
  }
}

/* --- a batch --- */

static void run_forward(model_engine *g, job_run *runs, int32_t count, const model_segment *segments,
                        int32_t segment_count, draft_results *out) {
  uint64_t start = clock_us();
  int rc = model_forward(g->options.model, g->options.kv, segments, segment_count);
  bool may_pass = rc != ERR_OK && rc != ERR_DEVICE; /* as a lack of memory may */
  if (may_pass) rc = model_forward(g->options.model, g->options.kv, segments, segment_count);
  uint64_t end = clock_us();
  for (int32_t i = 0; i < count && rc != ERR_OK; i++)
    if (runs[i].segment >= 0) fail(&runs[i], out, rc);
  if (rc != ERR_OK) return;
  take_candidates(g, runs, count, out->results);
  g->counters.forwards++;
  g->counters.forward_us += end - start;
  g->counters.rank_us += clock_us() - end;
  int32_t row_count = 0;
  for (int32_t i = 0; i < segment_count; i++) row_count += segments[i].count;
  if (row_count <= DRAFT_QUERIES_MAX) out->us = clock_us() - start;
}

void model_engine_run(model_engine *g, const draft_batch *b, draft_results *out) {
  job_run runs[DRAFT_JOBS_MAX];
  rows lists[DRAFT_JOBS_MAX];
  model_segment segments[DRAFT_JOBS_MAX];
  int32_t segment_count = 0;
  out->result_count = b->query_count;
  out->failure_count = 0;
  out->us = 0;
  for (int32_t i = 0; i < b->job_count; i++) {
    const draft_job *j = &b->jobs[i];
    job_run *w = &runs[i];
    assert(j->slot >= 0 && j->slot < g->options.sequences);
    *w = (job_run){.g = g, .batch = b, .job = j, .s = &g->sessions[j->slot], .segment = -1};
    for (int32_t k = j->first_query; k < j->first_query + j->query_count; k++)
      out->results[k] = (draft_result){.slot = j->slot, .handle = b->queries[k].handle};
    model_segment *m = &segments[segment_count];
    int rc = set_text(w);
    if (rc == ERR_OK) rc = make_rows(w, &lists[i], m, out);
    if (rc != ERR_OK)
      fail(w, out, rc);
    else if (m->count > 0) {
      set_ranking(w, m);
      w->segment = segment_count++;
    }
  }
  if (segment_count > 0) run_forward(g, runs, b->job_count, segments, segment_count, out);
  g->counters.batches++;
}

/* --- life --- */

static int open_sessions(model_engine *g, err *e) {
  const model_engine_options *o = &g->options;
  g->sessions = calloc((size_t)o->sequences, sizeof *g->sessions);
  if (!g->sessions) return err_set(e, ERR_NOMEM, "no memory for the engine");
  for (int32_t i = 0; i < o->sequences; i++) {
    session *s = &g->sessions[i];
    s->seq = kv_acquire(o->kv);
    s->tokens = s->seq < 0 ? NULL : malloc((size_t)o->length_max * sizeof *s->tokens);
    if (!s->tokens) return err_set(e, ERR_NOMEM, "no memory for %d sessions of a draft", o->sequences);
  }
  return ERR_OK;
}

int model_engine_open(model_engine **out, const model_engine_options *o, err *e) {
  *out = NULL;
  model_engine *g = calloc(1, sizeof *g);
  if (!g) return err_set(e, ERR_NOMEM, "no memory for the engine");
  g->options = *o;
  int rc = open_sessions(g, e);
  if (rc == ERR_OK && model_set_ids(o->model, o->bridge->same ? NULL : o->bridge->to_target,
                                    o->bridge->target_count) != ERR_OK)
    rc = err_set(e, ERR_NOMEM, "no memory for the target's vocabulary of %d tokens", o->bridge->target_count);
  if (rc == ERR_OK)
    *out = g;
  else
    model_engine_close(g);
  return rc;
}

void model_engine_close(model_engine *g) {
  if (!g) return;
  for (int32_t i = 0; g->sessions && i < g->options.sequences; i++) {
    session *s = &g->sessions[i];
    if (s->tokens) kv_release(g->options.kv, s->seq);
    free(s->tokens);
  }
  free(g->sessions);
  free(g);
}

const model_engine_counters *model_engine_count(const model_engine *g) {
  return &g->counters;
}
