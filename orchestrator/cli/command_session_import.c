/* tandem session import: lines that `tandem session export' has written, each a session, into the ledger. */
#include "common/base/plain_text.h"
#include "orchestrator/cli/command_session.h"
#include "orchestrator/ledger/ledger_import.h"
#include "orchestrator/service/session_line.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_FIRST 65536 /* bytes */

typedef struct import {
  command_session_work *w;
  FILE *from;
  const char *name; /* of the file, for messages */
  char *line;       /* [size] */
  size_t size, capacity;
  int64_t number;
  int64_t taken, skipped, refused;
} import;

/* ---- lines ---- */

static bool add(import *m, int c) {
  if (m->size == m->capacity) {
    size_t capacity = m->capacity ? 2 * m->capacity : LINE_FIRST;
    char *more = realloc(m->line, capacity);
    if (!more) return false;
    m->line = more;
    m->capacity = capacity;
  }
  m->line[m->size++] = (char)c;
  return true;
}

/* The next line without its end; of one that is too long no more than shows that. False: there is none, or
 * the file cannot be read. */
static bool next_line(import *m, bool *no_memory) {
  int c;
  m->size = 0;
  m->number++;
  while ((c = getc_unlocked(m->from)) != EOF && c != '\n')
    if (m->size <= SESSION_LINE_MAX && !add(m, c)) {
      *no_memory = true;
      return false;
    }
  bool there = c != EOF || m->size > 0;
  if (m->number == 1 && m->size > 0) m->size = plain_text_clean(m->line, m->size);
  return there;
}

static bool is_blank(const import *m) {
  for (size_t i = 0; i < m->size; i++)
    if (!strchr(" \t\r", m->line[i]) || !m->line[i]) return false;
  return true;
}

/* ---- sessions ---- */

/* A line that is wrong is refused; what is wrong with the ledger itself ends the command. */
static int refuse(import *m, const err *e, bool of_ledger) {
  if (of_ledger && e->code != ERR_STATE && e->code != ERR_FORMAT) return command_session_error(e);
  command_error(STATUS_FAILED, "%s, line %lld: %s", m->name, (long long)m->number, e->text);
  m->refused++;
  return STATUS_OK;
}

static void tell(import *m, const ledger_session *s, ledger_imported how) {
  static const char *const words[] = {[LEDGER_IMPORT_NEW] = "is imported",
                                      [LEDGER_IMPORT_SAME] = "is there already",
                                      [LEDGER_IMPORT_REPLACED] = "is replaced"};
  *(how == LEDGER_IMPORT_SAME ? &m->skipped : &m->taken) += 1;
  printf("%016llx %s: %d tokens of prompt, %d of answer\n", (unsigned long long)s->id, words[how],
         s->prompt_length, s->length - s->prompt_length);
}

static int take_line(import *m) {
  ledger_session s;
  ledger_imported how;
  err e = {0};
  int code = STATUS_OK;
  if (session_line_read(m->line, m->size, &s, &e))
    code = refuse(m, &e, false);
  else if (ledger_import(m->w->db, m->w->path, &s, m->w->flags.given.replace, &how, &e))
    code = refuse(m, &e, true);
  else
    tell(m, &s, how);
  ledger_session_fini(&s);
  return code;
}

static int take_lines(import *m) {
  bool no_memory = false;
  int code = STATUS_OK;
  while (code == STATUS_OK && next_line(m, &no_memory))
    if (!is_blank(m)) code = take_line(m);
  if (no_memory) return command_error(STATUS_FAILED, "out of memory");
  if (code == STATUS_OK && ferror(m->from))
    return command_error(STATUS_IO, "cannot read %s: %s", m->name, strerror(errno));
  if (code == STATUS_OK && m->taken + m->skipped + m->refused == 0)
    return command_error(STATUS_FAILED, "%s has no session: `tandem session export' writes them", m->name);
  return code == STATUS_OK && m->refused ? STATUS_FAILED : code;
}

int command_session_import(command_session_work *w) {
  const char *path = w->flags.given.arguments[0];
  bool from_stdin = strcmp(path, "-") == 0;
import m = {.w = w, .from = from_stdin ? stdin:fopen(path, "re"), .name = from_stdin ? "stdin" :path };
  err e = {0};
  if (!m.from) return command_error(STATUS_IO, "cannot read %.200s: %s", path, strerror(errno));
  int code = ledger_database_open(&w->db, w->path, true, &e) ? command_session_error(&e) : take_lines(&m);
  if (fflush(stdout) != 0) code = command_error(STATUS_IO, "cannot write to stdout");
  if (!from_stdin) fclose(m.from);
  free(m.line);
  return code;
}
