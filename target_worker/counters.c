#include "target_worker/counters.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

/* us: gap_us or idle_us */
static uint32_t gap_at(const engine_counters *n, const uint32_t *us, size_t percent) {
  uint32_t sorted[ENGINE_GAPS_MAX];
  size_t count = n->gaps < ENGINE_GAPS_MAX ? (size_t)n->gaps : ENGINE_GAPS_MAX;
  if (count == 0) return 0;
  memcpy(sorted, us, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, by_value);
  return sorted[count * percent / 100];
}

typedef struct named {
  const char *name;
  uint64_t value;
} named;

static void print_group(FILE *out, const char *group, const named *list, size_t count) {
  fprintf(out, "\"%s\": {", group);
  for (size_t i = 0; i < count; i++)
    fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", list[i].name, list[i].value);
  fprintf(out, "}");
}
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void print_engine(FILE *out, const engine_counters *n) {
  const named list[] = {{"batches", n->batches},
                        {"prefills", n->prefills},
                        {"verifies", n->verifies},
                        {"forwards", n->forwards},
                        {"accepted", n->accepted},
                        {"tokens", n->tokens},
                        {"tapped_rows", n->tapped_rows},
                        {"fused_rows", n->fused_rows},
                        {"fuse_us", n->fuse_us},
                        {"selfchecks", n->selfchecks},
                        {"failures", n->failures},
                        {"measured_rows", n->measured_rows},
                        {"gaps", n->gaps},
                        {"gap_us_median", gap_at(n, n->gap_us, 50)},
                        {"gap_us_p90", gap_at(n, n->gap_us, 90)},
                        {"idle_us_median", gap_at(n, n->idle_us, 50)},
                        {"idle_us_p90", gap_at(n, n->idle_us, 90)}};
  print_group(out, "engine", list, COUNT(list));
}

static void print_partial(FILE *out, const partial_counters *n) {
  const named list[] = {{"chains", n->chains},       {"guessed", n->guessed}, {"accepted", n->accepted},
                        {"forwards", n->forwards},   {"us", n->us},           {"failures", n->failures},
                        {"looked_up", n->looked_up}, {"found", n->found},     {"checked", n->checked},
                        {"right", n->right},         {"lossy", n->lossy}};
  named reasons[PARTIAL_REASONS];
  for (int i = 0; i < PARTIAL_REASONS; i++) reasons[i] = (named){partial_reason_names[i], n->fallbacks[i]};
  fprintf(out, ", ");
  print_group(out, "partial_kv", list, COUNT(list));
  fprintf(out, ", ");
  print_group(out, "partial_kv_fallbacks", reasons + 1, COUNT(reasons) - 1); /* the first one is no reason */
}

static void print_kv(FILE *out, kv_counters k) {
  const named list[] = {{"stage_operations", k.stage_operations},
                        {"staged_rows", k.staged_rows},
                        {"appended_rows", k.appended_rows},
                        {"committed_rows", k.committed_rows},
                        {"rejected_rows", k.rejected_rows},
                        {"rewound_rows", k.rewound_rows},
                        {"bytes_written", k.bytes_written},
                        {"bytes_spared", k.bytes_spared},
                        {"refused_argument", k.refusals[KV_REFUSED_ARGUMENT]},
                        {"refused_state", k.refusals[KV_REFUSED_STATE]},
                        {"refused_limit", k.refusals[KV_REFUSED_LIMIT]},
                        {"refused_memory", k.refusals[KV_REFUSED_MEMORY]}};
  print_group(out, "kv", list, COUNT(list));
}

static void print_sessions(FILE *out, const session_store *s) {
  const block_pool *b = &s->blocks;
  const named list[] = {{"reused_rows", s->reused_rows},
                        {"longest_step_us", s->longest_step_us},
                        {"verdicts", s->ahead.verdicts},
                        {"ahead_hits", s->ahead.hits},
                        {"survivors", s->ahead.survivors},
                        {"chunks_cut", s->chunks.cut},
                        {"chunks_left_out", s->chunks.left_out},
                        {"blocks", (uint64_t)b->count},
                        {"blocks_free", (uint64_t)b->free_count},
                        {"blocks_kept", (uint64_t)b->cached_count},
                        {"blocks_shared", b->shared},
                        {"blocks_evicted", b->evicted}};
  print_group(out, "sessions", list, COUNT(list));
}

static void print_model(FILE *out, model_counters m) {
  const named list[] = {{"forwards", m.forwards},
                        {"rows", m.rows},
                        {"logit_rows", m.logit_rows},
                        {"staged_rows", m.staged_rows},
                        {"commit_copies", m.commit_copies}};
  print_group(out, "model", list, COUNT(list));
}

static void print_wire(FILE *out, transport_counters t) {
  const named list[] = {{"sent", t.sent},
                        {"received", t.received},
                        {"dropped", t.dropped},
                        {"bad_frames", t.bad_frames},
                        {"sent_bytes", t.sent_bytes},
                        {"received_bytes", t.received_bytes}};
  print_group(out, "wire", list, COUNT(list));
}

static void print_memory(FILE *out, const mem *m) {
  static const char *const tags[MEM_TAG_COUNT] = {"general",     "weights",     "kv",
                                                  "activations", "speculation", "kv_host"};
  named calls[MEM_TAG_COUNT], bytes[MEM_TAG_COUNT];
  for (int i = 0; i < MEM_TAG_COUNT; i++) {
    calls[i] = (named){tags[i], atomic_load(&m->calls[i])};
    bytes[i] = (named){tags[i], atomic_load(&m->bytes[i])};
  }
  print_group(out, "memory_calls", calls, MEM_TAG_COUNT);
  fprintf(out, ", ");
  print_group(out, "memory_bytes", bytes, MEM_TAG_COUNT);
}

void counters_print(const counters_source *s) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return;
  fprintf(out, "{");
  print_engine(out, engine_count(s->engine));
  if (engine_count_partial(s->engine)) print_partial(out, engine_count_partial(s->engine));
  fprintf(out, ", ");
  print_kv(out, kv_count(s->kv));
  fprintf(out, ", ");
  print_sessions(out, target_sessions(s->target));
  fprintf(out, ", ");
  print_model(out, model_count(s->model));
  fprintf(out, ", ");
  print_wire(out, transport_count(s->transport));
  fprintf(out, ", ");
  print_memory(out, s->memory);
  fprintf(out, "}\n");
  if (fclose(out) == 0) {
    ssize_t written = write(STDERR_FILENO, text, size);
    (void)written;
  }
  free(text);
}
