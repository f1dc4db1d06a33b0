/* bench_head MODEL HEAD [TYPE [DEVICE [PROMPTS [COMMON]]]]: how often a draft head guesses the model's own
 * greedy tokens, in chains of 5 that begin at every position of the completions of
 * tests/golden/smollm2_greedy.jsonl. The model computes each text in one go, with taps; the head appends the
 * committed rows one by one, and goes on with its own states. Prints the acceptance at each position of a
 * chain, where all before it were accepted, and the tokens per verify step of chains that follow one another.
 *
 * bench_head --time MODEL HEAD [TYPE [DEVICE [REPETITIONS [COMMON]]]]: what a forward takes, for 1, 2, 4 and
 * 8 rows with 1 and 2 threads (head_time.h).
 *
 * TYPE: f32 (as the file has it), q8_0 (the default), q4_1, bf16. COMMON: outputs of the head that are always
 * there, beside those of the text's own tokens; 0 (the default): all of them. */
#include "bench/head_time.h"
#include "common/file/head_file.h"
#include "common/model/draft_head.h"
#include "kernels/devices/devices.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAIN = 5, TEXT_MAX = MODEL_ROWS_MAX, CONTEXT = 1024, REPETITIONS = 1000 };

typedef struct bench {
  device *d;
  model *m;
  draft_head *h;
  kv_cache *model_rows, *head_rows;
  int32_t seq, width; /* of taps */
  float *taps;        /* [TEXT_MAX][width] */
  float *state;       /* [embed] */
  int64_t tried[CHAIN], hit[CHAIN], verifies, tokens;
} bench;

static void must(int rc, const char *what, const err *e) {
  if (rc == ERR_OK) return;
  fprintf(stderr, "%s: %s (%d)\n", what, e ? e->text : "", rc);
  exit(1);
}

/* The taps of all rows, and the model's own choice after each. */
static void run_model(bench *b, const int32_t *text, int32_t count, int32_t *greedy) {
  const head_config *c = draft_head_shape(b->h);
  const model_sampling sampling = {0};
  kv_rollback(b->model_rows, b->seq, 0);
  model_segment s = {.seq = b->seq,
                     .kind = MODEL_APPEND,
                     .count = count,
                     .tokens = text,
                     .all_logits = true,
                     .sampling = &sampling,
                     .taps = c->taps,
                     .tap_count = c->tap_count};
  must(model_forward(b->m, b->model_rows, &s, 1), "the model", NULL);
  for (int32_t r = 0; r < count; r++) {
    greedy[r] = model_sampled(b->m, 0, r);
    for (int32_t t = 0; t < c->tap_count; t++)
      memcpy(b->taps + (size_t)r * (size_t)b->width + (size_t)(t * c->target_embed),
             model_tapped(b->m, 0, r, c->taps[t]), (size_t)c->target_embed * sizeof(float));
  }
}

static const model_ranking best = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = 1};

/* The likeliest token after the segment's last row, whose state is kept. */
static int32_t guess(bench *b, draft_head_segment s) {
  s.rows.seq = b->seq;
  s.rows.shift = 1;
  s.rows.ranking = &best;
  must(draft_head_forward(b->h, b->head_rows, &s, 1), "the head", NULL);
  const ops_ranked *list = draft_head_ranked(b->h, 0, s.rows.count - 1);
  memcpy(b->state, draft_head_state(b->h, 0, s.rows.count - 1),
         (size_t)draft_head_shape(b->h)->layer.embed * sizeof(float));
  return list->count > 0 ? list->list[0].token : 0;
}

/* How many tokens of the chain behind position `at` are those of the text. */
static int32_t accept_chain(bench *b, const int32_t *text, int32_t count, int32_t at, int32_t token) {
  int32_t accepted = 0, slot = -1;
  for (; accepted < CHAIN && at + 1 + accepted < count; accepted++) {
    b->tried[accepted]++;
    if (token != text[at + 1 + accepted]) break;
    b->hit[accepted]++;
    if (accepted + 1 == CHAIN) continue;
    int32_t parent = slot;
    must(kv_grow(b->head_rows, b->seq, &parent, 1, &slot), "kv_grow", NULL);
    token = guess(b, (draft_head_segment){
                         .rows = {.kind = MODEL_TREE, .count = 1, .tokens = &token, .parents = &parent},
                         .input = DRAFT_HEAD_STATES,
                         .values = b->state});
  }
  if (slot >= 0) must(kv_commit(b->head_rows, b->seq, NULL, 0), "kv_commit", NULL);
  return accepted;
}

/* Row r of the head: the features of position r and the token at r + 1. */
static int32_t append(bench *b, const int32_t *text, int32_t from, int32_t end) {
  return guess(
      b, (draft_head_segment){.rows = {.kind = MODEL_APPEND, .count = end - from, .tokens = text + from + 1},
                              .input = DRAFT_HEAD_TAPS,
                              .values = b->taps + (size_t)from * (size_t)b->width});
}

