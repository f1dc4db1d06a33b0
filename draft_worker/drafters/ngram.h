/* ngram.h - prompt lookup (common/speculative/prompt_lookup.h) as a drafter. */
#pragma once

#include "draft_worker/drafters/immediate.h"

extern const immediate_kind ngram_kind; /* shared: NULL */
