/* tandem session: what the ledger keeps, to look at and to go on with. */
#include "common/base/clock.h"
#include "common/base/program_flags.h"
#include "common/text/utf8.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/options_json.h"
#include "orchestrator/service/result_json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGE_MAX     16
#define TITLE_BYTES 48
#define SECOND_US   INT64_C(1000000)

typedef struct work { /* one command's */
  flags flags;
  char path[LEDGER_PATH_MAX];
  sqlite3 *db; /* NULL: there is no ledger yet */
  json_t *list;
  int64_t now;
  int32_t shown;
} work;

/* ---- the ledger ---- */

/* A default ledger that does not exist is empty. It is tidied where it can be written. */
static int open_ledger(work *w) {
  err e = {0};
  int rc = ERR_OK;
  if (w->flags.ledger)
    snprintf(w->path, sizeof w->path, "%s", w->flags.ledger);
  else
    rc = ledger_database_default_path(w->path, &e);
  if (rc == ERR_OK) rc = ledger_database_open(&w->db, w->path, false, &e);
  if (rc == ERR_GONE && !w->flags.ledger) return STATUS_OK;
  if (rc) return command_error(rc == ERR_GONE ? STATUS_IO : command_serve_status(rc), "%s", e.text);
  if (!sqlite3_db_readonly(w->db, "main")) ledger_change_remove_dead(w->db, w->path, NULL);
  return STATUS_OK;
}

static int fail(const err *e) {
  return command_error(command_serve_status(e->code), "%s", e->text);
}

static int find(work *w, uint64_t *id) {
  err e = {0};
  if (!w->db) return command_error(STATUS_USAGE, "there is no session yet: %s does not exist", w->path);
  return ledger_query_find(w->db, w->path, w->flags.arguments[0], id, &e) ? fail(&e) : STATUS_OK;
}

static int find_and_load(work *w, ledger_session *s) {
  err e = {0};
  uint64_t id;
  int code = find(w, &id);
  return code ? code : ledger_query_load(w->db, w->path, id, s, &e) ? fail(&e) : STATUS_OK;
}

/* ---- words ---- */

static const char *state_name(ledger_state state, wire_finish finish) {
  static const char *const names[] = {[LEDGER_RUNNING] = "running", [LEDGER_INTERRUPTED] = "interrupted"};
  return state == LEDGER_ENDED ? result_json_finish_name(finish) : names[state];
}

static const char *age(int64_t us, char out[AGE_MAX]) {
  static const struct {
    int64_t seconds;
    char unit;
  } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
  int64_t seconds = us > 0 ? us / SECOND_US : 0;
  int u = 0;
  while (u < 3 && seconds < units[u].seconds) u++;
  snprintf(out, AGE_MAX, "%lld%c", (long long)(seconds / units[u].seconds), units[u].unit);
  return out;
}

static const char *base_name(const char *path) {
  const char *slash = path ? strrchr(path, '/') : NULL;
  return slash ? slash + 1 : path ? path : "?";
}

static json_t *id_json(uint64_t id) {
  char text[17];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)id);
  return json_string(text);
}

static json_t *text_json(const char *text) {
  json_t *value = text ? json_string(text) : NULL; /* NULL also where the file has other bytes */
  return value ? value : json_null();
}

static json_t *seconds_json(int64_t us) {
  return json_real((double)us / 1e6);
}

static int print_json(json_t *object, size_t how) {
  char *text = object ? json_dumps(object, how) : NULL;
  json_decref(object);
  if (!text) return command_error(STATUS_FAILED, "out of memory");
  bool ok = puts(text) >= 0 && fflush(stdout) == 0;
  free(text);
  return ok ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}

/* ---- list ---- */

static void list_json(work *w, const ledger_line *l, const char *title) {
  json_t *o = json_object();
  json_object_set_new(o, "session", id_json(l->id));
  json_object_set_new(o, "state", json_string(state_name(l->state, l->finish)));
  json_object_set_new(o, "prompt_tokens", json_integer(l->prompt_length));
  json_object_set_new(o, "tokens", json_integer(l->output_length));
  json_object_set_new(o, "model", text_json(l->model));
  json_object_set_new(o, "created", seconds_json(l->created));
  json_object_set_new(o, "updated", seconds_json(l->updated));
  json_object_set_new(o, "title", text_json(title));
  json_array_append_new(w->list, o);
}

