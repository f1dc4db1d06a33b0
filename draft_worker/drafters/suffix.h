/* suffix.h - looks up endings in a corpus of earlier texts (corpus.h), and proposes what followed them.
 * Prompt lookup (ngram.h), which looks into the session's own text, stands beside it and feeds the same tree.
 */
#pragma once

#include "draft_worker/drafters/corpus.h"
#include "draft_worker/drafters/immediate.h"

typedef struct suffix_source { /* what all sessions look into */
  corpus *corpus;              /* borrowed */
  bool learns; /* the text of a session that is over goes into it: only where all sessions are one user's */
} suffix_source;

extern const immediate_kind suffix_kind; /* shared: suffix_source */
