#include "orchestrator/sessions/client_session.h"

#include "common/base/controls.h"
#include <stdlib.h>
#include <string.h>

void client_session_free(client_session *s) {
  if (!s) return;
  prefix_fini(&s->committed);
  free(s->accepted);
  free(s->logprobs);
  free(s->grammar);
  free(s);
}

client_session *client_session_find(const client_sessions *all, uint64_t id) {
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (all->list[i] && all->list[i]->id == id) return all->list[i];
  return NULL;
}

int32_t client_session_logged(const client_sessions *all, const client_session *s) {
  if (s->cut_to_durable) return s->committed.length;
  int32_t n = all->ledger.durable(all->ledger.self, s->id);
  return n < s->committed.length ? n : s->committed.length;
}

void client_session_note_durable(const client_step *c, client_session *s) {
  int32_t durable = client_session_logged(c->all, s);
  if (durable > s->durable || durable == s->committed.length) s->durable_us = c->now;
  s->durable = durable;
}

void client_text(char out[WIRE_STRING_MAX + 1], wire_string s) {
  if (s.size) memcpy(out, s.data, s.size);
  out[s.size] = 0;
  controls_hide(out);
}

const msg_hello *client_worker_hello(const client_step *c, peer_id id) {
  const roster_peer *p = roster_find(&c->all->roster, id);
  return p ? &p->hello : NULL;
}

msg client_message(const client_step *c, peer_id to, msg_type type, const client_session *s) {
  return roster_message(&c->all->roster, to, type, s->id, s->epoch);
}
