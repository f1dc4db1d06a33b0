/* vocabulary_map.h - maps ids between two vocabularies that are equal except for padding and added tokens.
 *
 * Two tokens are partners if their spellings are equal to the byte, and both are single bytes or neither is.
 * Nothing is joined or split, so a mapped token means the same on both sides. Ids on the wire are the
 * target's; the draft's are those of its own model. */
#pragma once

#include "common/file/model_file.h"
#include "common/file/vocabulary.h"

typedef struct vocabulary_map {
  int32_t target_count, draft_count;
  int32_t *to_draft;  /* [target_count]: the draft's id, or -1 */
  int32_t *to_target; /* [draft_count]: the target's id, or -1 */
  bool same;          /* every id is the same on both sides: nothing has to be looked up */
} vocabulary_map;     /* zeroed at first */

/* So many in a thousand of the text tokens of either side may lack a partner. These are tokens that were
 * added as plain text. */
#define VOCABULARY_MAP_LACKING_MAX 10

/* ERR_MISMATCH: the vocabularies differ in more than padding and added tokens; the text says by how much.
 * ERR_NOMEM. */
int vocabulary_map_init(vocabulary_map *b, const vocabulary *target, const vocabulary *draft, err *e);
/* The same for two models. A model without a vocabulary is taken to have the other's if both have equally
 * many tokens. The errors above, and those of reading a vocabulary; *b is empty then. */
int vocabulary_map_open(vocabulary_map *b, const model_file *target, const model_file *draft, err *e);
void vocabulary_map_fini(vocabulary_map *b);
