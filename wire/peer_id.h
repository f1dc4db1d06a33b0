/* peer_id.h - names a connection to another program. The transport gives the numbers, and never one twice. */
#pragma once

#include <stdint.h>

typedef uint64_t peer_id; /* 0: none */
