#include "orchestrator/ledger/ledger_recovery.h"

#include "common/base/err.h"
#include <stdbool.h>
#include <stdlib.h>

/* Ranges are halved so often: 4,096 of them reach every page of some 20,000 sessions. */
#define DEPTH_MAX 12

typedef struct tree { /* one that has a key of every session */
  sqlite3_stmt *up, *down;
  ledger_recovery_ids *out;
  int code; /* ERR_OK until there is no room for an id */
} tree;

static int add(ledger_recovery_ids *out, uint64_t id) {
  if (out->count > 0 && out->ids[out->count - 1] == id) return ERR_OK; /* of the same session's next piece */
  if (out->count == LEDGER_RECOVERY_IDS_MAX) return ERR_LIMIT;
  if (out->count == out->capacity) {
    size_t capacity = out->capacity ? 2 * out->capacity : 256;
    uint64_t *more = realloc(out->ids, capacity * sizeof *more);
    if (!more) return ERR_NOMEM;
    out->ids = more;
    out->capacity = capacity;
  }
  out->ids[out->count++] = id;
  return ERR_OK;
}

/* Reads from one end of a range until its other end or a damage; *last: the key before that. True: to the
 * other end. */
static bool walk(tree *t, sqlite3_stmt *s, int64_t low, int64_t high, int64_t *last) {
  int rc = SQLITE_DONE;
  sqlite3_bind_int64(s, 1, low);
  sqlite3_bind_int64(s, 2, high);
  while (t->code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    *last = sqlite3_column_int64(s, 0);
    t->code = add(t->out, (uint64_t)*last);
  }
  sqlite3_reset(s);
  return rc == SQLITE_DONE || t->code != ERR_OK;
}

static void collect(tree *t, int64_t low, int64_t high, int depth) {
  int64_t first = low, last = high;
  if (walk(t, t->up, low, high, &first) || walk(t, t->down, low, high, &last)) return;
  if (depth == DEPTH_MAX || last <= first) return;
  int64_t middle = first + (int64_t)(((uint64_t)last - (uint64_t)first) / 2);
  if (middle > first) collect(t, first, middle, depth + 1);
  if (middle < last) collect(t, middle + 1, last, depth + 1);
}

/* An index by another key: from both ends alone. */
static void collect_ends(tree *t) {
  int64_t last;
  if (!walk(t, t->up, 0, 0, &last)) walk(t, t->down, 0, 0, &last);
}

static int read_tree(sqlite3 *db, ledger_recovery_ids *out, const char *up, const char *down, bool ranges) {
  tree t = {.out = out};
  if (sqlite3_prepare_v2(db, up, -1, &t.up, NULL) == SQLITE_OK &&
      sqlite3_prepare_v2(db, down, -1, &t.down, NULL) == SQLITE_OK) {
    if (ranges)
      collect(&t, INT64_MIN, INT64_MAX, 0);
    else
      collect_ends(&t);
  }
  sqlite3_finalize(t.up);
  sqlite3_finalize(t.down);
  return t.code;
}

static int by_number(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

int ledger_recovery_find(sqlite3 *db, ledger_recovery_ids *out) {
  static const struct {
    const char *up, *down;
    bool ranges;
  } trees[] = {{"SELECT id FROM session WHERE id BETWEEN ? AND ? ORDER BY id",
                "SELECT id FROM session WHERE id BETWEEN ? AND ? ORDER BY id DESC", true},
               {"SELECT session FROM tokens WHERE session BETWEEN ? AND ? ORDER BY session",
                "SELECT session FROM tokens WHERE session BETWEEN ? AND ? ORDER BY session DESC", true},
               {"SELECT id FROM session INDEXED BY session_by_time ORDER BY created",
                "SELECT id FROM session INDEXED BY session_by_time ORDER BY created DESC", false}};
  int code = ERR_OK;
  *out = (ledger_recovery_ids){0};
  for (size_t i = 0; i < sizeof trees / sizeof *trees && code == ERR_OK; i++)
    code = read_tree(db, out, trees[i].up, trees[i].down, trees[i].ranges);
  if (out->count > 0) qsort(out->ids, out->count, sizeof *out->ids, by_number);
  size_t kept = 0;
  for (size_t i = 0; i < out->count; i++)
    if (kept == 0 || out->ids[kept - 1] != out->ids[i]) out->ids[kept++] = out->ids[i];
  out->count = kept;
  return code;
}

void ledger_recovery_fini(ledger_recovery_ids *out) {
  free(out->ids);
  *out = (ledger_recovery_ids){0};
}
