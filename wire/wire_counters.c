#include "wire/wire_counters.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define LINE_BYTES 300

/* In one write, so that no other program's line can cut it. */
void wire_counters_print(const char *program, const transport *t) {
  const transport_counters c = transport_count(t);
  char line[LINE_BYTES];
  int size = snprintf(line, sizeof line,
                      "{\"wire\": {\"program\": \"%s\", \"sent\": %" PRIu64 ", \"received\": %" PRIu64
                      ", \"dropped\": %" PRIu64 ", \"bad_frames\": %" PRIu64 ", \"sent_bytes\": %" PRIu64
                      ", \"received_bytes\": %" PRIu64 "}}\n",
                      program, c.sent, c.received, c.dropped, c.bad_frames, c.sent_bytes, c.received_bytes);
  ssize_t written = write(STDERR_FILENO, line, (size_t)size);
  (void)written;
}
