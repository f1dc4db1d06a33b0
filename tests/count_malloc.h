/* count_malloc.h - counts this program's calls of the allocator, by any thread; include it in one file. Under
 * the sanitizers, which have an allocator of their own, COUNT_MALLOC is 0 and nothing is counted. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define COUNT_MALLOC 0
static inline unsigned long malloc_calls(void) {
  return 0;
}
#else
#define COUNT_MALLOC 1

static _Atomic unsigned long malloc_count;
static inline unsigned long malloc_calls(void) {
  return atomic_load(&malloc_count);
}

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
#endif
