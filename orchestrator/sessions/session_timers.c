#include "orchestrator/sessions/session_timers.h"

#include "common/base/min.h"
#include "common/base/log.h"
#include "orchestrator/sessions/failover.h"
#include "orchestrator/sessions/session_finish.h"
#include "orchestrator/sessions/session_frames.h"
#include "wire/machine.h"

static bool due(const client_step *c, uint64_t since, uint64_t every) {
  return c->now - since >= every;
}

/* Nothing was heard of the target for long, although its connection is well. */
static void check_silence(client_step *c, client_session *s) {
  if (!s->target.opened || c->now < s->silence_ends_us || failover_target_hung(c, s)) return;
  s->silence_ends_us = c->now + SESSIONS_TARGET_CHECK_US;
  if (s->silence_logged) return;
  s->silence_logged = true;
  actions_log(c->out, LOG_WARNING,
              "session %016llx: its target gives no sign of life, and there is no other: waiting for it, or "
              "for another tandem-target",
              (unsigned long long)s->id);
}

static void repeat_end(client_step *c, client_session *s) {
  if (client_session_live(s) || session_finish_complete(s)) return;
  if (!due(c, s->target.sent_us, SESSIONS_REPEAT_US) && !due(c, s->draft.sent_us, SESSIONS_REPEAT_US)) return;
  if (++s->end_tries >= SESSIONS_END_TRIES) s->target.ended = s->draft.ended = true;
  session_finish_send(c, s, &s->target);
  session_finish_send(c, s, &s->draft);
  s->target.sent_us = s->draft.sent_us = c->now;
}

static void repeat_open(client_step *c, client_session *s) {
  if (s->target.peer && !s->target.opened && due(c, s->target.sent_us, SESSIONS_REPEAT_US))
    assignment_open_target(c, s);
  if (s->draft.peer && !s->draft.opened && due(c, s->draft.sent_us, SESSIONS_REPEAT_US))
    assignment_open_draft(c, s);
}

static void check_opening(client_step *c, client_session *s) {
  bool opening = client_session_live(s) && s->target.peer && !s->target.opened;
  if (opening && due(c, s->opening_since_us, SESSIONS_TARGET_WAIT_US) && !failover_target_hung(c, s))
    session_finish_error(c, s, ERR_TIMEOUT, "the target did not open the session within 30 s: see its log");
}

void session_timers_tick(client_step *c, client_session *s) {
  repeat_end(c, s);
  assignment_fill(c, s);
  check_opening(c, s);
  if (client_session_live(s)) check_silence(c, s);
  if (!client_session_live(s)) return;
  repeat_open(c, s);
  if (s->target.opened && due(c, s->ack_us, SESSIONS_ACK_US)) session_frames_ack(c, s);
}

static uint64_t later(uint64_t at, uint64_t by) {
  return by > MACHINE_NEVER - at ? MACHINE_NEVER : at + by;
}

static uint64_t end_deadline(const client_session *s) {
  if (session_finish_complete(s)) return MACHINE_NEVER;
  return min_u64(s->target.sent_us, s->draft.sent_us) + SESSIONS_REPEAT_US;
}

uint64_t session_timers_deadline(const client_sessions *all, const client_session *s) {
  uint64_t at = MACHINE_NEVER;
  if (!client_session_live(s)) return end_deadline(s);
  if (!s->target.peer && s->in_ledger) { /* otherwise the ledger wakes it */
    at = later(s->waiting_since_us, all->target_wait_us);
    if (s->retry_us) at = min_u64(at, s->retry_us);
  }
  if (s->target.peer && !s->target.opened) at = min_u64(at, s->target.sent_us + SESSIONS_REPEAT_US);
  if (s->draft.peer && !s->draft.opened) at = min_u64(at, s->draft.sent_us + SESSIONS_REPEAT_US);
  if (s->target.opened) at = min_u64(at, min_u64(s->ack_us + SESSIONS_ACK_US, s->silence_ends_us));
  return at;
}

void session_timers_excuse(client_sessions *all, uint64_t gap_us) {
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (all->list[i]) all->list[i]->silence_ends_us += gap_us;
}
