/* tandem session repair: a whole ledger of what is readable of a damaged one. */
#include "orchestrator/cli/command_session.h"
#include "orchestrator/ledger/ledger_repair.h"
#include <stdio.h>

static void print_session(void *context, const ledger_repaired *r) {
  (void)context;
  if (!r->kept)
    printf("%016llx is lost: its prompt or its options cannot be read\n", (unsigned long long)r->id);
  else if (r->whole)
    printf("%016llx is whole: %d tokens of answer\n", (unsigned long long)r->id, r->output_length);
  else
    printf("%016llx keeps %d tokens of its answer and is interrupted; `tandem session resume' decodes the "
           "rest\n",
           (unsigned long long)r->id, r->output_length);
}

int command_session_repair(command_session_work *w) {
  ledger_repair_result r;
  err e = {0};
  int rc = ledger_repair(w->path, print_session, NULL, &r, &e);
  if (rc) return command_error(rc == ERR_GONE ? STATUS_IO : command_serve_status(rc), "%s", e.text);
  if (r.was_good)
    printf("%s is in order: nothing was changed\n", w->path);
  else
    printf("%s: %lld sessions whole, %lld cut, %lld lost; the damaged file is kept as %s\n", w->path,
           (long long)r.whole, (long long)r.cut, (long long)r.lost, r.damaged);
  return fflush(stdout) == 0 ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}
