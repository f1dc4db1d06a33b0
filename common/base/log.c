#include "common/base/log.h"

#include "common/base/clock.h"
#include "common/base/log_json.h"
#include "common/base/terminal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG_LINE_MAX 1024

const char *const log_level_words[] = {"error", "warning", "info", "debug"};
const char *const log_format_words[] = {"text", "json"};

static log_format format_of_all;

void log_use_format(log_format format) {
  format_of_all = format;
}

/* In one write, so that lines do not mix. */
static void write_line(const char *line, size_t size) {
  ssize_t written = write(STDERR_FILENO, line, size);
  (void)written;
}

static void write_text(const char *program, log_level level, const char *text) {
  static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
  char line[LOG_LINE_MAX], clean[TERMINAL_CLEAN_MAX(LOG_LINE_MAX) + 1];
  int n = snprintf(line, sizeof line, "%s: %s%s", program, names[level], text);
  if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
  size_t size = terminal_clean_message(clean, line, (size_t)n);
  clean[size++] = '\n';
  write_line(clean, size);
}

static void write_json(const char *program, log_level level, const char *text) {
  char *line = log_json_line(program, log_level_words[level], clock_wall_us(), text);
  if (line)
    write_line(line, strlen(line));
  else
    write_text(program, level, text); /* out of memory, which may be what it says */
  free(line);
}

void log_line(const logger *l, log_level level, const char *format, ...) {
  char text[LOG_LINE_MAX];
  va_list args;
  if (!l || level > l->level) return;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (format_of_all == LOG_AS_JSON)
    write_json(l->program, level, text);
  else
    write_text(l->program, level, text);
}
