#include "orchestrator/ledger/ledger_writer.h"

#include "common/base/clock.h"
#include "common/base/least.h"
#include "common/base/program.h"
#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/ledger/options_json.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/ledger_query.h"
#include "orchestrator/ledger/ledger_transaction.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST_TRIES 2 /* of the last transaction, each for LEDGER_BUSY_MS */

typedef struct book {
  ledger memory;
  ledger_writer_options options; /* strings are owned */
  char *path, *command, *model;
  ledger_process who;

  pthread_mutex_t lock; /* of all below but the writer's own */
  pthread_cond_t wake, done;
  pthread_t thread;
  bool thread_runs, stop, dirty, urgent, failing;
  ledger_track *tracks; /* [count] */
  int32_t count, capacity;
  char *workers;       /* JSON or NULL */
  uint64_t tokens_new; /* since the last beat */
  uint64_t busy_since, retry_us, committed_us, beat_us, beaten_us;

  /* The writer's own. */
  sqlite3 *db;
  ledger_transaction *writer;
  ledger_job *jobs;
  int32_t job_count, job_capacity;
  int32_t *buffer;
  size_t buffer_size, buffer_capacity; /* tokens */
} book;

/* ---- tracks; under the lock ---- */

static ledger_track *track_of(const book *b, uint64_t session) {
  for (int32_t i = 0; i < b->count; i++)
    if (b->tracks[i].session == session && !b->tracks[i].forgotten) return &b->tracks[i];
  return NULL;
}

static int32_t length_of(const book *b, uint64_t session) {
  return b->memory.durable(b->memory.self, session);
}

static bool has_news(const book *b, const ledger_track *t) {
  if (t->lost) return false;
  return !t->begun || t->epoch > t->epoch_written || t->numerics_news || (t->ended && !t->end_written) ||
         t->written < length_of(b, t->session);
}

static void drop_track(book *b, ledger_track *t) {
  free(t->options);
  free(t->about);
  b->memory.forget(b->memory.self, t->session);
  *t = b->tracks[--b->count];
}

static void poke(book *b, bool urgent) {
  b->dirty = true;
  b->urgent |= urgent;
  pthread_cond_signal(&b->wake);
}

static char *copy_or_null(const char *text) {
  return text ? strdup(text) : NULL;
}

/* ---- the calls ---- */

static int add_track(book *b, const ledger_record *r) {
  if (b->count == b->capacity) {
    int32_t capacity = b->capacity ? 2 * b->capacity : 16;
    ledger_track *more = realloc(b->tracks, (size_t)capacity * sizeof *more);
    if (!more) return ERR_NOMEM;
    b->tracks = more;
    b->capacity = capacity;
  }
  ledger_track t = {.session = r->session,
                    .hash_seed = r->hash_seed,
                    .created = clock_wall_us(),
                    .prompt_length = r->prompt_length,
                    .resumed = r->epoch > 0,
                    .epoch_written = r->epoch,
                    .written = r->epoch > 0 ? r->length : 0,
                    .options = r->options ? options_json_text(r->options) : NULL,
                    .about = copy_or_null(r->about)};
  if ((r->options && !t.options) || (r->about && !t.about)) {
    free(t.options);
    free(t.about);
    return ERR_NOMEM;
  }
  b->tracks[b->count++] = t;
  return ERR_OK;
}

static struct timespec time_of(uint64_t us) {
  return (struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
}

static bool is_leaving(const book *b, uint64_t session) {
  for (int32_t i = 0; i < b->count; i++)
    if (b->tracks[i].session == session && b->tracks[i].forgotten) return true;
  return false;
}

/* One that goes on right after its end: the end is in the file first. */
static void wait_for_end(book *b, uint64_t session) {
  struct timespec until = time_of(clock_us() + LEDGER_STALL_US);
  while (is_leaving(b, session) && !b->failing)
    if (pthread_cond_timedwait(&b->done, &b->lock, &until) != 0) return;
}

/* The writer is not told yet: the epoch that is to be recorded with the beginning follows. */
static int book_begin(void *self, const ledger_record *r) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  wait_for_end(b, r->session);
  int rc = b->memory.begin(b->memory.self, r);
  if (rc == ERR_OK && (rc = add_track(b, r)) != ERR_OK) b->memory.forget(b->memory.self, r->session);
  pthread_mutex_unlock(&b->lock);
  return rc;
}

