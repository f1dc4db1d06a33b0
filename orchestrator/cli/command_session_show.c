/* tandem session show: everything of one session. */
#include "orchestrator/cli/command_session.h"
#include "orchestrator/ledger/options_json.h"
#include "orchestrator/service/session_about.h"
#include "orchestrator/service/session_line.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct spelled {
  char *data; /* [size], which may hold NULs; NULL: no vocabulary at hand */
  size_t size;
} spelled;

typedef struct texts {
  spelled prompt, output;
} texts;

typedef enum { OPEN, CUT, WHOLE } ending; /* OPEN: what is held back may still become a stop string */

static void end_text(FILE *f, detokenizer *d, ending how) {
  detokenizer_out out = {0};
  if (how == CUT) detokenizer_cut(d, &out);
  if (how == WHOLE && detokenizer_end(d, &out)) return;
  if (out.size) fwrite(out.text, 1, out.size, f);
}

/* The ids as text. `output`: it is an answer, which its stop strings end. */
static spelled text_of(const text_model *m, const int32_t *ids, int32_t count, const session_about *about,
                       bool output, ending how) {
  int32_t stop_count = output ? about->stop_count : 0;
  detokenizer *d = NULL;
  if (detokenizer_alloc(&d, m->tokens, about->stops, stop_count, output, !output || !about->raw, NULL))
    return (spelled){0};
  spelled t = {0};
  FILE *f = open_memstream(&t.data, &t.size);
  detokenizer_out out;
  for (int32_t i = 0; f && i < count; i++)
    if (detokenizer_feed(d, ids[i], &out) == ERR_OK) fwrite(out.text, 1, out.size, f);
  if (f) end_text(f, d, how);
  if (f) fclose(f);
  detokenizer_free(d);
  return t;
}

/* As the answer was shown; where a stop string ended it, what was held back has become one. */
static ending ending_of(const ledger_session *s) {
  if (s->state != LEDGER_ENDED) return OPEN;
  if (s->finish != WIRE_FINISH_STOP) return CUT;
  return command_session_ended_with_stop(s) ? WHOLE : OPEN;
}

static int open_vocabulary(command_session_vocabulary *v, const char *path, err *e) {
  if (v->path && strcmp(v->path, path) == 0) return v->e.code;
  command_session_close_vocabulary(v);
  v->path = strdup(path);
  if (text_model_open(&v->model, path, &v->e) == ERR_OK) text_model_load(&v->model, NULL, &v->e);
  if (v->e.code) *e = v->e; /* which is said once */
  return v->e.code;
}

void command_session_close_vocabulary(command_session_vocabulary *v) {
  if (v->path) text_model_close(&v->model);
  free(v->path);
  *v = (command_session_vocabulary){0};
}

/* Without the model, or with another one, there are ids only. */
static texts read_texts(command_session_work *w, const ledger_session *s, const session_about *about) {
  const char *path = w->flags.given.model ? w->flags.given.model : s->model;
  text_model *m = &w->vocabulary.model;
  err e = {0};
  texts t = {0};
  if (!path) return t;
  int rc = open_vocabulary(&w->vocabulary, path, &e);
  if (rc == ERR_OK && !text_model_is(m, s->fingerprint))
    rc = err_set(&e, ERR_MISMATCH, "%s is not the model of this session", path);
  if (rc == ERR_OK && m->tokens) {
    t.prompt = text_of(m, s->tokens, s->prompt_length, about, false, WHOLE);
    t.output =
        text_of(m, s->tokens + s->prompt_length, s->length - s->prompt_length, about, true, ending_of(s));
  }
  if (e.code) fprintf(stderr, "tandem: no text: %s (-m FILE names the model)\n", e.text);
  return t;
}

static json_t *ids_json(const int32_t *ids, int32_t count) {
  json_t *list = json_array();
  for (int32_t i = 0; i < count; i++) json_array_append_new(list, json_integer(ids[i]));
  return list;
}

static json_t *text_json(const spelled *t) {
  json_t *value = t->data ? json_stringn(t->data, t->size) : NULL;
  return value ? value : json_null();
}

static void print_text(const char *title, const spelled *t) {
  if (!t->data) return;
  printf("\n--- %s\n", title);
  fwrite(t->data, 1, t->size, stdout);
  putchar('\n');
}

static void put_parsed(json_t *o, const char *key, const char *text) {
  json_t *value = text ? json_loads(text, 0, NULL) : NULL;
  json_object_set_new(o, key, value ? value : json_null());
}

/* What a request line says, in its words (request_json.c): the session's options where they change tokens;
 * and all of them. */
