#include "target_worker/token_stream.h"

#include "common/base/min.h"
#include "common/base/log.h"
#include "target_worker/scheduler.h"
#include <math.h>
#include <stdio.h>

static msg message_to(step_context *c, peer_id to, msg_type type, const session *s) {
  return roster_message(c->peers, to, type, s->id, s->epoch);
}

void token_stream_send_state(step_context *c, peer_id to, msg_type type, const session *s,
                             const char *reason) {
  msg m = roster_state(c->peers, to, type, s->id, s->epoch, &s->committed, reason);
  actions_send(c->out, to, &m);
}

/* --- TOKENS --- */

/* What a plain step of this completion takes; 0: not known, or there is nothing to compare it with. */
static double comparable_us(const session *s) {
  return s->stats.rounds ? speculation_plain_us(&s->speculation) : 0;
}

static uint32_t plain_step_us(const session *s) {
  return (uint32_t)fmin(round(comparable_us(s)), UINT32_MAX);
}

/* Tells the orchestrator, if it wants to know, which of the tokens are accepted ones, and what it may compare
 * their time with. */
static void mark_accepted(const session *s, peer_id to, uint8_t bits[MSG_ACCEPTED_SIZE(WIRE_BURST_MAX)],
                          msg_tokens *t) {
  if (!s->request.accepted_wanted || to != s->request.orchestrator || t->token_count == 0) return;
  msg_pack_accepted(s->stream.accepted + t->base_length, t->token_count, bits);
  t->accepted = bits;
  t->accepted_size = MSG_ACCEPTED_SIZE((uint32_t)t->token_count);
  t->plain_us = plain_step_us(s);
}

typedef struct logprob_lists {
  int32_t tokens[WIRE_LOGPROBS_BURST * WIRE_LOGPROBS_MAX];
  float values[WIRE_LOGPROBS_BURST * WIRE_LOGPROBS_MAX];
} logprob_lists;

/* As many as the orchestrator wants; those that are not kept are of token -1. */
static void add_logprobs(const session *s, logprob_lists *room, msg_tokens *t) {
  int32_t each = s->request.options.logprobs, kept_from = s->committed.length - SESSION_LOGPROBS, n = 0;
  for (int32_t i = 0; i < t->token_count; i++) {
    int32_t position = t->base_length + i;
    const ranking_token *from = s->stream.logprobs + position % SESSION_LOGPROBS * each;
    for (int32_t k = 0; k < each; k++, n++) {
      room->tokens[n] = position >= kept_from ? from[k].token : -1;
      room->values[n] = position >= kept_from ? from[k].value : 0;
    }
  }
  t->logprob_tokens = room->tokens;
  t->logprobs = room->values;
  t->logprob_count = n;
}

/* Returns where they end. */
static int32_t send_tokens(step_context *c, peer_id to, const session *s, int32_t base) {
  bool logprobs = s->stream.logprobs && to == s->request.orchestrator;
  int32_t count = min_i32(s->committed.length - base, logprobs ? WIRE_LOGPROBS_BURST : WIRE_BURST_MAX);
  msg m = message_to(c, to, MSG_TOKENS, s);
  m.u.tokens.base_length = base;
  m.u.tokens.tokens = s->committed.tokens + base;
  m.u.tokens.token_count = count;
  m.u.tokens.hash = s->committed.hashes[base + count];
  uint8_t bits[MSG_ACCEPTED_SIZE(WIRE_BURST_MAX)];
  logprob_lists lists;
  mark_accepted(s, to, bits, &m.u.tokens);
  if (logprobs) add_logprobs(s, &lists, &m.u.tokens);
  actions_send(c->out, to, &m);
  return base + count;
}

/* TOKENS from `base` to the end of C, or as many as one message holds. */
static void to_orchestrator(step_context *c, session *s, int32_t base) {
  int32_t end = send_tokens(c, s->request.orchestrator, s, base);
  if (end > s->stream.sent) s->stream.sent = end;
  s->stream.sent_us = c->now;
  s->stream.send_after_us = c->now + TOKEN_STREAM_EVERY_US;
  s->stream.send_by_us = c->now + 2 * TOKEN_STREAM_EVERY_US;
}

void token_stream_to_draft(step_context *c, session *s, session_draft *d, int32_t base) {
  int32_t end = send_tokens(c, d->peer, s, base);
  d->tokens_sent_us = c->now;
  if (end > d->sent) d->sent = end; /* what follows a repetition is repeated only when it is asked for */
  if (d->timed) return;             /* to a draft far away several are under way */
  d->timed = true;
  d->replied = false;
  d->timed_length = end;
  d->timed_us = c->now;
}

