#include "common/file/safetensors.h"
#include "common/file/json.h"
#include "common/file/printable.h"
#include "common/file/mapped_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LENGTH_BYTES = 8, /* of the header's length, little-endian */
  TENSORS_MAX = 1 << 16,
  SHARDS_MAX = 4096,
  NAME_BYTES_MAX = 255,
  DIMS_MAX = 4,
  FINGERPRINT_BYTES = 4096 /* of each tensor */
};

static const char single[] = "model.safetensors", shard_index[] = "model.safetensors.index.json";

typedef struct shard {
  mapped_file bytes;
  bool mapped;
  char name[NAME_MAX + 1]; /* in the folder */
  char label[PRINTABLE_PATH_MAX];
  size_t header; /* bytes before the data */
} shard;

typedef struct entry {
  gguf_tensor tensor;
  uint64_t begin; /* in its shard's data */
  const shard *of;
} entry;

struct safetensors {
  shard *shards; /* [shard_count] */
  size_t shard_count;
  entry *entries; /* [count], by name */
  size_t count, capacity;
};

typedef struct dtype {
  const char *name;
  gguf_type type;
  uint64_t bytes;
} dtype;

static const dtype DTYPES[] = {{"F32", GGUF_F32, 4}, {"F16", GGUF_F16, 2}, {"BF16", GGUF_BF16, 2},
                               {"I64", GGUF_I64, 8}, {"I32", GGUF_I32, 4}, {"BOOL", GGUF_I8, 1}};

/* ---- one tensor of a header ---- */

static int bad_tensor(const shard *s, const char *name, const char *why, err *e) {
  char text[PRINTABLE_TEXT_MAX];
  return err_set(e, ERR_FORMAT, "%s: tensor %s %s: the file is damaged, download it again", s->label,
                 printable_text(text, name, strlen(name)), why);
}

static bool is_printable(const char *s) {
  for (; *s; s++)
    if (*s <= ' ' || *s > '~') return false;
  return true;
}

static int read_type(const shard *s, const char *name, const json_t *object, const dtype **out, err *e) {
  const char *wanted = json_string_value(json_object_get(object, "dtype"));
  char text[PRINTABLE_TEXT_MAX], type[PRINTABLE_TEXT_MAX];
  if (!wanted) return bad_tensor(s, name, "has no dtype", e);
  for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++) {
    *out = &DTYPES[i];
    if (strcmp(wanted, DTYPES[i].name) == 0) return ERR_OK;
  }
  return err_set(
      e, ERR_UNSUPPORTED,
      "%s: tensor %s has type %s, which is not built here: use a model with BF16, F16 or F32 tensors",
      s->label, printable_text(text, name, strlen(name)), printable_text(type, wanted, strlen(wanted)));
}

/* The bytes that shape and type ask for; refuses what overflows. */
static int read_shape(const shard *s, gguf_tensor *t, const json_t *shape, uint64_t element, err *e) {
  size_t dims = json_array_size(shape);
  uint64_t bytes = element;
  if (!json_is_array(shape) || dims > DIMS_MAX)
    return bad_tensor(s, t->name, "has no shape of at most 4 numbers", e);
  t->dims = dims ? (int32_t)dims : 1;
  for (size_t d = 0; d < DIMS_MAX; d++) {
    const json_t *extent = d < dims ? json_array_get(shape, dims - 1 - d) : NULL;
    t->shape[d] = extent ? (int64_t)json_integer_value(extent) : 1; /* 0 for what is no whole number */
    if (t->shape[d] <= 0 || __builtin_mul_overflow(bytes, (uint64_t)t->shape[d], &bytes))
      return bad_tensor(s, t->name, "has an impossible shape", e);
  }
  t->bytes = (size_t)bytes;
  return ERR_OK;
}

