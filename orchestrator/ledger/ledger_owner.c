#include "orchestrator/ledger/ledger_owner.h"

owner_state ledger_owner_state(sqlite3_stmt *s, int first) {
  if (sqlite3_column_type(s, first + LEDGER_OWNER_ID) == SQLITE_NULL) return OWNER_DEAD;
  const char *host = (const char *)sqlite3_column_text(s, first + LEDGER_OWNER_HOST);
  return owner_lock_state(sqlite3_db_filename(sqlite3_db_handle(s), "main"),
                          (uint64_t)sqlite3_column_int64(s, first + LEDGER_OWNER_ID), host ? host : "");
}
