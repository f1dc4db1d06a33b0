/* pacing.h - how far the tree of one session grows before its draft lets the target verify, where both
 * compute on the same processors and so take turns: pure.
 *
 * With P the sum of the nodes' probabilities (each of its whole path), a round yields 1 + P tokens in the
 * time that the draft has computed and that the target will verify. A forward more that is expected to add g
 * tokens in d us is worth it while g / d is more than what the round yields a us without it (marginal value
 * theorem, Charnov 1976). All times are us. */
#pragma once

#include "common/speculative/average.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct pacing { /* of one session; all zero at the start */
  average verify_us;    /* time from a tree that was sent to the tokens it gave */
  int32_t forwards; /* that brought replies since C became what it is: the forwards that it took to catch up
                       are no part of a round */
  uint64_t sent_us; /* when the tree was sent whole with nodes in it; 0: it was not */
} pacing;

typedef struct pacing_costs { /* of a draft's model, all zero at the start */
  average forward_us;         /* time of a forward that carries queries */
  average best;               /* probability of the best candidate of a reply */
} pacing_costs;

/* A forward with queries took us > 0; it brought replies for this session. */
void pacing_forward(pacing_costs *c, double us);
void pacing_replied(pacing *t);
/* The best candidate of a reply has this probability. */
void pacing_reply(pacing_costs *c, double best);

void pacing_tokens(pacing *t, uint64_t now_us); /* C grew */
void pacing_sent(pacing *t, uint64_t now_us);   /* the tree was sent whole, with nodes */

/* Is a forward more worth it? tokens: 1 + P; frontier: the sum of the path probabilities of the nodes that it
 * would query. */
bool pacing_goes_on(const pacing *t, const pacing_costs *c, double tokens, double frontier);
