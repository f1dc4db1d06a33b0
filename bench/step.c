#include "bench/step.h"

#include "bench/probe.h"
#include "common/base/min.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_STRIDE 37 /* any tokens do: a step costs the same whatever they are */
#define PROMPT_MAX   4096
#define DECODE_MAX   4096

static const struct {
  const char *prefix;
  step_kind kind;
  int32_t count_max;
} shapes[] = {{"seq:", STEP_SEQUENCES, STEP_SEQUENCES_MAX},
              {"prompt:", STEP_PROMPT, PROMPT_MAX},
              {"decode:", STEP_DECODE, DECODE_MAX},
              {"", STEP_CHAIN, STEP_ROWS_MAX}}; /* the last one fits every text */

bool step_parse(const char *text, step_item *out) {
  size_t i = 0;
  while (strncmp(text, shapes[i].prefix, strlen(shapes[i].prefix)) != 0) i++;
  const char *number = text + strlen(shapes[i].prefix);
  char *end;
  long count = strtol(number, &end, 10);
  if (end == number || *end || count < 1 || count > shapes[i].count_max) return false;
  *out = (step_item){shapes[i].kind, (int32_t)count};
  return true;
}

/* --- opening --- */

typedef struct needs {
  int32_t sequences, rows; /* rows: of the longest, beyond the context; */
  int32_t prompt;          /* 0: no empty sequence */
} needs;

static int32_t max_i32(int32_t a, int32_t b) {
  return a > b ? a : b;
}

static needs needs_of(const step_item *items, int32_t count) {
  needs n = {.sequences = 1, .rows = STEP_ROWS_MAX};
  for (int32_t i = 0; i < count; i++) {
    if (items[i].kind == STEP_SEQUENCES) n.sequences = max_i32(n.sequences, items[i].count);
    if (items[i].kind == STEP_DECODE) n.rows = max_i32(n.rows, items[i].count);
    if (items[i].kind == STEP_PROMPT) n.prompt = max_i32(n.prompt, items[i].count);
  }
  return n;
}

static int32_t acquire(step_bench *b, step_layout layout, int32_t index, int32_t count, int32_t each) {
  int32_t seq = kv_acquire(b->kv), blocks[MODEL_CONTEXT_MAX / KV_BLOCK];
  for (int32_t i = 0; i < each; i++) blocks[i] = i * count + index;
  if (layout == STEP_SCATTERED) kv_map(b->kv, seq, blocks, each, 0);
  return seq;
}

static int open_cache(step_bench *b, const needs *n, step_layout layout, err *e) {
  int32_t context = max_i32(b->context + n->rows, n->prompt), each = (context + KV_BLOCK - 1) / KV_BLOCK;
  int32_t count = n->sequences + (n->prompt > 0);
  if (layout == STEP_SCATTERED) count = max_i32(count, 2); /* else they would be side by side */
  kv_options k = {.sequences = count,
                  .context = context,
                  .type = KV_F16,
                  .blocks = layout == STEP_STATIC ? 0 : count * each};
  int rc = kv_open(&b->kv, b->device, model_shape(b->model), &k, &b->mem, e);
  if (rc != ERR_OK) return rc;
  b->sequence_count = n->sequences;
  for (int32_t i = 0; i < n->sequences; i++) b->sequences[i] = acquire(b, layout, i, count, each);
  b->empty = n->prompt > 0 ? acquire(b, layout, n->sequences, count, each) : -1;
  return ERR_OK;
}

static int append(step_bench *b, int32_t seq, int32_t count) {
  model_segment s = {
      .seq = seq, .kind = MODEL_APPEND, .count = count, .tokens = b->tokens, .no_logits = true};
  return model_forward(b->model, b->kv, &s, 1);
}

/* As a target reads it (schedule_prompt_rows). */
static int prefill(step_bench *b, int32_t seq, int32_t rows) {
  const int32_t chunk = engine_prompt_rows(b->device->prompt_rows);
  int rc = ERR_OK;
  for (int32_t done = 0; done < rows && rc == ERR_OK;) {
    int32_t count = min_i32(rows - done, chunk);
    rc = append(b, seq, count);
    done += count;
  }
  return rc;
}

const char *step_device(void) {
  const char *name = getenv("TANDEM_TEST_DEVICE");
  return name && *name ? name : "cpu";
}

int step_open(step_bench *b, const char *path, const char *name, int32_t math, int32_t threads,
              int32_t context, step_layout layout, const step_item *items, int32_t count, err *e) {
  static_assert(STEP_ROWS_MAX <= ENGINE_CHUNK_MAX, "a step has its tokens");
  needs n = needs_of(items, count);
  *b = (step_bench){.context = context};
  const device_options o = {.threads = threads};
  int rc = model_file_open(&b->file, path, e);
  if (rc == ERR_OK) rc = model_open_device(&b->device, b->file, name, math, o, NULL, &b->mem, e);
  if (rc == ERR_OK) rc = model_open(&b->model, b->file, b->device, &(model_options){0}, &b->mem, e);
  if (rc == ERR_OK) rc = open_cache(b, &n, layout, e);
  if (rc != ERR_OK) return rc;
  for (int32_t i = 0; i < ENGINE_CHUNK_MAX; i++)
    b->tokens[i] = i * TOKEN_STRIDE % model_shape(b->model)->vocab;
  for (int32_t i = 0; i < STEP_ROWS_MAX; i++) {
    b->parents[i] = i - 1;
    b->path[i] = i;
  }
  for (int32_t i = 0; i < b->sequence_count && rc == ERR_OK; i++) rc = prefill(b, b->sequences[i], context);
  return rc == ERR_OK ? rc : err_set(e, rc, "the model cannot fill its cache: %s", err_name(rc));
}

