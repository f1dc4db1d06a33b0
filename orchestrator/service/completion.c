#include "orchestrator/service/completion.h"

#include "common/base/clock.h"
#include "orchestrator/service/session_about.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void completion_init(completion *c, const text_model *m, const completion_sink *sink) {
  *c = (completion){.model = m, .sink = sink ? *sink : (completion_sink){0}, .kept = -1};
}

void completion_fini(completion *c) {
  detokenizer_free(c->detokenizer);
  tokenizer_ids_fini(&c->prompt);
  free(c->text);
  free(c->tokens);
  free(c->text_after);
  free(c->logprobs);
  *c = (completion){0};
}

/* ---- text ---- */

static int add_text(completion *c, const detokenizer_out *out) {
  if (c->text_size + out->size > c->text_capacity) {
    size_t wanted = 2 * (c->text_size + out->size);
    char *p = realloc(c->text, wanted);
    if (!p) return ERR_NOMEM;
    c->text = p;
    c->text_capacity = wanted;
  }
  if (out->size) memcpy(c->text + c->text_size, out->text, out->size);
  c->text_size += out->size;
  if (out->stopped && c->kept < 0) c->kept = out->keep_tokens;
  return ERR_OK;
}

static int reserve_end(completion *c) {
  if ((size_t)c->fed < c->text_after_capacity) return ERR_OK;
  size_t wanted = 2 * c->text_after_capacity + 64;
  size_t *p = realloc(c->text_after, wanted * sizeof *p);
  if (!p) return ERR_NOMEM;
  c->text_after = p;
  c->text_after_capacity = wanted;
  return ERR_OK;
}

static int feed(completion *c, int32_t token) {
  detokenizer_out out = {0};
  int rc = reserve_end(c);
  if (rc == ERR_OK && c->detokenizer) rc = detokenizer_feed(c->detokenizer, token, &out);
  if (rc == ERR_OK) rc = add_text(c, &out);
  if (rc == ERR_OK)
    c->text_after[c->fed++] = c->text_size;
  else
    err_set(&c->trouble, rc, "token %d of the target has no text: %s", token, err_name(rc));
  return rc;
}

/* Takes new tokens before they are logged. Those after a stop string, and those in which it begins, are not
 * kept: if it begins in a token that is logged already, the log drops that one too. */
static int32_t admit(void *context, const int32_t *tokens, int32_t count, bool *stop) {
  completion *c = context;
  int32_t before = c->fed, taken = 0;
  while (taken < count && c->kept < 0 && feed(c, tokens[taken]) == ERR_OK) taken++;
  *stop = c->kept >= 0 || taken < count;
  return c->kept < 0 ? taken : c->kept - before;
}

/* An answer that was cut may go on, with the rest of a character. */
static void end_text(completion *c) {
  detokenizer_out out = {0};
  if (!c->detokenizer) return;
  if (c->finish != WIRE_FINISH_STOP)
    detokenizer_cut(c->detokenizer, &out);
  else if (detokenizer_end(c->detokenizer, &out))
    return;
  add_text(c, &out);
}

/* ---- begin ---- */

static int prepare_resumed(completion *c, err *e) {
  const ledger_session *l = c->resume;
  int rc = ERR_OK;
  for (int32_t i = 0; rc == ERR_OK && i < l->prompt_length; i++)
    rc = tokenizer_ids_add(&c->prompt, l->tokens[i]);
  return rc ? err_set(e, rc, "out of memory for the prompt") : ERR_OK;
}

static int check_bias(const completion *c, const request *r, err *e) {
  int32_t vocabulary = c->model->config.vocab;
  for (int32_t i = 0; i < r->bias_count; i++)
    if (r->bias.tokens[i] >= vocabulary)
      return err_set(e, ERR_ARG, "a logit bias names token %d, but the ids of this model are 0 to %d",
                     r->bias.tokens[i], vocabulary - 1);
  return ERR_OK;
}