static int read_offsets(const shard *s, entry *x, const json_t *offsets, err *e) {
  const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
  json_int_t begin = json_integer_value(first), end = json_integer_value(second);
  size_t room = s->bytes.size - s->header;
  if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second) || begin < 0 ||
      end < begin)
    return bad_tensor(s, x->tensor.name, "has no data_offsets of a begin and an end", e);
  if ((uint64_t)end > room)
    return err_set(
        e, ERR_FORMAT,
        "%s: the file has %zu bytes of data, but a tensor needs bytes up to %lld: it is cut short, "
        "download it again",
        s->label, room, (long long)end);
  if ((uint64_t)(end - begin) != x->tensor.bytes)
    return bad_tensor(s, x->tensor.name, "has other data_offsets than its dtype and shape ask for", e);
  x->begin = (uint64_t)begin;
  x->tensor.data = (const uint8_t *)s->bytes.data + s->header + begin;
  return ERR_OK;
}

static int read_tensor(const shard *s, entry *x, const char *name, const json_t *object, err *e) {
  const dtype *type = NULL;
  if (!is_printable(name) || !*name || strlen(name) > NAME_BYTES_MAX)
    return bad_tensor(s, name, "has a name that is not 1 to 255 printable ASCII characters", e);
  int rc = read_type(s, name, object, &type, e);
  if (rc) return rc;
  *x = (entry){.tensor = {.name = strdup(name), .type = type->type}, .of = s};
  if (!x->tensor.name) return err_set(e, ERR_NOMEM, "%s: out of memory for the tensor table", s->label);
  rc = read_shape(s, &x->tensor, json_object_get(object, "shape"), type->bytes, e);
  if (rc == ERR_OK) rc = read_offsets(s, x, json_object_get(object, "data_offsets"), e);
  if (rc) free((char *)x->tensor.name);
  return rc;
}

/* ---- one file ---- */

