#include "common/speculative/prompt_lookup.h"

#include "common/speculative/chat_header.h"
#include "common/speculative/lookup_odds.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NGRAM_MAX         8                    /* tokens of the longest ending that is looked up */
#define NGRAM_CANDIDATES  DRAFT_CANDIDATES_MAX /* for one position */
#define NGRAM_OCCURRENCES 16                   /* of one ending, the most recent ones, that are looked at */

/* A row for each length of an ending. Measured on greedy completions of SmolLM2-135M-Instruct to 96 prompts
 * of Spec-Bench, 9,619 positions, smoothed where there were few. */
_Static_assert(NGRAM_MAX == LOOKUP_ODDS_ROWS, "a row for each length");
static const lookup_odds_table measured = {
    {0.33f, 0.10f, 0.03f, 0.44f, 0.15f, 0.06f, 0.80f, 0.31f, 0.11f},
    {0.57f, 0.15f, 0.07f, 0.75f, 0.26f, 0.15f, 0.90f, 0.29f, 0.13f},
    {0.69f, 0.20f, 0.07f, 0.77f, 0.32f, 0.12f, 0.90f, 0.30f, 0.13f},
    {0.70f, 0.20f, 0.07f, 0.82f, 0.33f, 0.12f, 0.90f, 0.32f, 0.15f},
    {0.77f, 0.23f, 0.10f, 0.82f, 0.36f, 0.15f, 0.90f, 0.35f, 0.15f},
    {0.78f, 0.23f, 0.10f, 0.86f, 0.36f, 0.15f, 0.90f, 0.35f, 0.15f},
    {0.83f, 0.24f, 0.10f, 0.88f, 0.36f, 0.15f, 0.90f, 0.35f, 0.15f},
    {0.87f, 0.31f, 0.15f, 0.95f, 0.50f, 0.15f, 0.99f, 0.60f, 0.20f},
};

struct prompt_lookup {
  const int32_t *tokens; /* C */
  int32_t length;        /* of C, all of it indexed */
  int32_t prompt_length, room;
  int32_t *stops, stop_count; /* tokens that end a turn */
  int32_t header;  /* tokens of a chat template between the end of one turn and the text of the next; 0: not a
                      chat */
  int32_t opening; /* tokens of the header that the prompt begins with */
  int32_t marked;  /* the last of C's tokens [0, length) that are the template's own end here */
  int bucket_shift;
  /* A position is the index of the token that followed an ending; 0: none. */
  int32_t *newest;             /* [NGRAM_MAX][buckets] */
  int32_t (*older)[NGRAM_MAX]; /* [room]: the position before, in the same bucket */
  size_t bucket_count;
  lookup_odds odds;
};

/* The last tokens of a path, newest first. */
typedef struct ending {
  int32_t tokens[NGRAM_MAX];
  int32_t count;
  size_t buckets[NGRAM_MAX]; /* of the last 1, 2, ... tokens */
} ending;

static void ending_add(const prompt_lookup *d, ending *x, int32_t token) {
  uint64_t before = x->count ? (uint64_t)x->buckets[x->count - 1] : 0;
  uint64_t h = (before + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint32_t)token;
  h = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
  x->buckets[x->count] = (size_t)(h >> d->bucket_shift);
  x->tokens[x->count++] = token;
}

/* Of tokens[0..length) followed by path[0..depth), as far back as the template's last mark. */
static ending ending_of(const prompt_lookup *d, int32_t length, const int32_t *path, int32_t depth) {
  ending x = {.count = 0};
  for (int32_t i = depth - 1; i >= 0 && x.count < NGRAM_MAX; i--) ending_add(d, &x, path[i]);
  for (int32_t i = length - 1; i >= d->marked && x.count < NGRAM_MAX; i--) ending_add(d, &x, d->tokens[i]);
  return x;
}

static bool occurs_before(const prompt_lookup *d, int32_t position, const ending *x, int32_t n) {
  if (position < n) return false;
  for (int32_t i = 0; i < n; i++)
    if (d->tokens[position - 1 - i] != x->tokens[i]) return false;
  return true;
}

/* What followed the ending of n tokens, the most recent occurrence first. */
static int32_t followers(const prompt_lookup *d, const ending *x, int32_t n, int32_t *tokens) {
  int32_t position = d->newest[(size_t)(n - 1) * d->bucket_count + x->buckets[n - 1]], count = 0;
  for (; position > 0 && count < NGRAM_OCCURRENCES; position = d->older[position][n - 1])
    if (occurs_before(d, position, x, n))
      tokens[count++] = d->tokens[position]; /* else: of the same bucket only */
  return count;
}

