/* ledger_owner.h - the columns that say which process serves a session, and whether that process still lives.
 * For the queries and changes of the ledger's file. */
#pragma once

#include "orchestrator/ledger/process_identity.h"
#include <sqlite3.h>

#define LEDGER_OWNER_JOIN    " FROM session s LEFT JOIN orchestrator o ON o.id = s.owner "
#define LEDGER_OWNER_COLUMNS "o.pid, o.start, o.machine, o.beat"
enum {
  LEDGER_OWNER_PID,
  LEDGER_OWNER_START,
  LEDGER_OWNER_MACHINE,
  LEDGER_OWNER_HEARTBEAT,
  LEDGER_OWNER_COUNT
};

/* first: index of the first of LEDGER_OWNER_COLUMNS in the row. */
process_identity ledger_owner_at(sqlite3_stmt *s, int first);
/* False when the process has died, or when nobody owns the session (all columns are NULL). */
bool ledger_owner_alive(sqlite3_stmt *s, int first);
