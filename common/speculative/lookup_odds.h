/* lookup_odds.h - how often a candidate that was looked up is right, by the length of the ending that found
 * it and by how many occurrences of that ending agree. It begins with measured rates, and a session corrects
 * them by its own answer. */
#pragma once

#include "common/speculative/draft_candidate.h"

#include <stdbool.h>

#define LOOKUP_ODDS_ROWS 8
/* A candidate's case: how many occurrences of its ending it followed (1, 2, more), and how many of them other
 * tokens followed (none, no more than it, more). */
#define LOOKUP_ODDS_CASES 9

/* [row][case]: the rows are classes of an ending's length, as the drafter divides it. */
typedef float lookup_odds_table[LOOKUP_ODDS_ROWS][LOOKUP_ODDS_CASES];

typedef struct lookup_odds {
  int32_t tries[LOOKUP_ODDS_ROWS][LOOKUP_ODDS_CASES], hits[LOOKUP_ODDS_ROWS][LOOKUP_ODDS_CASES];
} lookup_odds; /* all zero at first */

typedef struct lookup_candidate {
  int32_t token;
  int32_t row;
  int32_t kase; /* column */
} lookup_candidate;

/* Is the token none of these? */
bool lookup_odds_is_new(const lookup_candidate *list, int32_t count, int32_t token);
/* The case of a token that followed `agree` occurrences, while other tokens followed `others`. */
int32_t lookup_odds_case(int32_t agree, int32_t others);
/* These were proposed where `token` came. */
void lookup_odds_learn(lookup_odds *o, const lookup_candidate *list, int32_t count, int32_t token);
/* The candidates that are worth sending, with their scores, the best first; of equals the first stays first.
 * Returns how many; count is at most DRAFT_CANDIDATES_MAX. */
int32_t lookup_odds_rank(const lookup_odds *o, const lookup_odds_table *table, const lookup_candidate *list,
                         int32_t count, draft_candidate *out);