int completion_prepare(completion *c, const request *r, err *e) {
  int rc = ERR_OK;
  if (c->resume)
    rc = prepare_resumed(c, e);
  else if ((rc = request_check(r, e)) == ERR_OK)
    rc = prompt_encode(r, c->model, &c->prompt, e);
  if (rc == ERR_OK) rc = check_bias(c, r, e);
  if (rc == ERR_OK) rc = prompt_check(c->model, c->prompt.ids, c->prompt.count, r->context, e);
  if (rc == ERR_OK && (r->stop_count > 0 || r->grammar)) rc = text_model_needs_text(c->model, e);
  return rc;
}

/* What the target is asked for: as the request says, within the context, and until one of the model's stops.
 */
static msg_options options_of(const completion *c, const request *r) {
  int32_t room = r->context - (int32_t)c->prompt.count;
  msg_options o = request_options(r);
  if (o.max_tokens > room) o.max_tokens = room;
  o.stops = c->model->stops;
  o.stop_count = c->model->stop_count;
  return o;
}

/* Feeds the tokens that were there already, so that the text of the rest continues theirs. */
static int feed_again(completion *c, err *e) {
  const ledger_session *r = c->resume;
  for (int32_t i = r->prompt_length; i < r->length; i++)
    if (feed(c, r->tokens[i])) {
      if (e) *e = c->trouble;
      return c->trouble.code;
    }
  if (c->show_whole) return ERR_OK;
  c->shown = c->text_size;
  /* What was held back has been shown at the end. */
  if (c->detokenizer && r->state == LEDGER_ENDED) c->shown += detokenizer_held(c->detokenizer);
  return ERR_OK;
}

static int start_session(completion *c, service *s, const request *r, err *e) {
  const ledger_session *l = c->resume;
  sessions_resume resume;
  sessions_request o = {.prompt = c->prompt.ids,
                        .prompt_length = (int32_t)c->prompt.count,
                        .options = l ? l->options : options_of(c, r),
                        .draft = c->draft_wanted,
                        .accepted = c->accepted_wanted || service_trace(s),
                        .admit = admit,
                        .admit_context = c};
  if (l) {
    resume = (sessions_resume){.session = l->id,
                               .hash_seed = l->hash_seed,
                               .epoch = l->epoch,
                               .output = l->tokens + l->prompt_length,
                               .output_length = l->length - l->prompt_length,
                               .numerics = l->numerics ? l->numerics : ""};
    o.resume = &resume;
  }
  c->seed = o.options.seed;
  c->logprobs_each = o.options.logprobs;
  c->max_tokens = o.options.max_tokens;
  c->context = r->context;
  char *about = l ? NULL : session_about_write(r, service_flags(s));
  o.about = about;
  c->session = c->id = service_start(s, &o, e);
  free(about);
  if (c->session)
    completion_trace_begin(&c->trace, service_trace(s), c->id, c->came_us, l ? l->length : o.prompt_length,
                           clock_us());
  return c->session ? ERR_OK : e->code;
}

int completion_begin(completion *c, service *s, const request *r, err *e) {
  int rc = c->prompt.count ? ERR_OK : completion_prepare(c, r, e);
  const char *const *stops = (const char *const *)r->stops;
  if (rc == ERR_OK && c->model->tokens)
    rc = detokenizer_alloc(&c->detokenizer, c->model->tokens, stops, r->stop_count, true, !r->raw, e);
  if (rc == ERR_OK && c->resume) rc = feed_again(c, e);
  if (rc) return rc;
  c->draft_wanted = request_wants_draft(r);
  c->start_us = clock_us();
  return start_session(c, s, r, e);
}

