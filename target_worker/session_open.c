#include "target_worker/session_open.h"

#include "target_worker/attached_drafts.h"
#include "target_worker/scheduler.h"
#include "target_worker/session_end.h"
#include "target_worker/session_grammar.h"
#include "target_worker/token_stream.h"
#include <assert.h>
#include <string.h>

int session_open_check(const msg_open *o, int32_t context, int32_t vocabulary, err *e) {
  const msg_options *p = &o->options;
  int32_t length = msg_open_length(o);
  int rc = msg_options_check(p, e);
  if (rc != ERR_OK) return rc;
  if (p->context < 1 || p->context > context)
    return err_set(
        e, ERR_LIMIT,
        "a context of %d tokens was asked for, this target has %d: lower --ctx or start it with more",
        p->context, context);
  if (length < 1) return err_set(e, ERR_ARG, "the prompt is empty: give at least one token");
  if (length > p->context)
    return err_set(e, ERR_LIMIT, "the prompt has %d tokens, the context %d: shorten it or raise --ctx",
                   length, p->context);
  if (o->prompt_length < 1 || o->prompt_length > length)
    return err_set(e, ERR_ARG, "prompt_length %d is not within the %d tokens given", o->prompt_length,
                   length);
  if (o->base_length + o->token_count > length)
    return err_set(e, ERR_ARG, "a part of %d tokens goes beyond the total of %d",
                   o->base_length + o->token_count, length);
  for (int32_t i = 0; i < o->token_count; i++)
    if (o->tokens[i] < 0 || o->tokens[i] >= vocabulary)
      return err_set(e, ERR_ARG, "token %d at position %d is outside the vocabulary of %d", o->tokens[i],
                     o->base_length + i, vocabulary);
  return ERR_OK;
}

/* Of C, no more than these rows are right in the cache, now and after the job that is under way. */
static void keep_rows(session *s, int32_t rows) {
  if (s->cache.rows > rows) s->cache.rows = rows;
  if (s->job.serial && s->job.valid_rows > rows) s->job.valid_rows = rows;
}

static void adopt_prefix(session *s, const msg_open *o) {
  prefix *c = &s->committed;
  int32_t skip = 0;
  while (o->base_length + skip < c->length && skip < o->token_count &&
         c->tokens[o->base_length + skip] == o->tokens[skip])
    skip++;
  int32_t common = o->base_length + skip;
  prefix_truncate(c, common);
  s->job.known = 0; /* its prompt may end elsewhere now */
  if (c->seed != o->hash_seed) prefix_reseed(c, o->hash_seed);
  int rc = prefix_append(c, o->tokens + skip, o->token_count - skip);
  assert(rc == ERR_OK);
  (void)rc;
  if (s->stream.accepted) memset(s->stream.accepted + common, 0, (size_t)(c->length - common));
  keep_rows(s, common);
  keep_rows(s, c->length - 1); /* the root's row is computed anew */
}

void session_open_adopt(session *s, const msg_open *o) {
  adopt_prefix(s, o);
  msg_options_copy(&s->request.options, &o->options, s->request.stop_tokens, &s->request.bias);
  s->request.options.grammar = NULL;
  s->request.prompt_length = o->prompt_length;
  s->request.ticket = o->ticket;
  s->request.draft_expected = o->draft_expected;
  s->request.accepted_wanted = o->accepted_wanted;
  s->drafts.gave_up = false;
}

/* --- OPEN --- */

static void take_over(session *s, peer_id from, const msg *m) {
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    s->drafts.of[i].peer = 0; /* they attach again with the new epoch */
  session_draft_restart(s);
  s->epoch = m->epoch;
  s->request.orchestrator = from;
}

static void start_session(step_context *c, session *s, peer_id from, const msg *m) {
  take_over(s, from, m);
  bool in_time = !c->store->speculation || speculation_reply_us(c->store->speculation) < SCHEDULE_ATTACH_US;
  s->request.reader_expected = s->request.draft_expected && !c->store->plain_drafts && in_time;
  s->state = SESSION_RUNNING;
  s->finish.reason = 0;
  s->stream.sent = s->committed.length;
  s->stream.acked = s->request.prompt_length; /* the rest may not be durable: ACK tells what is */
  s->stream.send_after_us = 0;
  s->stream.send_by_us = UINT64_MAX;
  s->used_us = s->job.ready_us = s->stream.sent_us = s->drafts.alone_us = c->now;
  s->job.stepped_us = 0;
  session_store_renew(s, c->now);
  session_lockstep_begin(s, c->now);
  token_stream_send_state(c, from, MSG_OPENED, s, NULL);
  session_end_if_over(c, s);
}

static void send_desync(step_context *c, peer_id from, const msg *m, const session *s, const char *reason) {
  const prefix *held = s ? &s->committed : NULL;
  msg d = roster_state(c->peers, from, MSG_DESYNC, m->session, m->epoch, held, reason);
  actions_send(c->out, from, &d);
}

/* A draft that had the ticket of before has been dismissed. */
static void take_ticket(step_context *c, session *s, const wire_id *ticket) {
  if (wire_id_equal(s->request.ticket, *ticket)) return;
  s->request.ticket = *ticket;
  attached_drafts_dismiss(c, s);
}

/* OPEN of an epoch that is open: its OPENED was lost, a draft was dismissed, or nobody expects one any more.
 */