static int compare_begins(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The format asks for data without holes; two tensors over the same bytes are a damaged or hostile file. */
static int check_offsets(const shard *s, entry *entries, size_t count, err *e) {
  uint64_t at = 0;
  qsort(entries, count, sizeof *entries, compare_begins);
  for (size_t i = 0; i < count; i++) {
    if (entries[i].begin != at)
      return bad_tensor(s, entries[i].tensor.name, "overlaps another one, or leaves a hole before it", e);
    at += entries[i].tensor.bytes;
  }
  if (at == s->bytes.size - s->header) return ERR_OK;
  return err_set(e, ERR_FORMAT,
                 "%s: %zu bytes follow the last tensor's: the file is damaged, download it again", s->label,
                 (size_t)(s->bytes.size - s->header - at));
}

static bool grow(safetensors *t, size_t more) {
  size_t wanted = t->count + (more ? more : 1); /* also of no tensors there is a table */
  if (wanted <= t->capacity) return true;
  entry *p = realloc(t->entries, wanted * sizeof *p);
  if (!p) return false;
  t->entries = p;
  t->capacity = wanted;
  return true;
}

static int read_tensors(safetensors *t, const shard *s, json_t *header, err *e) {
  size_t first = t->count;
  const char *name;
  json_t *object;
  if (t->count + json_object_size(header) > TENSORS_MAX)
    return err_set(e, ERR_LIMIT, "%s: more than %d tensors, the most that tandem takes", s->label,
                   TENSORS_MAX);
  if (!grow(t, json_object_size(header)))
    return err_set(e, ERR_NOMEM, "%s: out of memory for the tensor table", s->label);
  json_object_foreach(header, name, object) {
    if (strcmp(name, "__metadata__") == 0) continue;
    int rc = read_tensor(s, &t->entries[t->count], name, object, e);
    if (rc) return rc;
    t->count++;
  }
  return check_offsets(s, t->entries + first, t->count - first, e);
}

static int read_shard(safetensors *t, shard *s, err *e) {
  const uint8_t *p = s->bytes.data;
  uint64_t length = 0;
  json_t *header;
  if (s->bytes.size < LENGTH_BYTES)
    return err_set(e, ERR_FORMAT, "%s: %zu bytes are too few for a safetensors file: download it again",
                   s->label, s->bytes.size);
  for (int i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)p[i] << (8 * i);
  if (length > s->bytes.size - LENGTH_BYTES)
    return err_set(
        e, ERR_FORMAT,
        "%s: a header of %llu bytes does not fit into the file's %zu: no safetensors file, or cut short: "
        "download it again",
        s->label, (unsigned long long)length, s->bytes.size);
  s->header = LENGTH_BYTES + (size_t)length;
  int rc = json_parse_object(&header, s->label, p + LENGTH_BYTES, (size_t)length, e);
  if (rc) return rc;
  rc = read_tensors(t, s, header, e);
  json_decref(header);
  return rc;
}

/* ---- all files ---- */

static int compare_names(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return strcmp(x->tensor.name, y->tensor.name);
}

static int sort_entries(safetensors *t, err *e) {
  if (t->count) qsort(t->entries, t->count, sizeof *t->entries, compare_names);
  for (size_t i = 1; i < t->count; i++)
    if (compare_names(&t->entries[i - 1], &t->entries[i]) == 0)
      return bad_tensor(t->entries[i].of, t->entries[i].tensor.name, "stands in two files", e);
  return ERR_OK;
}

static const entry *find_entry(const safetensors *t, const char *name) {
  entry wanted = {.tensor = {.name = name}};
  return t->count ? bsearch(&wanted, t->entries, t->count, sizeof wanted, compare_names) : NULL;
}

/* A name in an index becomes a path: nothing but a file of the folder. */
static bool is_plain(const char *name) {
  return name && name[0] != '.' && is_printable(name) && !strchr(name, '/') && *name &&
         strlen(name) <= NAME_MAX;
}

static int take_shards(safetensors *t, size_t count, err *e) {
  t->shards = calloc(count, sizeof *t->shards);
  return t->shards ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for %zu shards", count);
}

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct files of an index's weight_map. */
static int name_shards(safetensors *t, const char *label, const json_t *map, err *e) {
  size_t count = 0, size = json_object_size(map);
  const char *name;
  json_t *file;
  if (size == 0) return err_set(e, ERR_FORMAT, "%s has no weight_map: download it again", label);
  const char **files = calloc(size, sizeof *files);
  int rc = files ? ERR_OK : err_set(e, ERR_NOMEM, "%s: out of memory", label);
  json_object_foreach((json_t *)map, name, file) {
    if (rc) break;
    files[count++] = json_string_value(file);
    if (!is_plain(json_string_value(file)))
      rc = err_set(e, ERR_FORMAT, "%s: weight_map names what is no file of the folder: download it again",
                   label);
  }
  if (!rc) qsort(files, count, sizeof *files, compare_texts);
  for (size_t i = 0; !rc && i < count; i++) {
    if (i > 0 && strcmp(files[i - 1], files[i]) == 0) continue;
    if (t->shard_count == SHARDS_MAX)
      rc = err_set(e, ERR_LIMIT, "%s names more than %d files", label, SHARDS_MAX);
    if (!rc && t->shard_count == 0) rc = take_shards(t, size < SHARDS_MAX ? size : SHARDS_MAX, e);
    if (!rc) strcpy(t->shards[t->shard_count++].name, files[i]);
  }
  free(files);
  return rc;
}

static int read_shards(safetensors *t, const char *folder, err *e) {
  char path[PATH_MAX];
  int rc = ERR_OK;
  for (size_t i = 0; !rc && i < t->shard_count; i++) {
    shard *s = &t->shards[i];
    if (snprintf(path, sizeof path, "%s/%s", folder, s->name) >= (int)sizeof path)
      return err_set(e, ERR_ARG, "the path of the model is too long");
    printable_path(s->label, path);
    rc = mapped_file_open(&s->bytes, path, "the model file", e);
    s->mapped = rc == ERR_OK;
    if (!rc) rc = read_shard(t, s, e);
  }
  return rc ? rc : sort_entries(t, e);
}

/* Each tensor of the index stands where it says. */
static int check_index(const safetensors *t, const char *label, const json_t *map, err *e) {
  const char *name;
  json_t *file;
  char text[PRINTABLE_TEXT_MAX];
  json_object_foreach((json_t *)map, name, file) {
    const entry *x = find_entry(t, name);
    if (!x || strcmp(x->of->name, json_string_value(file)) != 0)
      return err_set(e, ERR_FORMAT,
                     "%s: tensor %s is not in the file that it names: download the model again", label,
                     printable_text(text, name, strlen(name)));
  }
  return ERR_OK;
}

static int read_index(safetensors *t, const char *folder, const char *path, err *e) {
  mapped_file m;
  char label[PRINTABLE_PATH_MAX];
  json_t *index = NULL;
  printable_path(label, path);
  int rc = mapped_file_open(&m, path, "the model's index", e);
  if (!rc) rc = json_parse_object(&index, label, m.data, m.size, e);
  const json_t *map = json_object_get(index, "weight_map");
  if (!rc) rc = name_shards(t, label, map, e);
  if (!rc) rc = read_shards(t, folder, e);
  if (!rc) rc = check_index(t, label, map, e);
  json_decref(index);
  mapped_file_close(&m);
  return rc;
}

static int read_single(safetensors *t, const char *folder, err *e) {
  int rc = take_shards(t, 1, e);
  if (rc) return rc;
  strcpy(t->shards[t->shard_count++].name, single);
  return read_shards(t, folder, e);
}

static bool has_file(const char *folder, const char *name, char path[PATH_MAX]) {
  if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX) return false;
  FILE *f = fopen(path, "rb");
  if (f) fclose(f);
  return f != NULL;
}

