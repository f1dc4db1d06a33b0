/* ledger_sum.h - the checksums of the ledger's rows, as a function of SQL that the ledger's triggers and
 * statements call: ledger_sum(value, ...).
 *
 * It is XXH3_128 (16 bytes, canonical) of every value in turn: 'n' for NULL; 'i' and the 8 bytes of an
 * integer; 't' or 'b', the 8 bytes of its size, and the bytes of a text or a blob; numbers little-endian. */
#pragma once

#include <sqlite3.h>

/* Every connection that reads or writes a ledger needs it. Returns SQLite's code. */
int ledger_sum_register(sqlite3 *db);
