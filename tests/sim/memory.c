#include "tests/sim/memory.h"

#include <stdbool.h>
#include <stdlib.h>

#define NOBODY (-1)

typedef struct memory {
  bool within;        /* a machine is called */
  bool held;          /* memory_hold */
  int node, starving; /* its program, and the one that gets nothing */
  uint64_t k, count;  /* of memory_plan, what is left of it */
  uint64_t asked, refused;
  int64_t live;
} memory;

static _Thread_local memory state;

void memory_plan(uint64_t k, uint64_t count) {
  state.k = k;
  state.count = k ? count : 0;
  state.starving = NOBODY;
}

void memory_hold(bool held) {
  state.held = held;
}

uint64_t memory_refused(void) {
  return state.refused;
}

uint64_t memory_asked(void) {
  return state.asked;
}

int64_t memory_live(void) {
  return state.live;
}

void memory_enter(int node) {
  state.within = true;
  state.node = node;
}

void memory_leave(void) {
  state.within = false;
}

/* Whether the machine gets nothing this time. */
static bool refuses(void) {
  if (!state.within) return false;
  state.asked++;
  if (!state.count || state.held) return false;
  if (state.starving == NOBODY && --state.k == 0) state.starving = state.node;
  if (state.starving != state.node) return false;
  state.count--;
  state.refused++;
  return true;
}

static void *counted(void *p) {
  state.live += p != NULL;
  return p;
}

/* --- what the linker puts in the allocator's place, and the allocator --- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *p);

void *__wrap_malloc(size_t size) {
  return refuses() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
  return refuses() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *p, size_t size) {
  if (refuses()) return NULL;
  void *grown = __real_realloc(p, size);
  if (!p) counted(grown);
  return grown;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
  return refuses() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void *p) {
  state.live -= p != NULL;
  __real_free(p);
}

/* --- machines --- */

/* What a step asks to send is kept in memory of the network, which is taken anew while memory is short. */
static void step(void *self, const event *e, uint64_t now_us, actions *out) {
  const memory_guard *g = self;
  if (state.count && !state.held) {
    actions_fini(out);
    actions_init(out);
  }
  memory_enter(g->node);
  g->inner.step(g->inner.self, e, now_us, out);
  memory_leave();
}

static uint64_t deadline(const void *self) {
  const memory_guard *g = self;
  return g->inner.deadline(g->inner.self);
}

machine memory_guarded(memory_guard *g, int node, machine inner) {
  *g = (memory_guard){inner, node};
  return (machine){.self = g, .step = step, .deadline = deadline};
}