void step_close(step_bench *b) {
  kv_close(b->kv);
  model_close(b->model);
  if (b->device) b->device->table->close(b->device);
  model_file_close(b->file);
}

/* --- steps --- */

static const model_sampling greedy = {0};

static int check_chosen(const step_bench *b, int32_t segment, int32_t row) {
  return model_sampled(b->model, segment, row) < 0 ? ERR_FORMAT : ERR_OK;
}

static int check_all_chosen(const step_bench *b, int32_t rows) {
  int rc = ERR_OK;
  for (int32_t i = 0; i < rows && rc == ERR_OK; i++) rc = check_chosen(b, 0, i);
  return rc;
}

static int append_choosing(step_bench *b, int32_t seq, int32_t rows) {
  model_segment s = {.seq = seq,
                     .kind = MODEL_APPEND,
                     .count = rows,
                     .tokens = b->tokens,
                     .all_logits = rows > 1,
                     .sampling = &greedy};
  int rc = model_forward(b->model, b->kv, &s, 1);
  return rc == ERR_OK ? check_all_chosen(b, rows) : rc;
}

int step_append(step_bench *b, int32_t rows) {
  return append_choosing(b, b->sequences[0], rows);
}

static int plain(step_bench *b, int32_t seq) {
  return append_choosing(b, seq, 1);
}

static int tree_forward(step_bench *b, int32_t rows) {
  model_segment s = {.seq = b->sequences[0],
                     .kind = MODEL_TREE,
                     .count = rows,
                     .tokens = b->tokens,
                     .parents = b->parents,
                     .all_logits = true,
                     .sampling = &greedy};
  return model_forward(b->model, b->kv, &s, 1);
}

int step_tree(step_bench *b, int32_t rows) {
  int rc = kv_stage(b->kv, b->sequences[0], b->parents, rows);
  if (rc == ERR_OK) rc = tree_forward(b, rows);
  return rc == ERR_OK ? check_all_chosen(b, rows) : rc;
}

static int tree(step_bench *b, int32_t rows) {
  int rc = step_tree(b, rows);
  if (rc != ERR_OK) return rc;
  return kv_commit(b->kv, b->sequences[0], b->path, b->no_copy ? 0 : rows);
}

static int chain(step_bench *b, int32_t rows) {
  return rows == 1 ? plain(b, b->sequences[0]) : tree(b, rows);
}

static int each_sequence(step_bench *b, int32_t count) {
  model_segment s[STEP_SEQUENCES_MAX] = {{0}};
  for (int32_t i = 0; i < count; i++)
    s[i] = (model_segment){
        .seq = b->sequences[i], .kind = MODEL_APPEND, .count = 1, .tokens = b->tokens, .sampling = &greedy};
  int rc = model_forward(b->model, b->kv, s, count);
  for (int32_t i = 0; i < count && rc == ERR_OK; i++) rc = check_chosen(b, i, 0);
  return rc;
}

static int prompt(step_bench *b, int32_t count) {
  int rc = prefill(b, b->empty, count - 1);
  return rc == ERR_OK ? plain(b, b->empty) : rc;
}

static int decode(step_bench *b, int32_t count) {
  int rc = ERR_OK;
  for (int32_t i = 0; i < count && rc == ERR_OK; i++) rc = plain(b, b->sequences[0]);
  return rc;
}

static int restore(step_bench *b) {
  int rc = b->empty < 0 ? ERR_OK : kv_rollback(b->kv, b->empty, 0);
  for (int32_t i = 0; i < b->sequence_count && rc == ERR_OK; i++)
    rc = kv_rollback(b->kv, b->sequences[i], b->context);
  return rc;
}

int step_run(step_bench *b, step_item item, uint64_t *ns) {
  static int (*const kinds[])(step_bench *, int32_t) = {
      [STEP_CHAIN] = chain, [STEP_SEQUENCES] = each_sequence, [STEP_PROMPT] = prompt, [STEP_DECODE] = decode};
  uint64_t begin = probe_clock_ns();
  int rc = kinds[item.kind](b, item.count);
  *ns = probe_clock_ns() - begin;
  return rc == ERR_OK ? restore(b) : rc;
}

int step_forward(step_bench *b, int32_t rows, uint64_t *ns) {
  model_segment one = {
      .seq = b->sequences[0], .kind = MODEL_APPEND, .count = 1, .tokens = b->tokens, .sampling = &greedy};
  int rc = rows == 1 ? ERR_OK : kv_stage(b->kv, b->sequences[0], b->parents, rows);
  if (rc != ERR_OK) return rc;
  uint64_t begin = probe_clock_ns();
  rc = rows == 1 ? model_forward(b->model, b->kv, &one, 1) : tree_forward(b, rows);
  *ns = probe_clock_ns() - begin;
  return rc == ERR_OK ? restore(b) : rc;
}

/* --- what is read --- */

uint64_t step_weight_bytes(const step_bench *b) {
  uint64_t all = atomic_load(&b->mem.bytes[MEM_WEIGHTS]);
  return model_shape(b->model)->tied ? all : all - model_file_tensor(b->file, MODEL_EMBED, 0)->bytes;
}

uint64_t step_kv_bytes(const step_bench *b) {
  const model_config *c = model_shape(b->model);
  uint64_t elements = (uint64_t)c->layers * (uint64_t)c->kv_heads * (uint64_t)c->head_dim * 2;
  return elements * sizeof(uint16_t) * (uint64_t)b->context;
}

uint64_t step_attention_macs(const step_bench *b, int32_t rows) {
  const model_config *c = model_shape(b->model);
  const uint64_t each = (uint64_t)c->layers * (uint64_t)c->heads * (uint64_t)c->head_dim * 2;
  return each * (uint64_t)rows * (uint64_t)b->context;
}
