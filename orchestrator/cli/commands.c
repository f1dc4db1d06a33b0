#include "orchestrator/cli/commands.h"

#include "common/base/log.h"
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

int command_error(status code, const char *format, ...) {
  const logger log = {"tandem", LOG_ERROR};
  char text[ERR_TEXT_MAX + 200];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_line(&log, LOG_ERROR, "%s", text);
  return code;
}

status command_signal_status(int signal_number) {
  switch (signal_number) {
  case SIGHUP:
    return STATUS_HANGUP;
  case SIGTERM:
    return STATUS_TERMINATED;
  default:
    return STATUS_INTERRUPTED;
  }
}

status command_serve_status(int code) {
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
  return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
}

void command_warn_dropped(size_t bytes) {
  const logger log = {"tandem", LOG_WARNING};
  if (bytes)
    log_line(&log, LOG_WARNING, "%zu byte%s of the text ha%s no token in this vocabulary and %s left out",
             bytes, bytes == 1 ? "" : "s", bytes == 1 ? "s" : "ve", bytes == 1 ? "was" : "were");
}
