#include "orchestrator/service/completion.h"

#include "common/base/clock.h"
#include "common/text/utf8.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TITLE_MAX 160 /* bytes */

void completion_init(completion *a, const text_model *m) {
  *a = (completion){.model = m, .kept = -1};
}

void completion_fini(completion *a) {
  detokenizer_free(a->text_of);
  tokenizer_ids_fini(&a->prompt);
  free(a->text);
  free(a->tokens);
  free(a->ends);
  *a = (completion){0};
}

/* ---- text ---- */

static int add_text(completion *a, const detokenizer_out *out) {
  if (a->size + out->size > a->capacity) {
    size_t wanted = 2 * (a->size + out->size);
    char *p = realloc(a->text, wanted);
    if (!p) return ERR_NOMEM;
    a->text = p;
    a->capacity = wanted;
  }
  if (out->size) memcpy(a->text + a->size, out->text, out->size);
  a->size += out->size;
  if (out->stopped && a->kept < 0) a->kept = out->keep_tokens;
  return ERR_OK;
}

static int reserve_end(completion *a) {
  if ((size_t)a->fed < a->ends_capacity) return ERR_OK;
  size_t wanted = 2 * a->ends_capacity + 64;
  size_t *p = realloc(a->ends, wanted * sizeof *p);
  if (!p) return ERR_NOMEM;
  a->ends = p;
  a->ends_capacity = wanted;
  return ERR_OK;
}

static int feed(completion *a, int32_t token) {
  detokenizer_out out = {0};
  int rc = reserve_end(a);
  if (rc == ERR_OK && a->text_of) rc = detokenizer_feed(a->text_of, token, &out);
  if (rc == ERR_OK) rc = add_text(a, &out);
  if (rc == ERR_OK)
    a->ends[a->fed++] = a->size;
  else
    err_set(&a->trouble, rc, "token %d of the target has no text: %s", token, err_name(rc));
  return rc;
}

/* New tokens, before they are logged. Those after a stop string, and those that it began in, are not kept:
 * where it began in one that is logged already, that one goes too. */
static int32_t admit(void *context, const int32_t *tokens, int32_t count, bool *stop) {
  completion *a = context;
  int32_t before = a->fed, taken = 0;
  while (taken < count && a->kept < 0 && feed(a, tokens[taken]) == ERR_OK) taken++;
  *stop = a->kept >= 0 || taken < count;
  return a->kept < 0 ? taken : a->kept - before;
}

static void end_text(completion *a) {
  detokenizer_out out;
  if (a->text_of && detokenizer_end(a->text_of, &out) == ERR_OK) add_text(a, &out);
}

/* ---- begin ---- */

static msg_options options_of(const completion *a, const flags *f, int32_t context) {
  const sampler_options *s = &f->sampling;
  int32_t room = context - (int32_t)a->prompt.count;
  return (msg_options){.temperature = s->temperature,
                       .top_p = s->top_p,
                       .min_p = s->min_p,
                       .repeat_penalty = s->repeat_penalty,
                       .top_k = s->top_k,
                       .seed = s->seed,
                       .choice = s->choice,
                       .max_tokens = f->max_tokens < room ? f->max_tokens : room,
                       .context = context,
                       .stops = a->model->stops,
                       .stop_count = a->model->stop_count,
                       .budget = a->draft_wanted ? f->budget : 0,
                       .lockstep = a->draft_wanted && f->lockstep,
                       .selfcheck = f->selfcheck,
                       .single = f->single};
}

/* The first words of what was asked, on one line. */
static json_t *title_of(const char *text) {
  char words[TITLE_MAX + 1];
  size_t n = 0;
  for (; *text && n < TITLE_MAX; text++) {
    bool blank = (unsigned char)*text <= ' ';
    if (blank && (n == 0 || words[n - 1] == ' ')) continue;
    words[n++] = blank ? ' ' : *text;
  }
  while (n > 0 && words[n - 1] == ' ') n--;
  return json_stringn(words, utf8_valid(words, n)); /* the last character may be cut */
}

/* How it is drafted. A path holds wherever the session goes on. */
static void put_draft(json_t *o, const flags *f) {
  char *path = f->model_draft ? realpath(f->model_draft, NULL) : NULL;
  json_object_set_new(o, "draft", json_string(f->draft));
  if (f->model_draft) json_object_set_new(o, "model_draft", json_string(path ? path : f->model_draft));
  if (f->draft_layers) json_object_set_new(o, "draft_layers", json_integer(f->draft_layers));
  free(path);
}