void token_stream_flush(step_context *c, session *s) {
  while (s->stream.sent < s->committed.length) to_orchestrator(c, s, s->stream.sent);
}

void token_stream_sign_of_life(step_context *c, session *s) {
  s->stream.sent = send_tokens(c, s->request.orchestrator, s, s->stream.sent);
  s->stream.sent_us = c->now;
}

/* While speculation is off a draft would only work in vain: it is sent all at once when it is tried again. */
static void flush_drafts(step_context *c, session *s) {
  if (speculation_is_off(&s->speculation) && !s->request.options.lockstep) return;
  for (session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++)
    while (d->peer && d->sent < s->committed.length) token_stream_to_draft(c, s, d, d->sent);
}

void token_stream_grown(step_context *c, session *s) {
  bool due = c->now >= s->stream.send_after_us;
  flush_drafts(c, s);
  if (due) token_stream_flush(c, s);
}

/* --- repair --- */

void token_stream_desync(step_context *c, session *s, const char *reason) {
  if (s->state == SESSION_RUNNING) token_stream_flush(c, s);
  s->state = SESSION_DESYNCED;
  session_draft_restart(s);
  actions_log(c->out, LOG_WARNING, "session %016llx: out of step at %d tokens: %s", (unsigned long long)s->id,
              s->committed.length, reason);
  token_stream_send_state(c, s->request.orchestrator, MSG_DESYNC, s, reason);
}

void token_stream_on_ack(step_context *c, session *s, const msg *m) {
  const msg_state *a = &m->u.state;
  session_store_renew(s, c->now);
  if (s->state == SESSION_DESYNCED) {
    token_stream_send_state(c, s->request.orchestrator, MSG_DESYNC, s, "still out of step");
    return;
  }
  if (!prefix_has(&s->committed, a->length, a->hash)) {
    token_stream_desync(c, s, "what was acknowledged is not held here");
    return;
  }
  if (a->length <= s->stream.acked) return;
  s->stream.acked = a->length;
  session_lockstep_begin(s, c->now); /* until now it may have waited for credit */
}

bool token_stream_next_part(const session_draft *d, int32_t length) {
  return d->resent_part && length == d->resent_end;
}

/* A small frame asks for a large one. Who asks for what it was sent already, which may have been lost, waits
 * longer than one who has got on; who has got all of a part gets the next one at once. */
static uint64_t resend_after(const session_draft *d, int32_t base) {
  if (token_stream_next_part(d, base)) return 0;
  return base < d->resent_end ? TOKEN_STREAM_AGAIN_US : TOKEN_STREAM_RESEND_US;
}

void token_stream_resend(step_context *c, session *s, session_draft *d, int32_t base) {
  if (c->now - d->resent_us < resend_after(d, base)) return;
  d->resent_us = c->now;
  d->resent_part = s->committed.length - base > WIRE_BURST_MAX;
  d->resent_end = d->resent_part ? base + WIRE_BURST_MAX : s->committed.length;
  token_stream_to_draft(c, s, d, base);
}

void token_stream_on_resend(step_context *c, peer_id from, session *s, const msg *m) {
  session_draft *d = session_draft_of(s, from);
  int32_t base = min_i32(m->u.resend.from, s->committed.length); /* beyond it, C's length is the reply */
  if (d) {
    token_stream_resend(c, s, d, base);
    return;
  }
  to_orchestrator(c, s, base);
  if (s->state == SESSION_FINISHED) token_stream_send_done(c, s); /* it has overtaken the tokens */
}

/* --- DONE --- */

typedef struct why_off {
  const char *text; /* NULL: speculation was on */
  wire_off code;
} why_off;

static why_off unattached(const session *s) {
  if (s->drafts.left_reason[0]) return (why_off){s->drafts.left_reason, WIRE_OFF_OTHER};
  if (s->request.draft_expected) return (why_off){SESSION_UNATTACHED, WIRE_OFF_UNATTACHED};
  return (why_off){"no draft was asked for", WIRE_OFF_OTHER};
}

