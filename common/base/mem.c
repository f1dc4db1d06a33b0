#include "common/base/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_MIN  (4 * HUGE_PAGE) /* below that a whole huge page more would weigh too much */

static size_t round_up(size_t size, size_t to) {
  return (size + to - 1) / to * to;
}

/* A step reads all weights, a fifth faster with huge pages, and the keys and values of its sequences. They
 * are asked for before anything is touched; where the system has none, nothing changes. */
static void *take_huge(size_t size) {
  size = round_up(size, HUGE_PAGE);
  void *p = aligned_alloc(HUGE_PAGE, size);
  if (p) madvise(p, size, MADV_HUGEPAGE);
  return p;
}

void *mem_alloc(mem *m, mem_tag tag, size_t size) {
  if (size == 0 || size > SIZE_MAX - HUGE_PAGE) return NULL;
  bool huge = (tag == MEM_WEIGHTS || tag == MEM_KV) && size >= HUGE_MIN;
  void *p = huge ? take_huge(size) : aligned_alloc(ALIGNMENT, round_up(size, ALIGNMENT));
  if (!p) return NULL;
  memset(p, 0, size);
  mem_count(m, tag, size);
  return p;
}

void mem_count(mem *m, mem_tag tag, size_t size) {
  if (!m) return;
  atomic_fetch_add_explicit(&m->calls[tag], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&m->bytes[tag], size, memory_order_relaxed);
}

void mem_free(void *p) {
  free(p);
}
