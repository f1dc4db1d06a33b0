/* load.h - a load on an HTTP server: requests with a body each, so many at a time, and what came of each. */
#pragma once

#include "bench/serve/answer_stream.h"

#define LOAD_STREAMS_MAX 1024

typedef struct load_options {
  const char *url; /* of the path that is posted to */
  const char *key; /* sent as a bearer token; NULL: none */
  int32_t streams; /* requests under way, at most; 1 to LOAD_STREAMS_MAX */
  double rate;   /* requests begun a second, on average, at random moments (Poisson); 0: as soon as may be */
  uint64_t seed; /* of those moments */
  int32_t give_up_s; /* a request that has not ended by then has failed */
} load_options;

typedef struct load_answer {
  uint64_t begin_us, end_us; /* of the monotonic clock: sent; ended */
  answer_stream stream;      /* its error says also what kept the answer from coming */
} load_answer;

/* Posts bodies[count], each a NUL-terminated JSON object, in their order, and waits for all answers. answers
 * [count] need not be initialised; the caller ends each with answer_stream_fini, also after an error. A
 * request that fails does not end the load. ERR_NOMEM, ERR_IO: the client itself does not work. */
int load_run(const load_options *o, char *const *bodies, size_t count, load_answer *answers, err *e);

/* The body of the answer to GET, NUL-terminated, for the caller to free. ERR_IO: no such answer, and why;
 * ERR_NOMEM. */
int load_get(const char *url, const char *key, char **out, err *e);
