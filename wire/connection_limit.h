/* connection_limit.h - limits how many connections a listener accepts, because each of them may make this
 * program hold a queue of frames.
 *
 * Private to wire/. It keeps the accepted descriptors and asks the system which of them are still
 * connections, because nothing reports reliably when a connection ends. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define CONNECTION_LIMIT_MAX 192

typedef struct connection_limit {
  int listener; /* the descriptor that listens */
  int list[CONNECTION_LIMIT_MAX];
  int32_t count;
  uint64_t refused;
} connection_limit;

void connection_limit_init(connection_limit *c, int listener);
/* Counts a connection that was just accepted. False: the limit is reached, and this connection has been shut
 * down. */
bool connection_limit_accept(connection_limit *c, int fd);