static int title_size(const char *title) {
  size_t size = title ? strlen(title) : 1;
  return (int)utf8_valid(title ? title : "-",
                         size < TITLE_BYTES ? size : TITLE_BYTES); /* no half character */
}

static void list_line(void *context, const ledger_line *l) {
  work *w = context;
  char old[AGE_MAX];
  json_t *about = l->about ? json_loads(l->about, 0, NULL) : NULL;
  const char *title = json_string_value(json_object_get(about, "title"));
  if (w->list)
    list_json(w, l, title);
  else {
    if (w->shown++ == 0)
      printf("%-16s  %-11s  %6s  %4s  %-24s  %s\n", "ID", "STATE", "TOKENS", "AGE", "MODEL", "PROMPT");
    printf("%016llx  %-11s  %6lld  %4s  %-24.24s  %.*s\n", (unsigned long long)l->id,
           state_name(l->state, l->finish), (long long)l->output_length, age(w->now - l->created, old),
           base_name(l->model), title_size(title), title ? title : "-");
  }
  json_decref(about);
}

static int session_list(work *w) {
  err e = {0};
  w->list = w->flags.json ? json_array() : NULL;
  int64_t total = 0;
  int rc = w->db ? ledger_query_list(w->db, w->path, w->flags.limit, list_line, w, &total, &e) : ERR_OK;
  if (rc) return fail(&e);
  if (w->flags.limit && total > w->flags.limit)
    fprintf(stderr, "tandem: %lld older ones are not shown: --limit N shows N, --limit 0 all\n",
            (long long)(total - w->flags.limit));
  if (w->list) return print_json(json_incref(w->list), JSON_INDENT(1) | JSON_REAL_PRECISION(16));
  if (w->shown == 0) fprintf(stderr, "tandem: no sessions in %s\n", w->path);
  return fflush(stdout) == 0 ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}

/* ---- show and export ---- */

typedef struct texts {
  char *prompt, *answer; /* NULL: no vocabulary at hand */
} texts;

static char *text_of(const text_model *m, const int32_t *ids, int32_t count, const json_t *about, bool output,
                     bool ended) {
  const char *stops[DETOKENIZER_STOP_MAX];
  const json_t *list = json_object_get(about, "stop");
  bool raw = json_is_true(json_object_get(about, "raw"));
  int32_t stop_count = 0;
  for (size_t i = 0; output && i < json_array_size(list) && i < DETOKENIZER_STOP_MAX; i++) {
    const char *stop = json_string_value(json_array_get(list, i));
    if (stop && *stop) stops[stop_count++] = stop;
  }
  detokenizer *d = NULL;
  if (detokenizer_alloc(&d, m->tokens, stops, stop_count, output, !output || !raw, NULL)) return NULL;
  size_t size = 0;
  char *text = NULL;
  FILE *f = open_memstream(&text, &size);
  detokenizer_out out;
  for (int32_t i = 0; f && i < count; i++)
    if (detokenizer_feed(d, ids[i], &out) == ERR_OK) fwrite(out.text, 1, out.size, f);
  if (f && ended && detokenizer_end(d, &out) == ERR_OK) fwrite(out.text, 1, out.size, f);
  if (f) fclose(f);
  detokenizer_free(d);
  return text;
}

static bool ends_with_stop(const ledger_session *s) {
  if (s->length == s->prompt_length) return false;
  for (int32_t i = 0; i < s->options.stop_count; i++)
    if (s->tokens[s->length - 1] == s->options.stops[i]) return true;
  return false;
}

/* The end of its text is not held back any more; where a stop string ended it, that end has become one. */
static bool ends_whole(const ledger_session *s) {
  return s->state == LEDGER_ENDED && (s->finish != WIRE_FINISH_STOP || ends_with_stop(s));
}

/* Without the model, or with another one, there are ids only. */
static texts read_texts(const work *w, const ledger_session *s, const json_t *about) {
  const char *path = w->flags.workers.model ? w->flags.workers.model : s->model;
  text_model m;
  err e = {0};
  texts t = {0};
  if (!path) return t;
  if (text_model_open(&m, path, &e) == ERR_OK && !hash_equal(m.fingerprint, s->fingerprint))
    err_set(&e, ERR_MISMATCH, "%s is not the model of this session", path);
  if (!e.code && text_model_load(&m, NULL, &e) == ERR_OK && m.tokens) {
    t.prompt = text_of(&m, s->tokens, s->prompt_length, about, false, true);
    t.answer =
        text_of(&m, s->tokens + s->prompt_length, s->length - s->prompt_length, about, true, ends_whole(s));
  }
  if (e.code) fprintf(stderr, "tandem: no text: %s (-m FILE names the model)\n", e.text);
  text_model_close(&m);
  return t;
}

