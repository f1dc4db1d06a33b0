#include "tests/support/count_malloc.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic unsigned long malloc_count;

unsigned long malloc_calls(void) {
  return atomic_load(&malloc_count);
}

#if COUNT_MALLOC
#pragma GCC visibility push(default) /* for the libraries as well */

/* glibc's own entries. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *p, size_t size);
void *aligned_alloc(size_t alignment, size_t size);

void *malloc(size_t size) {
  atomic_fetch_add(&malloc_count, 1);
  return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
  atomic_fetch_add(&malloc_count, 1);
  return __libc_calloc(count, size);
}
void *realloc(void *p, size_t size) {
  atomic_fetch_add(&malloc_count, 1);
  return __libc_realloc(p, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  atomic_fetch_add(&malloc_count, 1);
  return __libc_memalign(alignment, size);
}

#pragma GCC visibility pop
#endif
