#include "common/text/vocabulary_map.h"

#include "common/base/hash.h"
#include <stdlib.h>
#include <string.h>

enum { NONE = -1, LACKING_UNIT = 1000 };

/* A vocabulary's tokens by what they say: open addressing. */
typedef struct lexicon {
  const vocabulary *v;
  int32_t *slots; /* [mask + 1]: an id, or NONE */
  size_t mask;
} lexicon;

static bool is_text(const vocabulary *v, int32_t id) {
  return v->kinds[id] == TOKEN_NORMAL || v->kinds[id] == TOKEN_BYTE;
}

static bool same_token(const vocabulary *a, int32_t i, const vocabulary *b, int32_t j) {
  size_t size, other;
  if (a->kinds[i] == TOKEN_UNUSED || b->kinds[j] == TOKEN_UNUSED) return false;
  if ((a->kinds[i] == TOKEN_BYTE) != (b->kinds[j] == TOKEN_BYTE)) return false;
  const char *x = vocabulary_spelling(a, i, &size), *y = vocabulary_spelling(b, j, &other);
  return size == other && memcmp(x, y, size) == 0;
}

/* The slot of a token with the same spelling, or the free slot where it would go. */
static size_t lexicon_slot(const lexicon *x, const vocabulary *v, int32_t id) {
  size_t size;
  const char *text = vocabulary_spelling(v, id, &size);
  hash16 h = hash_bytes(text, size);
  size_t at;
  memcpy(&at, h.bytes, sizeof at);
  at &= x->mask;
  while (x->slots[at] != NONE && !same_token(x->v, x->slots[at], v, id)) at = (at + 1) & x->mask;
  return at;
}

static bool lexicon_init(lexicon *x, const vocabulary *v) {
  size_t size = 16;
  while (size < 2 * (size_t)v->count) size *= 2;
  *x = (lexicon){v, malloc(size * sizeof *x->slots), size - 1};
  if (!x->slots) return false;
  for (size_t i = 0; i < size; i++) x->slots[i] = NONE;
  for (int32_t id = 0; id < v->count; id++) {
    if (v->kinds[id] == TOKEN_UNUSED) continue;
    size_t at = lexicon_slot(x, v, id);
    if (x->slots[at] == NONE) x->slots[at] = id; /* of two that are spelt alike, the first */
  }
  return true;
}

static int32_t *ids(int32_t count) {
  int32_t *list = malloc((size_t)(count ? count : 1) * sizeof *list);
  for (int32_t i = 0; list && i < count; i++) list[i] = NONE;
  return list;
}

static bool take_memory(vocabulary_map *b, int32_t target_count, int32_t draft_count) {
  *b = (vocabulary_map){target_count, draft_count, ids(target_count), ids(draft_count), false};
  return b->to_draft && b->to_target;
}

void vocabulary_map_fini(vocabulary_map *b) {
  free(b->to_draft);
  free(b->to_target);
  *b = (vocabulary_map){0};
}

static void join(vocabulary_map *b, int32_t target, int32_t draft) {
  if (target >= b->target_count || draft >= b->draft_count || b->to_target[draft] != NONE) return;
  b->to_draft[target] = draft;
  b->to_target[draft] = target;
}

/* Equal tokens with equal ids are matched first, so that two tokens with one spelling keep apart. */
static void join_all(vocabulary_map *b, const vocabulary *target, const vocabulary *draft, const lexicon *x) {
  for (int32_t id = 0; id < target->count && id < draft->count; id++)
    if (same_token(target, id, draft, id)) join(b, id, id);
  for (int32_t id = 0; id < target->count && id < b->target_count; id++) {
    if (b->to_draft[id] != NONE || target->kinds[id] == TOKEN_UNUSED) continue;
    int32_t partner = x->slots[lexicon_slot(x, target, id)];
    if (partner != NONE) join(b, id, partner);
  }
}