/* Only a session that runs ahead of the writer by LEDGER_EPOCHS_AHEAD comes here. */
static bool wait_for_epoch(book *b, uint64_t session, uint32_t epoch) {
  struct timespec until = time_of(clock_us() + LEDGER_STALL_US);
  const ledger_track *t;
  while ((t = track_of(b, session)) && t->epoch_written < epoch && !t->lost && !b->failing)
    if (pthread_cond_timedwait(&b->done, &b->lock, &until) != 0) return false;
  return t && !t->lost;
}

static int book_epoch(void *self, uint64_t session, uint32_t epoch) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.epoch(b->memory.self, session, epoch);
  ledger_track *t = rc == ERR_OK ? track_of(b, session) : NULL;
  if (t && t->lost)
    rc = ERR_GONE;
  else if (t && (!t->begun || epoch + LEDGER_EPOCHS_AHEAD / 2 > t->epoch_written)) {
    t->epoch = epoch + LEDGER_EPOCHS_AHEAD;
    bool ahead = t->begun && epoch > t->epoch_written;
    poke(b, !t->begun || ahead);
    if (ahead && !wait_for_epoch(b, session, epoch)) rc = ERR_IO;
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int book_append(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.append(b->memory.self, session, position, tokens, count);
  if (rc == ERR_OK && count > 0) {
    b->tokens_new += (uint64_t)count;
    if (!b->dirty) poke(b, false);
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int book_numerics(void *self, uint64_t session, const char *id) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  ledger_track *t = track_of(b, session);
  if (t) {
    snprintf(t->numerics, sizeof t->numerics, "%s", id);
    t->numerics_news = true;
    poke(b, false);
  }
  pthread_mutex_unlock(&b->lock);
  return t ? ERR_OK : ERR_GONE;
}

static void tell_stats(char out[LEDGER_STATS_MAX], const msg_stats *s) {
  out[0] = 0;
  if (!s || s->forwards == 0) return; /* cut or cancelled: nobody has told yet */
  snprintf(out, LEDGER_STATS_MAX,
           "{\"forwards\":%llu,\"rounds\":%llu,\"draft_tokens\":%llu,\"accepted_tokens\":%llu}",
           (unsigned long long)s->forwards, (unsigned long long)s->rounds, (unsigned long long)s->rows,
           (unsigned long long)s->accepted);
}

static int book_end(void *self, uint64_t session, int32_t length, wire_finish finish,
                    const msg_stats *stats) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.end(b->memory.self, session, length, finish, stats);
  ledger_track *t = rc == ERR_OK ? track_of(b, session) : NULL;
  if (t) {
    t->ended = true;
    t->finish = finish;
    if (t->written > length) t->written = length;
    tell_stats(t->stats, stats);
    poke(b, true);
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int32_t book_durable(void *self, uint64_t session) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  const ledger_track *t = track_of(b, session);
  int32_t length = 0;
  if (t && (b->failing || t->lost))
    length = length_of(b, session);
  else if (t && t->begun)
    length = t->written;
  pthread_mutex_unlock(&b->lock);
  return length;
}

static bool book_read(void *self, uint64_t session, ledger_entry *out) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  bool found = b->memory.read(b->memory.self, session, out);
  pthread_mutex_unlock(&b->lock);
  return found;
}

/* The writer drops it once it is written. */
static void book_forget(void *self, uint64_t session) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  ledger_track *t = track_of(b, session);
  if (t && (t->lost || !has_news(b, t)))
    drop_track(b, t);
  else if (t)
    t->forgotten = true;
  pthread_mutex_unlock(&b->lock);
}

/* ---- the writer: what is new, under the lock ---- */

static bool fits(book *b, size_t tokens) {
  if (b->job_count == b->job_capacity) {
    int32_t capacity = b->job_capacity ? 2 * b->job_capacity : 16;
    ledger_job *more = realloc(b->jobs, (size_t)capacity * sizeof *more);
    if (!more) return false;
    b->jobs = more;
    b->job_capacity = capacity;
  }
  if (b->buffer_size + tokens <= b->buffer_capacity) return true;
  size_t capacity = 2 * (b->buffer_size + tokens);
  int32_t *more = realloc(b->buffer, capacity * sizeof *more);
  if (!more) return false;
  b->buffer = more;
  b->buffer_capacity = capacity;
  return true;
}

/* New tokens; all of them where the session begins or its pieces become one. False: no memory, later again.
 */
static bool take_job(book *b, const ledger_track *t) {
  ledger_entry entry;
  if (!b->memory.read(b->memory.self, t->session, &entry)) return false;
  int32_t from = !t->begun && !t->resumed ? 0
                 : t->ended               ? t->prompt_length
                                          : t->written,
          count = entry.length - from;
  if (!fits(b, (size_t)count)) return false;
  if (count > 0) memcpy(b->buffer + b->buffer_size, entry.tokens + from, (size_t)count * sizeof *b->buffer);
  b->jobs[b->job_count++] = (ledger_job){.at = *t, .from = from, .count = count, .offset = b->buffer_size};
  b->buffer_size += (size_t)count;
  return true;
}

