#include "orchestrator/ledger/ledger_calls.h"

#include "common/base/clock.h"
#include "orchestrator/ledger/ledger_epochs.h"
#include "orchestrator/ledger/ledger_writer.h"
#include <stdio.h>

static bool is_being_forgotten(const ledger_backlog *b, uint64_t session) {
  for (int32_t i = 0; i < b->count; i++)
    if (b->tracks[i].session == session && b->tracks[i].forgotten) return true;
  return false;
}

/* A session may go on right after its end: that end is written first. False: it could not be. */
static bool wait_for_end(ledger_backlog *b, uint64_t session) {
  uint64_t until = clock_us() + LEDGER_WAIT_US;
  while (is_being_forgotten(b, session))
    if (b->failing || !b->wait(b, until)) return false;
  return true;
}

/* The writer is not woken yet: the epoch that is recorded with the beginning follows. */
static int on_begin(void *self, const ledger_record *r) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = wait_for_end(b, r->session) ? b->memory.begin(b->memory.self, r) : ERR_TIMEOUT;
  if (rc == ERR_OK && (rc = ledger_backlog_add(b, r)) != ERR_OK) b->memory.forget(b->memory.self, r->session);
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int on_epoch(void *self, uint64_t session, uint32_t epoch) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.epoch(b->memory.self, session, epoch);
  ledger_track *t = rc == ERR_OK ? ledger_backlog_find(b, session) : NULL;
  if (t) rc = t->lost ? ERR_GONE : ledger_epochs_record(b, t, epoch);
  pthread_mutex_unlock(&b->lock);
  return rc;
}

/* So much of it is not written that its target may soon have to wait. */
static bool is_far_ahead(const ledger_backlog *b, uint64_t session) {
  const ledger_track *t = ledger_backlog_find(b, session);
  return t && ledger_backlog_length(b, session) - t->written >= LEDGER_GROUP_TOKENS;
}

static int on_append(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.append(b->memory.self, session, position, tokens, count);
  if (rc == ERR_OK && count > 0) {
    b->tokens_new += (uint64_t)count;
    bool urgent = is_far_ahead(b, session);
    if (urgent || !b->dirty) ledger_backlog_wake(b, urgent);
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int on_numerics(void *self, uint64_t session, const char *id) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  ledger_track *t = ledger_backlog_find(b, session);
  if (t) {
    snprintf(t->numerics, sizeof t->numerics, "%s", id);
    t->numerics_news = true;
    ledger_backlog_wake(b, false);
  }
  pthread_mutex_unlock(&b->lock);
  return t ? ERR_OK : ERR_GONE;
}

static void stats_json(char out[LEDGER_STATS_MAX], const msg_stats *s) {
  out[0] = 0;
  if (!s || s->forwards == 0) return; /* of a session that was cut or cancelled they are not known yet */
  snprintf(out, LEDGER_STATS_MAX,
           "{\"forwards\":%llu,\"rounds\":%llu,\"draft_tokens\":%llu,\"accepted_tokens\":%llu}",
           (unsigned long long)s->forwards, (unsigned long long)s->rounds, (unsigned long long)s->rows,
           (unsigned long long)s->accepted);
}

static int on_end(void *self, uint64_t session, int32_t length, wire_finish finish, const msg_stats *stats) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.end(b->memory.self, session, length, finish, stats);
  ledger_track *t = rc == ERR_OK ? ledger_backlog_find(b, session) : NULL;
  if (t) {
    t->ended = true;
    t->finish = finish;
    if (t->written > length) t->written = length;
    stats_json(t->stats, stats);
    ledger_backlog_wake(b, true);
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

/* LEDGER_FAST goes on where a new session's beginning cannot be written: nobody else can know that session.
 * One that is resumed needs its epochs in the file. */
static int32_t durable_length(const ledger_backlog *b, const ledger_track *t) {
  if (b->fast && !t->lost && (t->begun || (b->failing && !t->resumed)))
    return ledger_backlog_length(b, t->session);
  return t->begun ? t->written : 0;
}

static int32_t on_durable(void *self, uint64_t session) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  const ledger_track *t = ledger_backlog_find(b, session);
  int32_t length = t ? durable_length(b, t) : 0;
  pthread_mutex_unlock(&b->lock);
  return length;
}

static bool on_lost(void *self, uint64_t session) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  const ledger_track *t = ledger_backlog_find(b, session);
  bool lost = t && t->lost;
  pthread_mutex_unlock(&b->lock);
  return lost;
}

static bool on_read(void *self, uint64_t session, ledger_entry *out) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  bool found = b->memory.read(b->memory.self, session, out);
  pthread_mutex_unlock(&b->lock);
  return found;
}

/* Where something is not written yet, the writer removes the track once it is. */
static void on_forget(void *self, uint64_t session) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  ledger_track *t = ledger_backlog_find(b, session);
  if (t && (t->lost || !ledger_backlog_has_news(b, t)))
    ledger_backlog_remove(b, t);
  else if (t)
    t->forgotten = true;
  pthread_mutex_unlock(&b->lock);
}

void ledger_calls(ledger *out, ledger_backlog *b) {
  *out = (ledger){.self = b,
                  .begin = on_begin,
                  .epoch = on_epoch,
                  .append = on_append,
                  .numerics = on_numerics,
                  .end = on_end,
                  .durable = on_durable,
                  .lost = on_lost,
                  .read = on_read,
                  .forget = on_forget};
}