int completion_to_resume(const completion *c, const request *r, int32_t more, ledger_session *out, err *e) {
  int32_t prompt = (int32_t)c->prompt.count, length = prompt + c->count, room = c->context - length;
  bool cut = c->finish == WIRE_FINISH_LENGTH || c->finish == WIRE_FINISH_CANCELLED;
  if (c->session || !c->id || !cut) return err_set(e, ERR_ARG, "there is no answer that was cut or stopped");
  if (room <= 0) return err_set(e, ERR_LIMIT, "the context of %d tokens is full", c->context);
  *out = (ledger_session){.id = c->id,
                          .hash_seed = c->hash_seed,
                          .epoch = c->epoch,
                          .length = length,
                          .prompt_length = prompt,
                          .options = options_of(c, r),
                          .tokens = malloc((size_t)length * sizeof *out->tokens),
                          .numerics = strdup(c->numerics_id)};
  msg_bias_copy(&out->options, &out->options, &out->bias);
  if (r->grammar) out->options.grammar = out->grammar = strdup(r->grammar);
  out->state = LEDGER_ENDED;
  out->options.seed = c->seed;
  out->options.max_tokens = c->count + (more < room ? more : room);
  if (!out->tokens || !out->numerics || (r->grammar && !out->grammar))
    return err_set(e, ERR_NOMEM, "out of memory");
  memcpy(out->tokens, c->prompt.ids, (size_t)prompt * sizeof *out->tokens);
  if (c->count) memcpy(out->tokens + prompt, c->tokens, (size_t)c->count * sizeof *out->tokens);
  return ERR_OK;
}

/* ---- what the session has new ---- */

static void copy_text(char out[WIRE_STRING_MAX + 1], const char *text) {
  snprintf(out, WIRE_STRING_MAX + 1, "%s", text ? text : "");
}

static void take_tokens(completion *c, const sessions_view *v) {
  int32_t count = v->length - v->prompt_length;
  if (count == 0) return;
  c->tokens = malloc((size_t)count * sizeof *c->tokens);
  if (!c->tokens) {
    err_set(&c->trouble, ERR_NOMEM, "out of memory");
    return;
  }
  memcpy(c->tokens, v->tokens + v->prompt_length, (size_t)count * sizeof *c->tokens);
  c->count = count;
}

/* The ledger kept less than had come: the rest is not shown. */
static bool cut_text(completion *c, int32_t count) {
  if (c->kept >= 0 || count >= c->fed) return false;
  c->fed = count;
  c->text_size = count > 0 ? c->text_after[count - 1] : 0;
  return true;
}

static void take_end(completion *c, const sessions_view *v) {
  c->end_us = clock_us();
  take_tokens(c, v);
  if (v->finish == WIRE_FINISH_ERROR && !c->trouble.code) err_set(&c->trouble, v->code, "%s", v->text);
  c->finish = c->trouble.code ? WIRE_FINISH_ERROR : v->finish;
  if (!cut_text(c, v->length - v->prompt_length)) end_text(c);
}

/* When an answer is cut or cancelled, the figures of the target come only after its end. */
static void take_figures(completion *c, const sessions_view *v) {
  c->stats = v->stats;
  c->uncounted = v->uncounted;
  for (int32_t i = 0; i < v->stats.position_count; i++) c->accepted_per_pos[i] = v->stats.accepted_per_pos[i];
  c->stats.accepted_per_pos = c->accepted_per_pos;
  copy_text(c->draft_method, v->draft_method);
  copy_text(c->numerics_id, v->numerics_id);
  copy_text(c->off_reason, v->off_reason);
  c->unpaid = v->unpaid;
  c->plain_us = v->plain_us;
  c->hash_seed = v->hash_seed;
  c->epoch = v->epoch;
  c->numerics_changed = v->numerics_changed;
}

/* Text may be shown once its tokens are in the ledger; those that a stop string cuts never get there. */
static size_t showable(const completion *c, const sessions_view *v) {
  int32_t logged = v->logged - v->prompt_length;
  if (logged >= (c->kept >= 0 ? c->kept : c->fed)) return c->text_size;
  return logged > 0 ? c->text_after[logged - 1] : 0;
}

static void note_first(completion *c, const sessions_view *v) {
  int32_t before = c->resume ? c->resume->length : v->prompt_length;
  if (!c->first_token_us && v->length > before) {
    c->first_token_us = clock_us();
    c->first_count = v->length - v->prompt_length;
  }
  if (!c->first_shown_us && v->logged > before) c->first_shown_us = clock_us();
}

