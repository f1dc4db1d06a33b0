#include "orchestrator/service/model_hashing.h"

#include <stdatomic.h>
#include <uv.h>

typedef struct hashing {
  text_model *model;
  uv_loop_t loop; /* of the wait alone: what comes to the program's own loop waits there */
  uv_async_t done;
  uv_signal_t signals[MODEL_HASHING_SIGNALS_MAX];
  int signal_count;
  atomic_bool stop;
} hashing;

static void hash_elsewhere(void *context) {
  hashing *h = context;
  text_model_hash(h->model, &h->stop);
  uv_async_send(&h->done);
}

static void on_done(uv_async_t *done) {
  hashing *h = done->data;
  for (int i = 0; i < h->signal_count; i++) uv_close((uv_handle_t *)&h->signals[i], NULL);
  uv_close((uv_handle_t *)done, NULL);
}

static void on_signal(uv_signal_t *signal, int number) {
  hashing *h = signal->data;
  (void)number;
  atomic_store(&h->stop, true);
}

static void watch(hashing *h, int number) {
  uv_signal_t *s = &h->signals[h->signal_count];
  if (uv_signal_init(&h->loop, s) != 0) return;
  s->data = h;
  uv_signal_start(s, on_signal, number); /* if it fails, this signal does not end the reading */
  h->signal_count++;
}

void model_hashing_learn(text_model *m, const int *signals, int count) {
  hashing h = {.model = m};
  uv_thread_t thread;
  if (model_file_recall_hash(m->file, &m->hash)) return;
  bool watched = uv_loop_init(&h.loop) == 0;
  bool waits = watched && uv_async_init(&h.loop, &h.done, on_done) == 0;
  h.done.data = &h;
  for (int i = 0; waits && i < count; i++) watch(&h, signals[i]);
  bool begun = waits && uv_thread_create(&thread, hash_elsewhere, &h) == 0;
  if (waits && !begun) on_done(&h.done);
  if (watched) uv_run(&h.loop, UV_RUN_DEFAULT);
  if (begun) uv_thread_join(&thread);
  if (watched) uv_loop_close(&h.loop);
  if (!begun) text_model_hash(m, NULL); /* too few descriptors or threads: here, at once */
}
