#include "orchestrator/sessions/session_frames.h"

#include "common/base/log.h"
#include "orchestrator/sessions/failover.h"
#include "orchestrator/sessions/session_finish.h"
#include "wire/machine.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* --- tokens --- */

/* What is acknowledged is durable, so the target's credit bounds what a crash can cost. */
void session_frames_ack(client_step *c, client_session *s) {
  int32_t length = s->durable;
  s->ack_us = c->now;
  if (length < s->prompt_length || length > s->committed.length) return;
  msg m = client_message(c, s->target.peer, MSG_ACK, s);
  m.u.state = (msg_state){.length = length, .hash = s->committed.hashes[length]};
  s->acked = length;
  actions_send(c->out, s->target.peer, &m);
}

bool session_frames_ack_due(const client_step *c, const client_session *s) {
  return s->target.opened && (s->durable > s->acked || c->now - s->ack_us >= SESSIONS_ACK_US);
}

static void ask_resend(client_step *c, client_session *s) {
  if (c->now - s->resend_us < SESSIONS_RESEND_US) return;
  s->resend_us = c->now;
  msg m = roster_message(&c->all->roster, s->target.peer, MSG_RESEND, s->id, s->epoch);
  m.u.resend.from = s->committed.length;
  actions_send(c->out, s->target.peer, &m);
}

/* New tokens may be cut by a stop string; the rest is logged, and is visible and acknowledged once it is
 * durable. */
static void log_tokens(client_step *c, client_session *s, int32_t before, int32_t count) {
  bool stop = false;
  const int32_t *tokens = s->committed.tokens + before;
  int32_t keep = s->admit ? s->admit(s->admit_context, tokens, count, &stop) : count;
  assert(before + keep >= s->prompt_length);
  if (keep < count) prefix_truncate(&s->committed, before + keep);
  const ledger *l = &c->all->ledger;
  if (keep > 0 && l->append(l->self, s->id, before, tokens, keep) != ERR_OK) {
    prefix_truncate(&s->committed, before);
    session_finish_error(c, s, ERR_IO, "the ledger could not take the tokens: nothing more is shown");
    return;
  }
  client_session_note_durable(c, s);
  if (stop || keep < count)
    session_finish(c, s, WIRE_FINISH_STOP, 0, NULL, true);
  else if (session_frames_ack_due(c, s))
    session_frames_ack(c, s);
}

static bool in_vocabulary(client_step *c, const client_session *s, const msg_tokens *t) {
  int32_t size = c->all->vocabulary_size;
  if (!size) size = client_worker_hello(c, s->target.peer)->vocabulary_size;
  for (int32_t i = 0; size && i < t->token_count; i++)
    if (t->tokens[i] >= size) return false;
  return true;
}

/* Notes the numerics of every target that decoded tokens of this session. */
static void note_numerics(client_step *c, client_session *s, bool decoded) {
  char numerics[WIRE_STRING_MAX + 1];
  assignment_numerics(s, roster_find(&c->all->roster, s->target.peer), numerics);
  if (s->decoded && !decoded) return;
  if (s->decoded && strcmp(s->numerics, numerics) != 0) s->numerics_changed = true;
  if (strcmp(s->numerics, numerics) != 0) {
    snprintf(s->numerics, sizeof s->numerics, "%s", numerics);
    c->all->ledger.numerics(c->all->ledger.self, s->id, s->numerics);
  }
  s->decoded |= decoded;
}

/* Notes which of the new tokens, from position `before` on, the target says are accepted ones, and what its
 * plain steps take. */
static void take_accepted(client_session *s, const msg_tokens *t, int32_t before) {
  if (s->committed.length > before) s->plain_us = t->plain_us;
  for (int32_t i = before; s->accepted && i < s->committed.length; i++)
    s->accepted[i] = msg_token_accepted(t, i - t->base_length);
}

/* The same for log-probabilities. */
static void take_logprobs(client_session *s, const msg_tokens *t, int32_t before) {
  int32_t each = s->options.logprobs;
  if (!s->logprobs || t->logprob_count != t->token_count * each) return;
  for (int32_t i = before; i < s->committed.length; i++) {
    for (int32_t k = 0; k < each; k++) {
      int32_t from = (i - t->base_length) * each + k;
      s->logprobs[(i - s->prompt_length) * each + k] =
          (ranking_token){t->logprob_tokens[from], t->logprobs[from]};
    }
  }
}

static void take_tokens(client_step *c, client_session *s, int32_t before, int32_t count) {
  s->silence_us = SESSIONS_SILENCE_US;
  s->vain_repairs = 0;
  assignment_target_lives(c, s, true);
  note_numerics(c, s, true);
  log_tokens(c, s, before, count);
}

