#include "tests/sim/storage.h"

#include "orchestrator/ledger/ledger_calls.h"
#include "orchestrator/ledger/ledger_writer.h"
#include <assert.h>
#include <stddef.h>
#include <string.h>

#define OTHER UINT32_MAX /* the owner of what another orchestrator has taken */

static storage *storage_of(void *backlog) {
  return (storage *)(void *)((char *)backlog - offsetof(storage, backlog));
}

static storage_record *record_of(storage *s, uint64_t session) {
  for (int i = 0; i < STORAGE_RECORDS; i++)
    if (s->records[i].session == session) return &s->records[i];
  return NULL;
}

/* --- a transaction's statements: false where one changes no row, which shows another owner --- */

static bool insert(storage *s, const ledger_track *t, const int32_t *tokens) {
  storage_record *x = record_of(s, t->session);
  if (x) {
    bool ours = x->owner == s->process || (!x->owner && x->disk.epoch == t->epoch);
    if (ours && x->hash_seed == t->hash_seed) x->disk.epoch = t->epoch;
    return ours && x->hash_seed == t->hash_seed;
  }
  x = record_of(s, 0);
  assert(x);
  *x = (storage_record){.session = t->session,
                        .owner = s->process,
                        .hash_seed = t->hash_seed,
                        .prompt_length = t->prompt_length,
                        .disk = {.begun = true, .length = t->prompt_length, .epoch = t->epoch}};
  memcpy(x->tokens, tokens, (size_t)t->prompt_length * sizeof *tokens);
  return true;
}

static bool resume(const storage *s, storage_record *x, const ledger_track *t) {
  bool same =
      (x->disk.epoch == t->epoch && t->ended) || (x->disk.epoch < t->epoch && x->disk.length == t->written);
  if (x->owner != s->process && (x->owner || !same)) return false;
  x->owner = s->process;
  x->disk.ended = false;
  x->disk.epoch = t->epoch;
  return true;
}

static bool note(const storage *s, storage_record *x, const ledger_track *t) {
  if (x->owner == s->process) x->disk.epoch = t->epoch;
  return x->owner == s->process;
}

static void put(storage_record *x, const ledger_job *j, const int32_t *tokens) {
  assert(j->from + j->count <= TOY_CONTEXT);
  if (j->count > 0) memcpy(x->tokens + j->from, tokens, (size_t)j->count * sizeof *tokens);
  x->disk.length = j->from + j->count;
}

static bool end(const storage *s, storage_record *x, const ledger_job *j, const int32_t *tokens) {
  bool again = !x->owner && x->disk.ended && x->disk.epoch == j->at.epoch;
  if (x->owner != s->process && !again) return false;
  x->owner = 0;
  x->disk.ended = true;
  x->disk.epoch = j->at.epoch;
  put(x, j, tokens);
  return true;
}

static bool append(const storage *s, storage_record *x, const ledger_job *j, const int32_t *tokens) {
  if (j->from + j->count <= x->prompt_length || j->count == 0) return true;
  if (x->owner == s->process) put(x, j, tokens);
  return x->owner == s->process;
}

static bool write_job(storage *s, const ledger_job *j, const int32_t *tokens) {
  const ledger_track *t = &j->at;
  bool ours = true, in_file = t->begun || t->resumed;
  if (!in_file) ours = insert(s, t, tokens);
  storage_record *x = record_of(s, t->session);
  if (!t->begun && t->resumed) ours = resume(s, x, t);
  if (t->ended) return end(s, x, j, tokens) && ours;
  if (in_file && (t->epoch > t->epoch_written || t->numerics_news)) ours &= note(s, x, t);
  return ours && append(s, x, j, tokens);
}

/* What nobody asks for any more, the disk has no record of. */
static bool is_dropped(storage *s, const ledger_job *j) {
  return !ledger_backlog_find(&s->backlog, j->at.session) && !record_of(s, j->at.session);
}

static void commit(storage *s) {
  for (int32_t i = 0; i < s->batch.job_count; i++) {
    ledger_job *j = &s->batch.jobs[i];
    if (!is_dropped(s, j)) j->at.lost = !write_job(s, j, s->batch.tokens + j->offset);
  }
}

