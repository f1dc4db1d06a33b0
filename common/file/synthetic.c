#include "common/file/synthetic.h"
#include "common/base/rng.h"
#include "common/file/json.h"
#include "common/file/quantise.h"

#include <errno.h>
#include <limits.h>
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

/* Source: the models' config.json. */
static const struct model_row {
  const char *name, *config;
} MODELS[] = {
    {"qwen2.5-1.5b", "{\"model_type\": \"qwen2\", \"hidden_size\": 1536, \"intermediate_size\": 8960, "
                     "\"num_hidden_layers\": 28, \"num_attention_heads\": 12, \"num_key_value_heads\": 2, "
                     "\"vocab_size\": 151936, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06, "
                     "\"rope_theta\": 1000000.0, \"tie_word_embeddings\": true}"},
    {"llama-3.2-1b", "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8192, "
                     "\"num_hidden_layers\": 16, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
                     "\"vocab_size\": 128256, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-05, "
                     "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true}"},
    {"llama-3.1-8b", "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"intermediate_size\": 14336, "
                     "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
                     "\"vocab_size\": 128256, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-05, "
                     "\"rope_theta\": 500000.0, \"tie_word_embeddings\": false}"},
    {"70b-quarter", /* Llama 3.1 70B's first 20 layers of 80 */
     "{\"model_type\": \"llama\", \"hidden_size\": 8192, \"intermediate_size\": 28672, "
     "\"num_hidden_layers\": 20, \"num_attention_heads\": 64, \"num_key_value_heads\": 8, "
     "\"vocab_size\": 128256, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-05, "
     "\"rope_theta\": 500000.0, \"tie_word_embeddings\": false}"},
};

/* --- the types --- */

enum { NOWHERE = -1 };

/* Of a block of random bytes, the scale and what stands beside it, so that the weights' mean is about zero
 * and their deviation WEIGHT: a weight is scale * (a number of so much deviation), and the numbers of types
 * with minima have a mean that the minimum takes away. Source of the layouts: ggml-common.h. */
static const struct type_row {
  gguf_type type;
  int32_t inputs, bytes, scale_at, minimum_at;
  double deviation, mean;
} TYPES[] = {
    {GGUF_F32, 1, 4, NOWHERE, NOWHERE, 0, 0},   {GGUF_F16, 1, 2, NOWHERE, NOWHERE, 0, 0},
    {GGUF_BF16, 1, 2, NOWHERE, NOWHERE, 0, 0},  {GGUF_Q4_0, 32, 18, 0, NOWHERE, 4.6, 0},
    {GGUF_Q4_1, 32, 20, 0, 2, 4.6, -7.5},       {GGUF_Q5_0, 32, 22, 0, NOWHERE, 9.2, 0},
    {GGUF_Q5_1, 32, 24, 0, 2, 9.2, -15.5},      {GGUF_Q8_0, 32, 34, 0, NOWHERE, 74, 0},
    {GGUF_IQ4_NL, 32, 18, 0, NOWHERE, 65, 0},   {GGUF_Q2_K, 256, 84, 80, 82, 14, 1.5},
    {GGUF_Q3_K, 256, 110, 108, NOWHERE, 43, 0}, {GGUF_Q4_K, 256, 144, 0, 2, 240, 7.5},
    {GGUF_Q5_K, 256, 176, 0, 2, 490, 15.5},     {GGUF_Q6_K, 256, 210, 208, NOWHERE, 1370, 0},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

typedef struct pattern { /* whole blocks and whole pages of a type */
  int fd;                /* 0: not made yet */
  size_t step, bytes;    /* step: the fewest bytes that are both; bytes: a multiple of it */
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
  int32_t layers;
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
  for (uint8_t *block = data; block < data + bytes; block += t->bytes) {
    put_half(block + t->scale_at, scale);
    if (t->minimum_at != NOWHERE) put_half(block + t->minimum_at, scale * t->mean);
  }
}

/* Random words become numbers, in place: no type has more bytes than a word. */
static void put_numbers(const struct type_row *t, uint32_t *words, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const float v = (float)(PLAIN_MAX * (2.0 * (double)philox_unit(words[i]) - 1.0));
    quantise(t->type, &v, 1, (uint8_t *)words + i * (size_t)t->bytes);
  }
}

