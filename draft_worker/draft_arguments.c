#include "draft_worker/draft_arguments.h"

#include "common/base/cpus.h"
#include "common/base/output_file.h"
#include "common/command_line/draft_methods.h"
#include "common/file/head_lookup.h"
#include "draft_worker/drafters/ngram.h"
#include <string.h>

#define DEFAULT_SESSIONS 4
#define DEFAULT_ROWS     4
#define ROWS_BESIDE      8
/* Prompt lookup adds tokens and costs nothing beside a head or a model. */
#define EAGLE3_DEFAULT "eagle3,ngram"
#define MODEL_DEFAULT  "model,ngram"

/* What depends on other flags. */
static void fill(flag_values *v) {
  int32_t cores = cpus_threads();
  if (!v->threads) v->threads = v->turns || cores == 1 ? cores : cores / 2;
  if (!v->spin) v->spin = v->turns ? CPUS_SPIN_US : v->beside ? CPUS_SPIN_LONG_US : 0;
  if (!v->rows) v->rows = v->beside ? ROWS_BESIDE : DEFAULT_ROWS;
  if (!v->device) v->device = WORKER_DEVICE_DEFAULT;
  if (v->busy_poll < 0) v->busy_poll = 0;
  bool head = v->draft_model && head_lookup_is_head(v->draft_model);
  if (!v->draft && head) v->draft = EAGLE3_DEFAULT;
  if (!v->draft) v->draft = v->draft_model || v->draft_layers ? MODEL_DEFAULT : ngram_kind.method;
}

/* What the draft replays is read; a list that is none is told of later. */
static void spare_replay(const char *methods) {
  draft_methods m;
  char path[PATH_MAX];
  if (draft_methods_parse(&m, methods, NULL) == ERR_OK && m.replay &&
      draft_methods_replay_file(m.replay, path))
    output_file_spare(path);
}

flag_values draft_arguments_parse(int argc, char **argv) {
  flag_values v = flag_defaults;
  flag_program reader = {.command = COMMAND_DRAFT, .values = &v};
  v.sessions = DEFAULT_SESSIONS;
  worker_program_read(&reader, "tandem-draft", argc, argv);
  output_file_spare(v.draft_model);
  output_file_spare(v.corpus);
  fill(&v);
  spare_replay(v.draft);
  return v;
}

gguf_type draft_arguments_type(const flag_values *v) {
  static const gguf_type types[] = {GGUF_Q8_0, GGUF_Q4_1, GGUF_BF16}; /* in the order of its words */
  return v->draft_type < 0 ? GGUF_F32 : types[v->draft_type];
}