/* What only this side knows, so that the session can go on with the same text and the same kind of draft. */
static char *about(const completion *a, const flags *f) {
  json_t *o = json_object(), *stops = json_array();
  for (int32_t i = 0; i < f->stop_count; i++) json_array_append_new(stops, json_string(f->stops[i]));
  if (a->title) json_object_set_new(o, "title", title_of(a->title));
  put_draft(o, f);
  json_object_set_new(o, "math", json_string(f->math));
  json_object_set_new(o, "raw", json_boolean(f->raw));
  json_object_set_new(o, "stop", stops);
  char *text = json_dumps(o, JSON_COMPACT);
  json_decref(o);
  return text;
}

/* The text of what was there, so that the rest continues it. */
static int feed_again(completion *a, err *e) {
  const ledger_session *r = a->resume;
  for (int32_t i = r->prompt_length; i < r->length; i++)
    if (feed(a, r->tokens[i])) {
      if (e) *e = a->trouble;
      return a->trouble.code;
    }
  a->shown = a->whole ? 0 : a->size;
  if (a->seen > a->shown) a->shown = a->seen; /* what was held back has been shown at its end */
  return ERR_OK;
}

int completion_to_resume(const completion *a, const flags *f, int32_t more, ledger_session *out, err *e) {
  int32_t prompt = (int32_t)a->prompt.count, length = prompt + a->count, room = a->context - length;
  bool cut = a->finish == WIRE_FINISH_LENGTH || a->finish == WIRE_FINISH_CANCELLED;
  if (a->session || !a->id || !cut) return err_set(e, ERR_ARG, "there is no answer that was cut or stopped");
  if (room <= 0) return err_set(e, ERR_LIMIT, "the context of %d tokens is full", a->context);
  *out = (ledger_session){.id = a->id,
                          .hash_seed = a->hash_seed,
                          .epoch = a->epoch,
                          .length = length,
                          .prompt_length = prompt,
                          .options = options_of(a, f, a->context),
                          .tokens = malloc((size_t)length * sizeof *out->tokens),
                          .numerics = strdup(a->numerics_id)};
  out->options.seed = a->seed;
  out->options.max_tokens = a->count + (more < room ? more : room);
  if (!out->tokens || !out->numerics) return err_set(e, ERR_NOMEM, "out of memory");
  memcpy(out->tokens, a->prompt.ids, (size_t)prompt * sizeof *out->tokens);
  if (a->count) memcpy(out->tokens + prompt, a->tokens, (size_t)a->count * sizeof *out->tokens);
  return ERR_OK;
}

static int start(completion *a, service *p, const flags *f, int32_t context, err *e) {
  const ledger_session *l = a->resume;
  sessions_resume resume;
  sessions_request r = {.prompt = a->prompt.ids,
                        .prompt_length = (int32_t)a->prompt.count,
                        .options = l ? l->options : options_of(a, f, context),
                        .draft = a->draft_wanted,
                        .admit = admit,
                        .admit_context = a};
  if (l) {
    resume = (sessions_resume){.session = l->id,
                               .hash_seed = l->hash_seed,
                               .epoch = l->epoch,
                               .output = l->tokens + l->prompt_length,
                               .output_length = l->length - l->prompt_length,
                               .numerics = l->numerics ? l->numerics : ""};
    r.resume = &resume;
  }
  a->seed = r.options.seed;
  a->max_tokens = r.options.max_tokens;
  a->context = context;
  char *text = l ? NULL : about(a, f);
  r.about = text;
  a->session = a->id = service_start(p, &r, e);
  free(text);
  return a->session ? ERR_OK : e->code;
}

int completion_begin(completion *a, service *p, const flags *f, int32_t context, err *e) {
  int rc = text_model_check(a->model, a->prompt.ids, a->prompt.count, context, e);
  if (rc == ERR_OK && f->stop_count > 0) rc = text_model_needs_text(a->model, e);
  if (rc == ERR_OK && a->model->tokens)
    rc = detokenizer_alloc(&a->text_of, a->model->tokens, f->stops, f->stop_count, true, !f->raw, e);
  if (rc == ERR_OK && a->resume) rc = feed_again(a, e);
  if (rc) return rc;
  a->draft_wanted = flags_wants_draft(f);
  a->start_us = clock_us();
  return start(a, p, f, context, e);
}

