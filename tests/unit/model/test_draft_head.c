/* libs: model : far emulated */
/* A draft head's forward pass: against the recipe in doubles, and every device against the C reference. */
#include "common/model/draft_head.h"
#include "common/base/noise.h"
#include "common/model/kv_rows.h"
#include "tests/support/models.h"

#include "tests/support/head_builder.h"
#include "tests/support/random.h"

#include <math.h>

enum { EMBED = 32, TAPS = 96, DIM = 16, HEADS = 2, FFN = 64, VOCAB = 96, ROWS = 24, RANKED = 3, OUT = 4096 };
enum { FIRST = 5, WINDOW = 4, TARGET_LAYERS = 4 };

/* --- files --- */

static model_file *target_file(gguf_builder *b) {
  static const struct {
    const char *name;
    uint64_t columns, rows;
  } layer[] = {{"attn_norm", EMBED, 0},  {"attn_q", EMBED, 32},      {"attn_k", EMBED, 16},
               {"attn_v", EMBED, 16},    {"attn_output", 32, EMBED}, {"ffn_norm", EMBED, 0},
               {"ffn_gate", EMBED, FFN}, {"ffn_up", EMBED, FFN},     {"ffn_down", FFN, EMBED}};
  *b = gb_begin(3);
  gb_key_text(b, "general.architecture", "llama");
  gb_key_u32(b, "llama.block_count", TARGET_LAYERS);
  gb_key_u32(b, "llama.embedding_length", EMBED);
  gb_key_u32(b, "llama.feed_forward_length", FFN);
  gb_key_u32(b, "llama.attention.head_count", HEADS);
  gb_key_u32(b, "llama.attention.head_count_kv", 1);
  gb_key_u32(b, "llama.context_length", 64);
  gb_key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gb_tensor(b, "token_embd.weight", EMBED, VOCAB, GGUF_F32);
  for (int32_t i = 0; i < TARGET_LAYERS; i++) {
    for (size_t t = 0; t < sizeof layer / sizeof *layer; t++) {
      char name[64];
      snprintf(name, sizeof name, "blk.%d.%s.weight", i, layer[t].name);
      gb_tensor(b, name, layer[t].columns, layer[t].rows, GGUF_F32);
    }
  }
  gb_tensor(b, "output_norm.weight", EMBED, 0, GGUF_F32);
  gb_end(b);
  gguf *g;
  model_file *f;
  err e = {0};
  uint64_t state = 7;
  if (gguf_open_memory(&g, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  for (int32_t i = 0; i < gguf_tensor_count(g); i++) support_fill_tensor(gguf_tensor_at(g, i), &state);
  gguf_close(g);
  if (model_file_open_memory(&f, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  return f;
}

static const char every_norm[] =
    "{\"speculators_model_type\":\"eagle3\",\"architectures\":[\"Eagle3Speculator\"],\"draft_vocab_size\":24,"
    "\"norm_before_residual\":true,\"norm_before_fc\":true,\"norm_output\":true,"
    "\"eagle_aux_hidden_state_layer_ids\":[1,2,4],\"target_hidden_size\":null,\"transformer_layer_config\":{"
    "\"model_type\":\"llama\",\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"intermediate_size\":64,\"vocab_size\":96,\"num_hidden_layers\":1,\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":100000.0,\"max_position_embeddings\":4,\"hidden_act\":\"silu\"}}";

typedef struct files {
  gguf_builder builder;
  model_file *target;
  folder folder;
  head_file *head;
  bool norms; /* every norm, its own embedding, and a window; or none of them */
} files;

static void open_files_with(files *f, bool norms, const int64_t *ids) {
  head_builder *b = calloc(1, sizeof *b);
  err e = {0};
  f->norms = norms;
  f->target = target_file(&f->builder);
  b->prefix = norms ? "layers.0" : "midlayer";
  b->ids = ids;
  if (norms) head_weights(b, "embed_tokens.weight", VOCAB, EMBED);
  if (norms) head_weights(b, "input_norm.weight", 0, TAPS);
  f->folder = head_folder(b, &HEAD_SMALL, "");
  if (norms) folder_put_text(&f->folder, "config.json", every_norm);
  if (head_file_open(&f->head, f->folder.path, model_file_config(f->target), &e)) fail_msg("%s", e.text);
  free(b);
}

static void open_files(files *f, bool norms) {
  open_files_with(f, norms, NULL);
}

static void close_files(files *f) {
  head_file_close(f->head);
  folder_remove(&f->folder);
  model_file_close(f->target);
  gb_free(&f->builder);
}

/* --- the recipe, in doubles: a row is a token, a state, and the rows that it sees --- */

typedef struct oracle {
  const files *f;
  const float *embedding; /* the target's */
  double key[ROWS][DIM], value[ROWS][DIM], state[ROWS][EMBED], logit[ROWS][24];
} oracle;

static void times(const char *name, int rows, int columns, const double *x, double *y) {
  for (int r = 0; r < rows; r++) {
    y[r] = 0;
    for (int i = 0; i < columns; i++) y[r] += (double)head_value(name, (size_t)(r * columns + i)) * x[i];
  }
}

static void norm_of(const char *name, int n, const double *x, double *y) {
  double squares = 0;
  for (int i = 0; i < n; i++) squares += x[i] * x[i];
  for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(squares / n + 1e-5) * (double)head_value(name, (size_t)i);
}

/* The file's pairs are halves of a head. */
static void rotate(double *x, int position) {
  for (int i = 0; i < DIM / 2; i++) {
    double angle = position * pow(100000.0, -2.0 * i / DIM), a = x[i], b = x[i + DIM / 2];
    x[i] = a * cos(angle) - b * sin(angle);
    x[i + DIM / 2] = b * cos(angle) + a * sin(angle);
  }
}

static void attend(const oracle *o, const double *q, const int *seen, int count, double *out) {
  double weight[ROWS], sum = 0;
  memset(out, 0, DIM * sizeof *out);
  for (int i = 0; i < count; i++) {
    double score = 0;
    for (int d = 0; d < DIM; d++) score += q[d] * o->key[seen[i]][d];
    sum += weight[i] = exp(score / 4);
  }
  for (int i = 0; i < count; i++)
    for (int d = 0; d < DIM; d++) out[d] += weight[i] / sum * o->value[seen[i]][d];
}

static void feed(double *x) {
  double normed[EMBED], gate[FFN], up[FFN], down[EMBED];
  norm_of(".post_attention_layernorm.weight", EMBED, x, normed);
  times(".mlp.gate_proj.weight", FFN, EMBED, normed, gate);
  times(".mlp.up_proj.weight", FFN, EMBED, normed, up);
  for (int i = 0; i < FFN; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
  times(".mlp.down_proj.weight", EMBED, FFN, gate, down);
  for (int i = 0; i < EMBED; i++) x[i] += down[i];
}

/* seen: rows of the oracle, the new one last; its position is their number before the window. */
static void oracle_row(oracle *o, int row, int token, const double *state, const int *seen, int count) {
  double x[EMBED], both[2 * EMBED], e[EMBED], q[HEADS * DIM], out[HEADS * DIM], add[EMBED], normed[EMBED];
  memcpy(x, state, sizeof x);
  for (int i = 0; i < EMBED; i++)
    e[i] = o->f->norms ? (double)head_value("embed_tokens.weight", (size_t)(token * EMBED + i))
                       : (double)o->embedding[token * EMBED + i];
  norm_of(".input_layernorm.weight", EMBED, e, both);
  norm_of(".hidden_norm.weight", EMBED, x, both + EMBED);
  if (o->f->norms) memcpy(x, both + EMBED, sizeof x);
  times(".self_attn.q_proj.weight", HEADS * DIM, 2 * EMBED, both, q);
  times(".self_attn.k_proj.weight", DIM, 2 * EMBED, both, o->key[row]);
  times(".self_attn.v_proj.weight", DIM, 2 * EMBED, both, o->value[row]);
  rotate(o->key[row], count - 1);
  int from = o->f->norms && count > WINDOW ? count - WINDOW : 0;
  for (int h = 0; h < HEADS; h++) {
    rotate(q + h * DIM, count - 1);
    attend(o, q + h * DIM, seen + from, count - from, out + h * DIM);
  }
  times(".self_attn.o_proj.weight", EMBED, HEADS * DIM, out, add);
  for (int i = 0; i < EMBED; i++) x[i] += add[i];
  feed(x);
  norm_of("norm.weight", EMBED, x, normed);
  memcpy(o->state[row], o->f->norms ? normed : x, sizeof x);
  times("lm_head.weight", 24, EMBED, normed, o->logit[row]);
}

static void fused(const oracle *o, const float *taps, double *state) {
  double x[TAPS];
  for (int i = 0; i < TAPS; i++) x[i] = (double)taps[i];
  if (o->f->norms) norm_of("input_norm.weight", TAPS, x, x);
  times("fc.weight", EMBED, TAPS, x, state);
}

/* --- the same rows on a device --- */

static const int32_t tokens[ROWS] = {3, 95, 17, 40, 8, 61, 22, 5, 90, 33, 71, 2};

/* A sum of q8 differs much from one in doubles, so that only devices are compared there. */
typedef struct run {
  draft_head *h;
  kv_cache *k;
  float taps[ROWS][TAPS], states[ROWS][EMBED];
  oracle *o; /* or NULL */
  uint8_t out[OUT];
  size_t used;
} run;

static void keep(run *r, const void *from, size_t bytes) {
  assert_true(r->used + bytes <= OUT);
  memcpy(r->out + r->used, from, bytes);
  r->used += bytes;
}

static void assert_about(double got, double expected, const char *what, int row) {
  if (!(fabs(got - expected) <= 2e-4 * (1 + fabs(expected))))
    fail_msg("%s of row %d: %g, not %g", what, row, got, expected);
}

static void check_list(const oracle *o, const ops_ranked *list, int row) {
  assert_int_equal(list->count, RANKED);
  for (int i = 0; i < RANKED; i++) {
    int better = 0, id = (list->list[i].token - 1) / 2; /* token 2 i + 1 is row i */
    assert_int_equal(list->list[i].token % 2, 1);
    assert_in_range(id, 0, 23);
    assert_about((double)list->list[i].value, o->logit[row][id], "logit", row);
    for (int k = 0; k < 24; k++) better += o->logit[row][k] > o->logit[row][id] + 1e-3;
    assert_true(better <= i);
  }
}

static void look_at(run *r, int32_t segment, int32_t at, int row) {
  const float *state = draft_head_state(r->h, segment, at);
  const ops_ranked *list = draft_head_ranked(r->h, segment, at);
  assert_true(state && list);
  memcpy(r->states[row], state, sizeof r->states[row]);
  keep(r, state, EMBED * sizeof *state);
  keep(r, list->list, RANKED * sizeof *list->list);
  if (!r->o) return;
  for (int i = 0; i < EMBED; i++) assert_about((double)state[i], r->o->state[row][i], "state", row);
  check_list(r->o, list, row);
}

static const model_ranking ranking = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = RANKED};

static model_segment rows_of(int32_t seq, model_kind kind, int32_t first, int32_t count) {
  return (model_segment){.seq = seq,
                         .kind = kind,
                         .count = count,
                         .tokens = tokens + first,
                         .all_logits = true,
                         .ranking = &ranking,
                         .shift = 1};
}

static void forward(run *r, const draft_head_segment *s, int32_t count) {
  assert_int_equal(draft_head_forward(r->h, r->k, s, count), ERR_OK);
}

/* What the rows of the walk below should give. */
static void compute_oracle(oracle *o, float taps[ROWS][TAPS]) {
  double state[EMBED];
  static const int paths[][8] = {{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}};
  for (int i = 0; i < FIRST; i++) {
    fused(o, taps[i], state);
    oracle_row(o, i, tokens[i], state, paths[i], i + 1);
  }
  static const int a[] = {0, 1, 2, 3, 4, 5}, b[] = {0, 1, 2, 3, 4, 6}, c[] = {0, 1, 2, 3, 4, 6, 7};
  oracle_row(o, 5, tokens[5], o->state[4], a, 6);
  oracle_row(o, 6, tokens[6], o->state[4], b, 6);
  oracle_row(o, 7, tokens[7], o->state[6], c, 7);
  static const int other[] = {8, 9};
  fused(o, taps[8], state);
  oracle_row(o, 8, tokens[8], state, other, 1);
  oracle_row(o, 9, tokens[9], o->state[8], other, 2);
  static const int again[] = {0, 1, 2, 3, 4, 10};
  fused(o, taps[10], state);
  oracle_row(o, 10, tokens[10], state, again, 6);
}

/* Rows 0 to 4 are appended in two forwards, then the tree 5 6 7 grows while sequence 1 is appended to, and
 * then the tree gives way to row 10. */
static void walk(run *r) {
  int32_t slots[2], roots[] = {-1, -1};
  forward(r, &(draft_head_segment){rows_of(0, MODEL_APPEND, 0, 2), DRAFT_HEAD_TAPS, r->taps[0]}, 1);
  for (int i = 0; i < 2; i++) look_at(r, 0, i, i);
  forward(r, &(draft_head_segment){rows_of(0, MODEL_APPEND, 2, 3), DRAFT_HEAD_TAPS, r->taps[2]}, 1);
  for (int i = 0; i < 3; i++) look_at(r, 0, i, 2 + i);
  memcpy(r->states[5], r->states[4], sizeof r->states[5]);
  memcpy(r->states[6], r->states[4], sizeof r->states[6]);
  assert_int_equal(kv_grow(r->k, 0, roots, 2, slots), ERR_OK);
  draft_head_segment both[] = {{rows_of(0, MODEL_TREE, 5, 2), DRAFT_HEAD_STATES, r->states[5]},
                               {rows_of(1, MODEL_APPEND, 8, 1), DRAFT_HEAD_TAPS, r->taps[8]}};
  both[0].rows.parents = roots;
  forward(r, both, 2);
  for (int i = 0; i < 2; i++) look_at(r, 0, i, 5 + i);
  look_at(r, 1, 0, 8);
  int32_t parent = slots[1];
  assert_int_equal(kv_grow(r->k, 0, &parent, 1, slots), ERR_OK);
  draft_head_segment states[] = {{rows_of(0, MODEL_TREE, 7, 1), DRAFT_HEAD_STATES, r->states[6]},
                                 {rows_of(1, MODEL_APPEND, 9, 1), DRAFT_HEAD_STATES, r->states[8]}};
  states[0].rows.parents = &parent;
  forward(r, states, 2);
  look_at(r, 0, 0, 7);
  look_at(r, 1, 0, 9);
  assert_int_equal(kv_commit(r->k, 0, NULL, 0), ERR_OK);
  forward(r, &(draft_head_segment){rows_of(0, MODEL_APPEND, 10, 1), DRAFT_HEAD_TAPS, r->taps[10]}, 1);
  look_at(r, 0, 0, 10);
}

static void open_run_with(run *r, const files *f, const char *name, ops_math math, head_shares shares) {
  err e = {0};
  uint64_t random = 5;
  const kv_options k = {.sequences = 2, .context = 64, .type = math == OPS_MATH_F32 ? KV_F32 : KV_F16};
  device *d = support_open_device(name, math, 2, NULL);
  *r = (run){0};
  for (size_t i = 0; i < (size_t)ROWS * TAPS; i++)
    r->taps[i / TAPS][i % TAPS] = (float)(random_below(&random, 2001)) / 1000.0f - 1.0f;
  if (draft_head_open(&r->h, f->head, f->target, shares, d, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  if (kv_open(&r->k, d, &draft_head_shape(r->h)->layer, &k, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  for (int32_t i = 0; i < 2; i++) assert_int_equal(kv_acquire(r->k), i);
}

static void open_run(run *r, const files *f, const char *name, ops_math math) {
  open_run_with(r, f, name, math, (head_shares){0});
}

static void close_run(run *r) {
  device *d = kv_device(r->k);
  kv_close(r->k);
  draft_head_close(r->h);
  d->table->close(d);
}

static void run_on(run *r, const files *f, const char *name, ops_math math, oracle *o) {
  open_run(r, f, name, math);
  r->o = o;
  if (o) compute_oracle(o, r->taps);
  walk(r);
  close_run(r);
}

/* --- the tests --- */

static void the_layer_is_the_recipes(void **state) {
  (void)state;
  oracle *o = calloc(1, sizeof *o);
  run *r = malloc(sizeof *r);
  for (int norms = 0; norms < 2; norms++) {
    files f = {0};
    open_files(&f, norms);
    o->f = &f;
    o->embedding = (const float *)(const void *)model_file_tensor(f.target, MODEL_EMBED, 0)->data;
    run_on(r, &f, support_device(), OPS_MATH_F32, o);
    close_files(&f);
  }
  free(r);
  free(o);
}

/* Two sequences with the same rows, in one forward and one by one. Rows that nobody ranks give nothing. */
static void rows_do_not_depend_on_their_forward(void **state) {
  (void)state;
  run *r = malloc(sizeof *r);
  for (int norms = 0; norms < 2; norms++) {
    files f = {0};
    open_files(&f, norms);
    open_run(r, &f, support_device(), OPS_MATH_INT8);
    draft_head_segment s = {rows_of(0, MODEL_APPEND, 0, FIRST), DRAFT_HEAD_TAPS, r->taps[0]};
    s.rows.all_logits = false;
    forward(r, &s, 1);
    assert_null(draft_head_ranked(r->h, 0, 0));
    assert_null(draft_head_state(r->h, 0, 0));
    look_at(r, 0, FIRST - 1, 0);
    for (int i = 0; i < FIRST; i++) {
      s = (draft_head_segment){rows_of(1, MODEL_APPEND, i, 1), DRAFT_HEAD_TAPS, r->taps[i]};
      s.rows.no_logits = i + 1 < FIRST;
      forward(r, &s, 1);
    }
    look_at(r, 0, 0, 1);
    assert_memory_equal(r->out, r->out + r->used / 2, r->used / 2);
    close_run(r);
    close_files(&f);
  }
  free(r);
}

/* A row that sees itself alone has the bits that it has behind no other row. */
static void a_row_sees_its_window(void **state) {
  (void)state;
  run *r = malloc(sizeof *r);
  for (int32_t window = 2; window > 0; window--) {
    files f = {0};
    err e;
    open_files(&f, false);
    assert_int_equal(head_file_narrow(f.head, window, &e), ERR_OK);
    open_run(r, &f, support_device(), OPS_MATH_INT8);
    draft_head_segment s[] = {{rows_of(0, MODEL_APPEND, 0, FIRST), DRAFT_HEAD_TAPS, r->taps[0]},
                              {rows_of(1, MODEL_APPEND, FIRST - 1, 1), DRAFT_HEAD_TAPS, r->taps[FIRST - 1]}};
    s[0].rows.all_logits = false;
    forward(r, s, 2);
    size_t size = (size_t)draft_head_shape(r->h)->layer.embed * sizeof(float);
    int same = memcmp(draft_head_state(r->h, 0, FIRST - 1), draft_head_state(r->h, 1, 0), size);
    assert_int_equal(same == 0, window == 1);
    close_run(r);
    close_files(&f);
  }
  free(r);
}

/* A session that starts cold at position 41 has the noise of position 42, the guess's own. */
static void guesses_have_the_noise_of_their_position(void **state) {
  (void)state;
  enum { SHIFT = 41, COUNT = SAMPLER_RANKED_MAX };
  const model_ranking greedy = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = COUNT};
  model_ranking warm = greedy;
  warm.options.temperature = 1;
  warm.options.seed = 77;
  const noise_source noise = {77, 0, SHIFT + 1};
  run *r = malloc(sizeof *r);
  files f = {0};
  open_files(&f, false);
  open_run(r, &f, support_device(), OPS_MATH_INT8);
  draft_head_segment s[] = {{rows_of(0, MODEL_APPEND, 0, 1), DRAFT_HEAD_TAPS, r->taps[0]},
                            {rows_of(1, MODEL_APPEND, 0, 1), DRAFT_HEAD_TAPS, r->taps[0]}};
  s[0].rows.ranking = &greedy;
  s[1].rows.ranking = &warm;
  s[1].rows.shift = SHIFT;
  forward(r, s, 2);
  const ops_ranked plain = *draft_head_ranked(r->h, 0, 0), noisy = *draft_head_ranked(r->h, 1, 0);
  int32_t compared = 0;
  for (int i = 0; i < plain.count; i++)
    for (int k = 0; k < noisy.count; k++)
      if (plain.list[i].token == noisy.list[k].token) {
        assert_true(noisy.list[k].value == plain.list[i].value + noise_of(&noise, plain.list[i].token));
        compared++;
      }
  assert_true(compared >= 2 * COUNT - 24);
  s[0].rows.tokens = &(int32_t){VOCAB};
  assert_int_equal(draft_head_forward(r->h, r->k, s, 1), ERR_ARG);
  assert_non_null(draft_head_state(r->h, 1, 0)); /* nothing has changed */
  close_run(r);
  close_files(&f);
  free(r);
}

static void devices_give_the_same_bits(void **state) {
  (void)state;
  static const gguf_type types[] = {GGUF_BF16, GGUF_Q8_0, GGUF_Q4_1};
  run *reference = malloc(sizeof *reference), *r = malloc(sizeof *r);
  const char *name;
  for (size_t i = 0; i < 6; i++) {
    files f = {0};
    err e = {0};
    open_files(&f, i % 2);
    if (i / 2 > 0 && head_file_quantise(f.head, types[i / 2], types[i / 2], &e)) fail_msg("%s", e.text);
    for (int math = 0; math < 2; math++) {
      run_on(reference, &f, "cpu:c", (ops_math)math, NULL);
      for (int32_t d = 0; (name = support_device_at(d)); d++) {
        run_on(r, &f, name, (ops_math)math, NULL);
        assert_int_equal(r->used, reference->used);
        assert_memory_equal(r->out, reference->out, r->used);
      }
    }
    close_files(&f);
  }
  free(reference);
  free(r);
}

/* --- outputs that sequences share --- */

enum { COMMON = 16, OUTPUTS = 24 };

static int32_t token_of(int32_t output) {
  return (output * 29 + 5) % VOCAB;
}

static bool is_listed(int32_t token, const int32_t *own, int32_t own_count) {
  for (int32_t i = 0; i < COMMON; i++)
    if (token_of(i) == token) return true;
  for (int32_t i = 0; i < own_count; i++)
    if (token_of(own[i]) == token) return true;
  return false;
}

/* The first of `all` that are common or the sequence's own. */
static void check_shared(const ops_ranked *got, const ops_ranked *all, const int32_t *own,
                         int32_t own_count) {
  int32_t at = 0;
  assert_int_equal(got->count, RANKED);
  for (int32_t i = 0; i < all->count && at < RANKED; i++)
    if (is_listed(all->list[i].token, own, own_count))
      assert_memory_equal(&got->list[at++], &all->list[i], sizeof got->list[0]);
  assert_int_equal(at, RANKED);
}

/* A row of each sequence, by a head with all outputs in common and by one that shares 16. */
static void compare_shared(run *whole, run *part, const int32_t *own, int32_t own_count) {
  model_ranking all = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = SAMPLER_RANKED_MAX};
  for (int round = 0; round < 6; round++) {
    model_ranking few = all;
    few.count = RANKED;
    draft_head_segment s[2];
    for (int32_t i = 0; i < 2; i++)
      s[i] = (draft_head_segment){rows_of(i, MODEL_APPEND, round, 1), DRAFT_HEAD_TAPS,
                                  whole->taps[round + 6 * i]};
    s[0].rows.ranking = s[1].rows.ranking = &all;
    forward(whole, s, 2);
    s[0].rows.ranking = s[1].rows.ranking = &few;
    forward(part, s, 2);
    check_shared(draft_head_ranked(part->h, 0, 0), draft_head_ranked(whole->h, 0, 0), own, own_count);
    check_shared(draft_head_ranked(part->h, 1, 0), draft_head_ranked(whole->h, 1, 0), NULL, 0);
  }
  for (int32_t i = 0; i < 2; i++) {
    kv_rollback(whole->k, i, 0);
    kv_rollback(part->k, i, 0);
  }
}

static void share_on(const files *f, const char *name) {
  static const int32_t own[] = {20, 17, 23, 16, 21};
  const int32_t text[] = {-1,           token_of(20), token_of(3),  VOCAB,        token_of(17),
                          token_of(20), 95,           token_of(23), token_of(16), token_of(21)};
  run *whole = malloc(sizeof *whole), *part = malloc(sizeof *part);
  open_run(whole, f, name, OPS_MATH_INT8);
  open_run_with(part, f, name, OPS_MATH_INT8, (head_shares){COMMON, 2});
  assert_true(draft_head_bytes(part->h) < draft_head_bytes(whole->h));
  compare_shared(whole, part, NULL, 0);
  draft_head_add_text(part->h, 0, text, 4);
  compare_shared(whole, part, own, 1);
  draft_head_add_text(part->h, 0, text + 4, 6);
  compare_shared(whole, part, own, 5);
  draft_head_clear_text(part->h, 0);
  compare_shared(whole, part, NULL, 0);
  close_run(whole);
  close_run(part);
  free(whole);
  free(part);
}

/* The noise chooses rare tokens, too: a sampled row is ranked by all outputs, a greedy one beside it is not.
 */
static void a_sampled_row_is_ranked_by_all_outputs(void **state) {
  (void)state;
  const char *name;
  int64_t ids[OUTPUTS];
  files f = {0};
  for (int32_t i = 0; i < OUTPUTS; i++) ids[i] = token_of(i) - i;
  open_files_with(&f, false, ids);
  for (int32_t d = 0; (name = support_device_at(d)); d++) {
    run *whole = malloc(sizeof *whole), *part = malloc(sizeof *part);
    open_run(whole, &f, name, OPS_MATH_INT8);
    open_run_with(part, &f, name, OPS_MATH_INT8, (head_shares){COMMON, 2});
    const model_ranking greedy = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = SAMPLER_RANKED_MAX};
    model_ranking sampled = greedy;
    sampled.options.temperature = 1;
    for (int round = 0, count = RANKED; round < 6; round++) {
      draft_head_segment s[2];
      for (int32_t i = 0; i < 2; i++) {
        s[i] = (draft_head_segment){rows_of(i, MODEL_APPEND, round, 1), DRAFT_HEAD_TAPS,
                                    whole->taps[round + 6 * i]};
        s[i].rows.ranking = i == 0 ? &sampled : &greedy;
      }
      forward(whole, s, 2);
      forward(part, s, 2);
      const ops_ranked *got = draft_head_ranked(part->h, 0, 0), *all = draft_head_ranked(whole->h, 0, 0);
      assert_int_equal(got->count, all->count);
      assert_memory_equal(got->list, all->list, (size_t)all->count * sizeof all->list[0]);
      ops_ranked few = *draft_head_ranked(part->h, 1, 0);
      few.count = count;
      check_shared(&few, draft_head_ranked(whole->h, 1, 0), NULL, 0);
    }
    close_run(whole);
    close_run(part);
    free(whole);
    free(part);
  }
  close_files(&f);
}

static void a_sequence_is_ranked_by_common_outputs_and_by_those_of_its_text(void **state) {
  (void)state;
  static const gguf_type types[] = {GGUF_F32, GGUF_Q8_0, GGUF_Q4_1};
  int64_t ids[OUTPUTS];
  const char *name;
  for (int32_t i = 0; i < OUTPUTS; i++) ids[i] = token_of(i) - i;
  for (size_t t = 0; t < 3; t++) {
    files f = {0};
    err e = {0};
    open_files_with(&f, false, ids);
    if (t > 0 && head_file_quantise(f.head, types[t], types[t], &e)) fail_msg("%s", e.text);
    for (int32_t d = 0; (name = support_device_at(d)); d++) share_on(&f, name);
    close_files(&f);
  }
}

/* Such a vocabulary has no order of frequency. */
static void a_vocabulary_that_ascends_is_common_as_a_whole(void **state) {
  (void)state;
  run *r = malloc(sizeof *r), *all = malloc(sizeof *all);
  files f = {0};
  open_files(&f, false);
  open_run(all, &f, support_device(), OPS_MATH_INT8);
  open_run_with(r, &f, support_device(), OPS_MATH_INT8, (head_shares){COMMON, 2});
  assert_int_equal(draft_head_bytes(r->h), draft_head_bytes(all->h));
  close_run(r);
  close_run(all);
  close_files(&f);
  free(r);
  free(all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_layer_is_the_recipes),
      cmocka_unit_test(rows_do_not_depend_on_their_forward),
      cmocka_unit_test(a_row_sees_its_window),
      cmocka_unit_test(guesses_have_the_noise_of_their_position),
      cmocka_unit_test(devices_give_the_same_bits),
      cmocka_unit_test(a_sequence_is_ranked_by_common_outputs_and_by_those_of_its_text),
      cmocka_unit_test(a_sampled_row_is_ranked_by_all_outputs),
      cmocka_unit_test(a_vocabulary_that_ascends_is_common_as_a_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
