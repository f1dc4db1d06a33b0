/* folder_builder.h - model folders in Hugging Face's form, for tests: safetensors bytes from a header's text,
 * files in a directory of their own. Include after cmocka.h. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/scratch.h"

typedef struct folder {
  char path[SCRATCH_MAX];
  char files[8][64]; /* names, to be removed */
  int count;
} folder;

static inline folder folder_make(void) {
  folder f = {.count = 0};
  strcpy(f.path, scratch_make_folder().text);
  return f;
}

static inline void folder_put(folder *f, const char *name, const void *data, size_t size) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", f->path, name);
  FILE *out = fopen(path, "wb");
  assert_non_null(out);
  assert_int_equal(fwrite(data, 1, size, out), size);
  fclose(out);
  for (int i = 0; i < f->count; i++)
    if (strcmp(f->files[i], name) == 0) return;
  assert_true(f->count < 8);
  snprintf(f->files[f->count++], sizeof f->files[0], "%s", name);
}

static inline void folder_put_text(folder *f, const char *name, const char *text) {
  folder_put(f, name, text, strlen(text));
}

static inline void folder_remove(folder *f) {
  char path[160];
  for (int i = 0; i < f->count; i++) {
    snprintf(path, sizeof path, "%s/%s", f->path, f->files[i]);
    unlink(path);
  }
  rmdir(f->path);
}

/* The header's length, the header, `data` zero bytes; malloc'd, *size says how many. */
static inline uint8_t *safetensors_bytes(const char *header, size_t data, size_t *size) {
  size_t length = strlen(header);
  uint8_t *bytes = calloc(1, 8 + length + data);
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
  memcpy(bytes + 8, header, length);
  *size = 8 + length + data;
  return bytes;
}
