#include "common/base/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool terminal_is_smart(int fd) {
  const char *kind = getenv("TERM");
  return isatty(fd) && kind && *kind && strcmp(kind, "dumb") != 0;
}

bool terminal_takes_colours(int fd) {
  const char *plain = getenv("NO_COLOR");
  return terminal_is_smart(fd) && !(plain && *plain);
}
