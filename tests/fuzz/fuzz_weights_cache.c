/* libs: model_alone file base */
/* fuzz_weights_cache - a file of packed weights of any bytes: not used, or its data has the size that was
 * asked for. Odd first byte: changes of a right file, three bytes a change (offset, value). */
#include "common/model/weights_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DATA = 5000, FILE_MAX = 1 << 16 };

static const weights_key key = {.model = {{7}}, .layout = "fuzz", .bytes = DATA};
static char folder[64], path[4096];
static uint8_t right[FILE_MAX];
static size_t right_size;

static void remove_folder(void) {
  unlink(path);
  rmdir(folder);
}

static void write_file(const uint8_t *data, size_t size) {
  unlink(path);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
  close(fd);
}

static void make_right_file(void) {
  uint8_t bytes[DATA];
  weights_file f;
  err e;
  memset(bytes, 5, sizeof bytes);
  snprintf(folder, sizeof folder, "/tmp/fuzz-weights-XXXXXX");
  if (!mkdtemp(folder) || weights_cache_begin(&f, folder, &key, &e)) abort();
  if (weights_cache_write(&f, 0, bytes, sizeof bytes, &e)) abort();
  snprintf(path, sizeof path, "%s", f.path);
  if (weights_cache_end(&f, &key, &e)) abort();
  atexit(remove_folder);
  FILE *in = fopen(path, "rb");
  if (!in) abort();
  right_size = fread(right, 1, sizeof right, in);
  fclose(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t changed[FILE_MAX];
  static const logger silent = {"fuzz", LOG_ERROR};
  if (!right_size) make_right_file();
  if (size == 0) return 0;
  memcpy(changed, right, right_size);
  for (size_t i = 1; data[0] % 2 && i + 2 < size; i += 3)
    changed[(data[i] | (size_t)data[i + 1] << 8) % right_size] = data[i + 2];
  if (data[0] % 2)
    write_file(changed, size % 8 == 2 ? (size_t)data[size - 1] * right_size / 255 : right_size);
  else
    write_file(data + 1, size - 1);
  uint8_t *mapped = weights_cache_map(folder, &key, &silent);
  if (mapped) {
    volatile uint8_t sum = mapped[0] ^ mapped[DATA - 1];
    (void)sum;
    weights_cache_unmap(mapped, DATA);
  }
  return 0;
}
