#include "orchestrator/sessions/session_finish.h"

#include <stdio.h>

void session_finish_send(client_step *c, client_session *s, client_assignment *worker) {
  if (worker->ended) return;
  if (!worker->peer) {
    worker->ended = true;
    return;
  }
  msg m = client_message(c, worker->peer, MSG_END, s);
  worker->sent_us = c->now;
  actions_send(c->out, worker->peer, &m);
}

bool session_finish_complete(const client_session *s) {
  return s->finish && s->target.ended && s->draft.ended;
}

static void log_end(client_step *c, client_session *s, bool cancel) {
  const ledger *l = &c->all->ledger;
  if (cancel && l->epoch(l->self, s->id, s->epoch + 1) == ERR_OK)
    s->epoch++; /* if that failed, END goes out in the old epoch */
  msg_stats stats = session_stats_total(&s->stats, s->accepted_per_pos);
  l->end(l->self, s->id, s->committed.length, s->finish, &stats);
}

void session_finish(client_step *c, client_session *s, wire_finish finish, int code, const char *text,
                    bool cancel) {
  if (!client_session_live(s)) return;
  s->finish = finish;
  s->code = code;
  snprintf(s->text, sizeof s->text, "%s", text ? text : "");
  log_end(c, s, cancel);
  if (s->target.peer && s->decoded)
    prefix_affinity_add(&c->all->affinity, s->target.peer, s->committed.tokens, s->committed.length);
  session_finish_send(c, s, &s->target);
  session_finish_send(c, s, &s->draft);
}

void session_finish_drop(client_step *c, client_session *s) {
  int32_t durable = client_session_logged(c->all, s);
  prefix_truncate(&s->committed, durable > s->prompt_length ? durable : s->prompt_length);
  s->cut_to_durable = true;
  s->durable = s->committed.length;
}

void session_finish_cut(client_step *c, client_session *s, int code, const char *text) {
  session_finish_drop(c, s);
  session_finish_error(c, s, code, text);
  s->finish = WIRE_FINISH_ERROR; /* also where the end came before, but not all that it ends */
  s->code = code;
  snprintf(s->text, sizeof s->text, "%s", text);
}

void session_finish_taken(client_step *c, client_session *s) {
  session_finish_cut(c, s, ERR_GONE, "another process has taken the session over: the answer ends here");
}

void session_finish_error(client_step *c, client_session *s, int code, const char *text) {
  session_finish(c, s, WIRE_FINISH_ERROR, code, text, true);
}
