#include "bench/command_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int command_list(const char *flag, const char *text, int32_t most,
                 int (*take)(void *context, const char *number, err *e), void *context, err *e) {
  char *copy = strdup(text), *rest = copy;
  int rc = copy ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
  int32_t count = 0;
  for (const char *one; rc == ERR_OK && (one = strsep(&rest, ","));)
    rc = count++ == most ? err_set(e, ERR_ARG, "%s takes %d numbers at most", flag, most)
                         : take(context, one, e);
  free(copy);
  return rc;
}

int command_needs_model(const flag_values *given, err *e) {
  return given->model ? ERR_OK
                      : err_set(e, ERR_ARG,
                                "no model: give one with -m FILE.gguf (scripts/get_model.sh fetches the "
                                "default one)");
}

int command_fail(int status, const char *why) {
  fprintf(stderr, "tandem-bench: error: %s\n", why);
  return status;
}
