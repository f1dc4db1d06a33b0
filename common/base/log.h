/* log.h - one line a fact, on stderr: "tandem-target: warning: ...". stdout belongs to the answer.
 *
 * The logger is a value that its owner passes on; there is no process-wide one. */
#pragma once

typedef enum { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG } log_level;
extern const char *const log_level_words[LOG_DEBUG + 1]; /* as --log-level takes them */

typedef struct logger {
  const char *program; /* not owned */
  log_level level;     /* lines above it are dropped */
} logger;

/* Thread safe; a NULL logger drops the line. */
void log_line(const logger *l, log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
