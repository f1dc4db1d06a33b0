/* figures.h - what a load's answers come to: speeds, percentiles of the times that a user notices, and how
 * many answers failed or differ. Times in milliseconds. */
#pragma once

#include "bench/serve/load.h"
#include <stdio.h>

typedef struct percentiles {
  double p50, p90, p99, mean; /* 0: nothing was measured */
} percentiles;

typedef struct figures {
  size_t answers, failed;
  int64_t tokens;            /* by the server's count, else one for each event */
  double seconds;            /* from the first request to the last answer */
  percentiles first;         /* time to first token */
  percentiles between;       /* between two events of an answer, each of which may bring several tokens */
  percentiles token;         /* of an answer: time after its first token, over the tokens after it */
  percentiles whole;         /* from request to end */
  int64_t drafted, accepted; /* -1: the server does not tell */
  const char *error;         /* of the first answer that failed, in `answers`; NULL: none */
} figures;

/* ERR_NOMEM. */
int figures_make(figures *f, const load_answer *answers, size_t count);
/* Answers that came whole in both and have another text. */
size_t figures_differing(const load_answer *a, const load_answer *b, size_t count);
double figures_tokens_per_second(const figures *f);