bool completion_line_is_open(const completion *c) {
  return c->shown > c->text_size || (c->shown > 0 && c->text[c->shown - 1] != '\n');
}

bool completion_is_over(const completion *c) {
  return c->finish && !c->session;
}

static void give_end(completion *c) {
  if (c->end_given || !completion_is_over(c)) return;
  c->end_given = true;
  completion_trace_end(&c->trace, c->finish, clock_us());
  if (c->sink.on_end) c->sink.on_end(c->sink.context, c);
}

static bool is_accepted(const sessions_view *v, int32_t token) {
  return v->accepted && v->prompt_length + token < v->length && v->accepted[v->prompt_length + token];
}

/* Where the text ends, at most at `end`, that begins at c->shown and has one origin. What a token completes
 * is its text; what is left at the end belongs to the last one. */
static size_t same_origin(completion *c, const sessions_view *v, size_t end, bool *accepted) {
  while (c->given < c->fed && c->text_after[c->given] <= c->shown) c->given++;
  *accepted = c->accepted_wanted && is_accepted(v, c->given < c->fed ? c->given : c->fed - 1);
  if (!c->accepted_wanted || !v->accepted) return end;
  int32_t last = c->given;
  while (last < c->fed && c->text_after[last] < end && is_accepted(v, last + 1) == *accepted) last++;
  return last < c->fed && c->text_after[last] < end ? c->text_after[last] : end;
}

static void give_text(completion *c, const sessions_view *v) {
  size_t end = showable(c, v);
  while (c->shown < end) {
    size_t from = c->shown;
    bool accepted;
    c->shown = same_origin(c, v, end, &accepted);
    if (c->sink.on_text) c->sink.on_text(c->sink.context, c->text + from, c->shown - from, accepted);
  }
}

/* How many of the tokens that this run has brought are accepted ones, and what to compare their time with. */
static void count_accepted(completion *c, const sessions_view *v) {
  int32_t before = c->resume ? c->resume->length : v->prompt_length;
  if (!v->accepted) return;
  c->plain_us = v->plain_us;
  c->fresh = v->length - before;
  c->fresh_accepted = 0;
  for (int32_t i = before; i < v->length; i++) c->fresh_accepted += v->accepted[i];
}

/* Those of the tokens that are new; what the ledger has not kept goes again. */
static int take_logprobs(completion *c, const sessions_view *v) {
  int32_t count = v->length - v->prompt_length, each = c->logprobs_each;
  if (!v->logprobs || count <= 0) return ERR_OK;
  if (count > c->logprob_capacity) {
    ranking_token *p = realloc(c->logprobs, 2 * (size_t)count * (size_t)each * sizeof *p);
    if (!p) return ERR_NOMEM;
    c->logprobs = p;
    c->logprob_capacity = 2 * count;
  }
  if (count > c->logprob_count)
    memcpy(c->logprobs + c->logprob_count * each, v->logprobs + c->logprob_count * each,
           (size_t)(count - c->logprob_count) * (size_t)each * sizeof *c->logprobs);
  c->logprob_count = count;
  return ERR_OK;
}

void completion_update(completion *c, service *s) {
  sessions_view v;
  if (c->session && service_look(s, c->session, &v)) {
    bool all = v.logged == v.length;
    completion_trace_update(&c->trace, &v, clock_us());
    if (take_logprobs(c, &v)) err_set(&c->trouble, ERR_NOMEM, "out of memory");
    note_first(c, &v);
    count_accepted(c, &v);
    if (v.finish && all && !c->finish) take_end(c, &v);
    give_text(c, &v);
    if (v.state == SESSIONS_FINISHED && all) {
      take_figures(c, &v);
      service_release(s, c->session);
      c->session = 0;
    }
  }
  give_end(c);
}

