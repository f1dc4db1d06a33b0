/* ledger_repair.h - makes a whole ledger of what is readable of a damaged one.
 *
 * It reads a copy, writes another file, checks that, and only then takes the name of the damaged file, which
 * is kept beside it under a new name. A session keeps the longest beginning that its checksums prove; what
 * follows is decoded again when it is resumed, to the same tokens. */
#pragma once

#include "orchestrator/ledger/ledger_database.h"

typedef struct ledger_repaired { /* one session */
  uint64_t id;
  bool kept; /* false: its prompt or its options are lost, and so is all of it */
  bool whole;
  int32_t output_length; /* tokens of answer that are kept */
} ledger_repaired;

typedef struct ledger_repair_result {
  bool was_good; /* there was nothing to do, and nothing was done */
  int64_t whole, cut, lost;
  char damaged[LEDGER_PATH_MAX]; /* what the damaged file is called now */
} ledger_repair_result;

/* Calls `each` for every session. ERR_STATE: the ledger is in use, here or by another host; ERR_GONE;
 * ERR_FORMAT: nothing in it can be read; ERR_IO; ERR_NOMEM. After an error the ledger is as it was. */
int ledger_repair(const char *path, void (*each)(void *context, const ledger_repaired *r), void *context,
                  ledger_repair_result *out, err *e);
