#include "orchestrator/sessions/failover.h"

#include "common/base/log.h"
#include "orchestrator/sessions/session_finish.h"
#include "wire/endpoint.h"
#include <stdio.h>

/* --- the target --- */

void failover_target_lost(client_step *c, client_session *s, uint64_t retry_us) {
  session_stats_leave(&s->stats, s->target.peer, s->committed.length);
  s->target = (client_assignment){.ended = true};
  s->waiting_since_us = c->now;
  s->retry_us = retry_us;
  if (assignment_next_epoch(c, s)) assignment_fill(c, s);
}

/* Tells a target that the session has left it, in the new epoch. If END is lost, the lease frees the session.
 */
static void end_at(client_step *c, client_session *s, peer_id old) {
  msg end = client_message(c, old, MSG_END, s);
  actions_send(c->out, old, &end);
}

bool failover_target_unable(client_step *c, client_session *s, uint64_t until_us) {
  peer_id old = s->target.peer;
  client_unable *slot = assignment_unable(s, old);
  if (++s->unable_count > SESSIONS_UNABLE_MAX) return false;
  if (!slot) slot = assignment_unable(s, 0); /* there are as many as the limit */
  *slot = (client_unable){old, until_us};
  if (!assignment_choose_target(c, s, NULL)) return false;
  failover_target_lost(c, s, 0);
  end_at(c, s, old);
  return true;
}

bool failover_target_hung(client_step *c, client_session *s) {
  bool willing;
  peer_id old = s->target.peer;
  hung_targets_add(&c->all->hung, old, c->now);
  assignment_choose_target(c, s, &willing);
  if (!willing) return false;
  actions_log(c->out, LOG_WARNING, "session %016llx: its target hangs: it goes on elsewhere from token %d",
              (unsigned long long)s->id, s->committed.length);
  if (s->silence_us < SESSIONS_SILENCE_MAX_US)
    s->silence_us *= SESSIONS_SILENCE_GROWTH; /* until a token comes */
  s->silence_logged = false;
  failover_target_lost(c, s, 0);
  end_at(c, s, old);
  return true;
}

void failover_repair(client_step *c, client_session *s, int32_t length, hash16 hash) {
  s->repairs++;
  if (++s->vain_repairs > SESSIONS_DESYNC_MAX) {
    session_finish_error(c, s, ERR_DESYNC, "the target was out of step too often: see its log");
    return;
  }
  bool shared = length >= 1 && prefix_has(&s->committed, length, hash);
  if (!assignment_next_epoch(c, s)) return;
  s->waiting_since_us = s->opening_since_us = c->now;
  s->target.base = shared ? length : 0;
  assignment_open_target(c, s);
  s->draft_repairs = 0;
  if (!s->draft.peer) return;
  s->draft.base = s->committed.length;
  assignment_open_draft(c, s);
}

/* --- the draft --- */

/* The session has lost its draft, and why is noted. */
static void replace_draft(client_step *c, client_session *s) {
  assignment_choose_draft(c, s);
  if (!s->target.peer || !(s->ticket_owed || assignment_lockstep_alone(c, s))) return;
  if (!s->ticket_owed) s->opening_since_us = c->now;
  assignment_open_target(c, s); /* in the same epoch: the ticket is new, or no draft is expected any more */
}

static void draft_lost(client_step *c, client_session *s, const char *why) {
  assignment_clear_draft(c, s, why);
  actions_log(c->out, LOG_WARNING, "session %016llx decodes plainly: %s", (unsigned long long)s->id, why);
  replace_draft(c, s);
}

/* What a draft says with these holds for as long as the session lasts. */
static bool refuses_for_good(int code) {
  return code == ERR_LIMIT || code == ERR_ARG || code == ERR_MISMATCH || code == ERR_UNSUPPORTED;
}

void failover_draft_refused(client_step *c, client_session *s, int code, const char *why) {
  s->draft_refused_by = s->draft.peer;
  s->draft_refusals++;
  if (!refuses_for_good(code)) s->draft_retry_us = c->now + SESSIONS_DRAFT_RETRY_US;
  assignment_dismiss_draft(c, s);
  s->draft_chosen_us = 0; /* another one is chosen at once, because refusals are counted */
  draft_lost(c, s, why);
}

/* reported: by the draft itself, which has tried for SESSIONS_ATTACH_US, perhaps for other sessions.
 * Otherwise it may only be on its way. */
static void unreachable_text(client_step *c, const client_session *s, bool reported,
                             char text[WIRE_STRING_MAX + 1]) {
  uint64_t us = c->now - s->attach_since_us;
  if (reported && us < SESSIONS_ATTACH_US) us = SESSIONS_ATTACH_US;
  int n = snprintf(text, WIRE_STRING_MAX + 1,
                   "a draft is here, but has not reached the target at %.*s for %.1f s",
                   ENDPOINT_PLAIN(s->target_address), (double)us / 1e6);
  if (us < SESSIONS_ATTACH_US) return;
  snprintf(text + n, WIRE_STRING_MAX + 1 - (size_t)n,
           ": let its host connect to that address, or start the target with another --bind or --advertise");
}