/* ---- news ---- */

static void copy_text(char out[WIRE_STRING_MAX + 1], const char *text) {
  snprintf(out, WIRE_STRING_MAX + 1, "%s", text ? text : "");
}

static void take_tokens(completion *a, const sessions_view *v) {
  int32_t count = v->length - v->prompt_length;
  if (count == 0) return;
  a->tokens = malloc((size_t)count * sizeof *a->tokens);
  if (!a->tokens) {
    err_set(&a->trouble, ERR_NOMEM, "out of memory");
    return;
  }
  memcpy(a->tokens, v->tokens + v->prompt_length, (size_t)count * sizeof *a->tokens);
  a->count = count;
}

static void take_end(completion *a, const sessions_view *v) {
  a->end_us = clock_us();
  take_tokens(a, v);
  if (v->finish == WIRE_FINISH_ERROR && !a->trouble.code) err_set(&a->trouble, v->code, "%s", v->text);
  a->finish = a->trouble.code ? WIRE_FINISH_ERROR : v->finish;
  end_text(a);
}

/* When an answer is cut or cancelled, the target tells its figures only after it. */
static void take_figures(completion *a, const sessions_view *v) {
  a->stats = v->stats;
  a->uncounted = v->uncounted;
  for (int32_t i = 0; i < v->stats.position_count; i++) a->accepted_per_pos[i] = v->stats.accepted_per_pos[i];
  a->stats.accepted_per_pos = a->accepted_per_pos;
  copy_text(a->draft_method, v->draft_method);
  copy_text(a->numerics_id, v->numerics_id);
  copy_text(a->off_reason, v->off_reason);
  copy_text(a->plain_speed, v->code ? NULL : v->text);
  a->hash_seed = v->hash_seed;
  a->epoch = v->epoch;
  a->numerics_changed = v->numerics_changed;
}

/* Text is shown when its tokens are in the ledger; what a stop cut never comes there. */
static size_t showable(const completion *a, const sessions_view *v) {
  int32_t logged = v->logged - v->prompt_length;
  if (logged >= (a->kept >= 0 ? a->kept : a->fed)) return a->size;
  return logged > 0 ? a->ends[logged - 1] : 0;
}

static void note_first(completion *a, const sessions_view *v) {
  int32_t before = a->resume ? a->resume->length : v->prompt_length;
  if (!a->came_us && v->length > before) {
    a->came_us = clock_us();
    a->came_count = v->length - v->prompt_length;
  }
  if (!a->first_us && v->logged > before) a->first_us = clock_us();
}

void completion_look(completion *a, service *p, const char **text, size_t *size) {
  sessions_view v;
  *size = 0;
  if (!a->session || !service_look(p, a->session, &v)) return;
  bool all = v.logged == v.length;
  note_first(a, &v);
  if (v.finish && all && !a->finish) take_end(a, &v);
  size_t end = showable(a, &v);
  if (end > a->shown) {
    *text = a->text + a->shown;
    *size = end - a->shown;
    a->shown = end;
  }
  if (v.state != SESSIONS_FINISHED || !all) return;
  take_figures(a, &v);
  service_release(p, a->session);
  a->session = 0;
}

void completion_fail(completion *a, service *p, const err *why) {
  sessions_view v;
  if (a->finish) return;
  if (a->session && service_look(p, a->session, &v)) {
    take_end(a, &v);
    take_figures(a, &v);
  }
  if (a->session) service_release(p, a->session);
  a->session = 0;
  a->trouble = *why;
  a->finish = WIRE_FINISH_ERROR;
}

/* ---- figures ---- */

double completion_tokens_per_second(const completion *a) {
  if (a->count <= a->came_count || a->end_us <= a->came_us) return 0;
  return (a->count - a->came_count) * 1e6 / (double)(a->end_us - a->came_us);
}

double completion_first_ms(const completion *a) {
  return a->first_us ? (double)(a->first_us - a->start_us) / 1000 : 0;
}

int32_t completion_counted(const completion *a) {
  return a->count > a->uncounted ? a->count - a->uncounted : 0;
}

double completion_mean_accepted(const completion *a) {
  return a->stats.rounds ? (double)a->stats.accepted / (double)a->stats.rounds : 0;
}

const char *completion_off_reason(const completion *a) {
  if (!a->draft_wanted) return NULL;
  if (a->off_reason[0]) return a->off_reason;
  return a->draft_method[0] ? NULL : "no draft came";
}
