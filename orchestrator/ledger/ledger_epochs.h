/* ledger_epochs.h - records the epochs of a session before they are used. An epoch must be on the disk before
 * the first message of it goes out; so that a session seldom waits for the disk, LEDGER_EPOCHS_AHEAD more
 * than are in use are recorded each time. */
#pragma once

#include "common/base/limit.h"
#include "orchestrator/ledger/ledger_backlog.h"

#define LEDGER_EPOCHS_AHEAD LIMIT(16, 2)

/* Under the lock of the backlog. ERR_IO: the file could not be written in time; ERR_GONE: another process has
 * taken the session over. */
int ledger_epochs_record(ledger_backlog *b, ledger_track *t, uint32_t epoch);
