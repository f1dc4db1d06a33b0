#include "orchestrator/ledger/ledger_epochs.h"

#include "common/base/clock.h"
#include "orchestrator/ledger/ledger_writer.h"

/* Only a session that is LEDGER_EPOCHS_AHEAD epochs ahead of the writer waits here. */
static int wait_for_epoch(ledger_backlog *b, uint64_t session, uint32_t epoch) {
  uint64_t until = clock_us() + LEDGER_WAIT_US;
  const ledger_track *t;
  while ((t = ledger_backlog_find(b, session)) && t->epoch_written < epoch && !t->lost && !b->failing)
    if (!b->wait(b, until)) return ERR_IO;
  if (t && t->lost) return ERR_GONE;
  return t && t->epoch_written >= epoch ? ERR_OK : ERR_IO;
}

int ledger_epochs_record(ledger_backlog *b, ledger_track *t, uint32_t epoch) {
  if (t->begun && epoch + LEDGER_EPOCHS_AHEAD / 2 <= t->epoch_written) return ERR_OK;
  bool must_wait = t->begun && epoch > t->epoch_written;
  uint64_t session = t->session;
  t->epoch = epoch + LEDGER_EPOCHS_AHEAD;
  ledger_backlog_wake(b, !t->begun || must_wait);
  return must_wait ? wait_for_epoch(b, session, epoch) : ERR_OK;
}
