/* log.h - one line a fact, on stderr: "tandem-target: warning: ...". stdout belongs to the answer.
 *
 * The logger is a value that its owner passes on; there is no process-wide one. How a line looks is the
 * process's, as stderr is. */
#pragma once

typedef enum { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG } log_level;
extern const char *const log_level_words[LOG_DEBUG + 1]; /* as --log-level takes them */

typedef enum { LOG_AS_TEXT, LOG_AS_JSON } log_format;
extern const char *const log_format_words[LOG_AS_JSON + 1]; /* as --log-format takes them */

typedef struct logger {
  const char *program; /* not owned */
  log_level level;     /* lines above it are dropped */
} logger;

/* Of all lines from now on; text, if it is never called. Call it before there are threads. */
void log_use_format(log_format format);

/* Thread safe; a NULL logger drops the line. A line about a session begins with "session " and its 16 digits,
 * and one about a request with "request ID: ", before those of its session: as JSON it is an object {time,
 * level, program, session, request, text}, the two where there is one. */
void log_line(const logger *l, log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