static json_t *ids_json(const int32_t *ids, int32_t count) {
  json_t *list = json_array();
  for (int32_t i = 0; i < count; i++) json_array_append_new(list, json_integer(ids[i]));
  return list;
}

static void put_parsed(json_t *o, const char *key, const char *text) {
  json_t *value = text ? json_loads(text, 0, NULL) : NULL;
  json_object_set_new(o, key, value ? value : json_null());
}

/* What a request line says, in its words (batch.c): the session's options where they change tokens; and all
 * of them. */
static void put_request(json_t *o, const ledger_session *s, const json_t *about) {
  static const char *const keys[] = {"max_tokens", "temperature",    "top_k", "top_p",
                                     "min_p",      "repeat_penalty", "seed"};
  json_t *options = options_json_object(&s->options), *stops = json_object_get(about, "stop");
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    json_object_set(o, keys[i], json_object_get(options, keys[i]));
  if (json_array_size(stops) > 0) json_object_set(o, "stop", stops);
  json_object_set_new(o, "options", options);
}

static json_t *session_json(const ledger_session *s, const texts *t, const json_t *about) {
  json_t *o = json_object();
  json_object_set_new(o, "id", id_json(s->id));
  json_object_set_new(o, "state", json_string(state_name(s->state, s->finish)));
  json_object_set_new(o, "model", text_json(s->model));
  char fingerprint[33];
  hash_format(s->fingerprint, fingerprint);
  json_object_set_new(o, "model_fingerprint", json_string(fingerprint));
  json_object_set_new(o, "numerics_id", text_json(s->numerics));
  json_object_set_new(o, "created", seconds_json(s->created));
  json_object_set_new(o, "updated", seconds_json(s->updated));
  json_object_set_new(o, "prompt_ids", ids_json(s->tokens, s->prompt_length));
  json_object_set_new(o, "token_ids", ids_json(s->tokens + s->prompt_length, s->length - s->prompt_length));
  json_object_set_new(o, "prompt_text", text_json(t->prompt));
  json_object_set_new(o, "text", text_json(t->answer));
  put_request(o, s, about);
  json_object_set(o, "request", (json_t *)(about ? about : json_null()));
  put_parsed(o, "stats", s->stats);
  return o;
}

static void print_session(const work *w, const ledger_session *s, const texts *t) {
  char old[AGE_MAX];
  printf("session   %016llx\nstate     %s", (unsigned long long)s->id, state_name(s->state, s->finish));
  if (s->pid) printf(" (process %lld)", (long long)s->pid);
  printf("\nage       %s\nmodel     %s\nnumerics  %s\n", age(w->now - s->created, old),
         s->model ? s->model : "?", s->numerics && s->numerics[0] ? s->numerics : "-");
  printf("tokens    %d of prompt, %d of at most %d of answer\n", s->prompt_length,
         s->length - s->prompt_length, s->options.max_tokens);
  printf("sampling  temperature %g, top-k %d, top-p %g, min-p %g, repeat-penalty %g, seed %llu\n",
         (double)s->options.temperature, s->options.top_k, (double)s->options.top_p, (double)s->options.min_p,
         (double)s->options.repeat_penalty, (unsigned long long)s->options.seed);
  if (s->stats) printf("figures   %s\n", s->stats);
  if (t->prompt) printf("\n--- prompt\n%s\n", t->prompt);
  if (t->answer) printf("\n--- answer\n%s\n", t->answer);
}

static int show(work *w, bool json, size_t json_flags) {
  ledger_session s;
  int code = find_and_load(w, &s);
  if (code) return code;
  json_t *about = s.about ? json_loads(s.about, 0, NULL) : NULL;
  texts t = read_texts(w, &s, about);
  if (json)
    code = print_json(session_json(&s, &t, about), json_flags);
  else
    print_session(w, &s, &t);
  if (fflush(stdout) != 0) code = command_error(STATUS_IO, "cannot write to stdout");
  free(t.prompt);
  free(t.answer);
  json_decref(about);
  ledger_session_fini(&s);
  return code;
}

