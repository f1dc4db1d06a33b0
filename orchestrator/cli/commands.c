#include "orchestrator/cli/commands.h"

#include "common/base/log.h"
#include "common/base/terminal.h"
#include "orchestrator/cli/closing_lines.h"
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int command_error(exit_status code, const char *format, ...) {
  const logger log = {"tandem", LOG_ERROR};
  char text[ERR_TEXT_MAX + 200];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_line(&log, LOG_ERROR, "%s", text);
  return code;
}

exit_status command_trouble(const service *s, const err *trouble) {
  if (!service_trouble_explained(s)) command_error(STATUS_WORKER, "%s", trouble->text);
  return STATUS_WORKER;
}

void command_clean_stdout(void) {
  FILE *clean = terminal_clean_stream(stdout);
  if (clean) stdout = clean;
}

exit_status command_signal_status(int signal_number) {
  switch (signal_number) {
  case SIGHUP:
    return STATUS_HANGUP;
  case SIGTERM:
    return STATUS_TERMINATED;
  default:
    return STATUS_INTERRUPTED;
  }
}

exit_status command_serve_status(int code) {
  switch (code) {
  case ERR_ARG:
    return STATUS_USAGE;
  case ERR_IO:
  case ERR_FORMAT:
  case ERR_VERSION:
  case ERR_TIMEOUT:
    return STATUS_IO;
  case ERR_NOMEM:
  case ERR_STATE:
  case ERR_GONE:
    return STATUS_FAILED;
  default:
    return STATUS_WORKER;
  }
}

int command_open_model(text_model *m, const char *path) {
  err e = {0};
  int rc = text_model_open_text(m, path, &e);
  if (rc == ERR_OK) rc = text_model_load(m, NULL, &e);
  if (rc == ERR_OK) return STATUS_OK;
  text_model_close(m);
  return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
}

void command_warn_dropped(size_t bytes) {
  const logger log = {"tandem", LOG_WARNING};
  if (bytes)
    log_line(&log, LOG_WARNING, "%zu byte%s of the text ha%s no token in this vocabulary and %s left out",
             bytes, bytes == 1 ? "" : "s", bytes == 1 ? "s" : "ve", bytes == 1 ? "was" : "were");
}

/* ---- the service ---- */

/* Nobody has asked for the default file: whoever begins to use tandem is told of it, and never again. */
static void tell_new_ledger(void *owner, const char *path) {
  (void)owner;
  const logger log = {"tandem", LOG_INFO};
  log_line(&log, LOG_INFO,
           "prompts and answers are kept in %s, which only you can read; --ledger none keeps nothing, "
           "`tandem session end --older-than 0s --delete' forgets what is there (this is said once)",
           path);
}

service_options command_service_options(const flags *f, int32_t context, const logger *log) {
  service_options o = {.workers = f->given,
                       .with_draft = flags_wants_draft(f),
                       .listen = f->given.listen,
                       .keys = f->given.keys,
                       .allow_plaintext = f->given.insecure_bind,
                       .draft_may_follow = f->command == COMMAND_SERVE_WORKERS,
                       .target_wait_s = f->given.wait,
                       .ledger = f->given.ledger,
                       .ledger_mode = f->given.ledger_mode,
                       .command = flags_command_name(f->command),
                       .log = log,
                       .on_new_ledger = tell_new_ledger};
  o.workers.context = context;
  return o;
}

int command_context(const text_model *m, int32_t wanted, int32_t *out) {
  err e = {0};
  if (text_model_context(m, wanted, out, &e) == ERR_OK) return STATUS_OK;
  return command_error(STATUS_USAGE, "--ctx: %s", e.text);
}

int command_prompt_error(const err *e) {
  int code = e->code == ERR_NOMEM ? STATUS_FAILED : e->code == ERR_IO ? STATUS_IO : STATUS_INPUT;
  return command_error(code, "%s%s", e->text, e->code == ERR_LIMIT ? "; --ctx N sets it" : "");
}

FILE *command_closing_open(command_closing *c, const flags *f) {
  *c = (command_closing){0};
  if (f->given.log_format == LOG_AS_JSON) c->collected = open_memstream(&c->text, &c->size);
  return c->collected ? c->collected : stderr;
}

void command_closing_close(command_closing *c) {
  const logger log = {"tandem", LOG_INFO};
  static const char begin[] = "tandem: ";
  if (!c->collected || fclose(c->collected) != 0) return;
  char *rest = c->text;
  for (char *line; (line = strsep(&rest, "\n"));) {
    if (strncmp(line, begin, strlen(begin)) == 0) line += strlen(begin);
    if (*line) log_line(&log, LOG_INFO, "%s", line);
  }
  free(c->text);
}

int command_end_queue(const request_queue *q, const flags *f) {
  command_warn_dropped(q->dropped_bytes);
  command_closing closing;
  FILE *to = command_closing_open(&closing, f);
  closing_lines_print_queue(to, q, flags_wants_draft(f) ? f->given.draft : "none");
  command_closing_close(&closing);
  if (q->out_of_memory) return command_error(STATUS_FAILED, "out of memory");
  if (service_signal(q->service)) return command_signal_status(service_signal(q->service));
  if (service_trouble(q->service, NULL)) return STATUS_WORKER;
  if (!service_kept(q->service)) return STATUS_IO;
  return q->failed ? STATUS_FAILED : STATUS_OK;
}
