#include "common/base/arena.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_CHUNK (64u << 10)

struct arena_chunk {
  arena_chunk *next;
  size_t size, used;
  _Alignas(16) char data[];
};

void arena_init(arena *a, size_t limit) {
  *a = (arena){.limit = limit};
}

void arena_fini(arena *a) {
  for (arena_chunk *c = a->first, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  *a = (arena){0};
}

void arena_reset(arena *a) {
  for (arena_chunk *c = a->first; c; c = c->next) c->used = 0;
  a->current = a->first;
  a->used = 0;
}

void *arena_take(arena *a, size_t size) {
  if (size > a->limit || a->used > a->limit - size) return NULL;
  size_t need = (size + 15) & ~(size_t)15;
  arena_chunk *c = a->current;
  while (c && c->size - c->used < need) {
    if (!c->next) break;
    c = c->next;
  }
  if (!c || c->size - c->used < need) {
    size_t room = need > ARENA_CHUNK ? need : ARENA_CHUNK;
    arena_chunk *fresh = malloc(sizeof *fresh + room);
    if (!fresh) return NULL;
    *fresh = (arena_chunk){.size = room};
    if (c)
      c->next = fresh;
    else
      a->first = fresh;
    c = fresh;
  }
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
