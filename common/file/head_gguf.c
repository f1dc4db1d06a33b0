#include "common/file/head_gguf.h"
#include "common/file/gguf_writer.h"
#include "common/file/rotary_rows.h"
#include "common/file/tensor_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TURN 6.283185307179586 /* 2 pi */

enum { QUANTISATION_VERSION = 2, COPIES_MAX = HEAD_ROLE_COUNT + 1 };

typedef struct output {
  const head_file *head;
  gguf_writer *writer;
  void *copies[COPIES_MAX]; /* data that stands in no file; to be freed */
  int copy_count;
} output;

/* NULL: no memory. */
static void *take_copy(output *o, size_t bytes) {
  void *p = malloc(bytes);
  if (p) o->copies[o->copy_count++] = p;
  return p;
}

/* ---- keys ---- */

/* llama.cpp's number of the type that most tensors have. */
static uint32_t file_type(gguf_type type) {
  switch (type) {
  case GGUF_F32:
    return 0;
  case GGUF_F16:
    return 1;
  case GGUF_Q4_1:
    return 3;
  case GGUF_Q8_0:
    return 7;
  case GGUF_BF16:
    return 32;
  default:
    return 1024; /* guessed from the tensors */
  }
}

static void write_general(output *o) {
  gguf_writer *w = o->writer;
  gguf_write_text(w, "general.architecture", "eagle3");
  gguf_write_text(w, "general.type", "model");
  gguf_write_text(w, "general.name", "EAGLE-3 draft head");
  gguf_write_u32(w, "general.file_type", file_type(head_file_tensor(o->head, HEAD_Q)->type));
  gguf_write_u32(w, "general.quantization_version", QUANTISATION_VERSION);
}

