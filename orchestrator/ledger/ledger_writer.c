#include "orchestrator/ledger/ledger_writer.h"

#include "common/base/clock.h"
#include "common/base/min.h"
#include "orchestrator/ledger/ledger_batch.h"
#include "orchestrator/ledger/ledger_error.h"
#include <stdlib.h>
#include <string.h>

#define LAST_TRIES 2 /* of the last transaction, each for LEDGER_BUSY_MS */

struct ledger_writer {
  ledger_writer_options options;
  ledger_backlog *backlog;
  ledger_transaction *transaction;
  pthread_t thread;
  bool thread_runs;

  uint64_t retry_us, committed_us; /* when a failed transaction is tried again; when the last one ended */
  uint64_t heartbeat_us, heartbeat_sent_us; /* when the next heartbeat is due; when the last one was sent */
  ledger_batch batch;                       /* of this transaction */
};

/* ---- under the lock ---- */

static int32_t running(const ledger_backlog *b) {
  int32_t n = 0;
  for (int32_t i = 0; i < b->count; i++) n += !b->tracks[i].ended;
  return n;
}

static ledger_heartbeat take_heartbeat(ledger_writer *w) {
  ledger_backlog *b = w->backlog;
  uint64_t now = clock_us(), since = now - w->heartbeat_sent_us;
  if (w->heartbeat_us > now) return (ledger_heartbeat){0};
  ledger_heartbeat out = {
      .due = true, .sessions = running(b), .workers = b->workers ? strdup(b->workers) : NULL};
  out.millitokens = since ? (int64_t)(b->tokens_new * UINT64_C(1000000000) / since) : 0;
  b->tokens_new = 0;
  w->heartbeat_sent_us = now;
  w->heartbeat_us = now + (out.sessions > 0 ? LEDGER_HEARTBEAT_US : LEDGER_IDLE_HEARTBEAT_US);
  return out;
}

static void settle_failure(ledger_writer *w, const err *why) {
  w->retry_us = clock_us() + LEDGER_RETRY_US;
  if (!ledger_batch_failed(w->backlog)) return;
  log_line(w->options.log, LOG_WARNING, "%s. %s", why->text,
           w->backlog->fast ? "The answer goes on, but is not kept if this program dies"
                            : "The answer waits until it can be written, because only what is kept is shown");
}

static void settle(ledger_writer *w, int rc, const err *why) {
  w->committed_us = clock_us();
  if (rc) {
    settle_failure(w, why);
    return;
  }
  if (w->backlog->failing)
    log_line(w->options.log, LOG_WARNING, "the ledger %s is written again", w->options.path);
  ledger_batch_written(&w->batch, w->backlog, w->options.log);
}

/* ---- the thread ---- */

static uint64_t due_at(const ledger_writer *w, uint64_t now) {
  const ledger_backlog *b = w->backlog;
  if (b->failing) return w->retry_us;
  if (b->urgent) return now;
  return b->dirty ? min_u64(w->heartbeat_us, w->committed_us + LEDGER_GROUP_US) : w->heartbeat_us;
}

static void wait_for_work(ledger_writer *w) {
  ledger_backlog *b = w->backlog;
  for (uint64_t now = clock_us(), due; !b->stop && (due = due_at(w, now)) > now; now = clock_us()) {
    struct timespec until = {(time_t)(due / 1000000), (long)(due % 1000000) * 1000};
    pthread_cond_timedwait(&b->news, &b->lock, &until);
  }
}

/* One transaction. It takes the lock at both ends alone. */
static bool work_once(ledger_writer *w) {
  ledger_backlog *b = w->backlog;
  err why = {0};
  ledger_heartbeat heartbeat = take_heartbeat(w);
  ledger_batch_take(&w->batch, b);
  pthread_mutex_unlock(&b->lock);
  int rc = SQLITE_OK;
  if (w->batch.job_count > 0 || heartbeat.due)
    rc = ledger_transaction_commit(w->transaction, w->batch.jobs, w->batch.job_count, w->batch.tokens,
                                   &heartbeat);
  if (rc) {
    ledger_error_last(w->options.db, w->options.path, &why);
    ledger_transaction_undo(w->transaction);
  }
  free(heartbeat.workers);
  pthread_mutex_lock(&b->lock);
  settle(w, rc, &why);
  pthread_cond_broadcast(&b->done);
  return rc == SQLITE_OK;
}

static void *run(void *self) {
  ledger_writer *w = self;
  ledger_backlog *b = w->backlog;
  pthread_mutex_lock(&b->lock);
  while (!b->stop) {
    wait_for_work(w);
    work_once(w);
    pthread_mutex_unlock(&b->lock);
    w->options.on_durable(w->options.context);
    pthread_mutex_lock(&b->lock);
  }
  for (int tries = LAST_TRIES; tries > 0 && !work_once(w); tries--) continue;
  pthread_mutex_unlock(&b->lock);
  return NULL;
}

/* ---- open and close ---- */

static int write_first_heartbeat(ledger_writer *w, err *e) {
  if (ledger_transaction_commit(w->transaction, NULL, 0, NULL, &(ledger_heartbeat){.due = true}) == SQLITE_OK)
    return ERR_OK;
  int rc = ledger_error_last(w->options.db, w->options.path, e);
  ledger_transaction_undo(w->transaction);
  return rc;
}

int ledger_writer_open(ledger_writer **out, const ledger_writer_options *o, err *e) {
  ledger_writer *w = *out = calloc(1, sizeof *w);
  if (!w) return err_set(e, ERR_NOMEM, "out of memory");
  w->options = *o;
  w->backlog = o->backlog;
  w->heartbeat_sent_us = w->heartbeat_us = clock_us();
  int rc = ledger_transaction_open(&w->transaction, o->db, &o->who) ? err_set(e, ERR_NOMEM, "out of memory")
                                                                    : write_first_heartbeat(w, e);
  if (rc == ERR_OK) return ERR_OK;
  ledger_writer_close(w);
  *out = NULL;
  return rc;
}

int ledger_writer_start(ledger_writer *w, err *e) {
  if (pthread_create(&w->thread, NULL, run, w) != 0)
    return err_set(e, ERR_NOMEM, "cannot start the ledger's thread");
  w->thread_runs = true;
  return ERR_OK;
}

static void stop(ledger_writer *w) {
  pthread_mutex_lock(&w->backlog->lock);
  w->backlog->stop = true;
  pthread_cond_signal(&w->backlog->news);
  pthread_mutex_unlock(&w->backlog->lock);
  pthread_join(w->thread, NULL);
}

void ledger_writer_close(ledger_writer *w) {
  if (!w) return;
  if (w->thread_runs) stop(w);
  ledger_transaction_close(w->transaction);
  ledger_batch_fini(&w->batch);
  free(w);
}