static void on_tokens(client_step *c, client_session *s, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  int32_t before = s->committed.length, appended = 0;
  if (!in_vocabulary(c, s, t)) {
    session_finish_error(c, s, ERR_PROTOCOL, "the target sent a token outside the vocabulary");
    return;
  }
  switch (prefix_apply(&s->committed, t->base_length, t->tokens, t->token_count, t->hash, &appended)) {
  case PREFIX_APPLIED:
    take_accepted(s, t, before);
    take_logprobs(s, t, before);
    if (appended > 0)
      take_tokens(c, s, before, appended);
    else
      session_frames_ack(c, s);
    break;
  case PREFIX_BEYOND:
    ask_resend(c, s);
    break;
  case PREFIX_CONFLICT:
  case PREFIX_LIMIT: /* more than was asked for */
    actions_log(c->out, LOG_WARNING,
                "session %016llx: the target's tokens differ from the ledger's: repaired",
                (unsigned long long)s->id);
    failover_repair(c, s, 0, (hash16){{0}});
    break;
  }
}

/* --- the rest of what a target sends --- */

static void take_counts(client_step *c, client_session *s, const msg_done *d) {
  session_stats_report(&s->stats, &d->stats, d->length);
  client_text(s->off_reason, d->off_reason);
  s->off = d->off;
  if (d->plain_us) s->plain_us = d->plain_us;
  if (s->off == WIRE_OFF_UNATTACHED) failover_explain_unattached(c, s);
}

/* The engine failed, perhaps for want of memory: another target may have what this one lacks. But a wait that
 * ended in one place would begin anew in the next. False: the session ends here. */
static bool leave_failed_target(client_step *c, client_session *s, const msg_done *d) {
  session_stats_report(&s->stats, &d->stats, d->length);
  if (d->code == ERR_TIMEOUT || !failover_target_unable(c, s, c->now + SESSIONS_UNABLE_US)) return false;
  actions_log(c->out, LOG_WARNING,
              "session %016llx: its target failed (%s): it goes on elsewhere from token %d",
              (unsigned long long)s->id, wire_brief_of(d->text).text, s->committed.length);
  return true;
}

static void on_done(client_step *c, client_session *s, const msg *m) {
  const msg_done *d = &m->u.done;
  if (!client_session_live(s)) {
    take_counts(c, s, d);
    session_finish_send(c, s, &s->target);
    return;
  }
  if (d->finish == WIRE_FINISH_CANCELLED) { /* not by us: it answers the END of an earlier visit */
    session_stats_report_late(&s->stats, s->target.peer, &d->stats);
    return;
  }
  if (s->committed.length < d->length) {
    ask_resend(c, s);
    return;
  }
  if (!prefix_has(&s->committed, d->length, d->hash) || d->length != s->committed.length) {
    failover_repair(c, s, d->length, d->hash);
    return;
  }
  if (d->finish == WIRE_FINISH_ERROR && leave_failed_target(c, s, d)) return;
  take_counts(c, s, d);
  char text[WIRE_STRING_MAX + 1];
  client_text(text, d->text);
  session_finish(c, s, d->finish, d->code, d->code ? text : NULL, false);
}

/* Its context or its blocks are too few, for good, or its memory, now: another one may have more. False:
 * there is no other. */
static bool leave_small_target(client_step *c, client_session *s, int code) {
  return failover_target_unable(c, s, code == ERR_LIMIT ? MACHINE_NEVER : c->now + SESSIONS_UNABLE_US);
}

static void on_target_error(client_step *c, client_session *s, const msg *m) {
  char text[WIRE_STRING_MAX + 1];
  client_text(text, m->u.error.text);
  s->refused_by = s->target.peer;
  switch (m->u.error.code) {
  case ERR_STALE:
  case ERR_GONE: /* it has lost the session, or knows a later epoch */
    s->repairs++;
    if (++s->vain_repairs > SESSIONS_DESYNC_MAX)
      session_finish_error(c, s, m->u.error.code, text);
    else
      failover_target_lost(c, s, c->now + SESSIONS_REPEAT_US);
    break;
  case ERR_DEVICE:
    failover_device_lost(c, s->target.peer, text);
    break;
  case ERR_FULL:
  case ERR_DRAINING: {
    uint64_t since = s->waiting_since_us;
    s->needs_room = m->u.error.code == ERR_FULL;
    failover_target_lost(c, s, c->now + SESSIONS_REPEAT_US);
    s->waiting_since_us = since;
    break;
  }
  case ERR_LIMIT:
  case ERR_NOMEM:
    if (leave_small_target(c, s, m->u.error.code)) break; /* fall through */
  default:
    session_finish_error(c, s, m->u.error.code, text);
  }
}