static void run_text(bench *b, const int32_t *text, int32_t prompt, int32_t count) {
  int32_t greedy[TEXT_MAX], next = prompt, rows = 0;
  run_model(b, text, count, greedy);
  kv_rollback(b->head_rows, b->seq, 0);
  draft_head_clear_text(b->h, b->seq);
  draft_head_add_text(b->h, b->seq, text, prompt);
  for (int32_t at = prompt; at + 1 < count; at++) {
    if (greedy[at - 1] != text[at]) break; /* the model goes another way than the recording */
    draft_head_add_text(b->h, b->seq, text + at, 1);
    int32_t token = append(b, text, rows, at);
    rows = at;
    int32_t accepted = accept_chain(b, text, count, at, token);
    if (at != next) continue;
    b->verifies++;
    b->tokens += accepted + 1;
    next = at + accepted + 1;
  }
}

static int32_t take(const json_t *list, int32_t *out, int32_t room) {
  int32_t n = (int32_t)json_array_size(list) < room ? (int32_t)json_array_size(list) : room;
  for (int32_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
  return n;
}

static void run_file(bench *b, const char *path, int32_t prompts) {
  FILE *f = fopen(path, "r");
  if (!f) must(ERR_IO, path, NULL);
  for (json_t *line; prompts > 0 && (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); prompts--) {
    int32_t text[TEXT_MAX];
    int32_t prompt = take(json_object_get(line, "prompt_ids"), text, TEXT_MAX);
    int32_t count = prompt + take(json_object_get(line, "output_ids"), text + prompt, TEXT_MAX - prompt);
    run_text(b, text, prompt, count);
    json_decref(line);
  }
  fclose(f);
}

static void show(const bench *b) {
  printf("%zu bytes of weights; acceptance", draft_head_bytes(b->h));
  for (int32_t i = 0; i < CHAIN; i++)
    printf(" %.3f", b->tried[i] ? (double)b->hit[i] / (double)b->tried[i] : 0.0);
  printf("; %.3f tokens per verify step of %lld; last forward %llu us\n",
         (double)b->tokens / (double)b->verifies, (long long)b->verifies,
         (unsigned long long)draft_head_device_us(b->h));
}

static gguf_type type_of(const char *name) {
  static const struct {
    const char *name;
    gguf_type type;
  } types[] = {{"f32", GGUF_F32}, {"q8_0", GGUF_Q8_0}, {"q4_1", GGUF_Q4_1}, {"bf16", GGUF_BF16}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(types[i].name, name) == 0) return types[i].type;
  must(ERR_ARG, name, NULL);
  return GGUF_F32;
}

static void open_files(const char *target, const char *head, gguf_type type, model_file **f, head_file **g) {
  err e = {0};
  must(model_file_open(f, target, &e), target, &e);
  must(head_file_open(g, head, model_file_config(*f), &e), head, &e);
  if (type != GGUF_F32) must(head_file_quantise(*g, type, type, &e), head, &e);
}

static void open_all(bench *b, const char *target, const char *head, gguf_type type, const char *name,
                     int32_t common) {
  err e = {0};
  model_file *f;
  head_file *g;
  const device_options o = {.math = OPS_MATH_INT8, .threads = 1};
  must(device_open(&b->d, name, &o, NULL, &e), name, &e);
  open_files(target, head, type, &f, &g);
  must(model_open(&b->m, f, b->d, &(model_options){0}, NULL, &e), target, &e);
  must(draft_head_open(&b->h, g, f, (head_shares){common, 1}, b->d, NULL, &e), head, &e);
  const kv_options k = {.sequences = 1, .context = CONTEXT, .type = KV_F16};
  must(kv_open(&b->model_rows, b->d, model_shape(b->m), &k, NULL, &e), target, &e);
  must(kv_open(&b->head_rows, b->d, &draft_head_shape(b->h)->layer, &k, NULL, &e), head, &e);
  b->seq = kv_acquire(b->model_rows);
  kv_acquire(b->head_rows);
  const head_config *c = draft_head_shape(b->h);
  b->width = c->tap_count * c->target_embed;
  b->taps = calloc(TEXT_MAX * (size_t)b->width, sizeof *b->taps);
  b->state = calloc((size_t)c->layer.embed, sizeof *b->state);
}

static void print_times(const char *target, const char *head, gguf_type type, const char *name,
                        int32_t common, int32_t repetitions) {
  err e = {0};
  model_file *f;
  head_file *g;
  open_files(target, head, type, &f, &g);
  must(repetitions > 0 ? ERR_OK : ERR_ARG, "REPETITIONS must be above 0", NULL);
  must(head_time_print(f, g, common, name, repetitions, &e), head, &e);
  head_file_close(g);
  model_file_close(f);
}

int main(int argc, char **argv) {
  static bench b;
  bool times = argc > 1 && strcmp(argv[1], "--time") == 0;
  if (times) argc--, argv++;
  if (argc < 3) {
    fprintf(stderr, "usage: bench_head [--time] MODEL HEAD [f32|bf16|q8_0|q4_1 [DEVICE "
                    "[PROMPTS or REPETITIONS [COMMON]]]]\n");
    return 2;
  }
  gguf_type type = type_of(argc > 3 ? argv[3] : "q8_0");
  const char *name = argc > 4 ? argv[4] : "cpu";
  int32_t common = argc > 6 ? atoi(argv[6]) : 0;
  if (times) {
    print_times(argv[1], argv[2], type, name, common, argc > 5 ? atoi(argv[5]) : REPETITIONS);
    return 0;
  }
  open_all(&b, argv[1], argv[2], type, name, common);
  run_file(&b, "tests/golden/smollm2_greedy.jsonl", argc > 5 ? atoi(argv[5]) : INT32_MAX);
  show(&b);
  return 0;
}
