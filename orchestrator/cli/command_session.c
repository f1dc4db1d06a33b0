/* tandem session: what the ledger keeps, to look at and to go on with. */
#include "orchestrator/cli/command_session.h"

#include "common/base/clock.h"
#include "common/base/json_text.h"
#include "common/command_line/nearest_word.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/service/result_json.h"
#include "orchestrator/service/session_line.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_US INT64_C(1000000)

/* ---- the ledger ---- */

static int set_path(command_session_work *w) {
  err e = {0};
  if (w->flags.given.ledger)
    snprintf(w->path, sizeof w->path, "%s", w->flags.given.ledger);
  else if (ledger_database_default_path(w->path, &e))
    return command_session_error(&e);
  return STATUS_OK;
}

/* A default ledger that does not exist is empty. It is tidied where it can be written. */
static int open_ledger(command_session_work *w) {
  err e = {0};
  int rc = ledger_database_open(&w->db, w->path, false, &e);
  if (rc == ERR_GONE && !w->flags.given.ledger) return STATUS_OK;
  if (rc) return command_error(rc == ERR_GONE ? STATUS_IO : command_serve_status(rc), "%s", e.text);
  if (!sqlite3_db_readonly(w->db, "main")) ledger_change_remove_dead(w->db, w->path, NULL);
  return STATUS_OK;
}

int command_session_error(const err *e) {
  return command_error(command_serve_status(e->code), "%s", e->text);
}

int command_session_find(command_session_work *w, uint64_t *id) {
  err e = {0};
  if (!w->db) return command_error(STATUS_USAGE, "there is no session yet: %s does not exist", w->path);
  return ledger_query_find(w->db, w->path, w->flags.given.arguments[0], id, &e) ? command_session_error(&e)
                                                                                : STATUS_OK;
}

int command_session_load(command_session_work *w, ledger_session *s) {
  err e = {0};
  uint64_t id;
  int code = command_session_find(w, &id);
  return code ? code : ledger_query_load(w->db, w->path, id, s, &e) ? command_session_error(&e) : STATUS_OK;
}

/* ---- words ---- */

bool command_session_ended_with_stop(const ledger_session *s) {
  if (s->length == s->prompt_length) return false;
  for (int32_t i = 0; i < s->options.stop_count; i++)
    if (s->tokens[s->length - 1] == s->options.stops[i]) return true;
  return false;
}

const char *command_session_state(ledger_state state, wire_finish finish) {
  static const char *const names[] = {[LEDGER_RUNNING] = "running", [LEDGER_INTERRUPTED] = "interrupted"};
  if (state != LEDGER_ENDED) return names[state];
  return (int)finish == LEDGER_BY_HAND ? SESSION_LINE_BY_HAND : result_json_finish_name(finish);
}

const char *command_session_age(int64_t us, char out[COMMAND_SESSION_AGE_MAX]) {
  static const struct {
    int64_t seconds;
    char unit;
  } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
  int64_t seconds = us > 0 ? us / SECOND_US : 0;
  int u = 0;
  while (u < 3 && seconds < units[u].seconds) u++;
  snprintf(out, COMMAND_SESSION_AGE_MAX, "%lld%c", (long long)(seconds / units[u].seconds), units[u].unit);
  return out;
}

json_t *command_session_id(uint64_t id) {
  char text[17];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)id);
  return json_string(text);
}

json_t *command_session_text(const char *text) {
  json_t *value = text ? json_string(text) : NULL; /* NULL also where the file has other bytes */
  return value ? value : json_null();
}

json_t *command_session_seconds(int64_t us) {
  return json_real((double)us / 1e6);
}

int command_session_print_json(json_t *object, size_t how) {
  char *text = json_text(object, how);
  json_decref(object);
  if (!text) return command_error(STATUS_FAILED, "out of memory");
  bool ok = puts(text) >= 0 && fflush(stdout) == 0;
  free(text);
  return ok ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}

/* ---- the verbs ---- */

typedef struct verb {
  const char *name;
  flag_command flags;
  int (*run)(command_session_work *w);
  bool opens; /* it opens the ledger by itself, in a way of its own */
  const char *text;
} verb;

static const verb verbs[] = {
    {"list", COMMAND_LIST, command_session_list, false, "what there is, newest first"},
    {"show", COMMAND_SHOW, command_session_show, false, "ID: prompt, answer, figures"},
    {"resume", COMMAND_RESUME, command_session_resume, false,
     "ID: go on with one that was interrupted, and print the rest"},
    {"rollback", COMMAND_ROLLBACK, command_session_rollback, false,
     "ID --to N: drop all but N tokens of the answer"},
    {"export", COMMAND_EXPORT, command_session_export, false, "ID, or --all: all of it, as a line of JSON"},
    {"import", COMMAND_IMPORT, command_session_import, true, "FILE: take what export has written"},
    {"release", COMMAND_RELEASE, command_session_release, false,
     "ID: what another host served, whose process is dead for certain"},
    {"end", COMMAND_END, command_session_end, false,
     "ID, or --older-than AGE [--delete]: end it, or forget it"},
    {"check", COMMAND_CHECK, command_session_check, true, "is all of the ledger in order?"},
    {"repair", COMMAND_REPAIR, command_session_repair, true, "keep what is whole of a damaged ledger"},
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
  command_session_work *w = calloc(1, sizeof *w);
  if (!w) return command_error(STATUS_FAILED, "out of memory");
  flags_parse(&w->flags, v->flags, argc, argv);
  command_clean_stdout();
  w->now = clock_wall_us();
  int code = set_path(w);
  if (code == STATUS_OK && !v->opens) code = open_ledger(w);
  if (code == STATUS_OK) code = v->run(w);
  sqlite3_close(w->db);
  command_session_close_vocabulary(&w->vocabulary);
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
  near = nearest_word(argv[1], words, VERB_COUNT);
  return command_error(STATUS_USAGE,
                       "tandem session has no verb '%.40s'%s%s%s; `tandem session --help' tells them",
                       argv[1], near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
}
