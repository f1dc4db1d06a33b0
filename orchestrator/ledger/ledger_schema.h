/* ledger_schema.h - the tables of the ledger's database, and its version. */
#pragma once

#include "common/base/err.h"
#include <sqlite3.h>
#include <stdbool.h>

#define LEDGER_SCHEMA_VERSION     2          /* user_version of the file */
#define LEDGER_SCHEMA_APPLICATION 0x746e646d /* application_id: "tndm" */

/* The columns of a session that its two checksums are of: what its tokens follow from, and the rest. */
#define LEDGER_SCHEMA_CONTENT "id, epoch, hash_seed, model, fingerprint, options, about, prompt"
#define LEDGER_SCHEMA_STATE   "id, owner, state, finish, numerics, created, updated, stats"
#define LEDGER_SCHEMA_PROCESS "id, pid, start, machine, command, since, beat, sessions, millitokens, workers"

typedef enum { LEDGER_RUNNING, LEDGER_ENDED, LEDGER_INTERRUPTED } ledger_state; /* session.state */
#define LEDGER_BY_HAND 5 /* session.finish beside those of wire_finish: a person has ended it */

/* Makes the tables in an empty database; does nothing in any other. Returns SQLite's code. */
int ledger_schema_create(sqlite3 *db);
/* Brings a ledger of an older tandem up to date; does nothing with any other. Returns SQLite's code. */
int ledger_schema_upgrade(sqlite3 *db);
/* Are its tables, indexes and triggers those of this tandem, to the letter? Returns SQLite's code. */
int ledger_schema_compare(sqlite3 *db, bool *same);
/* ERR_FORMAT: it is no ledger, or damaged; ERR_VERSION: it is of a newer tandem, or of an older one and
 * cannot be written. */
int ledger_schema_check(sqlite3 *db, const char *path, err *e);
