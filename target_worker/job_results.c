#include "target_worker/job_results.h"

#include "common/base/log.h"
#include "common/base/min.h"
#include "target_worker/feature_fusion.h"
#include "target_worker/feature_stream.h"
#include "target_worker/session_end.h"
#include "target_worker/token_stream.h"
#include <stdio.h>
#include <assert.h>
#include <string.h>

static void next_job_ready(step_context *c, session *s) {
  s->job.ready_us = c->now;
  session_lockstep_begin(s, c->now);
}

static void keep_logprobs(session *s, const engine_result *r, int32_t base) {
  int32_t each = s->request.options.logprobs;
  for (int32_t i = 0; s->stream.logprobs && r->logprobs && i < r->sampled_count; i++)
    memcpy(s->stream.logprobs + (base + i) % SESSION_LOGPROBS * each, r->logprobs + i * each,
           (size_t)each * sizeof *r->logprobs);
}

/* The tree has been re-rooted: what is live came before the verdict and survived it. */
static void count_survivors(session_ahead *n, int32_t live) {
  n->verdicts++;
  n->hits += live > 0;
  n->survivors += (uint64_t)live;
}

/* Once the tree has been re-rooted: how many chunks of the nodes that were left need not be verified. Nodes
 * that came meanwhile are not told from those. */
static void count_chunks(session_store *store, const session *s, const engine_result *r) {
  const int32_t chunk = store->speculation ? store->speculation->verify_chunk : 0,
                left = s->job.offered - chunk, live = min_i32(left, s->drafts.tree.live_count);
  if (chunk == 0 || r->node_count != chunk || r->guessed > 0 || left <= 0) return;
  store->chunks.cut++;
  store->chunks.left_out += (uint64_t)((left + chunk - 1) / chunk - (live + chunk - 1) / chunk);
}

static void commit(session_store *store, session *s, const engine_result *r) {
  int32_t base = s->committed.length;
  int rc = prefix_append(&s->committed, r->sampled, r->sampled_count);
  assert(rc == ERR_OK);
  (void)rc;
  for (int32_t i = 0; s->request.accepted_wanted && i < r->sampled_count; i++)
    s->stream.accepted[base + i] = i < r->sampled_count - 1; /* the last one is the bonus token */
  keep_logprobs(s, r, base);
  if (!s->drafts.has_tree) return;
  tree_ids *maps[SESSION_DRAFTS_MAX];
  tree_commit(&s->drafts.tree, maps, session_draft_maps(s, maps), base, r->sampled, r->sampled_count);
  if (r->node_count == 0 && session_draft_count(s) == 0) return;
  count_chunks(store, s, r);
  count_survivors(&s->stats.ahead, s->drafts.tree.live_count);
  count_survivors(&store->ahead, s->drafts.tree.live_count);
}

static void step_succeeded(step_context *c, verifier *v, session *s, const engine_result *r) {
  if (r->selfcheck_differs) {
    s->speculation.disabled = "the self-check found a difference between verified and plainly decoded tokens";
    actions_log(c->out, LOG_ERROR, "session %016llx: %s", (unsigned long long)s->id, s->speculation.disabled);
  }
  verifier_stepped(v, c->store, s, r, c->now);
  commit(c->store, s, r);
  token_stream_grown(c, s);
  next_job_ready(c, s);
  session_end_if_over(c, s);
}

/* A weight that is no number is found when it is read (weights.c); so these were large. */
static void end_without_numbers(step_context *c, session *s) {
  snprintf(s->trouble, sizeof s->trouble,
           "the model's outputs at position %d are no numbers: is the file whole? If so, its values are too "
           "large for this precision: try --math f32, if this was not",
           s->committed.length);
  session_end_finish(c, s, WIRE_FINISH_ERROR, ERR_FORMAT, s->trouble);
}

static void job_failed(step_context *c, session *s, const engine_result *r) {
  if (r->code == ERR_FORMAT) {
    end_without_numbers(c, s);
    return;
  }
  if (r->code == ERR_LIMIT) {
    session_end_finish(
        c, s, WIRE_FINISH_ERROR, r->code,
        "the grammar allows none of the model's tokens here: it is too large or too ambiguous");
    return;
  }
  if (r->node_count == 0) {
    session_end_finish(c, s, WIRE_FINISH_ERROR, r->code, "the engine failed: see the target's log");
    return;
  }
  s->speculation.disabled = "an error inside a verify";
  actions_log(c->out, LOG_ERROR, "session %016llx: verify failed (%s): it decodes plainly from now on",
              (unsigned long long)s->id, err_name(r->code));
}

static void apply(step_context *c, verifier *v, const engine_result *r) {
  bool stale;
  session *s = verifier_end(c->store, r, &stale);
  if (!s || stale || s->state != SESSION_RUNNING) return;
  feature_stream_add(s, r);
  if (r->code == ERR_DESYNC) {
    prefix_truncate(&s->committed, s->cache.rows + 1);
    token_stream_desync(c, s, "the cache holds fewer rows than it should");
  } else if (r->code != ERR_OK) {
    job_failed(c, s, r);
  } else if (r->kind == ENGINE_VERIFY) {
    step_succeeded(c, v, s, r);
  } else {
    next_job_ready(c, s);
  }
}

static void apply_fused(step_context *c, const engine_results *results) {
  for (int32_t i = 0; i < results->count; i++) {
    session *s = feature_fusion_end(c->store, &results->of[i]);
    if (s) feature_stream_add(s, &results->of[i]);
  }
}

void job_results_apply(step_context *c, verifier *v, const engine_results *results) {
  if (results->of[0].kind == ENGINE_FUSE) {
    apply_fused(c, results);
    return;
  }
  verifier_measure(v, results);
  for (int32_t i = 0; i < results->count; i++) apply(c, v, &results->of[i]);
}