/* OPEN may have been repeated: then OPENED comes for each, and the first ones know nothing of a new ticket.
 */
static bool answers_outdated_open(client_session *s) {
  if (s->opens_unanswered > 0) s->opens_unanswered--;
  if (s->opens_outdated == 0) return false;
  s->opens_outdated--;
  return true;
}

static void on_opened(client_step *c, client_session *s, const msg *m) {
  const msg_state *at = &m->u.state;
  bool outdated = answers_outdated_open(s);
  if (at->length <= s->committed.length && !prefix_has(&s->committed, at->length, at->hash)) {
    failover_repair(c, s, 0, (hash16){{0}});
    return;
  }
  if (!assignment_take_opened(c, s, &s->target, at->length)) return;
  s->target.opened = true;
  if (!outdated) s->ticket_owed = false;
  s->refused_by = 0;
  s->needs_room = false;
  note_numerics(c, s, false);
  if (s->durable > s->acked) session_frames_ack(c, s); /* the target waits for it where it is much */
}

static void from_target(client_step *c, client_session *s, const msg *m) {
  if (m->type == MSG_ENDED) {
    s->target.ended = !client_session_live(s);
    assignment_room_made(c->all);
    return;
  }
  if (m->type == MSG_DONE) on_done(c, s, m);
  if (!client_session_live(s)) return;
  assignment_target_lives(c, s, m->type == MSG_TOKENS);
  switch (m->type) {
  case MSG_OPENED:
    on_opened(c, s, m);
    break;
  case MSG_TOKENS:
    on_tokens(c, s, m);
    break;
  case MSG_DESYNC:
    failover_repair(c, s, m->u.state.length, m->u.state.hash);
    break;
  case MSG_ERROR:
    on_target_error(c, s, m);
    break;
  case MSG_DETACH:
    failover_unattached(c, s);
    break;
  default:
    break;
  }
}

/* --- what a draft sends --- */

static void on_draft_error(client_step *c, client_session *s, const msg *m) {
  char text[WIRE_STRING_MAX + 1];
  int code = m->u.error.code;
  if (code == ERR_TIMEOUT && s->attach_since_us) {
    failover_draft_unreachable(c, s);
    return;
  }
  /* It was detached before it has seen this OPEN, from what an earlier one had it attach to. */
  if (code == ERR_STATE && !s->draft.opened) return;
  client_text(text, m->u.error.text);
  failover_draft_refused(c, s, code, text);
}

static void on_draft_desync(client_step *c, client_session *s, const msg_state *at) {
  if (++s->draft_repairs > SESSIONS_DESYNC_MAX) {
    failover_draft_refused(c, s, ERR_DESYNC, "the draft was out of step too often");
    return;
  }
  s->draft.base = prefix_has(&s->committed, at->length, at->hash) ? at->length : 0;
  if (s->draft_repairs == 1) {
    assignment_open_draft(c, s);
    return;
  }
  /* If it happens again, the target may be the one that is wrong, which its answer to ACK will show. So the
   * draft is not opened at once. */
  s->draft.opened = false;
  s->draft.sent_us = c->now;
  s->draft.offered_us = 0;
}

static void from_draft(client_step *c, client_session *s, const msg *m) {
  if (m->type == MSG_ENDED) s->draft.ended = !client_session_live(s);
  if (!client_session_live(s)) return;
  /* An END from before it was opened has come late, and it has ended the session after all. */
  if (m->type == MSG_ENDED && s->draft.opened) assignment_open_draft(c, s);
  if (m->type == MSG_OPENED) s->draft.opened |= assignment_take_opened(c, s, &s->draft, m->u.state.length);
  if (m->type == MSG_ERROR) on_draft_error(c, s, m);
  if (m->type == MSG_DESYNC) on_draft_desync(c, s, &m->u.state);
}

/* A frame about a session that we do not have, or no longer: the worker may free it. */
static void end_unknown(client_step *c, const roster_peer *from, const msg *m) {
  if (m->type == MSG_ENDED || m->type == MSG_ERROR) return;
  msg end = roster_message(&c->all->roster, from->id, MSG_END, m->session, m->epoch);
  actions_send(c->out, from->id, &end);
}

void session_frames_take(client_step *c, const roster_peer *from, const msg *m) {
  if (!m->session) return;
  client_session *s = client_session_find(c->all, m->session);
  if (!s)
    end_unknown(c, from, m);
  else if (m->epoch != s->epoch)
    return; /* of an epoch that has passed */
  else if (from->id == s->target.peer)
    from_target(c, s, m);
  else if (from->id == s->draft.peer)
    from_draft(c, s, m);
  else if (m->type == MSG_DONE)
    session_stats_report_late(&s->stats, from->id, &m->u.done.stats);
}
