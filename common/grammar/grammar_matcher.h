/* grammar_matcher.h - follows an answer through a grammar, token by token: which tokens may come next?
 *
 * A state is the set of all ways in which the bytes so far can be read: each is what is expected next, and
 * what follows when that is done. A character's bytes may lie in several tokens. States and the steps between
 * them are kept, so that the same state costs little again; and so is the set of tokens that a state allows.
 * Both are functions of the grammar, the vocabulary and the answer alone, whatever was asked before.
 *
 * Bounds make every call short. A text that would pass one is not allowed, as if the grammar said so.
 */
#pragma once

#include "common/base/sampler.h"
#include "common/grammar/grammar.h"
#include "common/grammar/grammar_vocabulary.h"

/* Ways that are looked at for one set of tokens: a fraction of a second. Of the rest see grammar_states.h. */
#define GRAMMAR_MATCHER_WORK_MAX (1 << 24)

typedef struct grammar_matcher grammar_matcher;

/* Takes `g` over, also where it fails; `v` must outlive it. stops[stop_count] are copied: the tokens that end
 * an answer, allowed where the grammar is at its end, and only there. ERR_ARG: there is none; ERR_LIMIT: an
 * answer cannot even begin within the bounds; ERR_NOMEM. */
int grammar_matcher_open(grammar_matcher **out, grammar *g, const grammar_vocabulary *v, const int32_t *stops,
                         int32_t stop_count, err *e);
void grammar_matcher_close(grammar_matcher *m); /* NULL is allowed */

/* Where the answer is `answer` and then `path`. Cheap where it goes on from the last call's. ERR_NOMEM. */
int grammar_matcher_move(grammar_matcher *m, const int32_t *answer, int32_t answer_count, const int32_t *path,
                         int32_t path_count);

/* May this token come next? */
bool grammar_matcher_allows(grammar_matcher *m, int32_t token);

/* The tokens that may come next, as a sampler takes them, until the next call. NULL: to find out takes more
 * than GRAMMAR_MATCHER_WORK_MAX, or memory. */
const uint32_t *grammar_matcher_mask(grammar_matcher *m);

/* What sampler_pick chooses from the tokens that may come next; -1: there are none, or the mask is NULL.
 * Where no filter depends on it, the mask is made only if none of the best tokens is allowed. row->mask is
 * not used. */
int32_t grammar_matcher_pick(grammar_matcher *m, sampler *s, const sampler_options *o, const sampler_row *row,
                             const float *logits, int32_t position);
