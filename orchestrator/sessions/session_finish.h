/* session_finish.h - the end of a session: the client gets its finish at once, and then both workers are sent
 * END until they answer. */
#pragma once

#include "orchestrator/sessions/client_session.h"

/* Does nothing if the session has finished already. text may be NULL. cancel: the workers must stop
 * computing, which takes a new epoch. */
void session_finish(client_step *c, client_session *s, wire_finish finish, int code, const char *text,
                    bool cancel);
/* Finishes with an error and stops the workers. */
void session_finish_error(client_step *c, client_session *s, int code, const char *text);
/* Finishes with an error, also where it has finished already, and drops the tokens that are not durable. */
void session_finish_cut(client_step *c, client_session *s, int code, const char *text);
/* The same because another process has the session by now. */
void session_finish_taken(client_step *c, client_session *s);
/* Drops the tokens that are not durable: the ledger is not waited for any more. */
void session_finish_drop(client_step *c, client_session *s);
/* Sends END to a worker that has not answered it yet. */
void session_finish_send(client_step *c, client_session *s, client_assignment *worker);
/* Do both workers know of the end, or were they sent END often enough? */
bool session_finish_complete(const client_session *s);
