#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/folder_builder.h"

folder folder_make(void) {
  folder f = {.count = 0};
  strcpy(f.path, scratch_make_folder().text);
  return f;
}

void folder_put(folder *f, const char *name, const void *data, size_t size) {
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

void folder_put_text(folder *f, const char *name, const char *text) {
  folder_put(f, name, text, strlen(text));
}

void folder_remove(folder *f) {
  char path[160];
  for (int i = 0; i < f->count; i++) {
    snprintf(path, sizeof path, "%s/%s", f->path, f->files[i]);
    unlink(path);
  }
  rmdir(f->path);
}

uint8_t *safetensors_bytes(const char *header, size_t data, size_t *size) {
  size_t length = strlen(header);
  uint8_t *bytes = calloc(1, 8 + length + data);
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
  memcpy(bytes + 8, header, length);
  *size = 8 + length + data;
  return bytes;
}
