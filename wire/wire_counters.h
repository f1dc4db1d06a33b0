/* wire_counters.h - what --counters tells of a program's links: one line of JSON on stderr. The sent bytes of
 * all programs together are what all links have carried. */
#pragma once

#include "wire/transport.h"

void wire_counters_print(const char *program, const transport *t);
