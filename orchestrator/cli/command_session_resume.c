/* tandem session resume: goes on with a session as it began. */
#include "common/command_line/draft_methods.h"
#include "common/command_line/flag_value.h"
#include "orchestrator/cli/command_session.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/service/session_about.h"
#include <stdio.h>
#include <string.h>

/* Why there is nothing to go on with, or ERR_OK. A session that died between its last token and its end gets
 * the end. */
static int check_unfinished(command_session_work *w, ledger_session *s, err *e) {
  bool stopped =
      command_session_ended_with_stop(s) || (s->state == LEDGER_ENDED && s->finish == WIRE_FINISH_STOP);
  bool full = s->length - s->prompt_length >= s->options.max_tokens;
  if (s->state == LEDGER_ENDED && (int)s->finish == LEDGER_BY_HAND)
    return err_set(
        e, ERR_ARG,
        "session %016llx was ended with `tandem session end': `tandem session rollback %016llx --to "
        "%d' takes that back",
        (unsigned long long)s->id, (unsigned long long)s->id, s->length - s->prompt_length);
  if ((stopped || full) && s->state == LEDGER_INTERRUPTED) {
    int rc = ledger_change_end(w->db, w->path, s->id, stopped ? WIRE_FINISH_STOP : WIRE_FINISH_LENGTH, e);
    if (rc) return rc;
  }
  if (stopped)
    return err_set(e, ERR_ARG,
                   "session %016llx is complete: it ended with a stop. `tandem session rollback %016llx --to "
                   "N' goes back",
                   (unsigned long long)s->id, (unsigned long long)s->id);
  return full
             ? err_set(e, ERR_ARG, "session %016llx has all of its %d tokens: --max-tokens N gives it N more",
                       (unsigned long long)s->id, s->options.max_tokens)
             : ERR_OK;
}

/* Drafted as before, unless flags say how; or, where that cannot be any more, as a new one would be: no draft
 * changes a token. Older ledgers and --listen say nothing of a model. */
static void take_draft(flags *f, const session_about *about) {
  flag_values *w = &f->given;
  const char *draft = about->draft;
  err e = {0};
  if (!w->draft && f->given.listen) w->draft = draft && strcmp(draft, "none") == 0 ? "none" : "any";
  if (w->draft) return;
  w->draft = draft && strcmp(draft, "any") != 0 ? draft : "ngram";
  w->draft_model = about->draft_model;
  w->draft_layers = about->draft_layers;
  if (flags_check_draft(w, &e) == ERR_OK) return;
  fprintf(stderr, "tandem: it cannot be drafted as before (%s); it goes on with --draft ngram\n", e.text);
  w->draft = "ngram";
  w->draft_model = NULL;
  w->draft_layers = 0;
}

/* The request as it was, but for what the flags say anew. */
static int take_request(request *r, ledger_session *s, const session_about *about, bool new_draft, err *e) {
  int32_t output = s->length - s->prompt_length, room = s->options.context - s->length;
  if (r->max_tokens > 0) s->options.max_tokens = output + (r->max_tokens < room ? r->max_tokens : room);
  if (r->budget >= 0)
    s->options.budget = r->budget;
  else if (new_draft && s->options.budget == 0)
    s->options.budget = REQUEST_BUDGET_DEFAULT;
  r->budget = s->options.budget;
  r->raw = about->raw;
  int rc = ERR_OK;
  for (int32_t i = 0; rc == ERR_OK && i < about->stop_count; i++)
    rc = request_add_stop(r, "a stop string of the ledger", about->stops[i], strlen(about->stops[i]), e);
  return rc;
}

/* The math that the session's answer has begun with. What --math auto chose then is in its numerics id. */
static int32_t math_of(const ledger_session *s, const session_about *about) {
  const flag_row *row = flag_of(FLAG_math);
  const int32_t given = about->math ? flag_word_number(row, about->math) : flag_defaults.math;
  char word[FLAG_WORD_MAX];
  for (int32_t i = 0; given == flag_defaults.math && s->numerics && flag_word(row, i, word); i++)
    if (strncmp(s->numerics, word, strlen(word)) == 0) return i;
  return given;
}

static int take_session(flags *f, ledger_session *s, const session_about *about, err *e) {
  flag_values *w = &f->given;
  bool new_draft = w->draft != NULL;
  if (!w->model) w->model = s->model;
  if (!w->model) return err_set(e, ERR_ARG, "the ledger does not know the model: give it with -m");
  const char *draft = w->draft ? w->draft : about->draft;
  if (w->from[FLAG_corpus] == FLAG_FROM_COMMAND_LINE && !(draft && draft_methods_name(draft, DRAFT_SUFFIX)))
    return err_set(e, ERR_ARG,
                   "--corpus is of --draft suffix, and this session has another draft: give that too");
  take_draft(f, about);
  w->math = math_of(s, about);
  f->request.speculate = strcmp(w->draft, "none") != 0;
  return take_request(&f->request, s, about, new_draft, e);
}

int command_session_resume(command_session_work *w) {
  ledger_session s;
  err e = {0};
  int code = command_session_load(w, &s);
  if (code) return code;
  session_about about;
  session_about_read(&about, s.about);
  int rc = take_session(&w->flags, &s, &about, &e);
  if (rc == ERR_OK && s.state != LEDGER_RUNNING) rc = check_unfinished(w, &s, &e);
  sqlite3_close(w->db);
  w->db = NULL;
  code = rc ? command_session_error(&e) : command_resume(&w->flags, &s);
  session_about_fini(&about);
  ledger_session_fini(&s);
  return code;
}
