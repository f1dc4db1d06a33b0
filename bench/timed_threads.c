#include "bench/timed_threads.h"

#include "common/base/clock.h"
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

typedef struct thread_team {
  timed_threads_body *body;
  const void *context;
  int threads, passes;
  pthread_mutex_t gate; /* held until it is known how many threads there are */
  bool go;
  pthread_barrier_t barrier;
} thread_team;

typedef struct worker {
  thread_team *thread_team;
  int index;
  uint64_t begin_us[TIMED_THREADS_PASSES_MAX], end_us[TIMED_THREADS_PASSES_MAX], sum;
  pthread_t thread;
} worker;

/* The index-th processor that this process may use, round: two threads on one would show half. */
static void stay_on(int index) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) == 0) return;
  index %= CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one); /* without it the figure is only less steady */
    return;
  }
}

static void *work(void *argument) {
  worker *w = argument;
  thread_team *c = w->thread_team;
  pthread_mutex_lock(&c->gate);
  bool go = c->go;
  pthread_mutex_unlock(&c->gate);
  if (!go) return NULL;
  stay_on(w->index);
  for (int i = 0; i < c->passes; i++) {
    pthread_barrier_wait(&c->barrier);
    w->begin_us[i] = clock_us();
    w->sum += c->body(c->context, w->index);
    w->end_us[i] = clock_us();
  }
  return NULL;
}

static double seconds_of(const worker *w, int threads, int pass) {
  uint64_t begin = w[0].begin_us[pass], end = w[0].end_us[pass];
  for (int i = 1; i < threads; i++) {
    if (w[i].begin_us[pass] < begin) begin = w[i].begin_us[pass];
    if (w[i].end_us[pass] > end) end = w[i].end_us[pass];
  }
  return (double)(end - begin) / 1e6;
}

/* All or none of them work: those that wait at the barrier wait for all. */
static bool start_and_join(thread_team *c, worker *workers) {
  int started = 0;
  pthread_mutex_lock(&c->gate);
  for (; started < c->threads; started++) {
    workers[started] = (worker){.thread_team = c, .index = started};
    if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) break;
  }
  c->go = started == c->threads;
  pthread_mutex_unlock(&c->gate);
  for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
  return c->go;
}

bool timed_threads_run(int threads, int passes, timed_threads_body *body, const void *context,
                       double *seconds, uint64_t *sum) {
  assert(threads >= 1 && threads <= TIMED_THREADS_THREADS_MAX && passes >= 1 &&
         passes <= TIMED_THREADS_PASSES_MAX);
  worker *workers = calloc((size_t)threads, sizeof *workers);
  if (!workers) return false;
  thread_team c = {.body = body, .context = context, .threads = threads, .passes = passes};
  pthread_mutex_init(&c.gate, NULL);
  pthread_barrier_init(&c.barrier, NULL, (unsigned)threads);
  bool good = start_and_join(&c, workers);
  *sum = 0;
  for (int i = 0; good && i < threads; i++) *sum += workers[i].sum;
  for (int i = 0; good && i < passes; i++) seconds[i] = seconds_of(workers, threads, i);
  pthread_barrier_destroy(&c.barrier);
  pthread_mutex_destroy(&c.gate);
  free(workers);
  return good;
}

double timed_threads_best(const double *seconds, int passes) {
  double best = seconds[0];
  for (int i = 1; i < passes; i++)
    if (seconds[i] < best) best = seconds[i];
  return best;
}
