/* libs: model : far emulated */
/* fc at the target: what a head makes of its rows is what it makes of the states themselves, to the bit. */
#include "common/model/fusion.h"
#include "common/model/draft_head.h"
#include "common/model/warmup.h"
#include "tests/support/head_target.h"
#include "tests/support/random.h"

#include <math.h>

enum { EMBED = 32, TAPS = 2 * SUPPORT_TINY_EMBED, ROWS = FUSION_ROWS_MAX, USED = 5, RANKED = 3 };

static const head_shape SHAPE = {EMBED, SUPPORT_TINY_EMBED,     2,  1,      16,
                                 64,    HEAD_TARGET_VOCABULARY, 24, {0, 2}, 2};

typedef struct setup {
  head_target_files target;
  folder folder;
  head_file *file;
  device *device;
  draft_head *head;
  kv_cache *kv;
  fusion *fusion;
  float states[ROWS][TAPS], fused[ROWS][EMBED];
} setup;

static const char with_norm[] =
    "{\"speculators_model_type\":\"eagle3\",\"architectures\":[\"Eagle3Speculator\"],\"draft_vocab_size\":24,"
    "\"norm_before_fc\":true,\"eagle_aux_hidden_state_layer_ids\":[0,2],\"target_hidden_size\":96,"
    "\"transformer_layer_config\":{\"model_type\":\"llama\",\"hidden_size\":32,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":64,\"vocab_size\":%d,"
    "\"num_hidden_layers\":1,\"rms_norm_eps\":1e-05,\"rope_theta\":100000.0,"
    "\"max_position_embeddings\":64,\"hidden_act\":\"silu\"}}";

static void open_file(setup *s, bool norm) {
  head_builder *b = calloc(1, sizeof *b);
  char text[1024];
  err e = {0};
  s->target = head_target_open(0);
  b->prefix = norm ? "layers.0" : "midlayer";
  head_weights(b, "embed_tokens.weight", HEAD_TARGET_VOCABULARY, EMBED);
  if (norm) head_weights(b, "input_norm.weight", 0, TAPS);
  s->folder = head_folder(b, &SHAPE, "");
  snprintf(text, sizeof text, with_norm, HEAD_TARGET_VOCABULARY);
  if (norm) folder_put_text(&s->folder, "config.json", text);
  if (head_file_open(&s->file, s->folder.path, model_file_config(s->target.file), &e)) fail_msg("%s", e.text);
  assert_int_equal(head_file_config(s->file)->norm_before_fc, norm);
  free(b);
}

static setup *open_setup(bool norm, gguf_type type) {
  setup *s = calloc(1, sizeof *s);
  uint64_t random = 5;
  const kv_options k = {.sequences = 2, .context = 64, .type = KV_F16};
  err e = {0};
  open_file(s, norm);
  if (head_file_settle(s->file, type, &e)) fail_msg("%s", e.text);
  s->device = support_open_device(support_device(), OPS_MATH_INT8, 2, NULL);
  if (draft_head_open(&s->head, s->file, s->target.file, (head_shares){0}, s->device, NULL, &e))
    fail_msg("%s", e.text);
  if (kv_open(&s->kv, s->device, &draft_head_shape(s->head)->layer, &k, NULL, &e)) fail_msg("%s", e.text);
  if (fusion_open(&s->fusion, s->file, s->device, NULL, &e)) fail_msg("%s", e.text);
  for (size_t i = 0; i < (size_t)ROWS * TAPS; i++)
    s->states[i / TAPS][i % TAPS] = (float)(random_below(&random, 2001)) / 1000.0f - 1.0f;
  for (int32_t i = 0; i < 2; i++) assert_int_equal(kv_acquire(s->kv), i);
  return s;
}

static void close_setup(setup *s) {
  kv_close(s->kv);
  draft_head_close(s->head);
  fusion_close(s->fusion);
  s->device->table->close(s->device);
  head_file_close(s->file);
  folder_remove(&s->folder);
  head_target_close(&s->target);
  free(s);
}

static void fuse(setup *s, int32_t count) {
  assert_int_equal(fusion_run(s->fusion, s->states[0], count), ERR_OK);
  for (int32_t i = 0; i < count; i++) {
    const float *row = fusion_row(s->fusion, i);
    assert_non_null(row);
    memcpy(s->fused[i], row, sizeof s->fused[i]);
  }
}

