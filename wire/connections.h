/* connections.h - how many connections come in at a door: each may make us hold a queue of frames, so they
 * are counted.
 *
 * Private to wire/. It knows the descriptors that were accepted and asks the system which of them are
 * connections still: nobody tells reliably when one ends. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define CONNECTIONS_MAX 192

typedef struct connections {
  int door; /* the descriptor that listens */
  int list[CONNECTIONS_MAX];
  int32_t count;
  uint64_t refused;
} connections;

void connections_init(connections *c, int door);
/* One more was accepted. False: there are as many as may be, and this one has been shut down. */
bool connections_accept(connections *c, int fd);
