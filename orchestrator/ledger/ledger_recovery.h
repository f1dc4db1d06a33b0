/* ledger_recovery.h - finds which sessions a damaged file has. A tree of SQLite's that is damaged in one
 * place cannot be walked past it, but it can be entered beyond it, and three trees know the sessions. */
#pragma once

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

#define LEDGER_RECOVERY_IDS_MAX (1u << 24)

typedef struct ledger_recovery_ids {
  uint64_t *ids; /* [count], ascending, each once */
  size_t count, capacity;
} ledger_recovery_ids;

/* ERR_NOMEM, ERR_LIMIT; what cannot be read is no error. ledger_recovery_fini follows in any case. */
int ledger_recovery_find(sqlite3 *db, ledger_recovery_ids *out);
void ledger_recovery_fini(ledger_recovery_ids *out);
