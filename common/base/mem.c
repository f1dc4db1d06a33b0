#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

void *mem_alloc(mem *m, mem_tag tag, size_t size) {
  if (size == 0 || size > SIZE_MAX - 63) return NULL;
  void *p = aligned_alloc(64, (size + 63) & ~(size_t)63);
  if (!p) return NULL;
  memset(p, 0, size);
  if (m) {
    atomic_fetch_add_explicit(&m->calls[tag], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->bytes[tag], size, memory_order_relaxed);
  }
  return p;
}

void mem_free(void *p) { free(p); }
