#include "common/base/progress.h"

#include "common/base/clock.h"
#include "common/base/terminal.h"
#include <stdio.h>
#include <unistd.h>

#define TEXT_ROOM 160
#define CLEAR     "\r\033[K"

static progress_kind tell_terminal(progress *p, int percent, uint64_t now_us, char *out, size_t size) {
  if (percent == p->percent) return PROGRESS_NOTHING;
  if (percent >= 100)
    snprintf(out, size, CLEAR);
  else
    snprintf(out, size, "\r%s: %s: %3d %%", p->log ? p->log->program : "", p->what, percent);
  p->percent = percent;
  p->said_us = percent >= 100 ? 0 : now_us;
  return PROGRESS_REWRITE;
}

progress_kind progress_tell(progress *p, double done, uint64_t now_us, char *out, size_t size) {
  uint64_t took_us = now_us - p->began_us;
  int percent = (int)(done * 100);
  bool over = percent >= 100 && !p->said_us; /* nothing was said, or nothing is left to take away */
  if (took_us < PROGRESS_QUIET_US || over) return PROGRESS_NOTHING;
  if (p->rewrites) return tell_terminal(p, percent, now_us, out, size);
  if (percent < 100 && p->said_us && now_us - p->said_us < PROGRESS_INTERVAL_US) return PROGRESS_NOTHING;
  snprintf(out, size, "%s: %d %% after %.0f s", p->what, percent, (double)took_us / 1e6);
  p->said_us = percent >= 100 ? 0 : now_us;
  return PROGRESS_LINE;
}

progress progress_begin(const char *what, const logger *log, bool alone) {
  return (progress){.what = what,
                    .log = log,
                    .rewrites = alone && terminal_takes_colours(STDERR_FILENO),
                    .began_us = clock_us(),
                    .percent = -1};
}

void progress_show(void *context, double done) {
  progress *p = context;
  char text[TEXT_ROOM];
  switch (progress_tell(p, done, clock_us(), text, sizeof text)) {
  case PROGRESS_REWRITE:
    fputs(text, stderr);
    break;
  case PROGRESS_LINE:
    log_line(p->log, LOG_INFO, "%s", text);
    break;
  case PROGRESS_NOTHING:
    break;
  }
}

void progress_end(progress *p) {
  if (p->rewrites && p->said_us) fputs(CLEAR, stderr);
}
