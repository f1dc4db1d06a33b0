/* mem.h - allocations counted by purpose, so that "off means untouched" can be shown by figures.
 *
 * One `mem` belongs to one program or test; memory is zeroed and aligned to 64 bytes. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
  MEM_GENERAL,
  MEM_WEIGHTS,
  MEM_KV,
  MEM_ACTIVATIONS,
  MEM_SPECULATION, /* staging and everything that only trees need: stays 0 without a draft or a warm-up */
  MEM_KV_HOST,     /* rows of a device's cache that are not in its own memory (device.kv_in_host) */
  MEM_TAG_COUNT
} mem_tag;

typedef struct mem {
  _Atomic uint64_t calls[MEM_TAG_COUNT];
  _Atomic uint64_t bytes[MEM_TAG_COUNT]; /* ever taken, not live */
} mem;

/* NULL when out of memory or size is 0. `m` may be NULL (not counted). */
void *mem_alloc(mem *m, mem_tag tag, size_t size);
void mem_free(void *p); /* NULL is allowed */
/* Counts memory that comes from elsewhere. */
void mem_count(mem *m, mem_tag tag, size_t size);

/* Bytes that the system can still give to this process: its free memory, what it would take back from caches,
 * and swap, within the limits of its control groups, those above them included, and of its addresses (ulimit
 * -v). SIZE_MAX: it does not say. root: "", or a folder that holds proc and sys, for tests. */
size_t mem_left(const char *root);
/* The same of memory that is never swapped out. */
size_t mem_left_locked(const char *root);