/* This draft may serve the session later. */
static void leave_draft(client_step *c, client_session *s, const char *trouble, const char *why) {
  s->draft_refused_by = s->draft.peer;
  s->draft_refusals++;
  s->draft_retry_us = c->now + SESSIONS_DRAFT_RETRY_US;
  assignment_dismiss_draft(c, s);
  assignment_clear_draft(c, s, why);
  assignment_log_trouble(c, s, trouble, why);
  replace_draft(c, s);
}

void failover_draft_unreachable(client_step *c, client_session *s) {
  char text[WIRE_STRING_MAX + 1];
  unreachable_text(c, s, true, text);
  leave_draft(c, s, s->target_address, text);
}

static bool draft_is_late(const client_step *c, const client_session *s) {
  return s->target.peer && s->draft.offered_us && c->now - s->draft.offered_us >= SESSIONS_ATTACH_US;
}

void failover_check_draft(client_step *c, client_session *s) {
  static const char why[] = "a draft is here, but did not take the session within 3 s";
  if (draft_is_late(c, s) && !s->draft.opened) leave_draft(c, s, why, why);
}

/* In lockstep it may be waiting for a draft: an OPEN that said that none will come was lost, and its OPENED
 * was the reply to an earlier one. */
void failover_unattached(client_step *c, client_session *s) {
  if (assignment_lockstep_alone(c, s)) assignment_open_target(c, s);
  if (draft_is_late(c, s) && s->draft.opened) failover_draft_unreachable(c, s);
}

static bool a_draft_is_drained(const client_step *c) {
  for (int i = 0; i < c->all->roster.top; i++) {
    const roster_peer *p = &c->all->roster.list[i];
    bool here = p->id && p->greeted && !p->lost && p->hello.role == WIRE_ROLE_DRAFT;
    if (here && drained_workers_has(&c->all->drained, p->hello.incarnation)) return true;
  }
  return false;
}

void failover_explain_unattached(client_step *c, client_session *s) {
  if (s->draft.peer && s->draft.opened)
    unreachable_text(c, s, false, s->draft_note);
  else if (s->draft.peer)
    snprintf(s->draft_note, sizeof s->draft_note, "a draft is here, but did not take the session in time");
  else if (!s->draft_note[0])
    snprintf(s->off_reason, sizeof s->off_reason, "%s",
             a_draft_is_drained(c) ? "the draft worker is drained: `tandem workers resume' gives it sessions"
             : c->all->no_draft    ? c->all->no_draft
                                   : "there is no draft worker: start tandem-draft");
}

/* --- a worker of many sessions --- */

/* A worker that comes back at this connection has not refused anything. */
static void forget_refusals(client_session *s, peer_id id) {
  if (s->refused_by == id) {
    s->needs_room = false;
    s->refused_by = 0;
  }
  if (s->draft_refused_by == id) s->draft_refused_by = 0;
  client_unable *slot = assignment_unable(s, id);
  if (slot) *slot = (client_unable){0};
}

static void lose_target(client_step *c, client_session *s) {
  actions_log(c->out, LOG_WARNING, "session %016llx: its target was lost: it goes on elsewhere from token %d",
              (unsigned long long)s->id, s->committed.length);
  /* A target that starts again and again is not asked each time. */
  bool again = s->lost_us && c->now - s->lost_us < SESSIONS_REPEAT_US;
  s->lost_us = c->now;
  failover_target_lost(c, s, again ? c->now + SESSIONS_REPEAT_US : 0);
}

static void end_without_target(client_step *c, client_session *s, const char *why) {
  char text[WIRE_STRING_MAX + 1];
  snprintf(text, sizeof text,
           "%.300s, and there is no other target: see that target's log, and start it again or another one",
           why);
  session_stats_leave(&s->stats, s->target.peer, s->committed.length);
  s->target = (client_assignment){.ended = true};
  session_finish_error(c, s, ERR_DEVICE, text);
}

static void leave_lost_device(client_step *c, client_session *s, const char *why) {
  if (c->all->targets_return || assignment_choose_target(c, s, NULL))
    lose_target(c, s);
  else
    end_without_target(c, s, why);
}

void failover_device_lost(client_step *c, peer_id target, const char *why) {
  roster_peer *p = roster_find(&c->all->roster, target);
  if (p) p->leaving = true; /* BYE may be late */
  for (int i = 0; i < SESSIONS_MAX; i++) {
    client_session *s = c->all->list[i];
    if (s && client_session_live(s) && s->target.peer == target) leave_lost_device(c, s, why);
  }
}

static void lose_worker(client_step *c, client_session *s, peer_id id, const char *why) {
  forget_refusals(s, id);
  if (!client_session_live(s)) { /* there is nobody left who should know of the end */
    if (s->target.peer == id) s->target.ended = true;
    if (s->draft.peer == id) s->draft.ended = true;
    return;
  }
  if (s->draft.peer == id) {
    const roster_peer *p = roster_find(&c->all->roster, id);
    if (p && p->lost) assignment_dismiss_draft(c, s);
    draft_lost(c, s, why);
  }
  if (s->target.peer == id) lose_target(c, s);
}

void failover_worker_lost(client_step *c, peer_id id, const char *why) {
  hung_targets_remove(&c->all->hung, id);
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (c->all->list[i]) lose_worker(c, c->all->list[i], id, why);
}
