#include "common/text/added_tokens.h"

#include <stdlib.h>
#include <string.h>

void added_tokens_fini(added_tokens *s) {
  for (size_t i = 0; i < s->count; i++) free(s->tokens[i].text);
  free(s->tokens);
  *s = (added_tokens){0};
}

int added_tokens_add(added_tokens *s, const char *text, uint32_t size, int32_t id, unsigned flags) {
  if (s->count == s->capacity) {
    size_t capacity = s->capacity ? 2 * s->capacity : 32;
    added_token *tokens = realloc(s->tokens, capacity * sizeof *tokens);
    if (!tokens) return ERR_NOMEM;
    s->tokens = tokens;
    s->capacity = capacity;
  }
  char *copy = malloc(size);
  if (!copy) return ERR_NOMEM;
  memcpy(copy, text, size);
  s->tokens[s->count++] = (added_token){copy, size, id, flags};
  return ERR_OK;
}

static int compare(const void *a, const void *b) {
  const added_token *x = a, *y = b;
  int c = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
  if (!c) c = (x->size > y->size) - (x->size < y->size);
  return c ? c : (x->id > y->id) - (x->id < y->id);
}

void added_tokens_sort(added_tokens *s) {
  if (s->count) qsort(s->tokens, s->count, sizeof *s->tokens, compare);
  size_t i = 0;
  for (unsigned c = 0; c < 256; c++) {
    s->first[c] = i;
    while (i < s->count && (uint8_t)s->tokens[i].text[0] == c) i++;
  }
  s->first[256] = i;
}

/* Byte `depth` of a token; -1 past its end, so that a prefix stands before what it begins. */
static int byte_at(const added_token *t, size_t depth) {
  return depth < t->size ? (uint8_t)t->text[depth] : -1;
}

/* The first of [low, high), which are equal up to `depth`, whose byte there is at least c. */
static size_t lower_bound(const added_tokens *s, size_t low, size_t high, size_t depth, int c) {
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (byte_at(&s->tokens[middle], depth) < c)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The longest token that text[size], size >= 1, begins with: the sorted tokens narrowed byte by byte. */
static const added_token *longest(const added_tokens *s, const char *text, size_t size) {
  const added_token *found = NULL;
  size_t low = s->first[(uint8_t)text[0]], high = s->first[(uint8_t)text[0] + 1];
  for (size_t depth = 1; low < high; depth++) {
    if (s->tokens[low].size == depth) found = &s->tokens[low];
    if (depth == size) break;
    int c = (uint8_t)text[depth];
    low = lower_bound(s, low, high, depth, c);
    high = lower_bound(s, low, high, depth, c + 1);
  }
  return found;
}

const added_token *added_tokens_find(const added_tokens *s, const char *text, size_t size, size_t *at) {
  for (size_t i = 0; s->count && i < size; i++) {
    const added_token *found = longest(s, text + i, size - i);
    if (found) {
      *at = i;
      return found;
    }
  }
  return NULL;
}

const added_token *added_tokens_exact(const added_tokens *s, const char *text, size_t size) {
  const added_token *found = s->count && size ? longest(s, text, size) : NULL;
  return found && found->size == size ? found : NULL;
}
