#include "wire/engine_host.h"

#include "common/base/batch_thread.h"
#include "common/base/clock.h"
#include "common/base/program.h"
#include "common/base/ring.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct engine_host {
  uv_loop_t loop;
  bool loop_open;
  machine_host *host;
  engine_host_worker worker;
  engine_host_engine engine; /* run NULL: there is none */
  batch_thread *thread;
  void *result; /* of the last batch; the engine's thread's */
  /* Under the lock of the machine's host: */
  bool busy;   /* the engine has a batch */
  void *batch; /* room for the one that the loop's thread submits */
  /* Of the engine's thread, while it steps the machine: */
  void *next; /* room for the batch that it takes */
  bool given; /* it got one */
  /* Which processor the loop's thread leaves to the engine's: */
  uint32_t busy_poll_us; /* 0: not where there are few processors */
  int engine_cpu;        /* -1: none yet */
  cpu_set_t cpus;        /* those that the program may use */
  pthread_t loop_thread;
};

/* --- the loop's thread --- */

/* After each step of the loop's thread. */
static void after_step(void *context) {
  engine_host *h = context;
  const engine_host_worker *w = &h->worker;
  if (!w->machine.step) return;
  if (h->thread && !h->busy)
    h->busy = w->next_batch(w->machine.self, clock_us(), false, h->batch) &&
              batch_thread_submit(h->thread, h->batch);
  if (!h->busy && w->drained(w->machine.self)) machine_host_exit(h->host, STATUS_OK);
}

/* --- the engine's thread --- */

static void begin(void *context) {
  const engine_host *h = context;
  if (h->engine.begin) h->engine.begin(h->engine.self);
}

static void end(void *context) {
  const engine_host *h = context;
  if (h->engine.end) h->engine.end(h->engine.self);
}

static void run(void *context, const void *batch) {
  engine_host *h = context;
  h->engine.run(h->engine.self, batch, h->result);
}

/* Woken on the engine's processor, the loop's thread would push the engine aside just when the next forward
 * is to begin. The engine seldom moves to another processor. */
static void keep_loop_away(engine_host *h) {
  int cpu = sched_getcpu();
  if (cpu < 0 || cpu == h->engine_cpu || CPU_COUNT(&h->cpus) < 2) return;
  cpu_set_t others = h->cpus;
  CPU_CLR(cpu, &others);
  if (pthread_setaffinity_np(h->loop_thread, sizeof others, &others) == 0) h->engine_cpu = cpu;
}

/* The machine has its result. True: the loop's thread must wake, because it ends the program. */
static bool take_next(void *context) {
  engine_host *h = context;
  const engine_host_worker *w = &h->worker;
  h->busy = h->given = w->next_batch(w->machine.self, clock_us(), true, h->next);
  return !h->given && w->drained(w->machine.self);
}

static bool give_result(void *context, void *next) {
  engine_host *h = context;
  h->next = next;
  if (h->engine.keeps_loop_away) keep_loop_away(h);
  machine_host_step_elsewhere(h->host, &(event){.kind = EVENT_RESULT, .result = h->result}, take_next, h);
  return h->given;
}

/* --- life --- */

static int open_loop(engine_host *h, err *e) {
  h->engine_cpu = -1;
  h->loop_thread = pthread_self();
  if (sched_getaffinity(0, sizeof h->cpus, &h->cpus) != 0) CPU_ZERO(&h->cpus);
  if (uv_loop_init(&h->loop) != 0)
    return err_set(e, ERR_IO, "cannot make an event loop: too many open files?");
  h->loop_open = true;
  return ERR_OK;
}

/* One for the engine, one for what else computes, and two for the loops of both workers. */
#define BUSY_POLL_CPUS 4

static int open_host(engine_host *h, const engine_host_options *o, err *e) {
  const machine_host_options m = {.self = o->self,
                                  .role = o->role,
                                  .keys = o->keys,
                                  .allow_plaintext = o->allow_plaintext,
                                  .busy_poll_us = h->busy_poll_us,
                                  .log = o->log,
                                  .after_step = after_step,
                                  .context = h};
  return machine_host_open(&h->host, &h->loop, &m, e);
}

int engine_host_open(engine_host **out, const engine_host_options *o, err *e) {
  *out = NULL;
  engine_host *h = calloc(1, sizeof *h);
  if (!h) return err_set(e, ERR_NOMEM, "no memory for the event loop");
  int rc = open_loop(h, e);
  h->busy_poll_us = CPU_COUNT(&h->cpus) >= BUSY_POLL_CPUS ? o->busy_poll_us : 0;
  if (rc == ERR_OK) rc = open_host(h, o, e);
  if (rc == ERR_OK)
    *out = h;
  else
    engine_host_close(h);
  return rc;
}

transport *engine_host_transport(engine_host *h) {
  return machine_host_transport(h->host);
}

static int start_engine(engine_host *h, const engine_host_engine *engine, err *e) {
  const batch_thread_options o = {.batch_bytes = engine->batch_bytes,
                                  .spin_us = h->busy_poll_us > RING_SPIN_US ? h->busy_poll_us : RING_SPIN_US,
                                  .begin = begin,
                                  .run = run,
                                  .next_batch = give_result,
                                  .end = end,
                                  .context = h};
  h->engine = *engine;
  h->batch = malloc(engine->batch_bytes);
  h->result = malloc(engine->result_bytes);
  if (!h->batch || !h->result) return err_set(e, ERR_NOMEM, "no memory for the engine");
  return batch_thread_open(&h->thread, &o, e);
}

int engine_host_start(engine_host *h, const engine_host_worker *w, const engine_host_engine *engine, err *e) {
  int rc = engine ? start_engine(h, engine, e) : ERR_OK;
  if (rc != ERR_OK) return rc;
  h->worker = *w;
  machine_host_set_machine(h->host, w->machine);
  return ERR_OK;
}

void engine_host_perform(engine_host *h, actions *a) {
  machine_host_perform(h->host, a);
}

int engine_host_run(engine_host *h) {
  uv_run(&h->loop, UV_RUN_DEFAULT);
  return machine_host_exit_code(h->host);
}

void engine_host_stop(engine_host *h) {
  if (h->thread) batch_thread_stop(h->thread);
}

void engine_host_close(engine_host *h) {
  if (!h) return;
  batch_thread_close(h->thread);
  machine_host_close(h->host);
  if (h->loop_open) {
    uv_run(&h->loop, UV_RUN_DEFAULT); /* what is closing is closed */
    uv_loop_close(&h->loop);
  }
  free(h->batch);
  free(h->result);
  free(h);
}
