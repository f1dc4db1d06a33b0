#include "orchestrator/sessions/session_frames.h"

#include "common/base/log.h"
#include "orchestrator/sessions/failover.h"
#include "orchestrator/sessions/session_finish.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* --- tokens --- */

void session_frames_ack(client_step *c, client_session *s) {
  msg m = roster_state(&c->all->roster, s->target.peer, MSG_ACK, s->id, s->epoch, &s->committed, NULL);
  s->ack_us = c->now;
  actions_send(c->out, s->target.peer, &m);
}

static void ask_resend(client_step *c, client_session *s) {
  if (c->now - s->resend_us < SESSIONS_RESEND_US) return;
  s->resend_us = c->now;
  msg m = roster_message(&c->all->roster, s->target.peer, MSG_RESEND, s->id, s->epoch);
  m.u.resend.from = s->committed.length;
  actions_send(c->out, s->target.peer, &m);
}

/* New tokens may be cut by a stop string; the rest is logged, and only then visible and acknowledged. */
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
  if (stop || keep < count)
    session_finish(c, s, WIRE_FINISH_STOP, 0, NULL, true);
  else
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
  const char *numerics = roster_find(&c->all->roster, s->target.peer)->numerics;
  if (s->decoded && !decoded) return;
  if (s->decoded && strcmp(s->numerics, numerics) != 0) s->numerics_changed = true;
  if (strcmp(s->numerics, numerics) != 0) {
    snprintf(s->numerics, sizeof s->numerics, "%s", numerics);
    c->all->ledger.numerics(c->all->ledger.self, s->id, s->numerics);
  }
  s->decoded |= decoded;
}

/* Notes which of the new tokens, from position `before` on, the target says are accepted ones. */
static void take_accepted(client_session *s, const msg_tokens *t, int32_t before) {
  for (int32_t i = before; s->accepted && i < s->committed.length; i++)
    s->accepted[i] = msg_token_accepted(t, i - t->base_length);
}

static void take_tokens(client_step *c, client_session *s, int32_t before, int32_t count) {
  s->silence_us = SESSIONS_SILENCE_US;
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
  session_stats_report(&s->stats, &d->stats);
  client_text(s->off_reason, d->off_reason);
  if (strcmp(s->off_reason, WIRE_OFF_UNATTACHED) == 0) failover_explain_unattached(c, s);
  if (!d->code && s->finish != WIRE_FINISH_ERROR) client_text(s->text, d->text);
}

static void on_done(client_step *c, client_session *s, const msg *m) {
  const msg_done *d = &m->u.done;
  if (!client_session_live(s)) {
    take_counts(c, s, d);
    session_finish_send(c, s, &s->target);
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
  take_counts(c, s, d);
  char text[WIRE_STRING_MAX + 1];
  client_text(text, d->text);
  session_finish(c, s, d->finish, d->code, text, false);
}

static void on_target_error(client_step *c, client_session *s, const msg *m) {
  char text[WIRE_STRING_MAX + 1];
  client_text(text, m->u.error.text);
  s->refused_by = s->target.peer;
  switch (m->u.error.code) {
  case ERR_STALE:
  case ERR_GONE: /* it has lost the session, or knows a later epoch */
    if (++s->repairs > SESSIONS_DESYNC_MAX)
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
  case ERR_LIMIT: /* its context, its blocks or its memory: another one may have more */
  case ERR_NOMEM:
    if (failover_target_too_small(c, s)) break; /* fall through */
  default:
    session_finish_error(c, s, m->u.error.code, text);
  }
}

static void on_opened(client_step *c, client_session *s, const msg *m) {
  const msg_state *at = &m->u.state;
  if (at->length <= s->committed.length && !prefix_has(&s->committed, at->length, at->hash)) {
    failover_repair(c, s, 0, (hash16){{0}});
    return;
  }
  s->target.opened = true;
  s->refused_by = 0;
  s->needs_room = false;
  note_numerics(c, s, false);
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
  default:
    break;
  }
}

/* --- what a draft sends --- */

static void on_draft_error(client_step *c, client_session *s, const msg *m) {
  char text[WIRE_STRING_MAX + 1];
  if (m->u.error.code == ERR_TIMEOUT && s->attach_since_us) {
    failover_draft_unreachable(c, s);
    return;
  }
  client_text(text, m->u.error.text);
  failover_draft_refused(c, s, text);
}

static void on_draft_desync(client_step *c, client_session *s, const msg_state *at) {
  if (++s->draft_repairs > SESSIONS_DESYNC_MAX) {
    failover_draft_refused(c, s, "the draft was out of step too often");
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
}

static void from_draft(client_step *c, client_session *s, const msg *m) {
  if (m->type == MSG_ENDED) s->draft.ended = !client_session_live(s);
  if (!client_session_live(s)) return;
  if (m->type == MSG_OPENED) s->draft.opened = true;
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
