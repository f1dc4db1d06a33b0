#include "draft_worker/draft_open.h"

static void refuse(draft_step *c, peer_id from, const msg *m, int code, const char *text) {
  roster_refuse(c->peers, from, m, code, text, c->out);
}

/* The free session whose drafters hold most of what OPEN brings, or else the one that was used longest ago.
 * NULL: there is none. */
static attachment *find_free(draft *d, const msg_open *o) {
  attachment *best = NULL;
  int32_t most = 0;
  for (int32_t i = 0; i < draft_state_session_max(d); i++) {
    attachment *a = &d->sessions[i];
    int32_t same =
        a->state == ATTACHMENT_FREE ? draft_session_reusable(&a->session, o->tokens, o->token_count) : -1;
    if (same < 0 || (best && (same < most || (same == most && a->used_us >= best->used_us)))) continue;
    best = a;
    most = same;
  }
  return best;
}

static int take_free(draft *d, const msg *m, attachment **out, err *e) {
  attachment *a = *out = find_free(d, &m->u.open);
  if (!a) return err_set(e, ERR_FULL, "this draft has no session place left: start it with more --sessions");
  a->id = m->session;
  if (draft_session_init(&a->session, &d->setup, d->options.context, m->u.open.hash_seed) == ERR_OK)
    return ERR_OK;
  return err_set(e, ERR_NOMEM, "no memory for another session");
}

/* What this draft refuses to any session. */
static int check(const draft *d, const msg_open *o, err *e) {
  if (d->draining) return err_set(e, ERR_DRAINING, "this draft is shutting down");
  if ((!d->options.shorter && o->options.context > d->options.context) ||
      msg_open_length(o) > d->options.context)
    return err_set(e, ERR_LIMIT,
                   "the session's context is longer than this draft's: start it with a larger --ctx");
  if (o->target_endpoint.size == 0)
    return err_set(e, ERR_ARG, "a draft needs the address of its target: name it in OPEN");
  if (msg_open_length(o) > o->options.context)
    return err_set(e, ERR_LIMIT, "the session has %d tokens, its context %d: open it with a longer one",
                   msg_open_length(o), o->options.context);
  return ERR_OK;
}

/* The session becomes what OPEN says; if it cannot, it is free again. */
static int adopt(draft *d, draft_step *c, attachment *a, peer_id from, const msg *m, err *e) {
  const msg_open *o = &m->u.open;
  bool same = m->epoch == a->epoch && wire_id_equal(o->target_incarnation, a->target_incarnation);
  uint32_t generation = same ? a->session.ids.generation : 0;
  int rc = draft_session_open(&a->session, &d->setup, o);
  tree_ids_reset(&a->session.ids,
                 generation); /* an ATTACHED of no later one answers an ATTACH before this OPEN */
  a->link =
      rc == ERR_OK ? target_links_open(c, &d->links, o->target_endpoint, draft_state_links_used(d)) : -1;
  if (a->link < 0) {
    attachment_close(a, &d->setup);
    draft_session_fini(&a->session, &d->setup); /* not every drafter has seen what is C now */
    return rc ? err_set(e, rc, "no memory for another session")
              : err_set(e, ERR_FULL, "this draft has as many targets as it takes");
  }
  a->epoch = m->epoch;
  a->orchestrator = from;
  a->used_us = c->now;
  a->desync_tries = 0;
  a->gone_us = 0;
  feature_intake_begin(&a->features, &d->setup, &a->session);
  a->ticket = o->ticket;
  a->target_incarnation = o->target_incarnation;
  a->target = d->links.list[a->link].peer;
  return ERR_OK;
}

/* OPEN again, of what is open already, or PART of what is here. */
static bool is_repetition(const attachment *a, const msg *m) {
  const msg_open *o = &m->u.open;
  bool opened = a && m->epoch == a->epoch && a->state != ATTACHMENT_LOST &&
                (a->state != ATTACHMENT_OPENING || m->type == MSG_PART);
  return opened && wire_id_equal(a->ticket, o->ticket) &&
         prefix_has(&a->session.committed, o->base_length + o->token_count, o->hash);
}

void draft_open_receive(draft *d, draft_step *c, peer_id from, const msg *m) {
  attachment *a = draft_state_find(d, m->session);
  if (a && m->epoch < a->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed");
    return;
  }
  if (a && m->epoch == a->epoch && wire_ticket_older(&m->u.open.ticket, &a->ticket))
    return; /* the OPEN that dismissed its ticket has overtaken it */
  if (is_repetition(a, m)) {
    attachment_send_state(c, from, MSG_OPENED, a, NULL);
    return;
  }
  err e;
  int rc = check(d, &m->u.open, &e);
  const prefix *held = a ? &a->session.committed : NULL;
  const char *misfit = rc == ERR_OK ? msg_open_misfit(&m->u.open, held) : NULL;
  if (misfit) {
    msg desync = roster_state(c->peers, from, MSG_DESYNC, m->session, m->epoch, held, misfit);
    actions_send(c->out, from, &desync);
    return;
  }
  if (rc == ERR_OK && !a) rc = take_free(d, m, &a, &e);
  if (rc == ERR_OK) rc = adopt(d, c, a, from, m, &e);
  if (rc != ERR_OK) {
    refuse(c, from, m, rc, e.text);
    return;
  }
  attachment_send_state(c, from, MSG_OPENED, a, NULL);
  if (m->type == MSG_PART) {
    a->state = ATTACHMENT_OPENING;
    return;
  }
  attachment_reach(c, a);
  attachment_unreachable(c, a, target_links_unreachable(&d->links, a->link));
}

void draft_open_end(draft *d, draft_step *c, peer_id from, const msg *m) {
  attachment *a = draft_state_find(d, m->session);
  if (a && m->epoch < a->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed");
    return;
  }
  msg ended = roster_message(c->peers, from, MSG_ENDED, m->session, m->epoch);
  ended.u.existed = a != NULL;
  actions_send(c->out, from, &ended);
  if (!a) return;
  if (m->epoch == a->epoch)
    attachment_leave(c, a, "the session has ended");
  else /* the target hears of the new epoch as well, perhaps later: it must not take this for a draft that
          gave up */
    attachment_close(a, &d->setup);
}
