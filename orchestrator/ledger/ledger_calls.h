/* ledger_calls.h - the calls of ledger.h over a backlog, on the orchestrator's thread: each changes what
 * memory holds first, and then what the writer has to do. */
#pragma once

#include "orchestrator/ledger/ledger_backlog.h"

/* All but close. b: borrowed until the last call; self of the calls. */
void ledger_calls(ledger *out, ledger_backlog *b);
