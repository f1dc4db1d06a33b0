/* session_grammar.h - the grammar that a session's answer follows. The engine may still use the one before,
 * which the session's job keeps until the next job. */
#pragma once

#include "target_worker/session.h"

/* The model's vocabulary, which `open` makes at the first call; NULL and the error: the model has none. */
typedef struct session_grammar_source {
  const grammar_vocabulary *(*open)(void *context, err *e); /* NULL: no session may have a grammar */
  void *context;
} session_grammar_source;

/* Makes the session follow the options' grammar from its next job on, or none. The first grammar of a program
 * reads the model's vocabulary. ERR_UNSUPPORTED: the model has none; the errors of grammar_read and
 * grammar_matcher_open. An error changes nothing. */
int session_grammar_open(const session_grammar_source *from, session *s, const msg_options *o, err *e);
/* For a job that begins: none of the session's jobs is under way. NULL: there is none. */
grammar_matcher *session_grammar_take(session *s);
void session_grammar_drop(session *s); /* the session has ended */
void session_grammar_fini(session *s); /* and the engine uses it no more */
