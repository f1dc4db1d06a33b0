#include "orchestrator/sessions/session_timers.h"

#include "common/base/min.h"
#include "common/base/log.h"
#include "orchestrator/sessions/failover.h"
#include "orchestrator/sessions/session_finish.h"
#include "orchestrator/sessions/session_frames.h"
#include "wire/machine.h"

/* `since` may lie in the future: a session that began during our own stall is excused for all of it. */
static bool due(const client_step *c, uint64_t since, uint64_t every) {
  return c->now >= since && c->now - since >= every;
}

/* Nothing was heard of the target for long, although its connection is well. */
static void check_silence(client_step *c, client_session *s) {
  if (!s->target.opened || c->now < s->silence_ends_us || failover_target_hung(c, s)) return;
  s->silence_ends_us = c->now + SESSIONS_TARGET_CHECK_US;
  if (s->silence_logged && due(c, s->hung_us, SESSIONS_HUNG_US))
    session_finish_error(
        c, s, ERR_TIMEOUT,
        "the target gave no sign of life for ten minutes, and there is no other: see its log, "
        "start it again, and resume the session");
  if (s->silence_logged) return;
  s->silence_logged = true;
  s->hung_us = c->now;
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

static bool awaits_opened(const client_session *s) {
  return s->target.peer && (!s->target.opened || s->ticket_owed);
}

static void repeat_open(client_step *c, client_session *s) {
  if (awaits_opened(s) && due(c, s->target.sent_us, SESSIONS_REPEAT_US)) assignment_open_target(c, s);
  if (s->draft.peer && !s->draft.opened && due(c, s->draft.sent_us, SESSIONS_REPEAT_US))
    assignment_open_draft(c, s);
}

static void check_opening(client_step *c, client_session *s) {
  bool opening = client_session_live(s) && s->target.peer && !s->target.opened;
  if (opening && due(c, s->opening_since_us, SESSIONS_TARGET_WAIT_US) && !failover_target_hung(c, s))
    session_finish_error(c, s, ERR_TIMEOUT, "the target did not open the session within 30 s: see its log");
}

static uint64_t ledger_wait(const client_session *s) {
  return s->finish == WIRE_FINISH_CANCELLED ? SESSIONS_LEDGER_CANCEL_US : SESSIONS_LEDGER_WAIT_US;
}

/* A ledger that takes nothing, because its disk is full or another process holds its lock, holds the answer
 * up, but not for ever; one that belongs to another process by now ends it at once. */
static void check_ledger(client_step *c, client_session *s) {
  const ledger *l = &c->all->ledger;
  client_session_note_durable(c, s);
  if (s->durable == s->committed.length) return;
  if (l->lost(l->self, s->id))
    session_finish_taken(c, s);
  else if (due(c, s->durable_us, ledger_wait(s)) && s->finish == WIRE_FINISH_CANCELLED)
    session_finish_drop(c, s);
  else if (due(c, s->durable_us, ledger_wait(s)))
    session_finish_cut(
        c, s, ERR_IO,
        "the ledger could not be written for 30 s: make room on its disk, or end what locks the "
        "file; it has what was shown");
}

void session_timers_tick(client_step *c, client_session *s) {
  check_ledger(c, s);
  repeat_end(c, s);
  assignment_fill(c, s);
  check_opening(c, s);
  if (client_session_live(s)) check_silence(c, s);
  if (!client_session_live(s)) return;
  failover_check_draft(c, s);
  repeat_open(c, s);
  if (session_frames_ack_due(c, s)) session_frames_ack(c, s);
}

static uint64_t later(uint64_t at, uint64_t by) {
  return by > MACHINE_NEVER - at ? MACHINE_NEVER : at + by;
}

static uint64_t ledger_deadline(const client_session *s) {
  return s->durable < s->committed.length ? s->durable_us + ledger_wait(s) : MACHINE_NEVER;
}

static uint64_t end_deadline(const client_session *s) {
  if (session_finish_complete(s)) return MACHINE_NEVER;
  return min_u64(s->target.sent_us, s->draft.sent_us) + SESSIONS_REPEAT_US;
}

uint64_t session_timers_deadline(const client_sessions *all, const client_session *s) {
  uint64_t at = ledger_deadline(s);
  if (!client_session_live(s)) return min_u64(at, end_deadline(s));
  if (!s->target.peer && s->in_ledger) { /* otherwise the ledger wakes it */
    at = later(s->waiting_since_us, all->target_wait_us);
    if (s->retry_us) at = min_u64(at, s->retry_us);
  }
  if (awaits_opened(s)) at = min_u64(at, s->target.sent_us + SESSIONS_REPEAT_US);
  if (s->draft.peer && !s->draft.opened) at = min_u64(at, s->draft.sent_us + SESSIONS_REPEAT_US);
  if (s->target.opened) at = min_u64(at, min_u64(s->ack_us + SESSIONS_ACK_US, s->silence_ends_us));
  return at;
}

void session_timers_excuse(client_sessions *all, uint64_t gap_us) {
  for (int i = 0; i < SESSIONS_MAX; i++) {
    client_session *s = all->list[i];
    if (!s) continue;
    s->silence_ends_us += gap_us;
    s->hung_us += gap_us;
    s->durable_us += gap_us;
    s->waiting_since_us += gap_us;
    s->opening_since_us += gap_us;
  }
}
