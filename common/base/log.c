#include "common/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define LOG_LINE_MAX 1024

const char *const log_level_words[] = {"error", "warning", "info", "debug"};

void log_line(const logger *l, log_level level, const char *format, ...) {
  static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
  if (!l || level > l->level) return;
  char line[LOG_LINE_MAX];
  int n = snprintf(line, sizeof line, "%s: %s", l->program, names[level]);
  va_list args;
  va_start(args, format);
  n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
  va_end(args);
  if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
  line[n++] = '\n';
  ssize_t written = write(STDERR_FILENO, line, (size_t)n); /* one write, so that lines do not mix */
  (void)written;
}
