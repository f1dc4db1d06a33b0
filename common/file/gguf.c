#include "common/file/gguf.h"
#include "common/file/printable.h"
#include "common/file/mapped_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  HEADER_BYTES = 24, /* magic, version, tensor count, key count */
  VERSION_MIN = 2,
  VERSION_MAX = 3,
  ALIGNMENT_DEFAULT = 32,
  ALIGNMENT_MIN = 8, /* the format asks for a multiple of 8 */
  ALIGNMENT_MAX = 1 << 20,
  KEYS_MAX = 1 << 16,
  TENSORS_MAX = 1 << 16,
  KEY_BYTES_MAX = 65535,
  NAME_BYTES_MAX = 255,
  ARRAY_DEPTH_MAX = 4,
  DIMS_MAX = 4,
  KEY_ENTRY_BYTES_MIN = 8 + 1 + 4 + 1,            /* length, key, kind, value */
  TENSOR_ENTRY_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* length, name, dims, shape, type, offset */
  FINGERPRINT_BYTES = 4096                        /* of each tensor */
};

/* Kinds of metadata values; numbers are the file format's. */
enum {
  KIND_U8,
  KIND_I8,
  KIND_U16,
  KIND_I16,
  KIND_U32,
  KIND_I32,
  KIND_F32,
  KIND_BOOL,
  KIND_STRING,
  KIND_ARRAY,
  KIND_U64,
  KIND_I64,
  KIND_F64,
  KIND_COUNT
};