/* The head's states and lists of five rows, as one block of bytes. */
static size_t guess(setup *s, int32_t seq, draft_head_input input, const float *values, uint8_t *out) {
  static const int32_t tokens[USED] = {3, 95, 17, 40, 8};
  const model_ranking ranking = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = RANKED};
  const draft_head_segment rows = {.rows = {.seq = seq,
                                            .kind = MODEL_APPEND,
                                            .count = USED,
                                            .tokens = tokens,
                                            .all_logits = true,
                                            .ranking = &ranking},
                                   .input = input,
                                   .values = values};
  size_t used = 0;
  assert_int_equal(draft_head_forward(s->head, s->kv, &rows, 1), ERR_OK);
  for (int32_t i = 0; i < USED; i++) {
    const ops_ranked *list = draft_head_ranked(s->head, 0, i);
    const float *state = draft_head_state(s->head, 0, i);
    assert_true(list && state && list->count == RANKED);
    memcpy(out + used, state, EMBED * sizeof *state);
    used += EMBED * sizeof *state;
    memcpy(out + used, list->list, RANKED * sizeof *list->list);
    used += RANKED * sizeof *list->list;
  }
  return used;
}

static void check_head(bool norm, gguf_type type) {
  static uint8_t raw[1 << 14], fused[1 << 14];
  setup *s = open_setup(norm, type);
  assert_int_equal(fusion_columns(s->fusion), TAPS);
  assert_int_equal(fusion_width(s->fusion), EMBED);
  fuse(s, USED);
  size_t size = guess(s, 0, DRAFT_HEAD_TAPS, s->states[0], raw);
  assert_int_equal(guess(s, 1, DRAFT_HEAD_STATES, s->fused[0], fused), size);
  assert_memory_equal(fused, raw, size);
  close_setup(s);
}

static void a_head_guesses_from_fused_rows_what_it_guesses_from_states(void **state) {
  (void)state;
  static const gguf_type types[] = {GGUF_Q8_0, GGUF_Q4_1, GGUF_BF16};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    check_head(false, types[i]);
    check_head(true, types[i]);
  }
}

static void a_row_does_not_depend_on_the_others(void **state) {
  (void)state;
  setup *s = open_setup(true, GGUF_Q8_0);
  fuse(s, ROWS);
  for (int32_t i = 0; i < ROWS; i += 31) {
    assert_int_equal(fusion_run(s->fusion, s->states[i], 1), ERR_OK);
    assert_memory_equal(fusion_row(s->fusion, 0), s->fused[i], sizeof s->fused[i]);
  }
  assert_memory_not_equal(s->fused[0], s->fused[1], sizeof s->fused[0]);
  close_setup(s);
}

typedef struct fused_model {
  gguf_builder bytes;
  model_file *file;
  model *model;
  kv_cache *kv;
} fused_model;

static void open_model(fused_model *m, setup *s) {
  const kv_options k = {.sequences = 2, .context = 64, .type = KV_F16};
  err e = {0};
  m->file = support_tiny_file(&m->bytes);
  if (model_open(&m->model, m->file, s->device, &(model_options){0}, NULL, &e)) fail_msg("%s", e.text);
  if (kv_open(&m->kv, s->device, model_shape(m->model), &k, NULL, &e)) fail_msg("%s", e.text);
  for (int32_t i = 0; i < 2; i++) assert_int_equal(kv_acquire(m->kv), i);
}

/* The taps of the first segment's rows, side by side. */
static void keep_taps(setup *s, const model *m, const int32_t *taps) {
  for (int32_t row = 0; row < USED; row++)
    for (int32_t i = 0; i < 2; i++)
      memcpy(s->states[row] + i * SUPPORT_TINY_EMBED, model_tapped(m, 0, row, taps[i]),
             SUPPORT_TINY_EMBED * sizeof(float));
}

