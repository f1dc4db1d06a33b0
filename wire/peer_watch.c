#include "wire/peer_watch.h"

#include "common/base/log.h"
#include "wire/endpoint.h"
#include "wire/machine.h"

static peer_watch_news came(peer_watch *p, uint64_t now_us) {
  peer_watch_news news = p->reported ? PEER_WATCH_BACK : !p->came ? PEER_WATCH_HERE : PEER_WATCH_NO_NEWS;
  p->here = p->came = true;
  p->reported = false;
  p->since_us = now_us;
  return news;
}

peer_watch_news peer_watch_look(peer_watch *p, roster *r, uint64_t now_us) {
  const roster_peer *q = roster_find(r, p->peer);
  bool here = q && q->greeted && !q->lost;
  if (!p->endpoint || (here && p->here)) return PEER_WATCH_NO_NEWS;
  if (here) return came(p, now_us);
  if (p->here || p->tell_us == 0) {
    p->since_us = now_us;
    p->tell_us =
        now_us + (p->here ? 0 : PEER_WATCH_FIRST_US); /* the roster has been patient with one that was here */
    p->here = false;
  }
  if (now_us < p->tell_us) return PEER_WATCH_NO_NEWS;
  p->tell_us = now_us + PEER_WATCH_AGAIN_US;
  p->reported = true;
  return p->came ? PEER_WATCH_SILENT : PEER_WATCH_ABSENT;
}

uint64_t peer_watch_deadline(const peer_watch *p) {
  if (!p->endpoint || p->here) return MACHINE_NEVER;
  return p->tell_us;
}

void peer_watch_orchestrator(peer_watch *p, roster *r, uint64_t now_us, actions *out) {
  switch (peer_watch_look(p, r, now_us)) {
  case PEER_WATCH_ABSENT:
    actions_log(
        out, LOG_INFO,
        "waiting for the orchestrator at %.*s: is 'tandem serve-workers --listen %.*s' running there? "
        "Its log tells if it does not let this program in",
        ENDPOINT_PLAIN(p->endpoint), ENDPOINT_PLAIN(p->endpoint));
    break;
  case PEER_WATCH_SILENT:
    actions_log(out, LOG_INFO, "the orchestrator at %.*s is not there any more: waiting for it",
                ENDPOINT_PLAIN(p->endpoint));
    break;
  case PEER_WATCH_HERE:
    actions_log(out, LOG_INFO, "registered with the orchestrator at %.*s", ENDPOINT_PLAIN(p->endpoint));
    break;
  case PEER_WATCH_BACK:
    actions_log(out, LOG_INFO, "the orchestrator at %.*s is there now", ENDPOINT_PLAIN(p->endpoint));
    break;
  case PEER_WATCH_NO_NEWS:
    break;
  }
}