/* --- transactions --- */

bool storage_begin(storage *s, uint64_t now_us) {
  s->now_us = now_us;
  if (s->writes || !s->backlog.dirty || (s->backlog.failing && now_us < s->retry_us)) return false;
  ledger_batch_take(&s->batch, &s->backlog);
  s->writes = s->batch.job_count > 0;
  return s->writes;
}

void storage_finish(storage *s) {
  bool fails = s->full, lies = fails && s->lies;
  s->writes = false;
  if (lies) s->lies = false;
  if (!fails || lies) commit(s);
  if (!fails) {
    ledger_batch_written(&s->batch, &s->backlog, NULL);
    return;
  }
  ledger_batch_failed(&s->backlog);
  s->retry_us = s->now_us + LEDGER_RETRY_US;
}

/* The thread that waits is the only one of this world. */
static bool wait(ledger_backlog *b, uint64_t until_us) {
  storage *s = storage_of(b);
  (void)until_us;
  if (!s->writes && !storage_begin(s, s->now_us)) return false;
  storage_finish(s);
  return true;
}

/* --- processes --- */

static void learn(storage *s, uint64_t session) {
  storage_record *x = record_of(s, session);
  if (x) x->lost = false;
}

static int begin(void *self, const ledger_record *r) {
  storage *s = storage_of(self);
  int rc = s->calls.begin(self, r);
  if (rc == ERR_OK) learn(s, r->session);
  return rc;
}

static void forget(void *self, uint64_t session) {
  storage *s = storage_of(self);
  s->calls.forget(self, session);
  learn(s, session);
}

int storage_open(storage *s, ledger *out) {
  int rc = ledger_backlog_init(&s->backlog);
  s->backlog.wait = wait;
  s->process++;
  ledger_calls(&s->calls, &s->backlog);
  *out = s->calls;
  out->begin = begin;
  out->forget = forget;
  return rc;
}

/* What a dead process owned is anybody's. */
void storage_close(storage *s) {
  if (!s->calls.self) return;
  s->calls = (ledger){0};
  s->writes = false;
  ledger_backlog_fini(&s->backlog);
  ledger_batch_fini(&s->batch);
  for (int i = 0; i < STORAGE_RECORDS; i++) {
    storage_record *x = &s->records[i];
    if (x->owner == s->process) x->owner = 0;
    x->lost = false;
  }
}

void storage_crash(storage *s, bool lands) {
  if (s->writes && lands) commit(s);
  storage_close(s);
}

/* ---- another orchestrator ---- */

void storage_take(storage_record *x, uint32_t epochs, const int32_t *tokens, int32_t count, bool ended) {
  x->taken = x->lost = true;
  x->held = x->disk;
  x->owner = ended ? 0 : OTHER;
  memcpy(x->tokens + x->disk.length, tokens, (size_t)count * sizeof *tokens);
  x->disk.length += count;
  x->disk.epoch += epochs;
  x->disk.ended = ended;
  x->foreign = x->disk.epoch;
}

void storage_free(storage *s, uint64_t session) {
  storage_record *x = storage_any(s, session);
  if (!x) return;
  x->taken = false;
  if (x->owner == OTHER) x->owner = 0;
}

const storage_state *storage_own(const storage_record *x) {
  return x->lost ? &x->held : &x->disk;
}

storage_record *storage_any(storage *s, uint64_t session) {
  return session ? record_of(s, session) : NULL;
}

void storage_claim(storage *s, uint64_t session) {
  storage_record *x = record_of(s, session);
  if (x && !x->owner) x->owner = s->process;
}

/* ---- what there is ---- */

const storage_record *storage_find(const storage *s, uint64_t session) {
  for (int i = 0; session && i < STORAGE_RECORDS; i++)
    if (s->records[i].session == session && s->records[i].disk.begun) return &s->records[i];
  return NULL;
}

void storage_drop(storage *s, uint64_t session) {
  storage_record *x = session ? record_of(s, session) : NULL;
  if (x) *x = (storage_record){0};
}
