#include "orchestrator/ledger/ledger_backlog.h"

#include "common/base/clock.h"
#include "orchestrator/ledger/options_json.h"
#include <stdlib.h>
#include <string.h>

static bool wait_for_done(ledger_backlog *b, uint64_t until_us) {
  struct timespec until = {(time_t)(until_us / 1000000), (long)(until_us % 1000000) * 1000};
  return pthread_cond_timedwait(&b->done, &b->lock, &until) == 0;
}

int ledger_backlog_init(ledger_backlog *b) {
  pthread_condattr_t attributes;
  *b = (ledger_backlog){.wait = wait_for_done};
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->news, &attributes);
  pthread_cond_init(&b->done, &attributes);
  pthread_condattr_destroy(&attributes);
  return ledger_memory(&b->memory);
}

void ledger_backlog_fini(ledger_backlog *b) {
  while (b->count > 0) ledger_backlog_remove(b, &b->tracks[0]);
  if (b->memory.close) b->memory.close(b->memory.self);
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->news);
  pthread_cond_destroy(&b->done);
  free(b->tracks);
  free(b->workers);
}

ledger_track *ledger_backlog_find(const ledger_backlog *b, uint64_t session) {
  for (int32_t i = 0; i < b->count; i++)
    if (b->tracks[i].session == session && !b->tracks[i].forgotten) return &b->tracks[i];
  return NULL;
}

static int reserve_track(ledger_backlog *b) {
  if (b->count < b->capacity) return ERR_OK;
  int32_t capacity = b->capacity ? 2 * b->capacity : 16;
  ledger_track *more = realloc(b->tracks, (size_t)capacity * sizeof *more);
  if (!more) return ERR_NOMEM;
  b->tracks = more;
  b->capacity = capacity;
  return ERR_OK;
}

int ledger_backlog_add(ledger_backlog *b, const ledger_record *r) {
  if (reserve_track(b)) return ERR_NOMEM;
  ledger_track t = {.session = r->session,
                    .hash_seed = r->hash_seed,
                    .created = clock_wall_us(),
                    .prompt_length = r->prompt_length,
                    .resumed = r->epoch > 0,
                    .epoch_written = r->epoch,
                    .written = r->epoch > 0 ? r->length : 0,
                    .options = r->options ? options_json_text(r->options) : NULL,
                    .about = r->about ? strdup(r->about) : NULL};
  if ((r->options && !t.options) || (r->about && !t.about)) {
    free(t.options);
    free(t.about);
    return ERR_NOMEM;
  }
  b->tracks[b->count++] = t;
  return ERR_OK;
}

void ledger_backlog_remove(ledger_backlog *b, ledger_track *t) {
  free(t->options);
  free(t->about);
  b->memory.forget(b->memory.self, t->session);
  *t = b->tracks[--b->count];
}

int32_t ledger_backlog_length(const ledger_backlog *b, uint64_t session) {
  return b->memory.durable(b->memory.self, session);
}

bool ledger_backlog_has_news(const ledger_backlog *b, const ledger_track *t) {
  if (t->lost || t->epoch == 0)
    return false; /* the first epoch follows a beginning at once, and goes with it */
  return !t->begun || t->epoch > t->epoch_written || t->numerics_news || (t->ended && !t->end_written) ||
         t->written < ledger_backlog_length(b, t->session);
}

void ledger_backlog_wake(ledger_backlog *b, bool urgent) {
  b->dirty = true;
  b->urgent |= urgent;
  pthread_cond_signal(&b->news);
}
