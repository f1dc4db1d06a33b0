/* command_session.h - what the verbs of `tandem session` share. Each verb has a file: command_session_list.c,
 * ... */
#pragma once

#include "orchestrator/cli/commands.h"
#include "orchestrator/ledger/ledger_query.h"
#include "orchestrator/service/text_model.h"
#include <jansson.h>

typedef struct command_session_vocabulary { /* of the session before: many have the same model */
  char *path;                               /* NULL: none has been opened */
  text_model model;
  err e; /* why it cannot be used */
} command_session_vocabulary;
void command_session_close_vocabulary(command_session_vocabulary *v);

typedef struct command_session_work { /* what one command has at hand */
  flags flags;
  char path[LEDGER_PATH_MAX];
  sqlite3 *db;  /* NULL: there is no ledger yet */
  int64_t now;  /* wall clock, microseconds */
  json_t *list; /* of `list --json` */
  int32_t shown;
  command_session_vocabulary vocabulary;
} command_session_work;

/* The verbs; each returns an exit status. */
int command_session_list(command_session_work *w);
int command_session_show(command_session_work *w);
int command_session_export(command_session_work *w);
int command_session_import(command_session_work *w);
int command_session_check(command_session_work *w);
int command_session_repair(command_session_work *w);
int command_session_rollback(command_session_work *w);
int command_session_release(command_session_work *w);
int command_session_end(command_session_work *w);
int command_session_resume(command_session_work *w);

/* Says what is wrong with the ledger; returns the exit status for it. */
int command_session_error(const err *e);
/* The session that the first argument names; an exit status. */
int command_session_find(command_session_work *w, uint64_t *id);
int command_session_load(command_session_work *w, ledger_session *out);

/* All of a session, as `show --json' prints it; NULL: out of memory. */
json_t *command_session_object(command_session_work *w, const ledger_session *s);

/* ---- words ---- */

const char *command_session_state(ledger_state state, wire_finish finish);
#define COMMAND_SESSION_AGE_MAX 16
const char *command_session_age(int64_t us, char out[COMMAND_SESSION_AGE_MAX]); /* "3d", "12h" */
/* Is its last token one that ends an answer? */
bool command_session_ended_with_stop(const ledger_session *s);

json_t *command_session_id(uint64_t id);
json_t *command_session_text(const char *text); /* null where it is NULL or no UTF-8 */
json_t *command_session_seconds(int64_t us);
/* `how`: flags of json_text. Takes `object`; an exit status. */
int command_session_print_json(json_t *object, size_t how);
