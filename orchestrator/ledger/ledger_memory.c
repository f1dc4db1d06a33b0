#include "orchestrator/ledger/ledger.h"

#include <stdlib.h>
#include <string.h>

#define LEDGER_TABLE_MIN 64 /* slots of an empty table; a power of two */

typedef struct record {
  bool used;
  ledger_entry entry; /* tokens: owned here */
  int32_t *tokens;
  int32_t capacity;
} record;

/* Open addressing, linear probing; at most half of the slots are used. */
typedef struct table {
  record *slots; /* [slot_count] */
  size_t slot_count, used;
} table;

static size_t home_of(const table *t, uint64_t session) {
  return (size_t)((session * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (t->slot_count - 1);
}

/* The slot of the session, or the free one where it would go. */
static record *slot_of(const table *t, uint64_t session) {
  size_t i = home_of(t, session);
  while (t->slots[i].used && t->slots[i].entry.session != session) i = (i + 1) & (t->slot_count - 1);
  return &t->slots[i];
}

static record *find(const table *t, uint64_t session) {
  record *r = slot_of(t, session);
  return r->used ? r : NULL;
}

static int widen(table *t) {
  if (2 * (t->used + 1) <= t->slot_count) return ERR_OK;
  table bigger = {.slot_count = 2 * t->slot_count, .used = t->used};
  bigger.slots = calloc(bigger.slot_count, sizeof *bigger.slots);
  if (!bigger.slots) return ERR_NOMEM;
  for (size_t i = 0; i < t->slot_count; i++)
    if (t->slots[i].used) *slot_of(&bigger, t->slots[i].entry.session) = t->slots[i];
  free(t->slots);
  *t = bigger;
  return ERR_OK;
}

/* count >= 0; ERR_NOMEM changes nothing. */
static int add_tokens(record *r, const int32_t *tokens, int32_t count) {
  if (count > INT32_MAX - r->entry.length) return ERR_LIMIT;
  int32_t needed = r->entry.length + count;
  if (needed > r->capacity) {
    int32_t wanted = needed > INT32_MAX / 2 ? needed : 2 * needed;
    int32_t *p = realloc(r->tokens, (size_t)wanted * sizeof *p);
    if (!p) return ERR_NOMEM;
    r->tokens = p;
    r->capacity = wanted;
  }
  if (count > 0) memcpy(r->tokens + r->entry.length, tokens, (size_t)count * sizeof *tokens);
  r->entry.length = needed;
  r->entry.tokens = r->tokens;
  return ERR_OK;
}

static int ledger_begin(void *self, const ledger_record *given) {
  table *t = self;
  if (given->prompt_length < 1 || given->length < given->prompt_length) return ERR_ARG;
  if (find(t, given->session)) return ERR_STATE;
  int rc = widen(t);
  if (rc) return rc;
  record fresh = {.used = true,
                  .entry = {.session = given->session,
                            .hash_seed = given->hash_seed,
                            .prompt_length = given->prompt_length,
                            .epoch = given->epoch}};
  rc = add_tokens(&fresh, given->tokens, given->length);
  if (rc) return rc;
  *slot_of(t, given->session) = fresh;
  t->used++;
  return ERR_OK;
}

static int ledger_epoch(void *self, uint64_t session, uint32_t epoch) {
  record *r = find(self, session);
  if (!r) return ERR_GONE;
  if (epoch < r->entry.epoch) return ERR_STALE;
  r->entry.epoch = epoch;
  return ERR_OK;
}

static int ledger_append(void *self, uint64_t session, int32_t position, const int32_t *tokens,
                         int32_t count) {
  record *r = find(self, session);
  if (!r) return ERR_GONE;
  if (count < 0) return ERR_ARG;
  if (r->entry.ended || position != r->entry.length) return ERR_STATE;
  return add_tokens(r, tokens, count);
}

static int ledger_numerics(void *self, uint64_t session, const char *id) {
  (void)id;
  return find(self, session) ? ERR_OK : ERR_GONE;
}

static int ledger_end(void *self, uint64_t session, int32_t length, wire_finish finish,
                      const msg_stats *stats) {
  record *r = find(self, session);
  (void)finish;
  (void)stats;
  if (!r) return ERR_GONE;
  if (length < r->entry.prompt_length || length > r->entry.length) return ERR_ARG;
  r->entry.length = length;
  r->entry.ended = true;
  return ERR_OK;
}

static int32_t ledger_durable(void *self, uint64_t session) {
  const record *r = find(self, session);
  return r ? r->entry.length : 0;
}

static bool ledger_lost(void *self, uint64_t session) {
  (void)self;
  (void)session;
  return false; /* nobody else reads this memory */
}

static bool ledger_read(void *self, uint64_t session, ledger_entry *out) {
  const record *r = find(self, session);
  if (r) *out = r->entry;
  return r != NULL;
}

/* Frees a slot and moves entries that had to go past it closer to their home. */
static void ledger_forget(void *self, uint64_t session) {
  table *t = self;
  record *r = find(t, session);
  if (!r) return;
  free(r->tokens);
  t->used--;
  size_t mask = t->slot_count - 1, hole = (size_t)(r - t->slots);
  for (size_t i = (hole + 1) & mask; t->slots[i].used; i = (i + 1) & mask) {
    size_t home = home_of(t, t->slots[i].entry.session);
    if (((i - home) & mask) < ((i - hole) & mask)) continue; /* its home lies past the hole */
    t->slots[hole] = t->slots[i];
    hole = i;
  }
  t->slots[hole] = (record){0};
}

static void ledger_close(void *self) {
  table *t = self;
  for (size_t i = 0; i < t->slot_count; i++) free(t->slots[i].tokens);
  free(t->slots);
  free(t);
}

int ledger_memory(ledger *out) {
  *out = (ledger){0};
  table *t = calloc(1, sizeof *t);
  record *slots = calloc(LEDGER_TABLE_MIN, sizeof *slots);
  if (!t || !slots) {
    free(t);
    free(slots);
    return ERR_NOMEM;
  }
  *t = (table){.slots = slots, .slot_count = LEDGER_TABLE_MIN};
  *out = (ledger){.self = t,
                  .begin = ledger_begin,
                  .epoch = ledger_epoch,
                  .append = ledger_append,
                  .numerics = ledger_numerics,
                  .end = ledger_end,
                  .durable = ledger_durable,
                  .lost = ledger_lost,
                  .read = ledger_read,
                  .forget = ledger_forget,
                  .close = ledger_close};
  return ERR_OK;
}
