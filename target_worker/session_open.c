#include "target_worker/session_open.h"

#include "target_worker/session_end.h"
#include "target_worker/token_stream.h"
#include <assert.h>
#include <string.h>

int session_open_check(const msg_open *o, int32_t context, int32_t vocabulary, err *e) {
  const msg_options *p = &o->options;
  int32_t length = o->base_length + o->token_count;
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
  s->request.options = o->options;
  if (s->request.options.stop_count > WIRE_STOPS_MAX) s->request.options.stop_count = WIRE_STOPS_MAX;
  for (int32_t i = 0; i < s->request.options.stop_count; i++) s->request.stop_tokens[i] = o->options.stops[i];
  s->request.options.stops = s->request.stop_tokens;
  s->request.prompt_length = o->prompt_length;
  s->request.ticket = o->ticket;
  s->request.draft_expected = o->draft_expected;
  s->request.accepted_wanted = o->accepted_wanted;
  s->drafts.gave_up = false;
}

/* --- OPEN --- */

static void start_session(step_context *c, session *s, peer_id from, const msg *m) {
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    s->drafts.of[i].peer = 0; /* they attach again with the new epoch */
  session_draft_restart(s);
  s->epoch = m->epoch;
  s->request.orchestrator = from;
  s->state = SESSION_RUNNING;
  s->finish.reason = 0;
  s->stream.acked = s->stream.sent = s->committed.length;
  s->stream.send_after_us = 0;
  s->stream.send_by_us = UINT64_MAX;
  s->used_us = s->job.ready_us = s->stream.sent_us = c->now;
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

/* OPEN of an epoch that is open: its OPENED was lost, or nobody expects a draft any more. */
static void open_again(step_context *c, peer_id from, const msg *m, session *s) {
  const msg_open *o = &m->u.open;
  s->request.orchestrator = from;
  if (!prefix_has(&s->committed, o->base_length + o->token_count, o->hash)) {
    send_desync(c, from, m, s, "opened with other tokens in this epoch");
    return;
  }
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
  bool penalties = o->options.repeat_penalty == 1 || session_store_penalties(c->store, s);
  if (penalties && (!o->accepted_wanted || session_store_accepted(c->store, s))) return ERR_OK;
  if (*fresh) session_store_end(c->store, m->session);
  return err_set(e, ERR_NOMEM,
                 penalties ? "no memory for the marks of accepted tokens"
                           : "no memory for what a repetition penalty looks at");
}

/* It takes a slot and the blocks of the whole completion. */
static int admit(step_context *c, const msg *m, session **out, bool *fresh, err *e) {
  int rc = take_slot(c, m, out, fresh, e);
  if (rc != ERR_OK) return rc;
  session *s = *out;
  session_open_adopt(s, &m->u.open);
  rc = session_store_admit(c->store, s, s->committed.length + session_room(s), e);
  if (rc != ERR_OK) session_store_end(c->store, m->session);
  return rc;
}

/* A new session, or a higher epoch of `s`. */
static void open_epoch(step_context *c, peer_id from, const msg *m, session *s, bool draining) {
  const msg_open *o = &m->u.open;
  err e;
  bool fresh = false;
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
  start_session(c, s, from, m);
  if (fresh) c->store->reused_rows += (uint64_t)s->cache.rows;
}

void session_open_on_open(step_context *c, peer_id from, const msg *m, bool draining) {
  session *s = session_store_get(c->store, m->session);
  if (s && m->epoch < s->epoch)
    roster_refuse(c->peers, from, m, ERR_STALE, "this epoch has passed: open the session with a higher one",
                  c->out);
  else if (s && m->epoch == s->epoch && s->state != SESSION_DESYNCED)
    open_again(c, from, m, s);
  else
    open_epoch(c, from, m, s, draining);
}