void completion_cancel(completion *c, service *s) {
  if (c->finish) return;
  if (c->session)
    service_cancel(s, c->session);
  else
    c->finish = WIRE_FINISH_CANCELLED;
  give_end(c);
}

void completion_fail(completion *c, service *s, const err *why) {
  sessions_view v;
  if (c->finish) return;
  if (c->session && service_look(s, c->session, &v)) {
    take_end(c, &v);
    take_figures(c, &v);
  }
  if (c->session) service_release(s, c->session);
  c->session = 0;
  c->trouble = *why;
  c->finish = WIRE_FINISH_ERROR;
  give_end(c);
}

/* ---- figures ---- */

double completion_speed(int64_t tokens, uint64_t us) {
  if (tokens < COMPLETION_TIMED_TOKENS || us < COMPLETION_TIMED_US) return 0;
  return (double)tokens * 1e6 / (double)us;
}

static uint64_t us_until(const completion *c, uint64_t until_us) {
  return c->first_token_us && until_us > c->first_token_us ? until_us - c->first_token_us : 0;
}

/* Tokens of the answer that an earlier run gave. */
static int32_t tokens_before(const completion *c) {
  return c->resume ? c->resume->length - c->resume->prompt_length : 0;
}

/* A stop string that is whole only now may take back some of what an earlier run gave. */
int32_t completion_fresh_tokens(const completion *c) {
  int32_t before = tokens_before(c);
  return c->count > before ? c->count - before : 0;
}

int32_t completion_timed_tokens(const completion *c) {
  return c->count > c->first_count ? c->count - c->first_count : 0;
}

uint64_t completion_timed_us(const completion *c) {
  return us_until(c, c->end_us);
}

double completion_tokens_per_second(const completion *c) {
  return completion_speed(completion_timed_tokens(c), completion_timed_us(c));
}

double completion_speed_now(const completion *c, uint64_t now_us) {
  return completion_speed(tokens_before(c) + c->fresh - c->first_count, us_until(c, now_us));
}

double completion_gain(double speed, double plain) {
  return speed > 0 && plain > 0 ? speed / plain : 0;
}

double completion_acceptance_length(const completion *c) {
  int32_t steps = c->fresh - c->fresh_accepted;
  return steps > 0 ? (double)c->fresh / steps : 0;
}

double completion_plain_speed(const completion *c) {
  return c->plain_us ? 1e6 / c->plain_us : 0;
}

double completion_first_ms(const completion *c) {
  return c->first_shown_us ? (double)(c->first_shown_us - c->start_us) / 1000 : 0;
}

int32_t completion_counted(const completion *c) {
  return c->count > c->uncounted ? c->count - c->uncounted : 0;
}

double completion_mean_accepted(const completion *c) {
  return c->stats.rounds ? (double)c->stats.accepted / (double)c->stats.rounds : 0;
}

const char *completion_off_reason(const completion *c) {
  if (!c->draft_wanted) return NULL;
  if (c->off_reason[0]) return c->off_reason;
  return c->draft_method[0] ? NULL : "no draft came";
}

const char *completion_draft_method(const completion *c) {
  if (c->draft_wanted && c->draft_method[0]) return c->draft_method;
  return c->stats.rows > 0 ? "partial-kv" : "none";
}

bool completion_is_lossy(const completion *c) {
  const size_t size = strlen(c->numerics_id), end = strlen(SESSIONS_LOSSY);
  return size >= end && strcmp(c->numerics_id + size - end, SESSIONS_LOSSY) == 0;
}

/* ---- two completions of one request ---- */

int32_t completion_first_difference(const completion *plain, const completion *drafted) {
  int32_t n = 0;
  while (n < plain->count && n < drafted->count && plain->tokens[n] == drafted->tokens[n]) n++;
  return n == plain->count && n == drafted->count ? -1 : n;
}

double completion_speedup(const completion *plain, const completion *drafted) {
  double slow = completion_tokens_per_second(plain), fast = completion_tokens_per_second(drafted);
  return slow > 0 && drafted->stats.rows ? fast / slow : 0;
}
