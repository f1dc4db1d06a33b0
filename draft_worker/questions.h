/* questions.h - what a drafter that answers by batches is asked: of all sessions the most probable places of
 * their trees, and before that, what it has not been told of their C. */
#pragma once

#include "draft_worker/drafters/batch.h"
#include "draft_worker/draft_session.h"

/* Fills a batch with questions about these sessions, at most m->rows; list[i] may be NULL. The one at
 * `first` is told of its C first. *serial: of the last question ever asked. False: there is nothing to ask.
 */
bool questions_fill(draft_session *const *list, int32_t count, const draft_method *m, int32_t first,
                    uint64_t *serial, draft_batch *b);
/* Takes the answers, but those to places that are gone; marks the sessions as answered. */
void questions_take(draft_session *const *list, int32_t count, draft_method *m, const draft_results *r);