static void write_layer(output *o) {
  const model_config *c = &head_file_config(o->head)->layer;
  const struct {
    const char *key;
    int32_t value;
  } rows[] = {
      {"eagle3.block_count", 1},
      {"eagle3.context_length", c->context},
      {"eagle3.embedding_length", c->embed},
      {"eagle3.feed_forward_length", c->ffn},
      {"eagle3.attention.head_count", c->heads},
      {"eagle3.attention.head_count_kv", c->kv_heads},
      {"eagle3.attention.key_length", c->head_dim},
      {"eagle3.attention.value_length", c->head_dim},
      {"eagle3.rope.dimension_count", c->rope_dim},
      {"eagle3.vocab_size", c->vocab},
      {"eagle3.target_hidden_size", head_file_config(o->head)->target_embed},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    gguf_write_u32(o->writer, rows[i].key, (uint32_t)rows[i].value);
  if (c->window[0]) gguf_write_u32(o->writer, "eagle3.attention.sliding_window", (uint32_t)c->window[0]);
  gguf_write_f32(o->writer, "eagle3.attention.layer_norm_rms_epsilon", c->norm_eps);
  gguf_write_f32(o->writer, "eagle3.rope.freq_base", c->rope_base);
}

static void write_head(output *o) {
  const head_config *c = head_file_config(o->head);
  gguf_write_i32s(o->writer, "eagle3.target_layers", c->taps, (uint64_t)c->tap_count);
  gguf_write_bool(o->writer, "eagle3.norm_before_fc", c->norm_before_fc);
  gguf_write_bool(o->writer, "eagle3.norm_before_residual", c->norm_before_residual);
  /* Keys of our own. */
  if (c->norm_output) gguf_write_bool(o->writer, "eagle3.norm_output", true);
  if (c->horizon) gguf_write_u32(o->writer, "eagle3.horizon", (uint32_t)c->horizon);
  head_calibration_write(&c->calibration, o->writer);
}

static void write_map(output *o) {
  const gguf_tensor *t = head_file_map(o->head);
  if (t) gguf_write_u16s(o->writer, t->name, t->data, (uint64_t)(t->shape[0] * t->shape[1]));
}

static void write_tokenizer(output *o, const gguf *target) {
  static const char prefix[] = "tokenizer.";
  gguf_string key, value;
  for (size_t i = 0; gguf_key_at(target, i, &key, &value); i++)
    if (key.size >= sizeof prefix - 1 && memcmp(key.data, prefix, sizeof prefix - 1) == 0)
      gguf_write_value(o->writer, key, value);
}

/* ---- rotary scaling ---- */

/* What a GGUF divides the frequency of pair i by for the scaling that config.json calls llama3. */
static float llama3_factor(const model_config *c, int32_t i) {
  const model_rope_scaling *s = &c->scaling;
  double wave = TURN * pow(c->rope_base, 2.0 * i / c->rope_dim), turns = s->original / wave;
  if (turns > s->high) return 1;
  if (turns < s->low) return s->factor;
  double smooth = (turns - s->low) / (s->high - s->low);
  return (float)(1 / ((1 - smooth) / s->factor + smooth));
}

static int write_factors(output *o, err *e) {
  const model_config *c = &head_file_config(o->head)->layer;
  int32_t count = c->rope_dim / 2;
  float *factors = take_copy(o, (size_t)count * sizeof *factors);
  if (!factors) return err_set(e, ERR_NOMEM, "out of memory for the rotary factors");
  for (int32_t i = 0; i < count; i++) factors[i] = llama3_factor(c, i);
  gguf_write_tensor(o->writer, &(gguf_tensor){.name = head_role_name(HEAD_ROPE_FACTORS),
                                              .type = GGUF_F32,
                                              .dims = 1,
                                              .shape = {count, 1, 1, 1},
                                              .data = factors,
                                              .bytes = (size_t)count * sizeof *factors});
  return ERR_OK;
}

static int write_scaling(output *o, err *e) {
  const model_rope_scaling *s = &head_file_config(o->head)->layer.scaling;
  if (s->kind == ROPE_LLAMA3) return write_factors(o, e);
  if (s->kind == ROPE_YARN)
    return err_set(
        e, ERR_UNSUPPORTED,
        "the draft head's rotary embedding is scaled by yarn, which is not written here: use the head "
        "as it is");
  if (s->kind == ROPE_PLAIN) return ERR_OK;
  gguf_write_text(o->writer, "eagle3.rope.scaling.type", "linear");
  gguf_write_f32(o->writer, "eagle3.rope.scaling.factor", s->factor);
  return ERR_OK;
}

/* ---- tensors ---- */

/* A vector becomes F32, and queries' and keys' rows interleaved, in a copy. False: no memory. */
static bool prepare(output *o, head_role role, gguf_tensor *t) {
  bool vector = t->shape[1] == 1;
  if (!vector && !(head_file_config(o->head)->layer.half_split && (role == HEAD_Q || role == HEAD_K)))
    return true;
  size_t bytes = vector ? (size_t)t->shape[0] * sizeof(float) : t->bytes;
  void *data = take_copy(o, bytes);
  if (!data) return false;
  if (vector) {
    tensor_values(t->type, t->data, 0, (size_t)t->shape[0], data);
    t->type = GGUF_F32;
  } else {
    rotary_rows_interleave(&head_file_config(o->head)->layer, t, data);
  }
  t->data = data;
  t->bytes = bytes;
  return true;
}

static int write_role(output *o, head_role role, err *e) {
  const gguf_tensor *from = head_file_tensor(o->head, role);
  if (!from) return ERR_OK;
  gguf_tensor t = *from;
  if (!prepare(o, role, &t)) return err_set(e, ERR_NOMEM, "out of memory for tensor %s", t.name);
  t.name = head_role_name(role);
  gguf_write_tensor(o->writer, &t);
  return ERR_OK;
}

static int write_ids(output *o, err *e) {
  int32_t count = head_file_config(o->head)->draft_vocab;
  const int32_t *from = head_file_ids(o->head);
  if (!from) return ERR_OK;
  int64_t *ids = take_copy(o, (size_t)count * sizeof *ids);
  if (!ids) return err_set(e, ERR_NOMEM, "out of memory for the draft vocabulary");
  for (int32_t i = 0; i < count; i++) ids[i] = from[i];
  gguf_write_tensor(o->writer, &(gguf_tensor){.name = HEAD_IDS_NAME,
                                              .type = GGUF_I64,
                                              .dims = 1,
                                              .shape = {count, 1, 1, 1},
                                              .data = ids,
                                              .bytes = (size_t)count * sizeof *ids});
  return ERR_OK;
}

static int write_all(output *o, const gguf *target, const char *path, err *e) {
  write_general(o);
  write_layer(o);
  write_head(o);
  write_map(o);
  write_tokenizer(o, target);
  int rc = write_scaling(o, e);
  for (head_role role = 0; !rc && role < HEAD_ROLE_COUNT; role++) rc = write_role(o, role, e);
  if (!rc) rc = write_ids(o, e);
  return rc ? rc : gguf_writer_save(o->writer, path, e);
}

int head_gguf_write(const head_file *h, const gguf *target, const char *path, err *e) {
  output o = {.head = h, .writer = gguf_writer_alloc()};
  int rc = o.writer ? write_all(&o, target, path, e) : err_set(e, ERR_NOMEM, "out of memory");
  for (int i = 0; i < o.copy_count; i++) free(o.copies[i]);
  gguf_writer_free(o.writer);
  return rc;
}
