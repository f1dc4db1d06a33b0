/* pacing.h - decides how far a session's tree grows before its draft lets the target verify it, if draft and
 * target are colocated and so take turns. Pure.
 *
 * A node is worth its path probability less what its row costs the verify, in tokens. P is the sum of what
 * all nodes are worth. A round yields 1 + P tokens, and takes the time that the draft has computed plus the
 * time that the target will verify. Another forward of the draft, which is expected to add g tokens in d us,
 * is worth it while g / d exceeds the tokens per us that the round yields without it (marginal value theorem,
 * Charnov 1976). All times are us. */
#pragma once

#include "common/speculative/average.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct pacing { /* of one session; all zero at the start */
  average verify_us;    /* time from sending a tree to the tokens that it gave */
  int32_t forwards; /* forwards that brought replies since C last grew; forwards that only catch up with C are
                       not part of a round */
  uint64_t sent_us; /* when the whole tree was sent, if it has nodes; 0: it was not sent */
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

/* C has grown. `stalled`: this draft stood still meanwhile, so nothing is learnt. */
void pacing_tokens(pacing *t, uint64_t now_us, bool stalled);
void pacing_sent(pacing *t, uint64_t now_us); /* the whole tree was sent, and has nodes */

/* What a node of this path probability is worth, in tokens. */
double pacing_worth(double probability);
/* The probability of the best candidate of a reply, as experience has it. */
double pacing_best(const pacing_costs *c);
/* Is another forward worth it? tokens: 1 + P; gain: what the best candidates of the nodes that it would query
 * are worth. */
bool pacing_goes_on(const pacing *t, const pacing_costs *c, double tokens, double gain);