/* Longest ending first, of each the most recent occurrence first; every token once. */
static int32_t look_up(const prompt_lookup *d, const ending *x, lookup_candidate *list) {
  int32_t count = 0, tokens[NGRAM_OCCURRENCES];
  for (int32_t n = x->count; n >= 1; n--) {
    int32_t seen = followers(d, x, n, tokens);
    for (int32_t i = 0; i < seen; i++) {
      if (!lookup_odds_is_new(list, count, tokens[i])) continue;
      int32_t agree = 0;
      for (int32_t k = i; k < seen; k++) agree += tokens[k] == tokens[i];
      list[count++] = (lookup_candidate){tokens[i], n - 1, lookup_odds_case(agree, seen - agree)};
      if (count == NGRAM_CANDIDATES) return count;
    }
  }
  return count;
}

/* --- a chat template's marks --- */

/* What followed the header of an earlier turn does not tell how this reply begins
 * (common/speculative/chat_header.h). */

/* The first header follows no turn, and may follow a token that begins every text. It ends as all of them do.
 */
static int32_t opening_length(const prompt_lookup *d) {
  for (int32_t i = 0; i <= d->header && i < d->prompt_length; i++)
    if (d->header > 0 && d->tokens[i] == d->tokens[d->prompt_length - 1]) return i + 1;
  return 0;
}

/* The end of a turn in the prompt, and the header that follows it; or the one that the prompt begins with. */
static bool is_mark(const prompt_lookup *d, int32_t position) {
  if (d->header == 0 || position >= d->prompt_length) return false;
  if (position < d->opening) return true;
  for (int32_t i = position; i >= 0 && i >= position - d->header; i--)
    if (chat_header_is_stop(d->stops, d->stop_count, d->tokens[i])) return true;
  return false;
}

/* --- learning --- */

static void index_position(prompt_lookup *d, const ending *x, int32_t position) {
  for (int32_t n = 1; n <= x->count; n++) {
    int32_t *newest = &d->newest[(size_t)(n - 1) * d->bucket_count + x->buckets[n - 1]];
    d->older[position][n - 1] = *newest;
    *newest = position;
  }
}

/* Compares what would have been proposed here with the token that came. Prompts repeat themselves less than
 * completions do, so only the completion counts. */
static void observe(prompt_lookup *d, const ending *x, int32_t position) {
  lookup_candidate list[NGRAM_CANDIDATES];
  lookup_odds_learn(&d->odds, list, look_up(d, x, list), d->tokens[position]);
}

static void learn(prompt_lookup *d, int32_t position) {
  if (is_mark(d, position)) {
    d->marked = position + 1;
    return;
  }
  ending x = ending_of(d, position, NULL, 0);
  if (position >= d->prompt_length) observe(d, &x, position);
  index_position(d, &x, position);
}

/* What follows is another text. */
static void forget(prompt_lookup *d, int32_t length) {
  memset(d->newest, 0, NGRAM_MAX * d->bucket_count * sizeof *d->newest);
  d->odds = (lookup_odds){0};
  d->length = d->marked = 0;
  d->header = chat_header_length(d->tokens, length, d->prompt_length, d->stops, d->stop_count);
  d->opening = opening_length(d);
}

void prompt_lookup_advance(prompt_lookup *d, const int32_t *tokens, int32_t length, int32_t kept) {
  assert(length >= 1 && length <= d->room);
  d->tokens = tokens;
  if (d->length == 0 || kept < d->length) forget(d, length);
  for (int32_t position = d->length > 0 ? d->length : 1; position < length; position++) learn(d, position);
  d->length = length;
}

int32_t prompt_lookup_length(const prompt_lookup *d) {
  return d->length;
}

void prompt_lookup_close(prompt_lookup *d) {
  if (!d) return;
  free(d->stops);
  free(d->newest);
  free(d->older);
  free(d);
}

int prompt_lookup_open(prompt_lookup **out, int32_t room, int32_t prompt_length, const int32_t *stops,
                       int32_t stop_count) {
  *out = NULL;
  prompt_lookup *d = calloc(1, sizeof *d);
  if (!d) return ERR_NOMEM;
  *d = (prompt_lookup){.prompt_length = prompt_length, .room = room, .stop_count = stop_count};
  d->bucket_count = 1;
  for (d->bucket_shift = 64; d->bucket_count < (size_t)room || d->bucket_shift > 58; d->bucket_shift--)
    d->bucket_count *= 2;
  d->stops = calloc((size_t)stop_count + 1, sizeof *d->stops);
  d->newest = calloc(NGRAM_MAX * d->bucket_count, sizeof *d->newest);
  d->older = calloc((size_t)room + 1, sizeof *d->older);
  if (!d->stops || !d->newest || !d->older) {
    prompt_lookup_close(d);
    return ERR_NOMEM;
  }
  if (stop_count > 0) memcpy(d->stops, stops, (size_t)stop_count * sizeof *stops);
  *out = d;
  return ERR_OK;
}

/* --- candidates --- */

int32_t prompt_lookup_candidates(const prompt_lookup *d, const int32_t *path, int32_t depth,
                                 draft_candidate out[DRAFT_CANDIDATES_MAX]) {
  lookup_candidate list[NGRAM_CANDIDATES];
  ending x = ending_of(d, d->length, path, depth);
  return lookup_odds_rank(&d->odds, &measured, list, look_up(d, &x, list), out);
}