static void take_jobs(book *b) {
  b->job_count = 0;
  b->buffer_size = 0;
  b->dirty = b->urgent = false;
  for (int32_t i = 0; i < b->count; i++)
    if (has_news(b, &b->tracks[i]) && !take_job(b, &b->tracks[i])) b->dirty = true;
}

/* ---- the writer: what came of it, under the lock ---- */

static void settle_track(book *b, const ledger_job *j) {
  ledger_track *t = NULL;
  for (int32_t i = 0; i < b->count && !t; i++)
    if (b->tracks[i].session == j->at.session) t = &b->tracks[i];
  if (!t) return;
  if (j->at.lost && !t->lost)
    log_line(b->options.log, LOG_WARNING,
             "session %016llx was taken over by another process: the rest stays here",
             (unsigned long long)t->session);
  t->lost = j->at.lost;
  t->begun = true;
  if (!t->lost) t->epoch_written = j->at.epoch > t->epoch_written ? j->at.epoch : t->epoch_written;
  t->written = j->from + j->count;
  t->end_written = j->at.ended;
  if (strcmp(t->numerics, j->at.numerics) == 0) t->numerics_news = false;
  if (t->forgotten && (t->lost || !has_news(b, t))) drop_track(b, t);
}

static void settle_failure(book *b, int rc, const err *why) {
  uint64_t now = clock_us();
  b->dirty = true;
  if (!b->busy_since) b->busy_since = now;
  b->retry_us = now + LEDGER_RETRY_US;
  if (b->failing || ((rc & 0xff) == SQLITE_BUSY && now - b->busy_since < LEDGER_STALL_US)) return;
  b->failing = true;
  log_line(b->options.log, LOG_WARNING, "%s. The answer goes on, but is not kept if this program dies",
           why->text);
}

static void settle(book *b, int rc, const err *why) {
  b->committed_us = clock_us();
  if (rc) {
    settle_failure(b, rc, why);
    return;
  }
  if (b->failing) log_line(b->options.log, LOG_WARNING, "the ledger %s is written again", b->path);
  b->failing = false;
  b->busy_since = 0;
  for (int32_t i = 0; i < b->job_count; i++) settle_track(b, &b->jobs[i]);
}

/* ---- the writer: its life ---- */

static uint64_t due_at(const book *b, uint64_t now) {
  if (b->failing) return b->retry_us;
  if (b->urgent) return now;
  return b->dirty ? least_u64(b->beat_us, b->committed_us + LEDGER_GROUP_US) : b->beat_us;
}

static void wait_for_work(book *b) {
  for (uint64_t now = clock_us(), due; !b->stop && (due = due_at(b, now)) > now; now = clock_us()) {
    struct timespec until = time_of(due);
    pthread_cond_timedwait(&b->wake, &b->lock, &until);
  }
}

static int32_t running(const book *b) {
  int32_t n = 0;
  for (int32_t i = 0; i < b->count; i++) n += !b->tracks[i].ended;
  return n;
}

static ledger_beat take_beat(book *b) {
  uint64_t now = clock_us(), since = now - b->beaten_us;
  if (b->beat_us > now) return (ledger_beat){0};
  ledger_beat pulse = {.due = true, .sessions = running(b), .workers = copy_or_null(b->workers)};
  pulse.millitokens = since ? (int64_t)(b->tokens_new * UINT64_C(1000000000) / since) : 0;
  b->tokens_new = 0;
  b->beaten_us = now;
  b->beat_us = now + (pulse.sessions > 0 ? LEDGER_BEAT_US : LEDGER_IDLE_BEAT_US);
  return pulse;
}

/* One transaction, without the lock but at both ends. */
static bool work_once(book *b) {
  err why = {0};
  ledger_beat pulse = take_beat(b);
  take_jobs(b);
  pthread_mutex_unlock(&b->lock);
  bool any = b->job_count > 0 || pulse.due;
  int rc = any ? ledger_transaction_commit(b->writer, b->jobs, b->job_count, b->buffer, &pulse) : SQLITE_OK;
  if (rc) {
    ledger_database_error(b->db, b->path, &why);
    ledger_transaction_undo(b->writer);
  }
  free(pulse.workers);
  pthread_mutex_lock(&b->lock);
  settle(b, rc, &why);
  pthread_cond_broadcast(&b->done);
  return rc == SQLITE_OK;
}

