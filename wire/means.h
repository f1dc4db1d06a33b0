/* means.h - whether this process may have what ZeroMQ takes without asking: where it gets no descriptor,
 * thread or memory, it calls abort(). Looked at before the first socket; and abort() itself, in all programs
 * that link this, ends with a sentence and STATUS_FAILED where the last error was that something ran
 * out. Private to wire/. */
#pragma once

#include "common/base/err.h"

#define MEANS_FILES   64 /* a program with one peer has about 40 descriptors */
#define MEANS_THREADS 4  /* ZeroMQ's two, the keys' gate, and the engine's first */
/* How often, and how long each time, the system is given to forget the threads of the look. */
#define MEANS_PAUSES   100
#define MEANS_PAUSE_US 100

/* ERR_LIMIT names the limit that is too low, and what is needed. */
int means_check(err *e);
