#include "common/base/arena.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_CHUNK (64u << 10)

struct arena_chunk {
  arena_chunk *next;
  size_t size, used;
  _Alignas(16) char data[];
};

void arena_init(arena *a, size_t limit) {
  *a = (arena){.limit = limit};
}

/* All but the first are pages of their own, because what is freed to the heap the heap may keep. */
static arena_chunk *chunk_new(bool first, size_t room) {
  size_t size = sizeof(arena_chunk) + room;
  arena_chunk *c =
      first ? malloc(size) : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!c || c == MAP_FAILED) return NULL;
  *c = (arena_chunk){.size = room};
  return c;
}

static void free_behind(arena_chunk *c) {
  for (arena_chunk *gone = c->next, *next; gone; gone = next) {
    next = gone->next;
    munmap(gone, sizeof *gone + gone->size);
  }
  c->next = NULL;
}

void arena_fini(arena *a) {
  if (a->first) free_behind(a->first);
  free(a->first);
  *a = (arena){0};
}

/* Frees what was not needed since it was done last. */
static void trim(arena *a) {
  arena_chunk *c = a->first;
  size_t room = c ? c->size : 0;
  for (; c && c->next && room < a->most; room += c->size) c = c->next;
  if (c) free_behind(c);
  a->most = 0;
  a->resets = 0;
}

void arena_reset(arena *a) {
  for (arena_chunk *c = a->first; c; c = c->next) c->used = 0;
  a->current = a->first;
  if (a->used > a->most) a->most = a->used;
  a->used = 0;
  if (++a->resets == ARENA_TRIM_RESETS) trim(a);
}

/* A chunk behind *c with so much room. */
static arena_chunk *find_room(arena_chunk *c, size_t need) {
  while (c->next && c->size - c->used < need) c = c->next;
  if (c->size - c->used >= need) return c;
  return c->next = chunk_new(false, need > ARENA_CHUNK ? need : ARENA_CHUNK);
}

void *arena_take(arena *a, size_t size) {
  if (size > a->limit || a->used > a->limit - size) return NULL;
  size_t need = (size + 15) & ~(size_t)15;
  if (!a->first) a->first = a->current = chunk_new(true, ARENA_CHUNK);
  arena_chunk *c = a->first ? find_room(a->current, need) : NULL;
  if (!c) return NULL;
  void *p = c->data + c->used;
  c->used += need;
  a->current = c;
  a->used += need;
  return p;
}

void *arena_copy(arena *a, const void *data, size_t size) {
  void *p = arena_take(a, size);
  if (p && size) memcpy(p, data, size);
  return p;
}
