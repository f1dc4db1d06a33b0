#include "target_worker/token_stream.h"

#include "common/base/least.h"
#include "target_worker/scheduler.h"
#include <stdio.h>

static msg message_to(step *c, peer_id to, msg_type type, const session *s) {
  return roster_message(c->peers, to, type, s->id, s->epoch);
}

void token_stream_state(step *c, peer_id to, msg_type type, const session *s, const char *reason) {
  msg m = roster_state(c->peers, to, type, s->id, s->epoch, &s->committed, reason);
  actions_send(c->out, to, &m);
}

/* --- TOKENS --- */

/* Returns where they end. */
static int32_t send_tokens(step *c, peer_id to, const session *s, int32_t base) {
  int32_t count = s->committed.length - base;
  if (count > WIRE_BURST_MAX) count = WIRE_BURST_MAX;
  msg m = message_to(c, to, MSG_TOKENS, s);
  m.u.tokens.base_length = base;
  m.u.tokens.tokens = s->committed.tokens + base;
  m.u.tokens.token_count = count;
  m.u.tokens.hash = s->committed.hashes[base + count];
  actions_send(c->out, to, &m);
  return base + count;
}

void token_stream_to_orchestrator(step *c, session *s, int32_t base) {
  int32_t end = send_tokens(c, s->request.orchestrator, s, base);
  if (end > s->stream.told) s->stream.told = end;
  s->stream.sent_us = c->now;
  s->stream.tell_after_us = c->now + TARGET_TELL_US;
  s->stream.tell_until_us = c->now + 2 * TARGET_TELL_US;
}

void token_stream_to_draft(step *c, session *s, session_draft *d, int32_t base) {
  d->tokens_sent_us = c->now;
  d->told = send_tokens(c, d->peer, s, base);
  if (d->timed) return; /* of a draft far away several are under way */
  d->timed = true;
  d->timed_length = d->told;
  d->timed_us = c->now;
}

void token_stream_tell_orchestrator(step *c, session *s) {
  while (s->stream.told < s->committed.length) token_stream_to_orchestrator(c, s, s->stream.told);
}

void token_stream_alive(step *c, session *s) {
  s->stream.told = send_tokens(c, s->request.orchestrator, s, s->stream.told);
  s->stream.sent_us = c->now;
}

static void tell_drafts(step *c, session *s) {
  for (session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++)
    while (d->peer && d->told < s->committed.length) token_stream_to_draft(c, s, d, d->told);
}

void token_stream_tell(step *c, session *s) {
  bool due = c->now >= s->stream.tell_after_us;
  bool wanted = s->request.options.lockstep || !speculation_is_off(&s->speculation);
  if (wanted || (due && !speculation_is_quiet(&s->speculation))) tell_drafts(c, s);
  if (due) token_stream_tell_orchestrator(c, s);
}

/* --- DONE --- */

/* Why speculation is off at the end, or NULL. */
static const char *off_reason(const session *s) {
  const msg_options *o = &s->request.options;
  bool expected = s->request.draft_expected;
  if (s->speculation.disabled) return s->speculation.disabled;
  if (o->budget == 0) return expected ? "the node budget is 0" : "no draft was asked for";
  if (session_draft_count(s) == 0 && s->drafts.left_reason[0]) return s->drafts.left_reason;
  if (session_draft_count(s) == 0) return expected ? WIRE_OFF_UNATTACHED : "no draft was asked for";
  return o->lockstep ? NULL : speculation_off_reason(&s->speculation, s->stats.rounds > 0);
}

static msg_stats stats_of(const session_stats *n) {
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
                     .position_count = positions};
}

/* The sentence of DONE: why it is an error, or how fast the plain steps of this answer were. NULL: none, or
 * nothing to compare them with. */
static const char *closing_text(const session *s, char out[WIRE_STRING_MAX]) {
  if (s->finish.reason == WIRE_FINISH_ERROR) return s->finish.text;
  double plain_us = speculation_plain_us(&s->speculation, s->stats.plain_steps);
  if (s->stats.rounds == 0 || plain_us <= 0) return NULL;
  snprintf(out, WIRE_STRING_MAX, "plain decoding: about %.0f tok/s", 1e6 / plain_us);
  return out;
}

void token_stream_done(step *c, session *s) {
  char text[WIRE_STRING_MAX];
  msg m = message_to(c, s->request.orchestrator, MSG_DONE, s);
  m.u.done = (msg_done){.length = s->committed.length,
                        .hash = prefix_hash(&s->committed),
                        .finish = (wire_finish)s->finish.reason,
                        .code = s->finish.code,
                        .text = wire_text(closing_text(s, text)),
                        .off_reason = wire_text(off_reason(s)),
                        .stats = stats_of(&s->stats)};
  s->stream.done_sent_us = c->now;
  actions_send(c->out, s->request.orchestrator, &m);
}

/* --- time --- */

static bool unacknowledged(const session *s) {
  return s->stream.acked < s->committed.length && s->state != SESSION_DESYNCED;
}

void token_stream_tick(step *c, session *s) {
  if (unacknowledged(s) && c->now - s->stream.sent_us >= TARGET_REPEAT_US)
    token_stream_to_orchestrator(c, s, s->stream.acked);
  if (c->now >= s->stream.tell_until_us) {
    s->stream.tell_until_us = MACHINE_NEVER;
    if (s->state == SESSION_RUNNING) {
      tell_drafts(c, s);
      token_stream_tell_orchestrator(c, s);
    }
  }
  if (s->state == SESSION_FINISHED && c->now - s->stream.done_sent_us >= TARGET_REPEAT_US)
    token_stream_done(c, s);
}

uint64_t token_stream_deadline(const session *s) {
  uint64_t at = s->stream.tell_until_us;
  if (unacknowledged(s)) at = least_u64(at, s->stream.sent_us + TARGET_REPEAT_US);
  if (s->state == SESSION_FINISHED) at = least_u64(at, s->stream.done_sent_us + TARGET_REPEAT_US);
  return at;
}
