#include "target_worker/session_open.h"

#include <assert.h>

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

/* The cache, and what it will be after the job that is under way, holds no more than these rows of C. */
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
  keep_rows(s, common);
  keep_rows(s, c->length - 1); /* the root's row is made anew */
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
  s->drafts.gave_up = false;
}