static int session_show(work *w) {
  return show(w, w->flags.json, JSON_INDENT(1) | JSON_REAL_PRECISION(16));
}

static int session_export(work *w) {
  return show(w, true, JSON_COMPACT | JSON_REAL_PRECISION(16));
}

/* ---- changes ---- */

static int session_rollback(work *w) {
  ledger_session s;
  err e = {0};
  int code = find_and_load(w, &s), rc = ERR_OK;
  if (code) return code;
  int32_t output = s.length - s.prompt_length;
  if (w->flags.to > output)
    rc = err_set(&e, ERR_ARG, "--to %d, but session %016llx has %d tokens of answer", w->flags.to,
                 (unsigned long long)s.id, output);
  if (rc == ERR_OK) rc = ledger_change_rollback(w->db, w->path, s.id, w->flags.to, &e);
  if (rc == ERR_OK) printf("%016llx has %d tokens of answer\n", (unsigned long long)s.id, w->flags.to);
  ledger_session_fini(&s);
  return rc ? fail(&e) : STATUS_OK;
}

static int end_old(work *w) {
  int64_t count = 0;
  err e = {0};
  int rc =
      w->db ? ledger_change_end_old(w->db, w->path, w->now - w->flags.older_us, w->flags.forget, &count, &e)
            : ERR_OK;
  if (rc) return fail(&e);
  printf("%lld session%s %s\n", (long long)count, count == 1 ? "" : "s",
         w->flags.forget ? "forgotten" : "ended");
  return STATUS_OK;
}

static int session_end(work *w) {
  uint64_t id;
  err e = {0};
  if (w->flags.older_us >= 0) return end_old(w);
  int code = find(w, &id);
  if (code) return code;
  ledger_session s;
  int rc = ERR_OK;
  if (w->flags.forget)
    rc = ledger_change_delete(w->db, w->path, id, &e);
  else if ((rc = ledger_query_load(w->db, w->path, id, &s, &e)) == ERR_OK) {
    if (s.state != LEDGER_ENDED) rc = ledger_change_end(w->db, w->path, id, WIRE_FINISH_CANCELLED, &e);
    ledger_session_fini(&s);
  }
  if (rc) return fail(&e);
  printf("%016llx %s\n", (unsigned long long)id, w->flags.forget ? "is forgotten" : "has ended");
  return STATUS_OK;
}

/* ---- resume ---- */

/* Why there is nothing to go on with, or ERR_OK. A session that died between its last token and its end gets
 * the end. */
