#include "wire/name_lookup.h"

#include <pthread.h>
#include <stdlib.h>

/* Nothing can end a thread that asks the resolver, and no program should wait for it: the one of the two that
 * is done last frees. */
struct name_lookup {
  char endpoint[ENDPOINT_MAX];
  endpoint_numbers numbers;
  pthread_mutex_t lock; /* of the rest */
  uv_async_t *wake;     /* NULL: dropped */
  bool answered;
};

static void release(name_lookup *l) {
  pthread_mutex_destroy(&l->lock);
  free(l);
}

static void *look_up(void *context) {
  name_lookup *l = context;
  endpoint_look_up(l->endpoint, &l->numbers);
  pthread_mutex_lock(&l->lock);
  l->answered = true;
  bool dropped = !l->wake;
  if (!dropped) uv_async_send(l->wake);
  pthread_mutex_unlock(&l->lock);
  if (dropped) release(l);
  return NULL;
}

name_lookup *name_lookup_start(const char *endpoint, uv_async_t *wake) {
  pthread_t thread;
  name_lookup *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->wake = wake;
  memcpy(l->endpoint, endpoint, strlen(endpoint) + 1);
  pthread_mutex_init(&l->lock, NULL);
  if (pthread_create(&thread, NULL, look_up, l) != 0) {
    release(l);
    return NULL;
  }
  pthread_detach(thread);
  return l;
}

const endpoint_numbers *name_lookup_answer(name_lookup *l) {
  pthread_mutex_lock(&l->lock);
  bool answered = l->answered;
  pthread_mutex_unlock(&l->lock);
  return answered ? &l->numbers : NULL;
}

void name_lookup_drop(name_lookup *l) {
  if (!l) return;
  pthread_mutex_lock(&l->lock);
  bool answered = l->answered;
  l->wake = NULL;
  pthread_mutex_unlock(&l->lock);
  if (answered) release(l);
}