static void check_near(const setup *s, float got[USED][EMBED]) {
  for (int32_t row = 0; row < USED; row++) {
    float most = 0;
    for (int32_t i = 0; i < EMBED; i++) most = fmaxf(most, fabsf(s->fused[row][i]));
    for (int32_t i = 0; i < EMBED; i++) assert_true(fabsf(got[row][i] - s->fused[row][i]) <= 1e-5f * most);
  }
}

/* One sequence's taps are kept, and another's are fused, in one forward or each in its own: the rows of fc
 * are those that it makes of the taps, but for the order of a sum. */
static void a_forward_fuses_its_own_taps(void **state) {
  (void)state;
  static const int32_t tokens[USED] = {3, 95, 17, 40, 8}, taps[] = {0, 2}, wrong[] = {0, 1};
  setup *s = open_setup(false, GGUF_Q8_0);
  fused_model m;
  open_model(&m, s);
  model_segment raw = {.seq = 0, .count = USED, .tokens = tokens, .taps = taps, .tap_count = 2};
  model_segment both[] = {raw, raw};
  float got[USED][EMBED];
  both[1].seq = 1;
  both[1].fused = true;
  assert_int_equal(model_forward(m.model, m.kv, &both[1], 1), ERR_ARG); /* there is no fc yet */
  bool parts = fusion_parts(s->fusion) != NULL;
  assert_int_equal(parts, s->device->prepares);
  assert_int_equal(model_fuse(m.model, s->fusion), parts ? ERR_OK : ERR_UNSUPPORTED);
  for (int32_t alone = 0; parts && alone < 2; alone++) {
    assert_int_equal(model_forward(m.model, m.kv, both, 2 - alone), ERR_OK);
    assert_null(model_tapped(m.model, 1, 0, 1));
    keep_taps(s, m.model, taps);
    if (alone) assert_null(model_fused(m.model, 0, 0));
    if (alone) assert_int_equal(model_forward(m.model, m.kv, &both[1], 1), ERR_OK);
    for (int32_t row = 0; row < USED; row++)
      memcpy(got[row], model_fused(m.model, !alone, row), sizeof got[row]);
    fuse(s, USED);
    check_near(s, got);
    assert_memory_not_equal(got[0], got[1], sizeof got[0]);
  }
  both[1].taps = wrong;
  assert_int_equal(model_forward(m.model, m.kv, &both[1], 1), ERR_ARG);
  kv_close(m.kv);
  model_close(m.model);
  model_file_close(m.file);
  gb_free(&m.bytes);
  close_setup(s);
}

/* Of a head, in both forms of its rows, and of fc; where the device has nothing to prepare, nothing is
 * computed. */
static void a_warmup_leaves_no_rows(void **state) {
  (void)state;
  setup *s = open_setup(false, GGUF_Q8_0);
  const model_ranking ranking = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = RANKED};
  const model_segment append = {.shift = 1, .ranking = &ranking},
                      tree = {.kind = MODEL_TREE, .shift = 1, .all_logits = true, .ranking = &ranking};
  const warmup_head_form forms[] = {{{.rows = append, .input = DRAFT_HEAD_TAPS}, 8, 1},
                                    {{.rows = tree, .input = DRAFT_HEAD_STATES}, 5, 1}};
  bool prepares = s->device->prepares;
  uint64_t rows = s->device->counters.rows;
  s->device->prepares = false;
  warmup_head(s->head, s->kv, 1, forms, 2);
  warmup_fusion(s->fusion);
  assert_int_equal(s->device->counters.rows, rows);
  s->device->prepares = true;
  warmup_head(s->head, s->kv, 1, forms, 2);
  warmup_fusion(s->fusion);
  assert_int_equal(kv_length(s->kv, 1), 0);
  assert_int_equal(kv_parent(s->kv, 1, 0), KV_SLOT_FREE);
  int32_t once = (8 + 4 + 2 + 1) + (5 + 4 + 2 + 1) + 2 * FUSION_ROWS_MAX - 1;
  if (!prepares) assert_int_equal(s->device->counters.rows - rows, once);
  close_setup(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_head_guesses_from_fused_rows_what_it_guesses_from_states),
      cmocka_unit_test(a_row_does_not_depend_on_the_others),
      cmocka_unit_test(a_forward_fuses_its_own_taps),
      cmocka_unit_test(a_warmup_leaves_no_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
