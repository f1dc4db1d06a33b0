/* libs: ledger wire speculative base */
/* fuzz_ledger - a ledger's file of any bytes: refused with one error, or read, and then every session keeps
 * to the limits of a session; checked, and repaired, and then it is good. Odd first byte: changes of a right
 * file, three bytes a change (offset, value).
 */
#include "orchestrator/ledger/ledger_check.h"
#include "orchestrator/ledger/ledger_copy.h"
#include "orchestrator/ledger/ledger_file.h"
#include "orchestrator/ledger/ledger_query.h"
#include "orchestrator/ledger/ledger_repair.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SESSIONS = 2, FILE_MAX = 1 << 18, SEEN_MAX = 64 };

static char path[64];
static uint8_t right[FILE_MAX];
static size_t right_size;

static void nothing(void *context) {
  (void)context;
}

static void remove_files(void) {
  char other[80];
  unlink(path);
  snprintf(other, sizeof other, "%s-wal", path), unlink(other);
  snprintf(other, sizeof other, "%s-shm", path), unlink(other);
  snprintf(other, sizeof other, "%s-owners", path), unlink(other);
}

static void write_file(const uint8_t *data, size_t size) {
  remove_files();
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
  close(fd);
}

/* As an orchestrator leaves it: one session ended, one that goes on. */
static void make_right_file(void) {
  static const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
  static const msg_options options = {
      .top_p = 1, .repeat_penalty = 1, .max_tokens = 9, .context = 64, .stops = tokens, .stop_count = 2};
  const msg_stats stats = {.forwards = 3};
  ledger l;
  err e;
  /* In memory where there is such a folder: every file that repair makes is synced. */
  snprintf(path, sizeof path, "%s/fuzz-ledger-%d.sqlite", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm",
           (int)getpid());
  remove_files();
  atexit(remove_files);
  if (ledger_file_open(
          &l, &(ledger_file_options){.path = path, .command = "fuzz", .model = "m", .on_durable = nothing},
          &e))
    abort();
  for (uint64_t id = 1; id <= SESSIONS; id++) {
    ledger_record r = {.session = id,
                       .hash_seed = 9,
                       .tokens = tokens,
                       .length = 3,
                       .prompt_length = 3,
                       .options = &options,
                       .about = "{\"title\":\"t\"}"};
    if (l.begin(l.self, &r) || l.append(l.self, id, 3, tokens + 3, 3)) abort();
  }
  l.end(l.self, 1, 6, WIRE_FINISH_STOP, &stats);
  l.close(l.self);
  FILE *f = fopen(path, "rb");
  if (!f) abort();
  right_size = fread(right, 1, sizeof right, f);
  fclose(f);
}

typedef struct seen {
  uint64_t ids[SEEN_MAX];
  int count;
} seen;

static void on_line(void *context, const ledger_line *l) {
  seen *s = context;
  if (s->count < SEEN_MAX) s->ids[s->count++] = l->id;
}

static void on_orchestrator(void *context, const ledger_orchestrator *o) {
  (void)context;
  if (o->command && strlen(o->command) > FILE_MAX) abort();
}

static void check_session(sqlite3 *db, uint64_t id) {
  ledger_session s;
  err e = {0};
  int rc = ledger_query_load(db, path, id, &s, &e);
  if (rc) {
    if (rc != e.code || !e.text[0]) abort();
    return;
  }
  if (s.length < s.prompt_length || s.prompt_length < 1 || s.length > WIRE_CONTEXT_MAX) abort();
  if (s.options.stop_count < 0 || s.options.stop_count > WIRE_STOPS_MAX) abort();
  volatile int32_t last = s.tokens[s.length - 1];
  (void)last;
  ledger_session_fini(&s);
}

static void read_ledger(void) {
  sqlite3 *db;
  seen s = {.count = 0};
  err e = {0};
  ledger_totals total;
  int rc = ledger_database_open(&db, path, false, &e);
  if (rc) {
    if (db || rc != e.code || !e.text[0]) abort();
    return;
  }
  rc = ledger_query_list(db, path, 0, true, on_line, &s, &total, &e);
  if (rc && (rc != e.code || !e.text[0])) abort();
  ledger_query_orchestrators(db, path, on_orchestrator, NULL, &e);
  for (int i = 0; i < s.count; i++) check_session(db, s.ids[i]);
  sqlite3_close(db);
}

static void on_damage(void *context, const ledger_damage *d) {
  if (!d->text[0]) abort();
  ++*(int64_t *)context;
}

/* The damages that are found; -1: it cannot be opened. */
static int64_t damages(void) {
  sqlite3 *db;
  ledger_check_counts c;
  int64_t told = 0;
  err e = {0};
  if (ledger_database_open(&db, path, false, &e)) return -1;
  int rc = ledger_check(db, path, on_damage, &told, &c, &e);
  if (rc ? rc != e.code : told != c.damages) abort();
  sqlite3_close(db);
  return rc ? -1 : told;
}

static void on_session(void *context, const ledger_repaired *r) {
  (void)context;
  if (r->whole && !r->kept) abort();
}

static void repair_ledger(void) {
  ledger_repair_result r;
  err e = {0};
  int rc = ledger_repair(path, on_session, NULL, &r, &e);
  if (rc ? rc != e.code || !e.text[0] : damages() != 0) abort();
  if (!rc && !r.was_good) ledger_copy_remove(r.damaged);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t changed[FILE_MAX];
  if (!right_size) make_right_file();
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    write_file(data + 1, size - 1);
  } else {
    memcpy(changed, right, right_size);
    for (size_t i = 1; i + 2 < size; i += 3)
      changed[(data[i] | (size_t)data[i + 1] << 8) % right_size] = data[i + 2];
    write_file(changed, size % 8 == 2 ? (size_t)data[size - 1] * right_size / 255 : right_size);
  }
  read_ledger();
  damages();
  repair_ledger();
  return 0;
}
