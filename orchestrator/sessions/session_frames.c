#include "orchestrator/sessions/session_frames.h"

#include "common/base/log.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

#define RESEND_EVERY_US                                                                                      \
  20000 /* a stream with a hole is asked for once, not for every frame behind the hole */

void session_frames_ack(step *c, client_session *s) {
  msg m = roster_state(&c->o->roster, s->target.peer, MSG_ACK, s->id, s->epoch, &s->committed, NULL);
  s->ack_us = c->now;
  actions_send(c->out, s->target.peer, &m);
}

static void ask_resend(step *c, client_session *s) {
  if (c->now - s->resend_us < RESEND_EVERY_US) return;
  s->resend_us = c->now;
  msg m = roster_message(&c->o->roster, s->target.peer, MSG_RESEND, s->id, s->epoch);
  m.u.resend.from = s->committed.length;
  actions_send(c->out, s->target.peer, &m);
}

/* New tokens: asked whether a stop string ends them, logged, and only then visible and acknowledged. */
static void log_tokens(step *c, client_session *s, int32_t before, int32_t count) {
  bool stop = false;
  const int32_t *tokens = s->committed.tokens + before;
  int32_t keep = s->admit ? s->admit(s->admit_context, tokens, count, &stop) : count;
  assert(before + keep >= s->prompt_length);
  if (keep < count) prefix_truncate(&s->committed, before + keep);
  ledger *l = &c->o->options.ledger;
  if (keep > 0 && l->append(l->self, s->id, before, tokens, keep) != ERR_OK) {
    prefix_truncate(&s->committed, before);
    assignment_fail(c, s, ERR_IO, "the ledger could not take the tokens: nothing more is shown");
    return;
  }
  if (stop || keep < count)
    assignment_finish(c, s, WIRE_FINISH_STOP, 0, NULL, true);
  else
    session_frames_ack(c, s);
}

static bool in_vocabulary(step *c, const client_session *s, const msg_tokens *t) {
  int32_t size = c->o->options.vocabulary_size;
  if (!size) size = assignment_greeting(c, s->target.peer)->vocabulary_size;
  for (int32_t i = 0; size && i < t->token_count; i++)
    if (t->tokens[i] >= size) return false;
  return true;
}

/* Whose numerics made this answer: those of every target that gave a token of it. */
static void note_numerics(step *c, client_session *s, bool decoded) {
  const char *numerics = roster_find(&c->o->roster, s->target.peer)->numerics;
  if (s->decoded && !decoded) return;
  if (s->decoded && strcmp(s->numerics, numerics) != 0) s->numerics_changed = true;
  if (strcmp(s->numerics, numerics) != 0) {
    snprintf(s->numerics, sizeof s->numerics, "%s", numerics);
    c->o->options.ledger.numerics(c->o->options.ledger.self, s->id, s->numerics);
  }
  s->decoded |= decoded;
}

static void on_tokens(step *c, client_session *s, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  int32_t before = s->committed.length, appended = 0;
  if (!in_vocabulary(c, s, t)) {
    assignment_fail(c, s, ERR_PROTOCOL, "the target sent a token outside the vocabulary");
    return;
  }
  switch (prefix_apply(&s->committed, t->base_length, t->tokens, t->token_count, t->hash, &appended)) {
  case PREFIX_APPLIED:
    if (appended > 0) {
      s->quiet_us = SESSIONS_QUIET_US;
      assignment_alive(c, s, true);
      note_numerics(c, s, true);
    }
    if (appended > 0)
      log_tokens(c, s, before, appended);
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
    assignment_repair(c, s, 0, (hash16){{0}});
    break;
  }
}

static void take_stats(step *c, client_session *s, const msg_done *d) {
  session_stats_report(&s->counted, &d->stats);
  assignment_text(s->off_reason, d->off_reason);
  if (strcmp(s->off_reason, WIRE_OFF_UNATTACHED) == 0) assignment_explain_unattached(c, s);
  if (!d->code && s->finish != WIRE_FINISH_ERROR) assignment_text(s->text, d->text);
}