static void *writer(void *self) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  while (!b->stop) {
    wait_for_work(b);
    work_once(b);
    pthread_mutex_unlock(&b->lock);
    b->options.on_durable(b->options.context);
    pthread_mutex_lock(&b->lock);
  }
  for (int tries = LAST_TRIES; tries > 0 && !work_once(b); tries--) continue;
  pthread_mutex_unlock(&b->lock);
  return NULL;
}

/* ---- open and close ---- */

static void book_free(book *b) {
  ledger_transaction_close(b->writer);
  sqlite3_close(b->db);
  while (b->count > 0) drop_track(b, &b->tracks[0]);
  if (b->memory.close) b->memory.close(b->memory.self);
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->wake);
  pthread_cond_destroy(&b->done);
  free(b->tracks);
  free(b->jobs);
  free(b->buffer);
  free(b->workers);
  free(b->path);
  free(b->command);
  free(b->model);
  free(b);
}

static void book_close(void *self) {
  book *b = self;
  pthread_mutex_lock(&b->lock);
  b->stop = true;
  pthread_cond_signal(&b->wake);
  pthread_mutex_unlock(&b->lock);
  if (b->thread_runs) pthread_join(b->thread, NULL);
  ledger_change_leave(b->db, b->who.id); /* where it fails, others see that this process is gone */
  book_free(b);
}

static book *book_alloc(const ledger_writer_options *o) {
  book *b = calloc(1, sizeof *b);
  if (!b) return NULL;
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->wake, &attributes);
  pthread_cond_init(&b->done, &attributes);
  pthread_condattr_destroy(&attributes);
  b->options = *o;
  b->path = strdup(o->path);
  b->command = strdup(o->command);
  b->model = copy_or_null(o->model);
  b->beaten_us = b->beat_us = clock_us();
  if (b->path && b->command && (b->model || !o->model) && ledger_memory(&b->memory) == ERR_OK) return b;
  book_free(b);
  return NULL;
}

/* This process is in the file before anything that it owns. */
static int enter(book *b, err *e) {
  b->who = (ledger_process){.since = clock_wall_us(),
                            .command = b->command,
                            .model = b->model,
                            .fingerprint = b->options.fingerprint};
  process_identity_self(&b->who.self);
  int rc = ledger_change_remove_dead(b->db, b->path, e);
  if (rc == ERR_OK) rc = program_random(&b->who.id, sizeof b->who.id, e);
  if (rc == ERR_OK && ledger_transaction_open(&b->writer, b->db, &b->who))
    rc = err_set(e, ERR_NOMEM, "out of memory");
  if (rc == ERR_OK && ledger_transaction_commit(b->writer, NULL, 0, NULL, &(ledger_beat){.due = true})) {
    rc = ledger_database_error(b->db, b->path, e);
    ledger_transaction_undo(b->writer);
  }
  if (rc == ERR_OK && b->options.resume)
    rc = ledger_change_claim(b->db, b->path, b->options.resume, b->options.resume_updated, b->who.id, e);
  return rc;
}

int ledger_writer_open(ledger *out, const ledger_writer_options *o, err *e) {
  *out = (ledger){0};
  book *b = book_alloc(o);
  if (!b) return err_set(e, ERR_NOMEM, "out of memory for the ledger");
  int rc = ledger_database_open(&b->db, o->path, true, e);
  if (rc == ERR_OK) rc = enter(b, e);
  if (rc == ERR_OK && pthread_create(&b->thread, NULL, writer, b) != 0)
    rc = err_set(e, ERR_NOMEM, "cannot start the ledger's thread");
  if (rc) {
    if (b->db) ledger_change_leave(b->db, b->who.id);
    book_free(b);
    return rc;
  }
  b->thread_runs = true;
  *out = (ledger){.self = b,
                  .begin = book_begin,
                  .epoch = book_epoch,
                  .append = book_append,
                  .numerics = book_numerics,
                  .end = book_end,
                  .durable = book_durable,
                  .read = book_read,
                  .forget = book_forget,
                  .close = book_close};
  return ERR_OK;
}

void ledger_writer_set_workers(ledger *l, const char *json) {
  book *b = l->self;
  char *copy = copy_or_null(json);
  pthread_mutex_lock(&b->lock);
  free(b->workers);
  b->workers = copy;
  pthread_mutex_unlock(&b->lock);
}

bool ledger_writer_failing(const ledger *l) {
  book *b = l->self;
  pthread_mutex_lock(&b->lock);
  bool failing = b->failing;
  pthread_mutex_unlock(&b->lock);
  return failing;
}
