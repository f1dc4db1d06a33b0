#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/ledger_damage.h"
#include "tests/support/random.h"

bytes whole_file, whole_wal;
const bytes nothing_there;

/* The session of a number: its id, lengths and tokens follow from it. */
static uint64_t id_of(uint64_t number) {
  return (number + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

static int32_t prompt_of(uint64_t number) {
  return 1 + (int32_t)(number * 337 % PROMPT_MAX);
}

static int32_t output_of(uint64_t number) {
  return (int32_t)(number * 773 % OUTPUT_MAX);
}

static int32_t token_of(uint64_t number, int32_t position) {
  return (int32_t)((number * 31 + (uint64_t)position * 7) % 32000);
}

static void make_session(uint64_t number, ledger_session *s) {
  *s = (ledger_session){.id = id_of(number),
                        .hash_seed = number ^ 99,
                        .state = number % 3 ? LEDGER_ENDED : LEDGER_INTERRUPTED,
                        .finish = number % 3 ? WIRE_FINISH_LENGTH : 0,
                        .epoch = 17,
                        .created = 1700000000000000 + (int64_t)number,
                        .updated = 1700000001000000,
                        .prompt_length = prompt_of(number),
                        .length = prompt_of(number) + output_of(number),
                        .options = request};
  s->model = strdup("/some/model.gguf");
  s->about = strdup("{\"title\":\"a title\"}");
  s->tokens = calloc((size_t)s->length, sizeof *s->tokens);
  for (int32_t i = 0; i < s->length; i++) s->tokens[i] = token_of(number, i);
}

void read_bytes(const char *path, const char *suffix, bytes *out) {
  char name[LEDGER_PATH_MAX + 16];
  snprintf(name, sizeof name, "%s%s", path, suffix);
  FILE *f = fopen(name, "rb");
  out->size = f ? fread(out->data, 1, BYTES_MAX, f) : 0;
  assert_true(out->size < BYTES_MAX);
  if (f) fclose(f);
}

void write_bytes(const char *path, const char *suffix, const bytes *b) {
  char name[LEDGER_PATH_MAX + 16];
  snprintf(name, sizeof name, "%s%s", path, suffix);
  unlink(name);
  if (b->size == 0) return;
  FILE *f = fopen(name, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(b->data, 1, b->size, f), b->size);
  fclose(f);
}

void make_whole(const char *path) {
  sqlite3 *db;
  err e = {0};
  if (ledger_database_open(&db, path, true, &e)) fail_msg("%s", e.text);
  for (uint64_t n = 0; n < SESSIONS; n++) {
    ledger_session s;
    ledger_imported how;
    make_session(n, &s);
    if (ledger_import(db, path, &s, false, &how, &e)) fail_msg("%s", e.text);
    ledger_session_fini(&s);
    if (n == SESSIONS - 5) exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
  }
  exec(db, "INSERT INTO orchestrator(id, pid, start, machine, command, since, beat) VALUES(5, 1, 1, 'h', "
           "'run', 1, 1)");
  read_bytes(path, "", &whole_file);
  read_bytes(path, "-wal", &whole_wal);
  assert_true(whole_wal.size > 0);
  sqlite3_close(db);
}

/* Every session that is read is the right one, or the beginning of it. */
static void compare_session(uint64_t number, const ledger_session *s, readable *out) {
  int32_t length = prompt_of(number) + output_of(number);
  assert_int_equal(s->prompt_length, prompt_of(number));
  assert_true(s->length <= length);
  assert_int_equal(s->hash_seed, number ^ 99);
  for (int32_t i = 0; i < s->length; i++) assert_int_equal(s->tokens[i], token_of(number, i));
  if (s->state == LEDGER_ENDED) assert_int_equal(s->length, length);
  out->whole[number] = s->length == length && s->state == (number % 3 ? LEDGER_ENDED : LEDGER_INTERRUPTED);
  out->count += out->whole[number];
}

readable read_ledger(const char *path) {
  readable out = {.count = 0};
  sqlite3 *db;
  err e = {0};
  if (ledger_database_open(&db, path, false, &e)) return out;
  for (uint64_t n = 0; n < SESSIONS; n++) {
    ledger_session s;
    if (ledger_query_load(db, path, id_of(n), &s, &e) == ERR_OK) compare_session(n, &s, &out);
    ledger_session_fini(&s);
  }
  sqlite3_close(db);
  return out;
}

static const char *damage_sql(uint32_t n) {
  static const char *const statements[] = {
      "UPDATE tokens SET sum = zeroblob(16) WHERE session IN (SELECT session FROM tokens LIMIT 1)",
      "UPDATE tokens SET ids = zeroblob(length(ids)) WHERE session = (SELECT max(session) FROM tokens)",
      "UPDATE tokens SET position = position + 1 WHERE session = (SELECT max(session) FROM tokens)",
      "UPDATE session SET content_sum = NULL WHERE id = (SELECT max(id) FROM session)",
      "UPDATE session SET state_sum = zeroblob(16) WHERE id = (SELECT min(id) FROM session)",
      "DELETE FROM session WHERE id = (SELECT max(id) FROM session)",
      "UPDATE session SET owner = 6, state = 0 WHERE id = (SELECT min(id) FROM session)",
      "UPDATE orchestrator SET sum = NULL",
      "DROP INDEX session_by_time",
      "DELETE FROM tokens WHERE session = (SELECT max(session) FROM tokens) AND length(ids) = 0",
      "DELETE FROM tokens WHERE session = (SELECT max(session) FROM tokens) AND length(ids) > 0"};
  enum { COUNT = sizeof statements / sizeof *statements };
  return statements[n % COUNT];
}

bool damage(const char *path, damage_kind kind, uint64_t *seed) {
  static bytes file, wal;
  file = whole_file;
  wal = whole_wal;
  bytes *b = kind == DAMAGE_WAL_FLIP ? &wal : &file;
  size_t page = random_below(seed, (uint32_t)(file.size / 4096)) * (size_t)4096;
  for (uint32_t i = 0; (kind == DAMAGE_FLIP || kind == DAMAGE_WAL_FLIP) && i <= random_below(seed, 4); i++)
    b->data[random_below(seed, (uint32_t)b->size)] ^= (uint8_t)(1u << random_below(seed, 8));
  for (size_t i = 0; (kind == DAMAGE_PAGE || kind == DAMAGE_ZEROS) && i < 4096; i++)
    file.data[page + i] = kind == DAMAGE_ZEROS ? 0 : (uint8_t)random_below(seed, 256);
  if (kind == DAMAGE_CUT) file.size = 1 + random_below(seed, (uint32_t)file.size - 1);
  if (kind == DAMAGE_WAL_GONE) wal.size = 0;
  write_bytes(path, "", &file);
  write_bytes(path, "-wal", &wal);
  write_bytes(path, "-shm", &nothing_there);
  if (kind != DAMAGE_SQL) return false;
  sqlite3 *db = open_database(path);
  exec(db, damage_sql(random_below(seed, 1000)));
  sqlite3_close(db);
  return true;
}

bool is_older_state(damage_kind kind) {
  return kind == DAMAGE_WAL_FLIP || kind == DAMAGE_WAL_GONE;
}
