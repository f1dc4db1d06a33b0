#include "orchestrator/ledger/ledger_owner.h"

#include "common/base/clock.h"
#include <stdio.h>

process_identity ledger_owner_at(sqlite3_stmt *s, int first) {
  process_identity o = {.pid = sqlite3_column_int64(s, first + LEDGER_OWNER_PID),
                        .start = sqlite3_column_int64(s, first + LEDGER_OWNER_START)};
  const char *machine = (const char *)sqlite3_column_text(s, first + LEDGER_OWNER_MACHINE);
  snprintf(o.machine, sizeof o.machine, "%s", machine ? machine : "");
  return o;
}

bool ledger_owner_alive(sqlite3_stmt *s, int first) {
  if (sqlite3_column_type(s, first) == SQLITE_NULL) return false;
  process_identity o = ledger_owner_at(s, first);
  return process_identity_alive(&o, sqlite3_column_int64(s, first + LEDGER_OWNER_HEARTBEAT), clock_wall_us());
}
