/* ledger_change.h - changes of the ledger's file: what commands do to sessions, and which process serves
 * them. Each call is one short transaction. */
#pragma once

#include "orchestrator/ledger/ledger_database.h"
#include "wire/message.h"

/* A change of one session that is made of several statements. The first refuses a session that is being
 * served (ERR_STATE) or is not there (ERR_GONE); the transaction has begun all the same, so that the second
 * must follow. code: the result so far; sqlite: that of the last statement. *updated: when it had changed
 * last. */
int ledger_change_begin(sqlite3 *db, const char *path, uint64_t id, int64_t *updated, err *e);
int ledger_change_finish(sqlite3 *db, const char *path, int code, int sqlite, err *e);

/* These refuse a session that is being served (ERR_STATE says by whom). */
int ledger_change_rollback(sqlite3 *db, const char *path, uint64_t id, int32_t output_length, err *e);
/* finish LEDGER_BY_HAND: also one that has ended, unless it is complete (it stopped). */
int ledger_change_end(sqlite3 *db, const char *path, uint64_t id, wire_finish finish, err *e);
int ledger_change_delete(sqlite3 *db, const char *path, uint64_t id, err *e);
/* Ends by hand the sessions that nobody serves and that were not changed since `before` (wall clock);
 * `forget` deletes them, and those that had ended before. *count: how many. ledger_change_remove_dead comes
 * first. */
int ledger_change_end_old(sqlite3 *db, const char *path, int64_t before, bool forget, int64_t *count, err *e);
/* Makes the orchestrator `owner` the one that serves the session. ERR_STATE also when the session was changed
 * after `updated`. */
int ledger_change_claim(sqlite3 *db, const char *path, uint64_t id, int64_t updated, uint64_t owner, err *e);

/* Takes the sessions from a process of another host that serves this one, because a person knows that it is
 * dead. ERR_STATE: a process that lives for certain serves it. */
int ledger_change_release(sqlite3 *db, const char *path, uint64_t id, err *e);
/* Removes orchestrators that are dead for certain; what they served is interrupted. */
int ledger_change_remove_dead(sqlite3 *db, const char *path, err *e);
/* An orchestrator leaves: the sessions that it has not ended are interrupted. Returns SQLite's code. */
int ledger_change_leave(sqlite3 *db, uint64_t owner);
