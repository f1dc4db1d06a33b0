/* tandem session rollback, release, end: changes of sessions that nobody serves. */
#include "orchestrator/cli/command_session.h"
#include "orchestrator/ledger/ledger_change.h"
#include <stdio.h>

int command_session_rollback(command_session_work *w) {
  ledger_session s;
  err e = {0};
  int code = command_session_load(w, &s), rc = ERR_OK;
  if (code) return code;
  int32_t output = s.length - s.prompt_length;
  if (w->flags.given.to > output)
    rc = err_set(&e, ERR_ARG, "--to %d, but session %016llx has %d tokens of answer", w->flags.given.to,
                 (unsigned long long)s.id, output);
  if (rc == ERR_OK) rc = ledger_change_rollback(w->db, w->path, s.id, w->flags.given.to, &e);
  if (rc == ERR_OK) printf("%016llx has %d tokens of answer\n", (unsigned long long)s.id, w->flags.given.to);
  ledger_session_fini(&s);
  return rc ? command_session_error(&e) : STATUS_OK;
}

int command_session_release(command_session_work *w) {
  uint64_t id;
  err e = {0};
  int code = command_session_find(w, &id);
  if (code) return code;
  if (ledger_change_release(w->db, w->path, id, &e)) return command_session_error(&e);
  printf("%016llx is served by nobody\n", (unsigned long long)id);
  return STATUS_OK;
}

static int end_old(command_session_work *w) {
  int64_t count = 0;
  err e = {0};
  int rc = w->db ? ledger_change_end_old(w->db, w->path, w->now - w->flags.older_us, w->flags.given.forget,
                                         &count, &e)
                 : ERR_OK;
  if (rc) return command_session_error(&e);
  printf("%lld session%s %s\n", (long long)count, count == 1 ? "" : "s",
         w->flags.given.forget ? "forgotten" : "ended");
  return STATUS_OK;
}

int command_session_end(command_session_work *w) {
  uint64_t id;
  err e = {0};
  if (w->flags.older_us >= 0) return end_old(w);
  int code = command_session_find(w, &id);
  if (code) return code;
  int rc = w->flags.given.forget ? ledger_change_delete(w->db, w->path, id, &e)
                                 : ledger_change_end(w->db, w->path, id, LEDGER_BY_HAND, &e);
  if (rc) return command_session_error(&e);
  printf("%016llx %s\n", (unsigned long long)id, w->flags.given.forget ? "is forgotten" : "has ended");
  return STATUS_OK;
}
