/* thread_pool.h - threads that share one piece of work at a time.
 *
 * Work is cut into chunks [0, chunks), and each thread begins with a share of them, one after the other; who
 * has done its own takes over what others have not begun. So a thread that the system has descheduled holds
 * nobody up, and no result depends on which thread took which chunk. A waiting thread spins for a while, then
 * sleeps on a futex, so that a pool does not starve the other program of a small machine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define THREAD_POOL_CHUNKS_MAX 1048575

typedef struct thread_pool thread_pool;
typedef void thread_pool_body(void *context, int32_t chunk, int32_t thread); /* thread in [0, threads) */

/* threads: the caller's included; spin_us: how long they spin. NULL: out of memory or threads. */
thread_pool *thread_pool_open(int32_t threads, int32_t spin_us);
void thread_pool_close(thread_pool *p); /* NULL is allowed */

/* Another pool runs next: the threads sleep at once, until this one runs again. */
void thread_pool_rest(thread_pool *p);

/* Binds the threads. The calling thread, which must be the one that calls thread_pool_run, runs only on
 * processor cpus[0] from now on, and the i-th thread on cpus[i % count]. False: the system refuses one,
 * because the process may not use that processor. */
bool thread_pool_pin(thread_pool *p, const int32_t *cpus, int32_t count);

/* Returns when every chunk is done. Called by one thread, which takes chunks too (as thread 0). */
void thread_pool_run(thread_pool *p, int32_t chunks, thread_pool_body *body, void *context);