/* Text tokens, and how many of them have no partner. */
static int32_t lacking(const vocabulary *v, const int32_t *partners, int32_t count, int32_t *all,
                       int32_t *first) {
  int32_t n = *all = 0;
  for (int32_t id = 0; id < v->count && id < count; id++) {
    if (!is_text(v, id)) continue;
    ++*all;
    if (partners[id] == NONE && n++ == 0) *first = id;
  }
  return n;
}

static int check_side(const vocabulary *v, const int32_t *partners, int32_t count, const char *whose,
                      const char *other, err *e) {
  int32_t all, first = 0, n = lacking(v, partners, count, &all, &first);
  size_t size = 0;
  const char *text = n ? vocabulary_spelling(v, first, &size) : "";
  if ((int64_t)n * LACKING_UNIT <= (int64_t)all * VOCABULARY_MAP_LACKING_MAX) return ERR_OK;
  return err_set(e, ERR_MISMATCH,
                 "the draft's vocabulary is another one: %d of %d tokens of the %s are none of the %s's (the "
                 "first: '%.*s'); "
                 "give a draft model of the target's family",
                 n, all, whose, other, size < 32 ? (int)size : 32, text);
}

static bool unused(const vocabulary *v, int32_t id) {
  return id >= v->count || v->kinds[id] == TOKEN_UNUSED;
}

static void look_for_same(vocabulary_map *b, const vocabulary *target, const vocabulary *draft) {
  b->same = b->target_count == b->draft_count;
  for (int32_t id = 0; b->same && id < b->target_count; id++)
    b->same = b->to_draft[id] == id || (unused(target, id) && unused(draft, id));
}

static int build(vocabulary_map *b, const vocabulary *target, const vocabulary *draft, err *e) {
  lexicon x = {0};
  if (!lexicon_init(&x, draft)) return err_set(e, ERR_NOMEM, "out of memory for the vocabularies");
  join_all(b, target, draft, &x);
  free(x.slots);
  int rc = check_side(target, b->to_draft, b->target_count, "target", "draft", e);
  if (rc == ERR_OK) rc = check_side(draft, b->to_target, b->draft_count, "draft", "target", e);
  look_for_same(b, target, draft);
  return rc;
}

static int init(vocabulary_map *b, const vocabulary *target, int32_t target_count, const vocabulary *draft,
                int32_t draft_count, err *e) {
  int rc = take_memory(b, target_count, draft_count)
               ? build(b, target, draft, e)
               : err_set(e, ERR_NOMEM, "out of memory for the vocabularies");
  if (rc != ERR_OK) vocabulary_map_fini(b);
  return rc;
}

int vocabulary_map_init(vocabulary_map *b, const vocabulary *target, const vocabulary *draft, err *e) {
  return init(b, target, target->count, draft, draft->count, e);
}

/* Nothing is known of what the ids of one of them mean. */
static int init_unknown(vocabulary_map *b, int32_t target_count, int32_t draft_count, err *e) {
  if (target_count != draft_count)
    return err_set(e, ERR_MISMATCH,
                   "the draft model has %d tokens, the target %d, and no vocabulary tells which are the "
                   "same: give a draft "
                   "model of the target's family",
                   draft_count, target_count);
  if (!take_memory(b, target_count, draft_count)) {
    vocabulary_map_fini(b);
    return err_set(e, ERR_NOMEM, "out of memory for the vocabularies");
  }
  for (int32_t id = 0; id < target_count; id++) join(b, id, id);
  b->same = true;
  return ERR_OK;
}

int vocabulary_map_open(vocabulary_map *b, const model_file *target, const model_file *draft, err *e) {
  vocabulary t = {0}, d = {0};
  int32_t target_count = model_file_config(target)->vocab, draft_count = model_file_config(draft)->vocab;
  *b = (vocabulary_map){0};
  int rc = model_file_read_vocabulary(target, &t, e);
  if (rc == ERR_OK) rc = model_file_read_vocabulary(draft, &d, e);
  if (rc == ERR_OK && t.count && d.count)
    rc = init(b, &t, target_count, &d, draft_count, e);
  else if (rc == ERR_OK)
    rc = init_unknown(b, target_count, draft_count, e);
  vocabulary_fini(&t);
  vocabulary_fini(&d);
  return rc;
}
