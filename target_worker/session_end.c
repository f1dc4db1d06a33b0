#include "target_worker/session_end.h"

#include "target_worker/token_stream.h"

void session_end_finish(step_context *c, session *s, wire_finish reason, int code, const char *text) {
  if (reason != WIRE_FINISH_CANCELLED) token_stream_flush(c, s);
  s->state = SESSION_FINISHED;
  s->finish = (session_outcome){.reason = (int)reason, .code = code, .text = text};
  s->used_us = c->now;
  session_store_give_back(c->store, s);
  token_stream_send_done(c, s);
}

static bool is_stop(const session *s, int32_t token) {
  for (int32_t i = 0; i < s->request.options.stop_count; i++)
    if (s->request.stop_tokens[i] == token) return true;
  return false;
}

void session_end_if_over(step_context *c, session *s) {
  int32_t last = s->committed.tokens[s->committed.length - 1];
  if (s->committed.length > s->request.prompt_length && is_stop(s, last))
    session_end_finish(c, s, WIRE_FINISH_STOP, 0, NULL);
  else if (session_room(s) == 0)
    session_end_finish(c, s, WIRE_FINISH_LENGTH, 0, NULL);
}

void session_end_on_end(step_context *c, peer_id from, const msg *m) {
  session *s = session_store_get(c->store, m->session);
  if (s && m->epoch < s->epoch) {
    roster_refuse(c->peers, from, m, ERR_STALE,
                  "this epoch has passed: end the session with its own or a higher one", c->out);
    return;
  }
  if (s) {
    bool cancels = s->state != SESSION_FINISHED || m->epoch > s->epoch; /* a DONE before counts no more */
    s->epoch = m->epoch;
    s->request.orchestrator = from;
    if (cancels) session_end_finish(c, s, WIRE_FINISH_CANCELLED, 0, NULL);
  }
  msg ended = roster_message(c->peers, from, MSG_ENDED, m->session, m->epoch);
  ended.u.existed = session_store_end(c->store, m->session);
  actions_send(c->out, from, &ended);
}
