/* connection_limit.h - how many connections come in at a listener. Each may make this program hold a queue of
 * frames, so they are counted and limited.
 *
 * Private to wire/. It knows the descriptors that were accepted and asks the system which of them are still
 * connections, because nobody tells reliably when one ends. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define CONNECTION_LIMIT_MAX 192

typedef struct connection_limit {
  int door; /* the descriptor that listens */
  int list[CONNECTION_LIMIT_MAX];
  int32_t count;
  uint64_t refused;
} connection_limit;

void connection_limit_init(connection_limit *c, int door);
/* One more was accepted. False: there are as many as may be, and this one has been shut down. */
bool connection_limit_accept(connection_limit *c, int fd);
