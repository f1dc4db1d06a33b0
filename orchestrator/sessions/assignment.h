/* assignment.h - gives a session its workers: chooses a target and a draft, opens the session at both, in the
 * present epoch, and takes a draft away again. */
#pragma once

#include "orchestrator/sessions/client_session.h"

/* Finds the workers that the session lacks. Does nothing before the session's beginning is durable in the
 * ledger. */
void assignment_fill(client_step *c, client_session *s);
/* A worker has made room: sessions that wait for it ask again at once. */
void assignment_room_made(client_sessions *all);
/* How many sessions a worker has: the larger of our own count, which is newer, and the worker's, which
 * includes other orchestrators' sessions. */
int32_t assignment_load(const client_sessions *all, const roster_peer *p);
/* May it get new sessions at all? */
bool assignment_takes_new(const client_sessions *all, const roster_peer *p);

/* The best target for this session, or 0. *willing (may be NULL) tells whether it has not refused, does not
 * hang, and has room. */
peer_id assignment_choose_target(client_step *c, client_session *s, bool *willing);
/* The numerics id of what this target decodes of the session: its own, and that it is lossy. */
void assignment_numerics(const client_session *s, const roster_peer *target, char to[WIRE_STRING_MAX + 1]);
/* Finds a draft where the session has none. */
void assignment_choose_draft(client_step *c, client_session *s);
/* The session moves to the next epoch. False: the ledger could not record it, so nothing may be sent in it,
 * and the session has ended. */
bool assignment_next_epoch(client_step *c, client_session *s);

/* A ticket that nobody knows yet. */
void assignment_draw_ticket(const client_sessions *all, client_session *s);

/* OPEN goes out, for the first time or again; PART, where more is to follow than one OPEN carries. */
void assignment_open_target(client_step *c, client_session *s);
void assignment_open_draft(client_step *c, client_session *s);
/* OPENED came of a prefix of so many tokens. True: the session is open at this worker. Otherwise it was the
 * answer to a PART, and what follows is sent, or to an earlier frame. */
bool assignment_take_opened(client_step *c, client_session *s, client_assignment *worker, int32_t length);
/* In lockstep a target would wait for its draft, but every draft of this session has given up, or none will
 * ever come: the target must know that none is expected. */
bool assignment_lockstep_alone(const client_step *c, const client_session *s);

/* The target gave a sign of life. TOKENS, which come from its engine, show that the engine lives too. */
void assignment_target_lives(client_step *c, client_session *s, bool tokens);
/* The slot of a target in s->unable, or NULL; 0 asks for a free slot. */
client_unable *assignment_unable(client_session *s, peer_id id);

/* Tells the draft to forget the session, because the draft still runs or may come back. */
void assignment_dismiss_draft(client_step *c, client_session *s);
/* Removes the session's draft and notes why. If it had a ticket, that is not the session's any more: the
 * target has to be told, by an OPEN of the same epoch. */
void assignment_clear_draft(client_step *c, client_session *s, const char *why);
/* Logs why a session decodes plainly. The same trouble of many sessions is logged once. */
void assignment_log_trouble(client_step *c, const client_session *s, const char *trouble, const char *why);
