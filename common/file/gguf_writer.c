#include "common/file/gguf_writer.h"
#include "common/base/output_file.h"
#include "common/file/printable.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 3, ALIGNMENT = 32, GROW_BYTES = 1 << 16 };

/* Kinds of metadata values; numbers are the file format's. */
enum {
  KIND_U16 = 2,
  KIND_U32 = 4,
  KIND_I32 = 5,
  KIND_F32 = 6,
  KIND_BOOL = 7,
  KIND_STRING = 8,
  KIND_ARRAY = 9
};

typedef struct bytes {
  uint8_t *data;
  size_t size, capacity;
} bytes;

struct gguf_writer {
  bytes keys, table;
  uint64_t key_count, tensor_count, data_size;
  gguf_tensor *tensors; /* [tensor_count] */
  bool full;            /* memory ran out */
};

/* ---- bytes in memory ---- */

static void put(gguf_writer *w, bytes *b, const void *data, size_t size) {
  if (b->size + size > b->capacity) {
    size_t capacity = 2 * b->capacity + size + GROW_BYTES;
    uint8_t *p = realloc(b->data, capacity);
    w->full |= !p;
    if (!p) return;
    b->data = p;
    b->capacity = capacity;
  }
  if (size) memcpy(b->data + b->size, data, size);
  b->size += size;
}

static void put_number(gguf_writer *w, bytes *b, uint64_t v, int size) {
  uint8_t p[8];
  for (int i = 0; i < size; i++) p[i] = (uint8_t)(v >> (8 * i));
  put(w, b, p, (size_t)size);
}

static void put_string(gguf_writer *w, bytes *b, const char *text, uint64_t size) {
  put_number(w, b, size, 8);
  put(w, b, text, (size_t)size);
}

static void put_key(gguf_writer *w, const char *key, uint32_t kind) {
  w->key_count++;
  put_string(w, &w->keys, key, strlen(key));
  put_number(w, &w->keys, kind, 4);
}

static uint64_t aligned(uint64_t size) {
  return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- keys and tensors ---- */

gguf_writer *gguf_writer_alloc(void) {
  return calloc(1, sizeof(gguf_writer));
}

void gguf_writer_free(gguf_writer *w) {
  if (!w) return;
  for (uint64_t i = 0; i < w->tensor_count; i++) free((char *)w->tensors[i].name);
  free(w->tensors);
  free(w->keys.data);
  free(w->table.data);
  free(w);
}

void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v) {
  put_key(w, key, KIND_U32);
  put_number(w, &w->keys, v, 4);
}

static void put_f32(gguf_writer *w, float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  put_number(w, &w->keys, bits, 4);
}

void gguf_write_f32(gguf_writer *w, const char *key, float v) {
  put_key(w, key, KIND_F32);
  put_f32(w, v);
}

void gguf_write_bool(gguf_writer *w, const char *key, bool v) {
  put_key(w, key, KIND_BOOL);
  put_number(w, &w->keys, v, 1);
}

void gguf_write_text(gguf_writer *w, const char *key, const char *text) {
  put_key(w, key, KIND_STRING);
  put_string(w, &w->keys, text, strlen(text));
}

void gguf_write_i32s(gguf_writer *w, const char *key, const int32_t *values, uint64_t count) {
  put_key(w, key, KIND_ARRAY);
  put_number(w, &w->keys, KIND_I32, 4);
  put_number(w, &w->keys, count, 8);
  for (uint64_t i = 0; i < count; i++) put_number(w, &w->keys, (uint32_t)values[i], 4);
}

void gguf_write_f32s(gguf_writer *w, const char *key, const float *values, uint64_t count) {
  put_key(w, key, KIND_ARRAY);
  put_number(w, &w->keys, KIND_F32, 4);
  put_number(w, &w->keys, count, 8);
  for (uint64_t i = 0; i < count; i++) put_f32(w, values[i]);
}

void gguf_write_u16s(gguf_writer *w, const char *key, const void *values, uint64_t count) {
  put_key(w, key, KIND_ARRAY);
  put_number(w, &w->keys, KIND_U16, 4);
  put_number(w, &w->keys, count, 8);
  put(w, &w->keys, values, (size_t)count * 2);
}

void gguf_write_value(gguf_writer *w, gguf_string key, gguf_string value) {
  w->key_count++;
  put_string(w, &w->keys, key.data, key.size);
  put(w, &w->keys, value.data, (size_t)value.size);
}

void gguf_write_tensor(gguf_writer *w, const gguf_tensor *t) {
  gguf_tensor *p = realloc(w->tensors, (w->tensor_count + 1) * sizeof *p);
  w->full |= !p;
  if (!p) return;
  w->tensors = p;
  p[w->tensor_count] = *t;
  p[w->tensor_count].name = strdup(t->name);
  w->full |= !p[w->tensor_count++].name;
  put_string(w, &w->table, t->name, strlen(t->name));
  put_number(w, &w->table, (uint32_t)t->dims, 4);
  for (int d = 0; d < t->dims; d++) put_number(w, &w->table, (uint64_t)t->shape[d], 8);
  put_number(w, &w->table, t->type, 4);
  put_number(w, &w->table, w->data_size, 8);
  w->data_size += aligned(t->bytes);
}

/* ---- the file ---- */

static bool write_bytes(FILE *f, const void *data, uint64_t size) {
  return size == 0 || fwrite(data, 1, size, f) == size;
}

static bool write_padded(FILE *f, const void *data, uint64_t size, uint64_t padded) {
  static const uint8_t zeros[ALIGNMENT];
  return write_bytes(f, data, size) && write_bytes(f, zeros, padded - size);
}

static bool write_header(const gguf_writer *w, FILE *f) {
  gguf_writer head = {0};
  bytes b = {0};
  put(&head, &b, "GGUF", 4);
  put_number(&head, &b, VERSION, 4);
  put_number(&head, &b, w->tensor_count, 8);
  put_number(&head, &b, w->key_count, 8);
  uint64_t size = b.size + w->keys.size + w->table.size;
  bool done = !head.full && write_bytes(f, b.data, b.size) && write_bytes(f, w->keys.data, w->keys.size) &&
              write_padded(f, w->table.data, w->table.size, w->table.size + aligned(size) - size);
  free(b.data);
  return done;
}

static bool write_all(const gguf_writer *w, FILE *f) {
  bool done = write_header(w, f);
  for (uint64_t i = 0; done && i < w->tensor_count; i++)
    done = write_padded(f, w->tensors[i].data, w->tensors[i].bytes, aligned(w->tensors[i].bytes));
  return done && fflush(f) == 0 && fsync(fileno(f)) == 0;
}

int gguf_writer_save(const gguf_writer *w, const char *path, err *e) {
  char part[PATH_MAX], label[PRINTABLE_PATH_MAX];
  printable_path(label, path);
  if (w->full) return err_set(e, ERR_NOMEM, "%s: out of memory for the file's tables", label);
  if (snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid()) >= (int)sizeof part)
    return err_set(e, ERR_ARG, "the path %s is too long", label);
  if (output_file_check(path, e)) return e->code;
  unlink(part); /* of a process that had this number, and was killed */
  FILE *f = fopen(part, "wbx");
  bool done = f && write_all(w, f);
  int why = errno;
  if (f) done = fclose(f) == 0 && done;
  if (done && rename(part, path) == 0) return ERR_OK;
  if (done) why = errno;
  unlink(part);
  return err_set(e, ERR_IO, "cannot write %s: %s", label, strerror(why));
}
