#include "orchestrator/ledger/ledger_batch.h"

#include <stdlib.h>
#include <string.h>

/* --- what is new --- */

static bool reserve(ledger_batch *x, size_t tokens) {
  if (x->job_count == x->job_capacity) {
    int32_t capacity = x->job_capacity ? 2 * x->job_capacity : 16;
    ledger_job *more = realloc(x->jobs, (size_t)capacity * sizeof *more);
    if (!more) return false;
    x->jobs = more;
    x->job_capacity = capacity;
  }
  if (x->token_count + tokens <= x->token_capacity) return true;
  size_t capacity = 2 * (x->token_count + tokens);
  int32_t *more = realloc(x->tokens, capacity * sizeof *more);
  if (!more) return false;
  x->tokens = more;
  x->token_capacity = capacity;
  return true;
}

/* Where the tokens of a job begin: with all of them where the session begins, with the whole output where its
 * pieces become one. */
static int32_t first_of(const ledger_track *t) {
  if (!t->begun && !t->resumed) return 0;
  return t->ended ? t->prompt_length : t->written;
}

/* False: there is no memory, and the session is taken later. */
static bool take_job(ledger_batch *x, const ledger_backlog *b, const ledger_track *t) {
  const ledger *memory = &b->memory;
  ledger_entry entry;
  if (!memory->read(memory->self, t->session, &entry)) return false;
  int32_t from = first_of(t), count = entry.length - from;
  if (!reserve(x, (size_t)count)) return false;
  if (count > 0) memcpy(x->tokens + x->token_count, entry.tokens + from, (size_t)count * sizeof *x->tokens);
  x->jobs[x->job_count++] = (ledger_job){.at = *t, .from = from, .count = count, .offset = x->token_count};
  x->token_count += (size_t)count;
  return true;
}

void ledger_batch_take(ledger_batch *x, ledger_backlog *b) {
  x->job_count = 0;
  x->token_count = 0;
  b->dirty = b->urgent = false;
  for (int32_t i = 0; i < b->count; i++)
    if (ledger_backlog_has_news(b, &b->tracks[i]) && !take_job(x, b, &b->tracks[i])) b->dirty = true;
}

/* --- what came of it --- */

static void settle_written(ledger_track *t, const ledger_job *j) {
  t->begun = true;
  if (j->at.epoch > t->epoch_written) t->epoch_written = j->at.epoch;
  t->written = j->from + j->count;
  t->end_written = j->at.ended;
}

static void settle_job(ledger_backlog *b, const ledger_job *j, const logger *log) {
  ledger_track *t = NULL;
  for (int32_t i = 0; i < b->count && !t; i++)
    if (b->tracks[i].session == j->at.session) t = &b->tracks[i];
  if (!t) return;
  if (j->at.lost && !t->lost)
    log_line(log, LOG_WARNING, "session %016llx was taken over by another process: its answer ends here",
             (unsigned long long)t->session);
  if (j->at.lost)
    t->lost = true;
  else
    settle_written(t, j);
  if (strcmp(t->numerics, j->at.numerics) == 0) t->numerics_news = false;
  if (t->forgotten && (t->lost || !ledger_backlog_has_news(b, t))) ledger_backlog_remove(b, t);
}

void ledger_batch_written(const ledger_batch *x, ledger_backlog *b, const logger *log) {
  b->failing = false;
  for (int32_t i = 0; i < x->job_count; i++) settle_job(b, &x->jobs[i], log);
}

bool ledger_batch_failed(ledger_backlog *b) {
  bool first = !b->failing;
  b->dirty = b->failing = true;
  return first;
}

void ledger_batch_fini(ledger_batch *x) {
  free(x->jobs);
  free(x->tokens);
  *x = (ledger_batch){0};
}
