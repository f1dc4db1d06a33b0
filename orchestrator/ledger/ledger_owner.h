/* ledger_owner.h - the columns that say which process serves a session, and whether that process still lives.
 * For the queries and changes of the ledger's file. */
#pragma once

#include "orchestrator/ledger/owner_lock.h"
#include <sqlite3.h>

#define LEDGER_OWNER_JOIN    " FROM session s LEFT JOIN orchestrator o ON o.id = s.owner "
#define LEDGER_OWNER_COLUMNS "o.pid, o.machine, o.beat, o.id"
enum { LEDGER_OWNER_PID, LEDGER_OWNER_HOST, LEDGER_OWNER_HEARTBEAT, LEDGER_OWNER_ID, LEDGER_OWNER_COUNT };

/* first: index of the first of LEDGER_OWNER_COLUMNS in the row. OWNER_DEAD also when nobody owns the session
 * (all columns are NULL). */
owner_state ledger_owner_state(sqlite3_stmt *s, int first);
