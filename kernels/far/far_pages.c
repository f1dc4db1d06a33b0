#include "kernels/far/far_pages.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE      ((size_t)4096)
#define ALIGNMENT ((size_t)64)

static size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

/* The readable pages and the one behind them. */
static size_t span_of(size_t bytes) {
  return round_up(bytes, PAGE) + PAGE;
}

static size_t offset_of(size_t bytes) {
  return round_up(bytes, PAGE) - round_up(bytes, ALIGNMENT);
}

void *far_pages_take(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return NULL;
  size_t span = span_of(bytes);
  char *base = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return NULL;
  if (span > PAGE && mprotect(base, span - PAGE, PROT_READ | PROT_WRITE) != 0) {
    munmap(base, span);
    return NULL;
  }
  memset(base, FAR_PAGES_POISON, span - PAGE);
  return base + offset_of(bytes);
}

void far_pages_withdraw(far_pages *p, void *at, size_t bytes) {
  if (!at) return;
  char *base = (char *)at - offset_of(bytes);
  size_t span = span_of(bytes), slot = p->next++ % FAR_PAGES_WITHDRAWN;
  if (p->withdrawn[slot].at) munmap(p->withdrawn[slot].at, p->withdrawn[slot].bytes);
  /* A new mapping over the old one gives its memory back and forbids all access. */
  mmap(base, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  p->withdrawn[slot].at = base;
  p->withdrawn[slot].bytes = span;
}

void far_pages_close(far_pages *p) {
  for (size_t i = 0; i < FAR_PAGES_WITHDRAWN; i++)
    if (p->withdrawn[i].at) munmap(p->withdrawn[i].at, p->withdrawn[i].bytes);
  *p = (far_pages){0};
}