/* Why speculation is off at the end. */
static why_off off_reason(const session *s) {
  const speculation *p = &s->speculation;
  bool expected = s->request.draft_expected;
  if (p->disabled) return (why_off){p->disabled, WIRE_OFF_OTHER};
  if (s->request.options.budget == 0)
    return (why_off){expected ? "the node budget is 0" : "no draft was asked for", WIRE_OFF_OTHER};
  if (session_draft_count(s) == 0) return unattached(s);
  if (s->request.options.lockstep) return (why_off){NULL, WIRE_OFF_OTHER};
  return (why_off){speculation_off_reason(p), speculation_is_unpaid(p) ? WIRE_OFF_UNPAID : WIRE_OFF_OTHER};
}

/* ahead: the orchestrator takes the counts of drafting ahead. */
static msg_stats stats_of(const session_stats *n, bool ahead) {
  int32_t positions = WIRE_POSITIONS_MAX;
  while (positions > 0 && n->accepted_per_pos[positions - 1] == 0) positions--;
  return (msg_stats){.forwards = n->forwards,
                     .rounds = n->rounds,
                     .rows = n->rows,
                     .accepted = n->accepted,
                     .rewound = n->rows - n->accepted,
                     .prefill_us = n->prefill_us,
                     .queue_us = n->queue_us,
                     .forward_us = n->forward_us,
                     .accept_us = n->accept_us,
                     .commit_us = n->commit_us,
                     .wait_us = n->wait_us,
                     .plain_steps = n->plain_steps,
                     .resets = n->resets,
                     .dropped = n->dropped,
                     .accepted_per_pos = n->accepted_per_pos,
                     .position_count = positions,
                     .verdicts = ahead ? n->ahead.verdicts : 0,
                     .ahead_hits = ahead ? n->ahead.hits : 0,
                     .survivors = ahead ? n->ahead.survivors : 0};
}

/* The sentence of DONE: why it is an error. An orchestrator that takes no numbers is told of the speed of the
 * plain steps in words. */
static const char *closing_text(const session *s, uint32_t version, char out[WIRE_STRING_MAX]) {
  double plain_us = comparable_us(s);
  if (s->finish.reason == WIRE_FINISH_ERROR) return s->finish.text;
  if (version >= WIRE_VERSION_NUMBERS || plain_us <= 0) return NULL;
  snprintf(out, WIRE_STRING_MAX, "plain decoding: about %.0f tok/s", 1e6 / plain_us);
  return out;
}

void token_stream_send_done(step_context *c, session *s) {
  char text[WIRE_STRING_MAX];
  uint32_t version = roster_version(c->peers, s->request.orchestrator);
  bool numbers = version >= WIRE_VERSION_NUMBERS;
  const why_off off = off_reason(s);
  msg m = message_to(c, s->request.orchestrator, MSG_DONE, s);
  m.u.done = (msg_done){.length = s->committed.length,
                        .hash = prefix_hash(&s->committed),
                        .finish = (wire_finish)s->finish.reason,
                        .code = s->finish.code,
                        .text = wire_text(closing_text(s, version, text)),
                        .off_reason = wire_text(off.text),
                        .stats = stats_of(&s->stats, version >= WIRE_VERSION_AHEAD),
                        .off = numbers ? off.code : 0,
                        .plain_us = numbers ? plain_step_us(s) : 0};
  s->stream.done_sent_us = c->now;
  actions_send(c->out, s->request.orchestrator, &m);
}

/* --- time --- */

static bool unacknowledged(const session *s) {
  return s->stream.acked < s->committed.length && s->state != SESSION_DESYNCED;
}

void token_stream_tick(step_context *c, session *s) {
  if (unacknowledged(s) && c->now - s->stream.sent_us >= TOKEN_STREAM_REPEAT_US)
    to_orchestrator(c, s, s->stream.acked);
  if (c->now >= s->stream.send_by_us) {
    s->stream.send_by_us = MACHINE_NEVER;
    if (s->state == SESSION_RUNNING) {
      flush_drafts(c, s);
      token_stream_flush(c, s);
    }
  }
  if (s->state == SESSION_FINISHED && c->now - s->stream.done_sent_us >= TOKEN_STREAM_REPEAT_US)
    token_stream_send_done(c, s);
}

uint64_t token_stream_deadline(const session *s) {
  uint64_t at = s->stream.send_by_us;
  if (unacknowledged(s)) at = min_u64(at, s->stream.sent_us + TOKEN_STREAM_REPEAT_US);
  if (s->state == SESSION_FINISHED) at = min_u64(at, s->stream.done_sent_us + TOKEN_STREAM_REPEAT_US);
  return at;
}
