#include "wire/presence.h"

#include "common/base/log.h"
#include "wire/machine.h"

static presence_news came(presence *p, uint64_t now_us) {
  presence_news news = p->told ? PRESENCE_BACK : !p->came ? PRESENCE_HERE : PRESENCE_NO_NEWS;
  p->here = p->came = true;
  p->told = false;
  p->since_us = now_us;
  return news;
}

presence_news presence_look(presence *p, roster *r, uint64_t now_us) {
  const roster_peer *q = roster_find(r, p->peer);
  bool here = q && q->greeted && !q->lost;
  if (!p->endpoint || (here && p->here)) return PRESENCE_NO_NEWS;
  if (here) return came(p, now_us);
  if (p->here || p->tell_us == 0) {
    p->since_us = now_us;
    p->tell_us =
        now_us + (p->here ? 0 : PRESENCE_FIRST_US); /* the roster has been patient with one that was here */
    p->here = false;
  }
  if (now_us < p->tell_us) return PRESENCE_NO_NEWS;
  p->tell_us = now_us + PRESENCE_AGAIN_US;
  p->told = true;
  return p->came ? PRESENCE_SILENT : PRESENCE_ABSENT;
}

uint64_t presence_deadline(const presence *p) {
  if (!p->endpoint || p->here) return MACHINE_NEVER;
  return p->tell_us;
}

void presence_orchestrator(presence *p, roster *r, uint64_t now_us, actions *out) {
  switch (presence_look(p, r, now_us)) {
  case PRESENCE_ABSENT:
    actions_log(out, LOG_INFO,
                "waiting for the orchestrator at %s: is 'tandem serve-workers --listen %s' running there?",
                p->endpoint, p->endpoint);
    break;
  case PRESENCE_SILENT:
    actions_log(out, LOG_INFO, "the orchestrator at %s is not there any more: waiting for it", p->endpoint);
    break;
  case PRESENCE_HERE:
    actions_log(out, LOG_INFO, "registered with the orchestrator at %s", p->endpoint);
    break;
  case PRESENCE_BACK:
    actions_log(out, LOG_INFO, "the orchestrator at %s is there now", p->endpoint);
    break;
  case PRESENCE_NO_NEWS:
    break;
  }
}
