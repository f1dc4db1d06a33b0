/* libs: file base */
/* fuzz_safetensors - a file of any bytes: what opens can be read to its last byte, and lies in the file
 * without overlap. The corpus begins with a right file; mutations keep the header's length right, so that the
 * rest is reached. */
#include "common/file/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

static volatile uint8_t sink;

static size_t read_all(const safetensors *s, const uint8_t *begin, const uint8_t *end) {
  size_t bytes = 0;
  for (int32_t i = 0; i < safetensors_count(s); i++) {
    const gguf_tensor *t = safetensors_at(s, i);
    const uint8_t *p = t->data;
    if (p < begin || t->bytes > (size_t)(end - p)) abort();
    for (size_t k = 0; k < t->bytes; k++) sink ^= p[k];
    if (safetensors_find(s, t->name) != t || !gguf_type_name(t->type)) abort();
    bytes += t->bytes;
  }
  safetensors_fingerprint(s);
  return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  safetensors *s;
  err e = {0};
  if (safetensors_open_memory(&s, data, size, &e)) {
    if (s || !e.text[0] || !e.code) abort();
    return 0;
  }
  if (read_all(s, data, data + size) > size) abort();
  safetensors_close(s);
  return 0;
}

static const char right[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],"
    "\"data_offsets\":[0,12]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}";

/* Mutates the header, or, where it is hardly one, begins with the right one; 16 bytes of data follow. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
  enum { DATA = 16, AROUND = 8 + DATA };
  if (max < AROUND + sizeof right || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max);
  size_t length = size > AROUND ? size - AROUND : 0;
  if (length < 16) {
    length = sizeof right - 1;
    memcpy(data + 8, right, length);
  }
  length = LLVMFuzzerMutate(data + 8, length, max - AROUND);
  for (int i = 0; i < 8; i++) data[i] = (uint8_t)((uint64_t)length >> (8 * i));
  memset(data + 8 + length, 0, DATA);
  return length + AROUND;
}
