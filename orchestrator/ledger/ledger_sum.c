#include "orchestrator/ledger/ledger_sum.h"

#include "common/base/hash.h"
#include <stdint.h>

#define ANY_NUMBER (-1) /* of arguments */

static void add(hash_stream *h, char kind, int64_t number) {
  uint8_t bytes[9] = {(uint8_t)kind};
  for (int i = 0; i < 8; i++) bytes[1 + i] = (uint8_t)((uint64_t)number >> (8 * i));
  hash_stream_add(h, bytes, sizeof bytes);
}

static void add_value(hash_stream *h, sqlite3_value *v) {
  switch (sqlite3_value_type(v)) {
  case SQLITE_NULL:
    hash_stream_add(h, "n", 1);
    return;
  case SQLITE_INTEGER:
    add(h, 'i', sqlite3_value_int64(v));
    return;
  case SQLITE_BLOB: {
    const void *data = sqlite3_value_blob(v); /* NULL when it is empty */
    add(h, 'b', sqlite3_value_bytes(v));
    if (data) hash_stream_add(h, data, (size_t)sqlite3_value_bytes(v));
    return;
  }
  default: { /* a number with a fraction is in no ledger, unless something is wrong there */
    const void *text = sqlite3_value_text(v);
    add(h, 't', sqlite3_value_bytes(v));
    if (text) hash_stream_add(h, text, (size_t)sqlite3_value_bytes(v));
  }
  }
}

static void ledger_sum(sqlite3_context *c, int count, sqlite3_value **values) {
  hash_stream *h = hash_stream_alloc();
  if (!h) {
    sqlite3_result_error_nomem(c);
    return;
  }
  for (int i = 0; i < count; i++) add_value(h, values[i]);
  hash16 sum = hash_stream_end(h);
  sqlite3_result_blob(c, sum.bytes, sizeof sum.bytes, SQLITE_TRANSIENT);
}

int ledger_sum_register(sqlite3 *db) {
  return sqlite3_create_function_v2(db, "ledger_sum", ANY_NUMBER,
                                    SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS, NULL, ledger_sum,
                                    NULL, NULL, NULL);
}
