#include "common/file/synthetic.h"
#include "common/base/rng.h"
#include "common/file/quantise.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#define PREFIX        "synth:"
#define MIXTURE       "Q4_K_M"
#define PAGE          4096
#define PATTERN_BYTES ((size_t)8 << 20) /* at least, of each type */
#define WEIGHT        0.02              /* about the standard deviation of all weights */
#define PLAIN_MAX     0.035             /* of plain types, uniform: the same deviation */

/* --- the models --- */

/* layers: that are there, of `whole`. scaling: the factor of Llama 3's rotary embedding, or 0. Source: the
 * models' config.json. */
static const struct model_row {
  const char *name, *architecture;
  int32_t whole, layers, hidden, inner, heads, kv_heads, vocabulary, context;
  double eps, rope, scaling;
  bool tied;
} MODELS[] = {
    {"qwen2.5-1.5b", "qwen2", 28, 28, 1536, 8960, 12, 2, 151936, 32768, 1e-6, 1e6, 0, true},
    {"llama-3.2-1b", "llama", 16, 16, 2048, 8192, 32, 8, 128256, 131072, 1e-5, 5e5, 32, true},
    {"llama-3.1-8b", "llama", 32, 32, 4096, 14336, 32, 8, 128256, 131072, 1e-5, 5e5, 8, false},
    {"70b-quarter", "llama", 80, 20, 8192, 28672, 64, 8, 128256, 131072, 1e-5, 5e5, 8, false},
};