/* Bytes of one value; 0: it says so itself. */
static const uint8_t KIND_BYTES[KIND_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct type_row {
  const char *name; /* NULL: a number that was never given out, or was taken back */
  uint16_t block;   /* weights in a block; 0: named here, but not readable */
  uint16_t bytes;   /* of a block */
} type_row;

/* Every tensor type of ggml, so that a refusal can name what it met. */
static const type_row TYPES[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [4] = {"Q4_2", 0, 0},        [5] = {"Q4_3", 0, 0},
    [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},      [8] = {"Q8_0", 32, 34},
    [9] = {"Q8_1", 0, 0},        [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},
    [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},   [14] = {"Q6_K", 256, 210},
    [15] = {"Q8_K", 0, 0},       [16] = {"IQ2_XXS", 0, 0},    [17] = {"IQ2_XS", 0, 0},
    [18] = {"IQ3_XXS", 0, 0},    [19] = {"IQ1_S", 0, 0},      [20] = {"IQ4_NL", 32, 18},
    [21] = {"IQ3_S", 0, 0},      [22] = {"IQ2_S", 0, 0},      [23] = {"IQ4_XS", 0, 0},
    [24] = {"I8", 1, 1},         [25] = {"I16", 0, 0},        [26] = {"I32", 1, 4},
    [27] = {"I64", 1, 8},        [28] = {"F64", 0, 0},        [29] = {"IQ1_M", 0, 0},
    [30] = {"BF16", 1, 2},       [31] = {"Q4_0_4_4", 0, 0},   [32] = {"Q4_0_4_8", 0, 0},
    [33] = {"Q4_0_8_8", 0, 0},   [34] = {"TQ1_0", 0, 0},      [35] = {"TQ2_0", 0, 0},
    [36] = {"IQ4_NL_4_4", 0, 0}, [37] = {"IQ4_NL_4_8", 0, 0}, [38] = {"IQ4_NL_8_8", 0, 0},
    [39] = {"MXFP4", 0, 0},
};

typedef struct entry {    /* one key and its value */
  gguf_string key, value; /* value: as it stands in the file, with its kind */
  uint32_t kind, element; /* element: kind of an array's elements */
  uint64_t count;         /* of an array */
  const uint8_t *data;    /* the value; of an array: its first element */
  uint64_t *offsets;      /* array of strings: where each one's length stands, from data */
  bool unreadable, read;  /* once wanted as a kind that it is not; as one that it is */
} entry;

struct gguf {
  const uint8_t *bytes;
  size_t size;
  bool mapped;
  mapped_stamp stamp;
  char label[PRINTABLE_PATH_MAX];
  uint64_t table_end; /* bytes of header, metadata and tensor table */
  entry *entries;     /* [entry_count], sorted by key */
  size_t entry_count;
  gguf_tensor *tensors;       /* [tensor_count], as in the file */
  const gguf_tensor **sorted; /* [tensor_count], by name */
  size_t tensor_count;
};

typedef struct reader { /* walks the header, the metadata and the tensor table */
  const gguf *g;
  uint64_t at; /* <= g->size */
  err *e;
} reader;

/* ---- little-endian numbers ---- */

static uint64_t load(const uint8_t *p, int bytes) {
  uint64_t v = 0;
  for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << (8 * i);
  return v;
}

static float load_f32(const uint8_t *p) {
  uint32_t bits = (uint32_t)load(p, 4);
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static double load_f64(const uint8_t *p) {
  uint64_t bits = load(p, 8);
  double f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* ---- reading with a limit ---- */

static uint64_t reader_left(const reader *r) {
  return r->g->size - r->at;
}

/* The next `size` bytes, or NULL and the error. */
static const uint8_t *reader_take(reader *r, uint64_t size, const char *what) {
  if (size > reader_left(r)) {
    err_set(r->e, ERR_FORMAT, "%s: the file ends at byte %zu inside %s: it is cut short, download it again",
            r->g->label, r->g->size, what);
    return NULL;
  }
  const uint8_t *p = r->g->bytes + r->at;
  r->at += size;
  return p;
}

static bool reader_number(reader *r, int bytes, const char *what, uint64_t *out) {
  const uint8_t *p = reader_take(r, (uint64_t)bytes, what);
  if (p) *out = load(p, bytes);
  return p != NULL;
}

static bool reader_string(reader *r, const char *what, gguf_string *out) {
  if (!reader_number(r, 8, what, &out->size)) return false;
  out->data = (const char *)reader_take(r, out->size, what);
  return out->data != NULL;
}

/* A name of 1 to `max` bytes without a NUL. */
static int reader_name(reader *r, const char *what, uint64_t max, gguf_string *out) {
  if (!reader_string(r, what, out)) return ERR_FORMAT;
  if (out->size == 0 || out->size > max || memchr(out->data, 0, out->size))
    return err_set(
        r->e, ERR_FORMAT,
        "%s: a name in %s, before byte %llu, is empty, longer than %llu bytes or holds a zero byte: "
        "the file is damaged, download it again",
        r->g->label, what, (unsigned long long)r->at, (unsigned long long)max);
  return ERR_OK;
}

/* ---- metadata ---- */

static int bad_kind(reader *r, uint64_t kind) {
  return err_set(r->e, ERR_FORMAT,
                 "%s: a metadata value before byte %llu has kind %llu, which does not exist: the file is "
                 "damaged, download it again",
                 r->g->label, (unsigned long long)r->at, (unsigned long long)kind);
}

/* Reads an array's element kind and count; each element takes at least one byte, so count <= bytes left. */
static int read_array_head(reader *r, uint64_t *element, uint64_t *count) {
  static const char what[] = "the metadata";
  if (!reader_number(r, 4, what, element) || !reader_number(r, 8, what, count)) return ERR_FORMAT;
  if (*element >= KIND_COUNT) return bad_kind(r, *element);
  uint64_t least = KIND_BYTES[*element] ? KIND_BYTES[*element] : *element == KIND_STRING ? 8 : 12;
  if (*count > reader_left(r) / least)
    return err_set(
        r->e, ERR_FORMAT,
        "%s: an array of %llu elements at byte %llu does not fit into the file's %zu bytes: the file "
        "is cut short or damaged, download it again",
        r->g->label, (unsigned long long)*count, (unsigned long long)r->at, r->g->size);
  return ERR_OK;
}

static int skip_strings(reader *r, uint64_t count, uint64_t *offsets) {
  uint64_t begin = r->at;
  for (uint64_t i = 0; i < count; i++) {
    if (offsets) offsets[i] = r->at - begin;
    gguf_string s;
    if (!reader_string(r, "an array of strings", &s)) return ERR_FORMAT;
  }
  return ERR_OK;
}

/* Arrays in arrays are checked and passed over; no getter reaches into them. */
static int skip_elements(reader *r, uint64_t element, uint64_t count, int depth) {
  if (element == KIND_STRING) return skip_strings(r, count, NULL);
  if (element != KIND_ARRAY)
    return reader_take(r, count * KIND_BYTES[element], "a metadata array") ? ERR_OK : ERR_FORMAT;
  if (depth == ARRAY_DEPTH_MAX)
    return err_set(r->e, ERR_LIMIT,
                   "%s: metadata arrays are nested deeper than %d: not a file tandem can use", r->g->label,
                   ARRAY_DEPTH_MAX);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t inner, inner_count;
    int rc = read_array_head(r, &inner, &inner_count);
    if (!rc) rc = skip_elements(r, inner, inner_count, depth + 1);
    if (rc) return rc;
  }
  return ERR_OK;
}

static int read_array(reader *r, entry *v) {
  uint64_t element;
  int rc = read_array_head(r, &element, &v->count);
  if (rc) return rc;
  v->element = (uint32_t)element;
  v->data = r->g->bytes + r->at;
  if (element != KIND_STRING) return skip_elements(r, element, v->count, 1);
  if (v->count == 0) return ERR_OK;
  v->offsets = malloc(v->count * sizeof *v->offsets);
  if (!v->offsets) return err_set(r->e, ERR_NOMEM, "%s: out of memory for the metadata", r->g->label);
  return skip_strings(r, v->count, v->offsets);
}

static int read_scalar(reader *r, entry *v) {
  char name[PRINTABLE_TEXT_MAX];
  if (v->kind == KIND_STRING) {
    v->data = r->g->bytes + r->at;
    gguf_string s;
    return reader_string(r, "a metadata string", &s) ? ERR_OK : ERR_FORMAT;
  }
  v->data = reader_take(r, KIND_BYTES[v->kind], "a metadata value");
  if (!v->data) return ERR_FORMAT;
  if (v->kind == KIND_BOOL && *v->data > 1)
    return err_set(r->e, ERR_FORMAT,
                   "%s: the value of %s is no boolean: the file is damaged, download it again", r->g->label,
                   printable_text(name, v->key.data, v->key.size));
  return ERR_OK;
}

static int read_entry(reader *r, entry *v) {
  uint64_t kind;
  int rc = reader_name(r, "the metadata", KEY_BYTES_MAX, &v->key);
  if (rc) return rc;
  v->value.data = (const char *)r->g->bytes + r->at;
  uint64_t begin = r->at;
  if (!reader_number(r, 4, "the metadata", &kind)) return ERR_FORMAT;
  if (kind >= KIND_COUNT) return bad_kind(r, kind);
  v->kind = (uint32_t)kind;
  rc = kind == KIND_ARRAY ? read_array(r, v) : read_scalar(r, v);
  v->value.size = r->at - begin;
  return rc;
}

static int compare_names(const char *a, uint64_t a_size, const char *b, uint64_t b_size) {
  int c = memcmp(a, b, a_size < b_size ? a_size : b_size);
  return c ? c : (a_size > b_size) - (a_size < b_size);
}

static int compare_entries(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return compare_names(x->key.data, x->key.size, y->key.data, y->key.size);
}

static int read_metadata(gguf *g, reader *r) {
  char name[PRINTABLE_TEXT_MAX];
  for (size_t i = 0; i < g->entry_count; i++) {
    int rc = read_entry(r, &g->entries[i]);
    if (rc) return rc;
  }
  qsort(g->entries, g->entry_count, sizeof *g->entries, compare_entries);
  for (size_t i = 1; i < g->entry_count; i++) {
    const gguf_string *key = &g->entries[i].key;
    if (compare_entries(&g->entries[i - 1], &g->entries[i]) == 0)
      return err_set(r->e, ERR_FORMAT, "%s: the metadata key %s stands there twice: convert the model again",
                     g->label, printable_text(name, key->data, key->size));
  }
  return ERR_OK;
}

/* The key's entry of whatever kind, or NULL. */
static entry *find_any(const gguf *g, const char *key) {
  entry wanted = {.key = {key, strlen(key)}};
  if (g->entry_count == 0) return NULL;
  return bsearch(&wanted, g->entries, g->entry_count, sizeof wanted, compare_entries);
}

/* Notes whether what was asked for could be read: gguf_check_read tells of what never could. */
static bool note(entry *v, bool read) {
  if (v && read) v->read = true;
  if (v && !read) v->unreadable = true;
  return read;
}

static const entry *find_entry(const gguf *g, const char *key, uint32_t kind) {
  entry *v = find_any(g, key);
  return note(v, v && v->kind == kind) ? v : NULL;
}

/* ---- tensors ---- */

static int bad_tensor(reader *r, const char *name, const char *why) {
  char text[PRINTABLE_TEXT_MAX];
  return err_set(r->e, ERR_FORMAT, "%s: tensor %s %s: the file is damaged, download it again", r->g->label,
                 printable_text(text, name, strlen(name)), why);
}

static int read_type(reader *r, gguf_tensor *t, uint64_t type) {
  char text[PRINTABLE_TEXT_MAX], number[32];
  const char *name = type < sizeof TYPES / sizeof TYPES[0] ? TYPES[type].name : NULL;
  if (name && TYPES[type].block) {
    t->type = (gguf_type)type;
    return ERR_OK;
  }
  snprintf(number, sizeof number, "number %llu", (unsigned long long)type);
  return err_set(r->e, ERR_UNSUPPORTED,
                 "%s: tensor %s has type %s, which is not built here: use a model file with F32, F16, BF16, "
                 "Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, IQ4_NL, Q3_K or Q2_K tensors",
                 r->g->label, printable_text(text, t->name, strlen(t->name)), name ? name : number);
}

/* shape and type give the bytes; refuses what overflows or cuts a block. */
static int size_tensor(reader *r, gguf_tensor *t) {
  const type_row *type = &TYPES[t->type];
  uint64_t elements = 1;
  for (int d = 0; d < t->dims; d++) {
    if (t->shape[d] <= 0 || __builtin_mul_overflow(elements, (uint64_t)t->shape[d], &elements))
      return bad_tensor(r, t->name, "has an impossible shape");
  }
  if (t->shape[0] % type->block) return bad_tensor(r, t->name, "has rows that are no whole number of blocks");
  uint64_t bytes;
  if (__builtin_mul_overflow(elements / type->block, (uint64_t)type->bytes, &bytes) || bytes > INT64_MAX)
    return bad_tensor(r, t->name, "has an impossible shape");
  t->bytes = (size_t)bytes;
  return ERR_OK;
}

static bool is_printable(const gguf_string *s) {
  for (uint64_t i = 0; i < s->size; i++)
    if (s->data[i] <= ' ' || s->data[i] > '~') return false;
  return true;
}

/* Reads one row of the tensor table; data stays NULL, *offset is from the data's beginning. */
static int read_tensor(reader *r, gguf_tensor *t, uint64_t *offset) {
  static const char what[] = "the tensor table";
  gguf_string name;
  uint64_t dims, type;
  int rc = reader_name(r, what, NAME_BYTES_MAX, &name);
  if (rc) return rc;
  if (!is_printable(&name))
    return err_set(
        r->e, ERR_FORMAT,
        "%s: a tensor's name, before byte %llu, is no printable ASCII: the file is damaged, download it "
        "again",
        r->g->label, (unsigned long long)r->at);
  t->name = strndup(name.data, name.size);
  if (!t->name) return err_set(r->e, ERR_NOMEM, "%s: out of memory for the tensor table", r->g->label);
  if (!reader_number(r, 4, what, &dims)) return ERR_FORMAT;
  if (dims < 1 || dims > DIMS_MAX) return bad_tensor(r, t->name, "has not 1 to 4 dimensions");
  t->dims = (int32_t)dims;
  for (int d = 0; d < DIMS_MAX; d++) {
    uint64_t extent = 1;
    if (d < t->dims && !reader_number(r, 8, what, &extent)) return ERR_FORMAT;
    t->shape[d] = extent > INT64_MAX ? 0 : (int64_t)extent;
  }
  if (!reader_number(r, 4, what, &type) || !reader_number(r, 8, what, offset)) return ERR_FORMAT;
  rc = read_type(r, t, type);
  return rc ? rc : size_tensor(r, t);
}

static int compare_tensors(const void *a, const void *b) {
  const gguf_tensor *const *x = a, *const *y = b;
  return strcmp((*x)->name, (*y)->name);
}

static int sort_tensors(gguf *g, err *e) {
  char text[PRINTABLE_TEXT_MAX];
  for (size_t i = 0; i < g->tensor_count; i++) g->sorted[i] = &g->tensors[i];
  qsort(g->sorted, g->tensor_count, sizeof *g->sorted, compare_tensors);
  for (size_t i = 1; i < g->tensor_count; i++) {
    const char *name = g->sorted[i]->name;
    if (strcmp(g->sorted[i - 1]->name, name) == 0)
      return err_set(e, ERR_FORMAT, "%s: there are two tensors %s: convert the model again", g->label,
                     printable_text(text, name, strlen(name)));
  }
  return ERR_OK;
}

static int read_alignment(const gguf *g, uint64_t *out, err *e) {
  *out = ALIGNMENT_DEFAULT;
  const entry *v = find_any(g, "general.alignment");
  if (!v) return ERR_OK;
  *out = v->kind == KIND_U32 ? load(v->data, 4) : 0;
  if (*out >= ALIGNMENT_MIN && *out <= ALIGNMENT_MAX && (*out & (*out - 1)) == 0) return ERR_OK;
  return err_set(e, ERR_FORMAT,
                 "%s: general.alignment (%llu) is no u32 power of two from %d to %d: convert the model again",
                 g->label, (unsigned long long)*out, ALIGNMENT_MIN, ALIGNMENT_MAX);
}

static int locate_tensor(const gguf *g, gguf_tensor *t, uint64_t data_at, uint64_t offset, uint64_t alignment,
                         err *e) {
  reader r = {g, 0, e};
  char text[PRINTABLE_TEXT_MAX];
  uint64_t begin, end;
  if (offset % alignment) return bad_tensor(&r, t->name, "begins at an offset that is not aligned");
  if (__builtin_add_overflow(data_at, offset, &begin) || __builtin_add_overflow(begin, t->bytes, &end))
    return bad_tensor(&r, t->name, "begins at an impossible offset");
  if (end > g->size)
    return err_set(e, ERR_FORMAT,
                   "%s: the file ends at byte %zu, but tensor %s needs bytes up to %llu: it is cut short, "
                   "download it again",
                   g->label, g->size, printable_text(text, t->name, strlen(t->name)),
                   (unsigned long long)end);
  t->data = g->bytes + begin;
  return ERR_OK;
}

static int compare_offsets(const void *a, const void *b) {
  const gguf_tensor *const *x = a, *const *y = b;
  return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

/* Two tensors over the same bytes are a damaged or hostile file. Leaves `sorted` by offset. */
static int check_offsets(gguf *g, reader *r) {
  for (size_t i = 0; i < g->tensor_count; i++) g->sorted[i] = &g->tensors[i];
  qsort(g->sorted, g->tensor_count, sizeof *g->sorted, compare_offsets);
  for (size_t i = 1; i < g->tensor_count; i++) {
    const gguf_tensor *before = g->sorted[i - 1];
    if ((const uint8_t *)before->data + before->bytes > (const uint8_t *)g->sorted[i]->data)
      return bad_tensor(r, g->sorted[i]->name, "overlaps another one");
  }
  return ERR_OK;
}

static int read_tensors(gguf *g, reader *r) {
  uint64_t alignment;
  int rc = read_alignment(g, &alignment, r->e);
  uint64_t *offsets = malloc((g->tensor_count + 1) * sizeof *offsets);
  if (!offsets) return err_set(r->e, ERR_NOMEM, "%s: out of memory for the tensor table", g->label);
  for (size_t i = 0; !rc && i < g->tensor_count; i++) rc = read_tensor(r, &g->tensors[i], &offsets[i]);
  g->table_end = r->at;
  uint64_t data_at = (r->at + alignment - 1) & ~(alignment - 1);
  for (size_t i = 0; !rc && i < g->tensor_count; i++)
    rc = locate_tensor(g, &g->tensors[i], data_at, offsets[i], alignment, r->e);
  free(offsets);
  if (!rc) rc = check_offsets(g, r);
  return rc ? rc : sort_tensors(g, r->e);
}

/* ---- open and close ---- */

static int check_version(const gguf *g, uint32_t version, err *e) {
  if (version >= VERSION_MIN && version <= VERSION_MAX) return ERR_OK;
  uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= VERSION_MAX)
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: a big-endian GGUF file: convert the model for little-endian machines", g->label);
  return err_set(e, ERR_UNSUPPORTED, "%s: GGUF version %u; tandem reads 2 and 3: convert the model again",
                 g->label, version);
}

static int read_header(gguf *g, reader *r) {
  if (g->size < HEADER_BYTES)
    return err_set(r->e, ERR_FORMAT, "%s: %zu bytes are too few for a GGUF file: download it again", g->label,
                   g->size);
  const uint8_t *p = reader_take(r, HEADER_BYTES, "the header");
  if (memcmp(p, "GGUF", 4))
    return err_set(r->e, ERR_FORMAT, "%s: not a GGUF file (it does not begin with GGUF): give a .gguf model",
                   g->label);
  int rc = check_version(g, (uint32_t)load(p + 4, 4), r->e);
  if (rc) return rc;
  uint64_t tensors = load(p + 8, 8), keys = load(p + 16, 8);
  if (keys > reader_left(r) / KEY_ENTRY_BYTES_MIN || tensors > reader_left(r) / TENSOR_ENTRY_BYTES_MIN)
    return err_set(
        r->e, ERR_FORMAT,
        "%s: %llu metadata keys and %llu tensors do not fit into %zu bytes: the file is cut short or "
        "damaged, download it again",
        g->label, (unsigned long long)keys, (unsigned long long)tensors, g->size);
  if (keys > KEYS_MAX || tensors > TENSORS_MAX)
    return err_set(r->e, ERR_LIMIT, "%s: %llu metadata keys and %llu tensors; tandem takes at most %d and %d",
                   g->label, (unsigned long long)keys, (unsigned long long)tensors, KEYS_MAX, TENSORS_MAX);
  g->entry_count = (size_t)keys;
  g->tensor_count = (size_t)tensors;
  return ERR_OK;
}

static int parse(gguf *g, err *e) {
  reader r = {g, 0, e};
  int rc = read_header(g, &r);
  if (rc) return rc;
  g->entries = calloc(g->entry_count + 1, sizeof *g->entries);
  g->tensors = calloc(g->tensor_count + 1, sizeof *g->tensors);
  g->sorted = calloc(g->tensor_count + 1, sizeof *g->sorted);
  if (!g->entries || !g->tensors || !g->sorted)
    return err_set(e, ERR_NOMEM, "%s: out of memory for the tables of the model file", g->label);
  rc = read_metadata(g, &r);
  return rc ? rc : read_tensors(g, &r);
}

static int open_bytes(gguf **out, const char *label, mapped_file bytes, bool mapped, err *e) {
  gguf *g = calloc(1, sizeof *g);
  *out = NULL;
  if (!g) {
    if (mapped) mapped_file_close(&bytes);
    return err_set(e, ERR_NOMEM, "%s: out of memory", label);
  }
  printable_path(g->label, label);
  g->bytes = bytes.data;
  g->size = bytes.size;
  g->stamp = bytes.stamp;
  g->mapped = mapped;
  int rc = parse(g, e);
  if (rc)
    gguf_close(g);
  else
    *out = g;
  return rc;
}

int gguf_open_memory(gguf **out, const void *data, size_t size, err *e) {
  return open_bytes(out, "the model in memory", (mapped_file){.data = data, .size = size}, false, e);
}

int gguf_open(gguf **out, const char *path, err *e) {
  mapped_file m;
  *out = NULL;
  int rc = mapped_file_open(&m, path, "the model file", e);
  return rc ? rc : open_bytes(out, path, m, true, e);
}

void gguf_close(gguf *g) {
  if (!g) return;
  for (size_t i = 0; g->entries && i < g->entry_count; i++) free(g->entries[i].offsets);
  free(g->entries);
  for (size_t i = 0; g->tensors && i < g->tensor_count; i++) free((char *)g->tensors[i].name);
  free(g->tensors);
  free(g->sorted);
  if (g->mapped) mapped_file_close(&(mapped_file){.data = g->bytes, .size = g->size});
  free(g);
}

/* ---- access ---- */

int32_t gguf_tensor_count(const gguf *g) {
  return (int32_t)g->tensor_count;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, int32_t i) {
  return &g->tensors[i];
}

const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name) {
  gguf_tensor wanted = {.name = name};
  const gguf_tensor *key = &wanted;
  if (g->tensor_count == 0) return NULL;
  const gguf_tensor *const *found =
      bsearch(&key, g->sorted, g->tensor_count, sizeof *g->sorted, compare_tensors);
  return found ? *found : NULL;
}

const char *gguf_type_name(gguf_type type) {
  return TYPES[type].name;
}

int32_t gguf_type_block(gguf_type type) {
  return TYPES[type].block;
}

int32_t gguf_type_bytes(gguf_type type) {
  return TYPES[type].bytes;
}

bool gguf_has_shape(const gguf_tensor *t, int64_t columns, int64_t rows) {
  return t->shape[0] == columns && t->shape[1] == (rows ? rows : 1) && t->shape[2] == 1 && t->shape[3] == 1;
}

bool gguf_has(const gguf *g, const char *key) {
  return find_any(g, key) != NULL;
}

/* An integer of any width; false for another kind or what i64 cannot hold, except that u64 keeps its range.
 */
static bool load_integer(const uint8_t *p, uint32_t kind, uint64_t *bits, bool *negative) {
  switch (kind) {
  case KIND_U8:
  case KIND_U16:
  case KIND_U32:
  case KIND_U64:
    *bits = load(p, KIND_BYTES[kind]);
    break;
  case KIND_I8:
    *bits = (uint64_t)(int64_t)(int8_t)load(p, 1);
    break;
  case KIND_I16:
    *bits = (uint64_t)(int64_t)(int16_t)load(p, 2);
    break;
  case KIND_I32:
    *bits = (uint64_t)(int64_t)(int32_t)load(p, 4);
    break;
  case KIND_I64:
    *bits = load(p, 8);
    break;
  default:
    return false;
  }
  *negative = kind != KIND_U64 && (int64_t)*bits < 0;
  return true;
}

static bool load_float(const uint8_t *p, uint32_t kind, double *out) {
  uint64_t bits;
  bool negative;
  if (kind == KIND_F32)
    *out = load_f32(p);
  else if (kind == KIND_F64)
    *out = load_f64(p);
  else if (load_integer(p, kind, &bits, &negative))
    *out = negative ? (double)(int64_t)bits : (double)bits;
  else
    return false;
  return true;
}

bool gguf_get_u64(const gguf *g, const char *key, uint64_t *out) {
  entry *v = find_any(g, key);
  uint64_t bits;
  bool negative;
  if (!note(v, v && load_integer(v->data, v->kind, &bits, &negative) && !negative)) return false;
  *out = bits;
  return true;
}

bool gguf_get_i64(const gguf *g, const char *key, int64_t *out) {
  entry *v = find_any(g, key);
  uint64_t bits;
  bool negative;
  if (!note(v, v && load_integer(v->data, v->kind, &bits, &negative))) return false;
  *out = !negative && bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
  return true;
}

bool gguf_get_f64(const gguf *g, const char *key, double *out) {
  entry *v = find_any(g, key);
  return note(v, v && load_float(v->data, v->kind, out));
}

bool gguf_get_bool(const gguf *g, const char *key, bool *out) {
  entry *v = find_any(g, key);
  uint64_t bits = 2;
  bool negative;
  if (v && v->kind == KIND_BOOL)
    bits = *v->data != 0;
  else if (v)
    load_integer(v->data, v->kind, &bits, &negative);
  if (!note(v, bits <= 1)) return false;
  *out = bits;
  return true;
}

int gguf_check_read(const gguf *g, err *e) {
  static const char *const kinds[KIND_COUNT] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                "bool", "string", "array", "u64", "i64", "f64"};
  char name[PRINTABLE_TEXT_MAX];
  for (size_t i = 0; i < g->entry_count; i++) {
    const entry *v = &g->entries[i];
    if (v->unreadable && !v->read)
      return err_set(e, ERR_FORMAT,
                     "%s: the value of %s, of type %s, is none that can be there: convert the model again",
                     g->label, printable_text(name, v->key.data, v->key.size), kinds[v->kind]);
  }
  return ERR_OK;
}

