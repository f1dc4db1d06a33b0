/* ledger_copy.h - the files of a ledger as files: copies of them, their first page, and what they are called.
 */
#pragma once

#include "common/base/err.h"

#define LEDGER_COPY_PAGE 4096 /* bytes of a page of a ledger */

/* Copies the ledger and the journal beside it (-wal), which holds what is not in it yet; both are made, 0600.
 * ERR_GONE: there is no such ledger; ERR_IO. */
int ledger_copy_make(const char *from, const char *to, err *e);
/* Puts the first page of `from`, a ledger of the same tables, in the place of that of `to`: a page that
 * cannot be read, without which nothing else can be. ERR_IO. */
int ledger_copy_first_page(const char *from, const char *to, err *e);
/* Removes a ledger and what SQLite has put beside it. */
void ledger_copy_remove(const char *path);
/* Gives a ledger and what SQLite has put beside it another name, where nothing may be. ERR_IO. */
int ledger_copy_rename(const char *from, const char *to, err *e);
