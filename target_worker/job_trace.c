#include "target_worker/job_trace.h"

#include <stdio.h>

/* Of a batch that mixes both, the verify is what sessions wait for. */
static const char *name_of(const engine_results *results) {
  bool verify = false, nodes = false;
  for (int32_t i = 0; i < results->count; i++) {
    verify |= results->of[i].kind == ENGINE_VERIFY;
    nodes |= results->of[i].node_count > 0;
  }
  if (results->of[0].kind == ENGINE_FUSE) return "fusion";
  return nodes ? "verify" : verify ? "plain" : "prefill";
}

void job_trace_add(trace_file *t, int64_t lane, const engine_batch *batch, const engine_results *results,
                   uint64_t from_us, uint64_t to_us) {
  int32_t rows = 0, tokens = 0;
  json_t *sessions = json_array();
  for (int32_t i = 0; i < batch->count; i++) {
    char id[20];
    snprintf(id, sizeof id, "%016llx", (unsigned long long)batch->jobs[i].session);
    json_array_append_new(sessions, json_string(id));
    rows += batch->jobs[i].count;
    tokens += results->of[i].kind == ENGINE_VERIFY ? results->of[i].sampled_count : 0;
  }
  trace_file_span(t, lane, name_of(results), from_us, to_us,
                  json_pack("{s:i, s:i, s:o}", "rows", rows, "tokens", tokens, "sessions", sessions));
}