static gguf_string string_at(const uint8_t *p) {
  return (gguf_string){(const char *)p + 8, load(p, 8)};
}

bool gguf_get_string(const gguf *g, const char *key, gguf_string *out) {
  const entry *v = find_entry(g, key, KIND_STRING);
  if (v) *out = string_at(v->data);
  return v != NULL;
}

bool gguf_array_count(const gguf *g, const char *key, uint64_t *out) {
  const entry *v = find_entry(g, key, KIND_ARRAY);
  if (v) *out = v->count;
  return v != NULL;
}

static const entry *find_element(const gguf *g, const char *key, uint64_t i) {
  const entry *v = find_entry(g, key, KIND_ARRAY);
  return v && i < v->count ? v : NULL;
}

bool gguf_array_string(const gguf *g, const char *key, uint64_t i, gguf_string *out) {
  const entry *v = find_element(g, key, i);
  if (!v || v->element != KIND_STRING) return false;
  *out = string_at(v->data + v->offsets[i]);
  return true;
}

bool gguf_array_f64(const gguf *g, const char *key, uint64_t i, double *out) {
  const entry *v = find_element(g, key, i);
  return v && load_float(v->data + i * KIND_BYTES[v->element], v->element, out);
}

bool gguf_array_i64(const gguf *g, const char *key, uint64_t i, int64_t *out) {
  const entry *v = find_element(g, key, i);
  uint64_t bits;
  bool negative;
  if (!v || !load_integer(v->data + i * KIND_BYTES[v->element], v->element, &bits, &negative)) return false;
  if (!negative && bits > INT64_MAX) return false;
  *out = (int64_t)bits;
  return true;
}

bool gguf_array_u16(const gguf *g, const char *key, const void **data, uint64_t *count) {
  const entry *v = find_entry(g, key, KIND_ARRAY);
  if (!v || v->element != KIND_U16) return false;
  *data = v->data;
  *count = v->count;
  return true;
}

bool gguf_key_at(const gguf *g, size_t i, gguf_string *key, gguf_string *value) {
  if (i >= g->entry_count) return false;
  *key = g->entries[i].key;
  *value = g->entries[i].value;
  return true;
}

mapped_file gguf_file(const gguf *g) {
  return (mapped_file){g->bytes, g->size, g->stamp};
}

hash16 gguf_fingerprint(const gguf *g) {
  uint8_t size[8];
  for (int i = 0; i < 8; i++) size[i] = (uint8_t)((uint64_t)g->size >> (8 * i));
  hash16 h = hash_fold((hash16){{0}}, g->bytes, (size_t)g->table_end);
  h = hash_fold(h, size, sizeof size);
  for (size_t i = 0; i < g->tensor_count; i++) {
    const gguf_tensor *t = &g->tensors[i];
    h = hash_fold(h, t->data, t->bytes < FINGERPRINT_BYTES ? t->bytes : FINGERPRINT_BYTES);
  }
  return h;
}