static void open_again(step_context *c, peer_id from, const msg *m, session *s) {
  const msg_open *o = &m->u.open;
  if (!prefix_has(&s->committed, o->base_length + o->token_count, o->hash)) {
    send_desync(c, from, m, s, "opened with other tokens in this epoch");
    return;
  }
  take_ticket(c, s, &o->ticket);
  if (!o->draft_expected && session_draft_count(s) == 0) s->drafts.gave_up = true;
  token_stream_send_state(c, from, MSG_OPENED, s, NULL);
}

/* The session's own slot or a free one, for an OPEN that has been checked. After an error a slot that was
 * taken for it is free again. */
static int take_slot(step_context *c, const msg *m, session **out, bool *fresh, err *e) {
  const msg_open *o = &m->u.open;
  bool whole = o->base_length == 0;
  session *s = *out = session_store_take(c->store, m->session, c->now, whole ? o->tokens : NULL,
                                         whole ? o->token_count : 0, fresh);
  if (!s)
    return err_set(e, ERR_FULL,
                   "every session place is busy: try again later or start the target with more --sessions");
  bool sampling = session_store_sampling(c->store, s, &o->options);
  bool marks = (!o->accepted_wanted || session_store_accepted(c->store, s)) &&
               session_store_logprobs(s, o->options.logprobs);
  if (sampling && marks) return ERR_OK;
  if (*fresh) session_store_end(c->store, m->session);
  return err_set(e, ERR_NOMEM,
                 sampling ? "no memory for marks and log-probabilities of tokens"
                          : "no memory for what penalties, a logit bias and a grammar look at");
}

/* It takes a slot and the blocks of the whole completion; a PART takes no blocks yet. */
static int admit(step_context *c, const msg *m, session **out, bool *fresh, err *e) {
  int rc = take_slot(c, m, out, fresh, e);
  if (rc != ERR_OK) return rc;
  session *s = *out;
  rc = m->type == MSG_PART ? ERR_OK : session_grammar_open(&c->store->vocabulary, s, &m->u.open.options, e);
  if (rc != ERR_OK) {
    if (*fresh) session_store_end(c->store, m->session);
    return rc;
  }
  session_open_adopt(s, &m->u.open);
  if (m->type == MSG_PART) return ERR_OK;
  rc = session_store_admit(c->store, s, s->committed.length + session_room(s), e);
  if (rc != ERR_OK) session_store_end(c->store, m->session);
  return rc;
}

/* Nothing begins before OPEN. Only what brings tokens renews the lease, so PARTs cannot hold a place for
 * ever. `length`: of C before, in this epoch. */
static void take_part(step_context *c, session *s, peer_id from, const msg *m, int32_t length) {
  take_over(s, from, m);
  s->state = SESSION_OPENING;
  s->used_us = c->now;
  if (s->committed.length > length) session_store_renew(s, c->now);
  token_stream_send_state(c, from, MSG_OPENED, s, NULL);
}

/* A new session, a higher epoch of `s`, or what follows a PART of it. */
static void open_epoch(step_context *c, peer_id from, const msg *m, session *s, bool draining) {
  const msg_open *o = &m->u.open;
  err e;
  bool fresh = false, opening = s && s->state == SESSION_OPENING;
  int32_t length = opening && s->epoch == m->epoch ? s->committed.length : 0;
  int rc = session_open_check(o, c->store->context, c->peers->self.vocabulary_size, &e);
  if (rc == ERR_OK && draining && !s)
    rc = err_set(&e, ERR_DRAINING, "this target is shutting down: open the session elsewhere");
  const char *misfit = rc == ERR_OK ? msg_open_misfit(o, s ? &s->committed : NULL) : NULL;
  if (misfit) {
    send_desync(c, from, m, s, misfit);
    return;
  }
  if (rc == ERR_OK) rc = admit(c, m, &s, &fresh, &e);
  if (rc != ERR_OK) {
    roster_refuse(c->peers, from, m, rc, e.text, c->out);
    return;
  }
  if (m->type == MSG_PART) {
    take_part(c, s, from, m, length);
    return;
  }
  start_session(c, s, from, m);
  if (fresh || opening) c->store->reused_rows += (uint64_t)s->cache.rows;
}

/* PART of an epoch in which parts have come already: has this one? */
static bool has_part(const session *s, const msg *m) {
  const msg_open *o = &m->u.open;
  return m->type == MSG_PART && s->committed.seed == o->hash_seed &&
         prefix_has(&s->committed, o->base_length + o->token_count, o->hash);
}

/* OPEN or PART of the session's own epoch. One that an OPEN with a later ticket has overtaken changes
 * nothing. */
static void open_same(step_context *c, peer_id from, const msg *m, session *s, bool draining) {
  bool late = wire_ticket_older(&m->u.open.ticket, &s->request.ticket);
  if (s->state == SESSION_DESYNCED && (late || m->type != MSG_OPEN))
    send_desync(c, from, m, s, "still out of step");
  else if (late || (s->state == SESSION_OPENING && has_part(s, m)))
    token_stream_send_state(c, from, MSG_OPENED, s, NULL);
  else if (s->state == SESSION_OPENING || s->state == SESSION_DESYNCED)
    open_epoch(c, from, m, s, draining);
  else
    open_again(c, from, m, s);
}

void session_open_on_open(step_context *c, peer_id from, const msg *m, bool draining) {
  session *s = session_store_get(c->store, m->session);
  if (s && m->epoch < s->epoch)
    roster_refuse(c->peers, from, m, ERR_STALE, "this epoch has passed: open the session with a higher one",
                  c->out);
  else if (s && m->epoch == s->epoch)
    open_same(c, from, m, s, draining);
  else
    open_epoch(c, from, m, s, draining);
}