static json_t *config_of(const struct model_row *m) {
  json_t *c = json_pack(
      "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b}", "model_type", m->architecture, "hidden_size",
      m->hidden, "intermediate_size", m->inner, "num_hidden_layers", m->layers, "num_attention_heads",
      m->heads, "num_key_value_heads", m->kv_heads, "vocab_size", m->vocabulary, "max_position_embeddings",
      m->context, "rms_norm_eps", m->eps, "rope_theta", m->rope, "tie_word_embeddings", m->tied);
  if (m->scaling > 0)
    json_object_set_new(c, "rope_scaling",
                        json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", m->scaling,
                                  "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                                  "original_max_position_embeddings", 8192));
  return c;
}

/* --- the types --- */

enum { NOWHERE = -1 };

/* Of a block of random bytes, the scale and what stands beside it, so that the weights' mean is about zero
 * and their deviation WEIGHT: a weight is scale * (a number of so much deviation), and the numbers of types
 * with minima have a mean that the minimum takes away. Source of the layouts: ggml-common.h. */
static const struct type_row {
  gguf_type type;
  int32_t scale_at, minimum_at;
  double deviation, mean;
} TYPES[] = {
    {GGUF_F32, NOWHERE, NOWHERE, 0, 0},  {GGUF_F16, NOWHERE, NOWHERE, 0, 0},
    {GGUF_BF16, NOWHERE, NOWHERE, 0, 0}, {GGUF_Q4_0, 0, NOWHERE, 4.6, 0},
    {GGUF_Q4_1, 0, 2, 4.6, -7.5},        {GGUF_Q5_0, 0, NOWHERE, 9.2, 0},
    {GGUF_Q5_1, 0, 2, 9.2, -15.5},       {GGUF_Q8_0, 0, NOWHERE, 74, 0},
    {GGUF_IQ4_NL, 0, NOWHERE, 65, 0},    {GGUF_Q2_K, 80, 82, 14, 1.5},
    {GGUF_Q3_K, 108, NOWHERE, 43, 0},    {GGUF_Q4_K, 0, 2, 240, 7.5},
    {GGUF_Q5_K, 0, 2, 490, 15.5},        {GGUF_Q6_K, 208, NOWHERE, 1370, 0},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

typedef struct pattern { /* whole blocks and whole pages of a type */
  int fd;
  size_t bytes; /* 0: not made yet */
} pattern;

typedef struct made { /* a tensor */
  gguf_tensor tensor;
  char name[96];
  void *memory;
  size_t mapped;
  struct made *next;
} made;

struct synthetic {
  json_t *config;
  hash16 hash;
  uint32_t seed;
  int32_t layers;              /* of the whole model */
  const struct type_row *type; /* NULL: the mixture */
  pattern patterns[TYPE_COUNT];
  made *tensors;
};

static const struct type_row *type_row_of(gguf_type type) {
  for (int32_t i = 0; i < TYPE_COUNT; i++)
    if (TYPES[i].type == type) return &TYPES[i];
  return NULL;
}

/* llama.cpp's mixture: the outer eighths of the layers, and every third one between them. */
static bool is_finer(int32_t layer, int32_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static const struct type_row *type_of(const synthetic *s, synthetic_kind kind, int32_t layer) {
  if (kind == SYNTHETIC_NORM || kind == SYNTHETIC_BIAS) return type_row_of(GGUF_F32);
  if (s->type) return s->type;
  const bool finer = kind == SYNTHETIC_OUTPUT || (kind == SYNTHETIC_FINE && is_finer(layer, s->layers));
  return type_row_of(finer ? GGUF_Q6_K : GGUF_Q4_K);
}

/* --- the weights --- */

static void put_half(uint8_t *at, double value) {
  const float v = (float)value;
  quantise(GGUF_F16, &v, 1, at);
}

/* The scales of blocks of random bytes. */
static void put_scales(const struct type_row *t, uint8_t *data, size_t bytes) {
  const double scale = WEIGHT / t->deviation;
  const int32_t each = gguf_type_bytes(t->type);
  for (uint8_t *block = data; block < data + bytes; block += each) {
    put_half(block + t->scale_at, scale);
    if (t->minimum_at != NOWHERE) put_half(block + t->minimum_at, scale * t->mean);
  }
}

/* Random words become numbers, in place: no type has more bytes than a word. */
static void put_numbers(const struct type_row *t, uint32_t *words, size_t count) {
  const size_t each = (size_t)gguf_type_bytes(t->type);
  for (size_t i = 0; i < count; i++) {
    const float v = (float)(PLAIN_MAX * (2.0 * (double)philox_unit(words[i]) - 1.0));
    quantise(t->type, &v, 1, (uint8_t *)words + i * each);
  }
}

static void fill(const struct type_row *t, uint32_t seed, void *data, size_t bytes) {
  const uint32_t counter[4] = {0, 0, 0, 0}, key[2] = {seed, (uint32_t)t->type};
  const bool plain = t->scale_at == NOWHERE;
  const size_t words = bytes / (plain ? (size_t)gguf_type_bytes(t->type) : sizeof(uint32_t));
  philox_run(counter, key, (int32_t)(words / 4), data);
  if (plain)
    put_numbers(t, data, words);
  else
    put_scales(t, data, bytes);
}

static size_t common_multiple(size_t a, size_t b) {
  size_t x = a, y = b;
  while (y) {
    const size_t rest = x % y;
    x = y;
    y = rest;
  }
  return a / x * b;
}

static int out_of_memory(err *e) {
  return err_set(e, ERR_NOMEM, "no memory for synthetic weights: %s", strerror(errno));
}

/* Plain numbers are made of words, which may need more room than they. */
static int make_pattern(pattern *p, const struct type_row *t, uint32_t seed, err *e) {
  const size_t step = common_multiple(PAGE, (size_t)gguf_type_bytes(t->type)),
               bytes = (PATTERN_BYTES + step - 1) / step * step, room = bytes * sizeof(uint32_t);
  const int fd = memfd_create("tandem-synthetic", MFD_CLOEXEC);
  if (fd < 0) return out_of_memory(e);
  void *data = MAP_FAILED;
  if (ftruncate(fd, (off_t)room) == 0) data = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    close(fd);
    return out_of_memory(e);
  }
  fill(t, seed, data, bytes);
  munmap(data, room);
  *p = (pattern){fd, bytes};
  return ERR_OK;
}

/* The pattern again and again over whole pages [at, at + bytes), from page `from` on. */
static bool map_pattern(const pattern *p, uint8_t *at, size_t bytes, size_t from) {
  for (size_t done = 0, n; done < bytes; done += n, from = 0) {
    n = p->bytes - from < bytes - done ? p->bytes - from : bytes - done;
    if (mmap(at + done, n, PROT_READ, MAP_SHARED | MAP_FIXED, p->fd, (off_t)from) == MAP_FAILED) return false;
  }
  return true;
}

/* A tensor begins with a block of the pattern that its name chooses, so that two of one shape most likely
 * differ. */
static int map_weights(synthetic *s, const struct type_row *t, made *m, err *e) {
  pattern *p = &s->patterns[t - TYPES];
  int rc = p->bytes ? ERR_OK : make_pattern(p, t, s->seed, e);
  if (rc != ERR_OK) return rc;
  const hash16 h = hash_bytes(m->name, strlen(m->name));
  const size_t number = (size_t)h.bytes[0] << 16 | (size_t)h.bytes[1] << 8 | h.bytes[2],
               each = (size_t)gguf_type_bytes(t->type), first = number % (p->bytes / each) * each;
  m->tensor.data = (uint8_t *)m->memory + first % PAGE;
  return map_pattern(p, m->memory, m->mapped, first / PAGE * PAGE) ? ERR_OK : out_of_memory(e);
}

static int fill_tensor(synthetic *s, const struct type_row *t, synthetic_kind kind, made *m, err *e) {
  m->mapped = m->tensor.bytes / PAGE * PAGE + 2 * PAGE; /* wherever in its first page it begins */
  m->memory =
      mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m->memory == MAP_FAILED) {
    m->memory = NULL;
    return out_of_memory(e);
  }
  m->tensor.data = m->memory;
  if (kind != SYNTHETIC_NORM && kind != SYNTHETIC_BIAS) return map_weights(s, t, m, e);
  float *values = m->memory;
  for (size_t i = 0; kind == SYNTHETIC_NORM && i < m->tensor.bytes / sizeof *values; i++) values[i] = 1.0f;
  return ERR_OK;
}

static void free_tensor(made *m) {
  if (m->memory) munmap(m->memory, m->mapped);
  free(m);
}

const gguf_tensor *synthetic_tensor(synthetic *s, const char *name, synthetic_kind kind, int32_t layer,
                                    int64_t columns, int64_t rows, err *e) {
  const struct type_row *t = type_of(s, kind, layer);
  const int64_t count = columns * (rows ? rows : 1), block = gguf_type_block(t->type);
  made *m = calloc(1, sizeof *m);
  if (!m) {
    err_set(e, ERR_NOMEM, "out of memory for synthetic weights");
    return NULL;
  }
  snprintf(m->name, sizeof m->name, "%s", name);
  m->tensor = (gguf_tensor){.name = m->name,
                            .type = t->type,
                            .dims = rows ? 2 : 1,
                            .shape = {columns, rows ? rows : 1, 1, 1},
                            .bytes = (size_t)(count / block * gguf_type_bytes(t->type))};
  int rc = columns % block == 0
               ? fill_tensor(s, t, kind, m, e)
               : err_set(e, ERR_ARG, "tensor %s has rows of %lld weights, which %s cannot hold", name,
                         (long long)columns, gguf_type_name(t->type));
  if (rc != ERR_OK) {
    free_tensor(m);
    return NULL;
  }
  m->next = s->tensors;
  s->tensors = m;
  return &m->tensor;
}

/* --- the name --- */

bool synthetic_is(const char *name) {
  return strncmp(name, PREFIX, sizeof PREFIX - 1) == 0;
}

/* The part of the name after the colon at *at, up to the next one, which *at is then; "": the name has ended.
 * False: it is too long. */
static bool next_part(const char **at, char out[32]) {
  const char *from = *at + (**at == ':');
  const size_t size = strcspn(from, ":");
  if (size >= 32) return false;
  memcpy(out, from, size);
  out[size] = 0;
  *at = from + size;
  return true;
}

static int refuse(const char *name, err *e) {
  char models[200] = "", types[200] = MIXTURE;
  for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
    snprintf(models + strlen(models), sizeof models - strlen(models), "%s%s", i ? ", " : "", MODELS[i].name);
  for (int32_t i = 0; i < TYPE_COUNT; i++)
    snprintf(types + strlen(types), sizeof types - strlen(types), ", %s", gguf_type_name(TYPES[i].type));
  return err_set(e, ERR_ARG,
                 "'%.80s' is no synthetic model, which is " PREFIX
                 "MODEL[:TYPE][:SEED], with a model of %s, a type of %s, and a whole number",
                 name, models, types);
}

static bool read_type(synthetic *s, const char *text) {
  if (!*text || strcasecmp(text, MIXTURE) == 0) return true;
  for (int32_t i = 0; i < TYPE_COUNT && !s->type; i++)
    if (strcasecmp(text, gguf_type_name(TYPES[i].type)) == 0) s->type = &TYPES[i];
  return s->type != NULL;
}

static bool read_seed(synthetic *s, const char *text) {
  if (!*text) return true;
  char *end;
  errno = 0;
  const unsigned long seed = strtoul(text, &end, 10);
  s->seed = (uint32_t)seed;
  return *text >= '0' && *text <= '9' && !*end && !errno && seed <= UINT32_MAX;
}

static bool read_name(synthetic *s, const char *name, const struct model_row **model) {
  char text[32], type[32], seed[32];
  const char *at = name + sizeof PREFIX - 2; /* its colon */
  if (!next_part(&at, text) || !next_part(&at, type) || !next_part(&at, seed) || *at) return false;
  for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
    if (strcasecmp(text, MODELS[i].name) == 0) *model = &MODELS[i];
  return *model && read_type(s, type) && read_seed(s, seed);
}

/* Of what is meant, however it is spelt. GENERATOR grows when the same names come to mean other weights. */
#define GENERATOR "1"
static hash16 hash_of(const synthetic *s, const struct model_row *model) {
  char text[128];
  snprintf(text, sizeof text, "synthetic " GENERATOR " %s %s %u", model->name,
           s->type ? gguf_type_name(s->type->type) : MIXTURE, (unsigned)s->seed);
  return hash_bytes(text, strlen(text));
}

int synthetic_open(synthetic **out, const char *name, err *e) {
  const struct model_row *model = NULL;
  synthetic *s = calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return err_set(e, ERR_NOMEM, "out of memory for the model");
  int rc = read_name(s, name, &model) ? ERR_OK : refuse(name, e);
  if (rc == ERR_OK && !(s->config = config_of(model)))
    rc = err_set(e, ERR_NOMEM, "out of memory for the model");
  if (rc != ERR_OK) {
    synthetic_close(s);
    return rc;
  }
  s->layers = model->whole;
  s->hash = hash_of(s, model);
  *out = s;
  return ERR_OK;
}

void synthetic_close(synthetic *s) {
  if (!s) return;
  for (made *m = s->tensors, *next; m; m = next) {
    next = m->next;
    free_tensor(m);
  }
  for (int32_t i = 0; i < TYPE_COUNT; i++)
    if (s->patterns[i].bytes) close(s->patterns[i].fd);
  json_decref(s->config);
  free(s);
}

const json_t *synthetic_config(const synthetic *s) {
  return s->config;
}

hash16 synthetic_hash(const synthetic *s) {
  return s->hash;
}