static void fill(const struct type_row *t, uint32_t seed, void *data, size_t bytes) {
  const uint32_t counter[4] = {0, 0, 0, 0}, key[2] = {seed, (uint32_t)t->type};
  const bool plain = t->scale_at == NOWHERE;
  const size_t words = plain ? bytes / (size_t)t->bytes : bytes / sizeof(uint32_t);
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
  const size_t step = common_multiple(PAGE, (size_t)t->bytes),
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
  *p = (pattern){fd, step, bytes};
  return ERR_OK;
}

/* The pattern again and again over [at, at + bytes), from `from` on. */
static bool map_pattern(const pattern *p, uint8_t *at, size_t bytes, size_t from) {
  for (size_t done = 0, n; done < bytes; done += n, from = 0) {
    n = p->bytes - from < bytes - done ? p->bytes - from : bytes - done;
    if (mmap(at + done, n, PROT_READ, MAP_SHARED | MAP_FIXED, p->fd, (off_t)from) == MAP_FAILED) return false;
  }
  return true;
}

/* A tensor begins at a place of the pattern that its name chooses, so that two of one shape differ. */
static int map_weights(synthetic *s, const struct type_row *t, made *m, err *e) {
  pattern *p = &s->patterns[t - TYPES];
  int rc = p->fd ? ERR_OK : make_pattern(p, t, s->seed, e);
  if (rc != ERR_OK) return rc;
  hash16 h = hash_bytes(m->name, strlen(m->name));
  const size_t steps = p->bytes / p->step, first = (h.bytes[0] << 8 | h.bytes[1]) % steps;
  return map_pattern(p, m->memory, m->mapped, first * p->step) ? ERR_OK : out_of_memory(e);
}

static int fill_tensor(synthetic *s, const struct type_row *t, synthetic_kind kind, made *m, err *e) {
  m->mapped = (m->tensor.bytes + PAGE - 1) / PAGE * PAGE;
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
  const int64_t count = columns * (rows ? rows : 1);
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
                            .bytes = (size_t)(count / t->inputs * t->bytes)};
  int rc = columns % t->inputs == 0
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

/* The next part of the name, up to a colon; *at: the rest. False: it is too long. */
static bool next_part(const char **at, char out[32]) {
  const size_t size = strcspn(*at, ":");
  if (size >= 32) return false;
  memcpy(out, *at, size);
  out[size] = 0;
  *at += size + ((*at)[size] == ':');
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
  const char *at = name + sizeof PREFIX - 1;
  if (!next_part(&at, text) || !next_part(&at, type) || !next_part(&at, seed) || *at) return false;
  for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
    if (strcasecmp(text, MODELS[i].name) == 0) *model = &MODELS[i];
  return *model && read_type(s, type) && read_seed(s, seed);
}

int synthetic_open(synthetic **out, const char *name, err *e) {
  const struct model_row *model = NULL;
  synthetic *s = calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return err_set(e, ERR_NOMEM, "out of memory for the model");
  int rc = read_name(s, name, &model) ? ERR_OK : refuse(name, e);
  if (rc == ERR_OK) rc = json_parse_object(&s->config, name, model->config, strlen(model->config), e);
  if (rc != ERR_OK) {
    synthetic_close(s);
    return rc;
  }
  s->layers = (int32_t)json_integer_value(json_object_get(s->config, "num_hidden_layers"));
  s->hash = hash_bytes(name, strlen(name));
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
    if (s->patterns[i].fd) close(s->patterns[i].fd);
  json_decref(s->config);
  free(s);
}

const json_t *synthetic_config(const synthetic *s) {
  return s->config;
}

hash16 synthetic_hash(const synthetic *s) {
  return s->hash;
}