static void put_request(json_t *o, const ledger_session *s, const session_about *about) {
  static const char *const keys[] = {
      "max_tokens",       "temperature",       "top_k",      "top_p",   "min_p", "repeat_penalty",
      "presence_penalty", "frequency_penalty", "logit_bias", "grammar", "seed"};
  json_t *options = options_json_object(&s->options), *stops = json_object_get(about->object, "stop");
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    json_object_set(o, keys[i], json_object_get(options, keys[i]));
  if (json_array_size(stops) > 0) json_object_set(o, "stop", stops);
  json_object_set_new(o, "options", options);
}

static json_t *session_json(const ledger_session *s, const texts *t, const session_about *about) {
  json_t *o = json_object();
  json_object_set_new(o, "id", command_session_id(s->id));
  json_object_set_new(o, "state", json_string(command_session_state(s->state, s->finish)));
  json_object_set_new(o, "model", command_session_text(s->model));
  char fingerprint[33];
  hash_format(s->fingerprint, fingerprint);
  json_object_set_new(o, "model_fingerprint", json_string(fingerprint));
  json_object_set_new(o, "numerics_id", command_session_text(s->numerics));
  json_object_set_new(o, "created", command_session_seconds(s->created));
  json_object_set_new(o, "updated", command_session_seconds(s->updated));
  json_object_set_new(o, "prompt_ids", ids_json(s->tokens, s->prompt_length));
  json_object_set_new(o, "token_ids", ids_json(s->tokens + s->prompt_length, s->length - s->prompt_length));
  json_object_set_new(o, "prompt_text", text_json(&t->prompt));
  json_object_set_new(o, "text", text_json(&t->output));
  put_request(o, s, about);
  json_object_set(o, "request", about->object ? about->object : json_null());
  put_parsed(o, "stats", s->stats);
  return o;
}

static void print_session(const command_session_work *w, const ledger_session *s, const texts *t) {
  char old[COMMAND_SESSION_AGE_MAX];
  printf("session   %016llx\nstate     %s", (unsigned long long)s->id,
         command_session_state(s->state, s->finish));
  if (s->pid) printf(" (process %lld)", (long long)s->pid);
  printf("\nage       %s\nmodel     %s\nnumerics  %s\n", command_session_age(w->now - s->created, old),
         s->model ? s->model : "?", s->numerics && s->numerics[0] ? s->numerics : "-");
  printf("tokens    %d of prompt, %d of at most %d of answer\n", s->prompt_length,
         s->length - s->prompt_length, s->options.max_tokens);
  printf("sampling  temperature %g, top-k %d, top-p %g, min-p %g, repeat-penalty %g, seed %llu\n",
         (double)s->options.temperature, s->options.top_k, (double)s->options.top_p, (double)s->options.min_p,
         (double)s->options.repeat_penalty, (unsigned long long)s->options.seed);
  if (msg_options_extras(&s->options))
    printf("          presence-penalty %g, frequency-penalty %g, a logit bias of %d tokens, a grammar of %u "
           "bytes\n",
           (double)s->options.presence_penalty, (double)s->options.frequency_penalty, s->options.bias_count,
           s->options.grammar_size);
  if (s->options.partial.mode == WIRE_PARTIAL_LOSSY)
    printf("          lossy: guesses over partial KV are accepted, %d at a time\n",
           s->options.partial.refresh);
  if (s->stats) printf("figures   %s\n", s->stats);
  print_text("prompt", &t->prompt);
  print_text("answer", &t->output);
}

int command_session_show(command_session_work *w) {
  ledger_session s;
  int code = command_session_load(w, &s);
  if (code) return code;
  session_about about;
  session_about_read(&about, s.about);
  texts t = read_texts(w, &s, &about);
  if (w->flags.given.json)
    code = command_session_print_json(session_json(&s, &t, &about),
                                      JSON_INDENT(1) | JSON_REAL_PRECISION(SESSION_LINE_DIGITS));
  else
    print_session(w, &s, &t);
  if (fflush(stdout) != 0) code = command_error(STATUS_IO, "cannot write to stdout");
  free(t.prompt.data);
  free(t.output.data);
  session_about_fini(&about);
  ledger_session_fini(&s);
  return code;
}

json_t *command_session_object(command_session_work *w, const ledger_session *s) {
  session_about about;
  session_about_read(&about, s->about);
  texts t = read_texts(w, s, &about);
  json_t *object = session_json(s, &t, &about);
  free(t.prompt.data);
  free(t.output.data);
  session_about_fini(&about);
  return object;
}
