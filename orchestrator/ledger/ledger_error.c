#include "orchestrator/ledger/ledger_error.h"

#include <stddef.h>

typedef struct failure {
  int sqlite, code;
  const char *text;
} failure;

static const failure failures[] = {
    {SQLITE_FULL, ERR_IO, "cannot be written: the disk is full" LEDGER_ERROR_REMEDY},
    {SQLITE_READONLY, ERR_IO, "cannot be written: it or its folder is read-only" LEDGER_ERROR_REMEDY},
    {SQLITE_CANTOPEN, ERR_IO,
     "cannot be opened: are its folder and its rights in order?" LEDGER_ERROR_REMEDY},
    {SQLITE_PERM, ERR_IO, "may not be used: are its rights in order?" LEDGER_ERROR_REMEDY},
    {SQLITE_AUTH, ERR_IO, "may not be used: are its rights in order?" LEDGER_ERROR_REMEDY},
    {SQLITE_NOTADB, ERR_FORMAT,
     "is damaged, or no ledger: `tandem session repair' keeps what is readable of a "
     "ledger" LEDGER_ERROR_REMEDY},
    {SQLITE_CORRUPT, ERR_FORMAT,
     "is damaged: `tandem session check' says where, and `tandem session repair' keeps what is "
     "readable" LEDGER_ERROR_REMEDY},
    {SQLITE_BUSY, ERR_TIMEOUT,
     "is locked by another process: try again, or end what holds it" LEDGER_ERROR_REMEDY},
    {SQLITE_LOCKED, ERR_TIMEOUT,
     "is locked by another process: try again, or end what holds it" LEDGER_ERROR_REMEDY},
    {SQLITE_NOMEM, ERR_NOMEM, "cannot be used: out of memory"},
};

int ledger_error_set(int sqlite, const char *path, const char *why, err *e) {
  for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
    if (failures[i].sqlite == (sqlite & 0xff))
      return err_set(e, failures[i].code, "the ledger %.200s %s", path, failures[i].text);
  return err_set(e, ERR_IO, "the ledger %.160s failed: %.60s" LEDGER_ERROR_REMEDY, path, why);
}

int ledger_error_last(sqlite3 *db, const char *path, err *e) {
  return ledger_error_set(sqlite3_errcode(db), path, sqlite3_errmsg(db), e);
}
