/* ngram.h - prompt lookup: finds the longest ending of the path that has occurred before, and proposes what
 * followed it. */
#pragma once

#include "draft_worker/drafters/immediate.h"

extern const immediate_kind ngram_kind; /* shared: NULL */
