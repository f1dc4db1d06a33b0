/* vocabulary_map.h - two vocabularies that are one but for padding and added tokens: which id here is which
 * id there.
 *
 * Partners are spelt alike to the byte, and both are single bytes or neither is: nothing is joined or split,
 * so what crosses is what was meant. The target's ids are those of the network, the draft's those of its
 * model. */
#pragma once

#include "common/file/model_file.h"
#include "common/file/vocabulary.h"

typedef struct vocabulary_map {
  int32_t target_count, draft_count;
  int32_t *to_draft;  /* [target_count]: the draft's id, or -1 */
  int32_t *to_target; /* [draft_count]: the target's id, or -1 */
  bool same;          /* every id is the same on both sides: nothing has to be looked up */
} vocabulary_map;     /* zeroed at first */

/* Of the text tokens of either side, so many in a thousand may lack a partner: tokens that were added as
 * plain text. */
#define VOCABULARY_MAP_LACKING_MAX 10

/* ERR_MISMATCH: the vocabularies differ in more than padding and added tokens; the text says by how much.
 * ERR_NOMEM. */
int vocabulary_map_init(vocabulary_map *b, const vocabulary *target, const vocabulary *draft, err *e);
/* Of two models. One without a vocabulary is taken to have the other's if they have equally many tokens. The
 * errors above, and those of reading a vocabulary; *b is none then. */
int vocabulary_map_open(vocabulary_map *b, const model_file *target, const model_file *draft, err *e);
void vocabulary_map_fini(vocabulary_map *b);