static int finish(safetensors **out, safetensors *t, int rc) {
  if (rc == ERR_OK)
    *out = t;
  else
    safetensors_close(t);
  return rc;
}

int safetensors_open(safetensors **out, const char *folder, err *e) {
  char path[PATH_MAX];
  *out = NULL;
  safetensors *t = calloc(1, sizeof *t);
  if (!t) return err_set(e, ERR_NOMEM, "out of memory for the model");
  bool sharded = !has_file(folder, single, path) && has_file(folder, shard_index, path);
  return finish(out, t, sharded ? read_index(t, folder, path, e) : read_single(t, folder, e));
}

int safetensors_open_memory(safetensors **out, const void *data, size_t size, err *e) {
  *out = NULL;
  safetensors *t = calloc(1, sizeof *t);
  if (!t) return err_set(e, ERR_NOMEM, "out of memory for the model");
  int rc = take_shards(t, 1, e);
  if (rc == ERR_OK) {
    t->shards[t->shard_count++] =
        (shard){.bytes = {.data = data, .size = size}, .label = "the model in memory"};
    rc = read_shard(t, t->shards, e);
  }
  return finish(out, t, rc ? rc : sort_entries(t, e));
}

void safetensors_close(safetensors *t) {
  if (!t) return;
  for (size_t i = 0; i < t->count; i++) free((char *)t->entries[i].tensor.name);
  for (size_t i = 0; i < t->shard_count; i++)
    if (t->shards[i].mapped) mapped_file_close(&t->shards[i].bytes);
  free(t->entries);
  free(t->shards);
  free(t);
}

/* ---- access ---- */

int32_t safetensors_count(const safetensors *t) {
  return (int32_t)t->count;
}

const gguf_tensor *safetensors_at(const safetensors *t, int32_t i) {
  return &t->entries[i].tensor;
}

const gguf_tensor *safetensors_find(const safetensors *t, const char *name) {
  const entry *x = find_entry(t, name);
  return x ? &x->tensor : NULL;
}

int32_t safetensors_file_count(const safetensors *t) {
  return (int32_t)t->shard_count;
}

mapped_file safetensors_file(const safetensors *t, int32_t file) {
  return t->shards[file].bytes;
}

hash16 safetensors_fingerprint(const safetensors *t) {
  hash16 h = {{0}};
  for (size_t i = 0; i < t->shard_count; i++) {
    uint64_t size = t->shards[i].bytes.size;
    uint8_t bytes[8];
    for (int k = 0; k < 8; k++) bytes[k] = (uint8_t)(size >> (8 * k));
    h = hash_fold(h, t->shards[i].bytes.data, t->shards[i].header);
    h = hash_fold(h, bytes, sizeof bytes);
  }
  for (size_t i = 0; i < t->count; i++) {
    const gguf_tensor *x = &t->entries[i].tensor;
    h = hash_fold(h, x->data, x->bytes < FINGERPRINT_BYTES ? x->bytes : FINGERPRINT_BYTES);
  }
  return h;
}
