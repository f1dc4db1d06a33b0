/* ledger_schema.h - the tables of the ledger's database, and its version. */
#pragma once

#include "common/base/err.h"
#include <sqlite3.h>

#define LEDGER_SCHEMA_VERSION     1          /* user_version of the file */
#define LEDGER_SCHEMA_APPLICATION 0x746e646d /* application_id: "tndm" */

typedef enum { LEDGER_RUNNING, LEDGER_ENDED, LEDGER_INTERRUPTED } ledger_state; /* session.state */

/* Makes the tables in an empty database; does nothing in any other. Returns SQLite's code. */
int ledger_schema_create(sqlite3 *db);
/* ERR_FORMAT: it is no ledger, or damaged; ERR_VERSION: it is of a newer tandem. */
int ledger_schema_check(sqlite3 *db, const char *path, err *e);
