#include "orchestrator/service/api/call_turns.h"

call *call_turns_next(call_turns *t, call *calls) {
  call *next = NULL;
  for (call *c = calls; c; c = c->next)
    if (!call_has_begun(c) && (!next || t->last[c->key] < t->last[next->key])) next = c;
  if (next) t->last[next->key] = ++t->turn;
  return next;
}