static void on_done(step *c, client_session *s, const msg *m) {
  const msg_done *d = &m->u.done;
  if (!session_live(s)) {
    take_stats(c, s, d);
    assignment_end(c, s, &s->target);
    return;
  }
  if (s->committed.length < d->length) {
    ask_resend(c, s);
    return;
  }
  if (!prefix_has(&s->committed, d->length, d->hash) || d->length != s->committed.length) {
    assignment_repair(c, s, d->length, d->hash);
    return;
  }
  take_stats(c, s, d);
  char text[WIRE_STRING_MAX + 1];
  assignment_text(text, d->text);
  assignment_finish(c, s, d->finish, d->code, text, false);
}

static void on_target_error(step *c, client_session *s, const msg *m) {
  char text[WIRE_STRING_MAX + 1];
  assignment_text(text, m->u.error.text);
  s->target_avoid = s->target.peer;
  switch (m->u.error.code) {
  case ERR_STALE:
  case ERR_GONE: /* it has lost the session, or knows a later epoch */
    if (++s->repairs > SESSIONS_DESYNC_MAX)
      assignment_fail(c, s, m->u.error.code, text);
    else
      assignment_target_lost(c, s, c->now + SESSIONS_REPEAT_US);
    break;
  case ERR_FULL:
  case ERR_DRAINING: {
    uint64_t since = s->waiting_us;
    s->no_room = m->u.error.code == ERR_FULL;
    assignment_target_lost(c, s, c->now + SESSIONS_REPEAT_US);
    s->waiting_us = since;
    break;
  }
  case ERR_LIMIT: /* its context, its blocks or its memory: another one may have more */
  case ERR_NOMEM:
    if (assignment_target_unable(c, s)) break; /* fall through */
  default:
    assignment_fail(c, s, m->u.error.code, text);
  }
}

static void on_opened(step *c, client_session *s, const msg *m) {
  const msg_state *at = &m->u.state;
  if (at->length <= s->committed.length && !prefix_has(&s->committed, at->length, at->hash)) {
    assignment_repair(c, s, 0, (hash16){{0}});
    return;
  }
  s->target.opened = true;
  s->state = SESSIONS_RUNNING;
  s->target_avoid = 0;
  s->no_room = false;
  note_numerics(c, s, false);
}

void session_frames_target(step *c, client_session *s, const msg *m) {
  if (m->type == MSG_ENDED) {
    s->target.ended = !session_live(s);
    assignment_end_if_told(s);
    assignment_room_made(c->o);
    return;
  }
  if (m->type == MSG_DONE) on_done(c, s, m);
  if (!session_live(s)) return;
  assignment_alive(c, s, m->type == MSG_TOKENS);
  switch (m->type) {
  case MSG_OPENED:
    on_opened(c, s, m);
    break;
  case MSG_TOKENS:
    on_tokens(c, s, m);
    break;
  case MSG_DESYNC:
    assignment_repair(c, s, m->u.state.length, m->u.state.hash);
    break;
  case MSG_ERROR:
    on_target_error(c, s, m);
    break;
  default:
    break;
  }
}

void session_frames_draft(step *c, client_session *s, const msg *m) {
  if (m->type == MSG_ENDED) {
    s->draft.ended = !session_live(s);
    assignment_end_if_told(s);
    return;
  }
  if (!session_live(s)) return;
  if (m->type == MSG_OPENED) s->draft.opened = true;
  if (m->type == MSG_ERROR && m->u.error.code == ERR_TIMEOUT && s->draft_since_us) {
    assignment_draft_astray(c, s);
  } else if (m->type == MSG_ERROR) {
    char text[WIRE_STRING_MAX + 1];
    assignment_text(text, m->u.error.text);
    assignment_draft_refused(c, s, text);
  }
  if (m->type != MSG_DESYNC) return;
  if (++s->draft_repairs > SESSIONS_DESYNC_MAX) {
    assignment_draft_refused(c, s, "the draft was out of step too often");
    return;
  }
  s->draft.base = prefix_has(&s->committed, m->u.state.length, m->u.state.hash) ? m->u.state.length : 0;
  if (s->draft_repairs == 1) {
    assignment_open_draft(c, s);
    return;
  }
  s->draft.opened =
      false; /* again and again: perhaps it is the target that is wrong; ACK will tell: not at once */
  s->draft.sent_us = c->now;
}
