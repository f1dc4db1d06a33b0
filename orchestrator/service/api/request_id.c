#include "orchestrator/service/api/request_id.h"

#include "common/base/program.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#define NAME "X-Request-Id"

/* It goes into a header and a log line, so it must not be able to begin another one. */
static bool is_good(const char *id) {
  size_t n = 0;
  while (n <= REQUEST_ID_MAX && id[n] > ' ' && id[n] < 127) n++;
  return n > 0 && n <= REQUEST_ID_MAX && id[n] == 0;
}

void request_id_give(http_exchange *x) {
  const char *given = http_header(x, NAME);
  uint64_t random[2];
  char made[40];
  if (given && is_good(given)) {
    http_add_header(x, NAME, given);
  } else if (program_random(random, sizeof random, NULL) == ERR_OK) {
    snprintf(made, sizeof made, "req-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    http_add_header(x, NAME, made);
  }
}

const char *request_id_of(const http_exchange *x) {
  const char *id = http_added_header(x, NAME);
  return id ? id : "";
}
