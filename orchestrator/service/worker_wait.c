#include "orchestrator/service/worker_wait.h"

worker_wait_verdict worker_wait_second(worker_wait *w, uint64_t work) {
  if (work < w->work || work - w->work >= WORKER_WAIT_LEAST) /* less: it was started again */
    *w = (worker_wait){.work = work};
  else
    w->idle_s++;
  return w->idle_s >= WORKER_WAIT_MAX_S      ? WORKER_WAIT_GIVE_UP
         : w->idle_s == WORKER_WAIT_NOTICE_S ? WORKER_WAIT_TELL
                                             : WORKER_WAIT_ON;
}
