#include "target_worker/session_grammar.h"

static int open_matcher(const session_grammar_source *from, const msg_options *o, grammar_matcher **out,
                        err *e) {
  const grammar_vocabulary *v = NULL;
  grammar *g;
  int rc = grammar_read(&g, o->grammar, o->grammar_size, e);
  if (rc) return rc;
  if (from->open)
    v = from->open(from->context, e);
  else
    err_set(e, ERR_UNSUPPORTED, "this target reads no grammars");
  if (!v) {
    grammar_free(g);
    return e->code;
  }
  return grammar_matcher_open(out, g, v, o->stops, o->stop_count, e);
}

void session_grammar_drop(session *s) {
  if (s->request.grammar != s->job.grammar) grammar_matcher_close(s->request.grammar);
  s->request.grammar = NULL;
}

int session_grammar_open(const session_grammar_source *from, session *s, const msg_options *o, err *e) {
  grammar_matcher *m = NULL;
  int rc = o->grammar_size > 0 ? open_matcher(from, o, &m, e) : ERR_OK;
  if (rc) return rc;
  session_grammar_drop(s);
  s->request.grammar = m;
  return ERR_OK;
}

grammar_matcher *session_grammar_take(session *s) {
  if (s->job.grammar != s->request.grammar) grammar_matcher_close(s->job.grammar);
  s->job.grammar = s->request.grammar;
  return s->job.grammar;
}

void session_grammar_fini(session *s) {
  session_grammar_drop(s);
  grammar_matcher_close(s->job.grammar);
  s->job.grammar = NULL;
}