static int check_unfinished(work *w, ledger_session *s, err *e) {
  bool stopped = ends_with_stop(s) || (s->state == LEDGER_ENDED && s->finish == WIRE_FINISH_STOP);
  bool full = s->length - s->prompt_length >= s->options.max_tokens;
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
static void take_draft(flags *f, const json_t *about) {
  worker_settings *w = &f->workers;
  const char *draft = json_string_value(json_object_get(about, "draft"));
  json_int_t layers = json_integer_value(json_object_get(about, "draft_layers"));
  err e = {0};
  if (!w->draft && f->listen) w->draft = draft && strcmp(draft, "none") == 0 ? "none" : "any";
  if (w->draft) return;
  w->draft = draft && strcmp(draft, "any") != 0 ? draft : "ngram";
  w->draft_model = json_string_value(json_object_get(about, "model_draft"));
  w->draft_layers = layers > 0 && layers <= MODEL_LAYERS_MAX ? (int32_t)layers : 0;
  if (flags_check_draft(w, &e) == ERR_OK) return;
  fprintf(stderr, "tandem: it cannot be drafted as before (%s); it goes on with --draft ngram\n", e.text);
  w->draft = "ngram";
  w->draft_model = NULL;
  w->draft_layers = 0;
}

/* The request as it was, with what the flags say anew. */
static int take_request(request *r, ledger_session *s, const json_t *about, bool new_draft, err *e) {
  const json_t *stops = json_object_get(about, "stop");
  int32_t output = s->length - s->prompt_length, room = s->options.context - s->length;
  if (r->max_tokens > 0) s->options.max_tokens = output + (r->max_tokens < room ? r->max_tokens : room);
  if (r->budget >= 0)
    s->options.budget = r->budget;
  else if (new_draft && s->options.budget == 0)
    s->options.budget = REQUEST_BUDGET_DEFAULT;
  r->budget = s->options.budget;
  r->raw = json_is_true(json_object_get(about, "raw"));
  int rc = ERR_OK;
  for (size_t i = 0; rc == ERR_OK && i < json_array_size(stops); i++) {
    const char *stop = json_string_value(json_array_get(stops, i));
    if (stop) rc = request_add_stop(r, "a stop string of the ledger", stop, strlen(stop), e);
  }
  return rc;
}

static int take_flags(flags *f, ledger_session *s, const json_t *about, err *e) {
  const char *math = json_string_value(json_object_get(about, "math"));
  worker_settings *w = &f->workers;
  bool new_draft = w->draft != NULL;
  if (!w->model) w->model = s->model;
  if (!w->model) return err_set(e, ERR_ARG, "the ledger does not know the model: give it with -m");
  take_draft(f, about);
  w->math = math ? math : "int8";
  f->request.speculate = strcmp(w->draft, "none") != 0;
  return take_request(&f->request, s, about, new_draft, e);
}

static int session_resume(work *w) {
  ledger_session s;
  err e = {0};
  int code = find_and_load(w, &s);
  if (code) return code;
  json_t *about = s.about ? json_loads(s.about, 0, NULL) : NULL;
  int rc = take_flags(&w->flags, &s, about, &e);
  if (rc == ERR_OK && s.state != LEDGER_RUNNING) rc = check_unfinished(w, &s, &e);
  sqlite3_close(w->db);
  w->db = NULL;
  code = rc ? fail(&e) : command_resume(&w->flags, &s);
  json_decref(about);
  ledger_session_fini(&s);
  return code;
}

/* ---- the verbs ---- */

typedef struct verb {
  const char *name;
  flags_command flags;
  int (*run)(work *w);
  const char *text;
} verb;

static const verb verbs[] = {
    {"list", FLAGS_LIST, session_list, "what there is, newest first"},
    {"show", FLAGS_SHOW, session_show, "ID: prompt, answer, figures"},
    {"resume", FLAGS_RESUME, session_resume, "ID: go on with one that was interrupted, and print the rest"},
    {"rollback", FLAGS_ROLLBACK, session_rollback, "ID --to N: drop all but N tokens of the answer"},
    {"export", FLAGS_EXPORT, session_export, "ID: all that is needed to repeat it, as a line of JSON"},
    {"end", FLAGS_END, session_end, "ID, or --older-than AGE [--delete]: end it, or forget it"},
};
enum { VERB_COUNT = sizeof verbs / sizeof *verbs };

static void print_help(FILE *to) {
  fputs("Usage: tandem session VERB [ID] [FLAGS...]\n"
        "What the ledger keeps. An ID is given by its first digits, as far as they are unique.\n\n"
        "Verbs:\n",
        to);
  for (int i = 0; i < VERB_COUNT; i++) fprintf(to, "  %-10s%s\n", verbs[i].name, verbs[i].text);
  fputs("\n`tandem session VERB --help' tells the flags of a verb.\n", to);
}

static int run_verb(const verb *v, int argc, char **argv) {
  work *w = calloc(1, sizeof *w);
  if (!w) return command_error(STATUS_FAILED, "out of memory");
  flags_parse(&w->flags, v->flags, argc, argv);
  w->now = clock_wall_us();
  int code = open_ledger(w);
  if (code == STATUS_OK) code = v->run(w);
  sqlite3_close(w->db);
  json_decref(w->list);
  flags_fini(&w->flags);
  free(w);
  return code;
}

int command_session(int argc, char **argv) {
  const char *words[VERB_COUNT], *near;
  if (argc > 1 &&
      (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)) {
    print_help(stdout);
    return STATUS_OK;
  }
  for (int i = 0; i < VERB_COUNT; i++) {
    words[i] = verbs[i].name;
    if (argc < 2 || strcmp(argv[1], verbs[i].name) != 0) continue;
    char whole[64];
    snprintf(whole, sizeof whole, "tandem session %s", verbs[i].name);
    argv[1] = whole;
    return run_verb(&verbs[i], argc - 1, argv + 1);
  }
  if (argc < 2)
    return command_error(STATUS_USAGE, "which? Try `tandem session list', or `tandem session --help'");
  near = program_nearest(argv[1], words, VERB_COUNT);
  return command_error(STATUS_USAGE,
                       "tandem session has no verb '%.40s'%s%s%s; `tandem session --help' tells them",
                       argv[1], near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
}
