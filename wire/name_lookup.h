/* name_lookup.h - looks a host's name up beside the loop: the system's resolver may take as long as it likes.
 * Private to wire/. */
#pragma once

#include "wire/endpoint.h"
#include <uv.h>

typedef struct name_lookup name_lookup;

/* Begins with the name in an endpoint that endpoint_has_name. `wake` is sent when the answer is there, and
 * not any more once the lookup is dropped. NULL: no memory or no thread. */
name_lookup *name_lookup_start(const char *endpoint, uv_async_t *wake);
/* The answer, which is the lookup's; NULL: it is not there yet. */
const endpoint_numbers *name_lookup_answer(name_lookup *l);
/* Ends it, whether the answer is there or not; NULL is fine. Never waits. */
void name_lookup_drop(name_lookup *l);
