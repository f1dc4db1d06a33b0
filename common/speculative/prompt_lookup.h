/* prompt_lookup.h - finds the longest ending of a path that has occurred before in its text, and proposes
 * what followed it. Everything here is a function of the text and the prompt's length alone: the same tokens
 * give the same candidates, however and whenever they came. Source of the method: A. Saxena, "Prompt Lookup
 * Decoding" (2023). */
#pragma once

#include "common/base/err.h"
#include "common/speculative/draft_candidate.h"

typedef struct prompt_lookup prompt_lookup;

/* For a text of up to `room` tokens, of which the first prompt_length are the prompt; stops[stop_count] end a
 * turn. Takes about 100 bytes a token. ERR_NOMEM. */
int prompt_lookup_open(prompt_lookup **out, int32_t room, int32_t prompt_length, const int32_t *stops,
                       int32_t stop_count);
void prompt_lookup_close(prompt_lookup *d); /* NULL is allowed */

/* The text is tokens[length] from now on, length >= 1, which stay where they are until the next call; the
 * first `kept` of them are as they were. No memory is taken. */
void prompt_lookup_advance(prompt_lookup *d, const int32_t *tokens, int32_t length, int32_t kept);
int32_t prompt_lookup_length(const prompt_lookup *d); /* 0 at first */

/* What may follow the text and path[0..depth), the best first; returns how many. */
int32_t prompt_lookup_candidates(const prompt_lookup *d, const int32_t *path, int32_t depth,
                                 draft_candidate out[DRAFT_CANDIDATES_MAX]);
