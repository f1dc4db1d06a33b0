#include "kernels/far/far_queue.h"
#include "kernels/far/far_pages.h"
#include "kernels/far/far_require.h"

#define MEMORY_MAX ((size_t)1 << 30)

struct far_record {
  far_record *next;
  far_call *call;
  size_t bytes;
  _Alignas(16) unsigned char args[];
};

void far_queue_open(far_queue *q) {
  *q = (far_queue){0};
  arena_init(&q->memory, MEMORY_MAX);
}

void far_queue_close(far_queue *q) {
  arena_fini(&q->memory);
}

void *far_queue_add(far_queue *q, far_call *call, size_t bytes) {
  far_record *r = arena_take(&q->memory, sizeof *r + bytes);
  far_require(r != NULL, "no memory for the queue");
  *r = (far_record){.call = call, .bytes = bytes};
  if (q->last)
    q->last->next = r;
  else
    q->first = r;
  q->last = r;
  return r->args;
}

static far_record *take_first(far_queue *q) {
  far_record *r = q->first;
  q->first = r->next;
  if (!q->first) q->last = NULL;
  return r;
}

static void scribble(far_record *r) {
  volatile unsigned char *args = r->args; /* so that the compiler leaves it in */
  for (size_t i = 0; i < r->bytes; i++) args[i] = FAR_PAGES_POISON;
}

void far_queue_run(far_queue *q, void *context) {
  while (q->first) {
    far_record *r = take_first(q);
    r->call(context, r->args);
    scribble(r);
  }
  arena_reset(&q->memory);
}

void far_queue_skip(far_queue *q, far_call *last) {
  for (bool more = true; more && q->first;) {
    more = q->first->call != last;
    scribble(take_first(q));
  }
}

void far_queue_clear(far_queue *q) {
  while (q->first) scribble(take_first(q));
  arena_reset(&q->memory);
}
