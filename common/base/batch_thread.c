#include "common/base/batch_thread.h"

#include "common/base/ring.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

struct batch_thread {
  batch_thread_options options;
  ring *batches; /* room for one */
  void *batch;   /* the one in hand */
  pthread_t thread;
  bool started;
  _Atomic bool stopping;
};

static void *thread_main(void *argument) {
  batch_thread *t = argument;
  const batch_thread_options *o = &t->options;
  if (o->begin) o->begin(o->context);
  while (ring_wait(t->batches, t->batch, o->spin_us)) {
    do o->run(o->context, t->batch);
    while (o->next_batch(o->context, t->batch) && !atomic_load(&t->stopping));
  }
  if (o->end) o->end(o->context);
  return NULL;
}

static bool start(batch_thread *t) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  t->started = pthread_create(&t->thread, NULL, thread_main, t) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return t->started;
}

int batch_thread_open(batch_thread **out, const batch_thread_options *o, err *e) {
  *out = NULL;
  batch_thread *t = calloc(1, sizeof *t);
  if (!t) return err_set(e, ERR_NOMEM, "no memory for the engine");
  t->options = *o;
  t->batches = ring_alloc(1, o->batch_bytes);
  t->batch = malloc(o->batch_bytes);
  int rc = ERR_OK;
  if (!t->batches || !t->batch)
    rc = err_set(e, ERR_NOMEM, "no memory for the engine");
  else if (!start(t))
    rc = err_set(e, ERR_IO, "the system gives no thread for the engine");
  if (rc == ERR_OK)
    *out = t;
  else
    batch_thread_close(t);
  return rc;
}

void batch_thread_stop(batch_thread *t) {
  if (!t->started) return;
  atomic_store(&t->stopping, true);
  ring_close(t->batches);
  pthread_join(t->thread, NULL);
  t->started = false;
}

void batch_thread_close(batch_thread *t) {
  if (!t) return;
  batch_thread_stop(t);
  ring_free(t->batches);
  free(t->batch);
  free(t);
}

bool batch_thread_submit(batch_thread *t, const void *batch) {
  return !atomic_load(&t->stopping) && ring_put(t->batches, batch);
}
