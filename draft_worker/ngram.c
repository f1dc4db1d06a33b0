/* Prompt and output lookup: the longest ending of the path that has occurred before, and what followed it.
 *
 * Everything here is a function of C and the prompt's length alone: the same tokens give the same guesses,
 * whenever and in whatever pieces they came. Source of the method: A. Saxena, "Prompt Lookup Decoding"
 * (2023). */
#include "draft_worker/drafter.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NGRAM_MAX         8    /* tokens of the longest ending that is looked up */
#define NGRAM_RANKS       4    /* guesses for one place */
#define NGRAM_OCCURRENCES 16   /* of one ending, the most recent ones, that are looked at */
#define NGRAM_FLOOR       0.15 /* a guess less probable than this is not worth a row */
#define NGRAM_PRIOR       8    /* so many observations are the table below worth */

/* How often the guess of a rank (columns) found by an ending of so many tokens (rows) is right: greedy
 * answers of SmolLM2-135M-Instruct to 24 prompts of Spec-Bench, 2,021 positions, smoothed where there were
 * few. A session corrects it by its own answer. */
static const float prior[NGRAM_MAX][NGRAM_RANKS] = {
    {0.22f, 0.06f, 0.04f, 0.03f}, {0.48f, 0.12f, 0.06f, 0.03f}, {0.59f, 0.13f, 0.08f, 0.03f},
    {0.67f, 0.14f, 0.06f, 0.03f}, {0.76f, 0.12f, 0.06f, 0.03f}, {0.85f, 0.10f, 0.05f, 0.03f},
    {0.87f, 0.10f, 0.05f, 0.03f}, {0.92f, 0.10f, 0.05f, 0.03f},
};

struct drafter {
  const int32_t *tokens; /* C */
  int32_t length;        /* of C, all of it indexed */
  hash16 hash;
  int32_t prompt_length, room;
  int bucket_shift;
  /* A place is the index of the token that followed an ending; 0: none. */
  int32_t *newest;             /* [NGRAM_MAX][buckets] */
  int32_t (*older)[NGRAM_MAX]; /* [room]: the place before, in the same bucket */
  size_t bucket_count;
  int32_t tries[NGRAM_MAX][NGRAM_RANKS], hits[NGRAM_MAX][NGRAM_RANKS];
};

/* The last tokens of a path, newest first. */
typedef struct ending {
  int32_t tokens[NGRAM_MAX];
  int32_t count;
  size_t buckets[NGRAM_MAX]; /* of the last 1, 2, ... tokens */
} ending;

typedef struct guess {
  int32_t token;
  int32_t length; /* of the ending that found it */
} guess;

static void ending_add(const drafter *d, ending *x, int32_t token) {
  uint64_t before = x->count ? (uint64_t)x->buckets[x->count - 1] : 0;
  uint64_t h = (before + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint32_t)token;
  h = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
  x->buckets[x->count] = (size_t)(h >> d->bucket_shift);
  x->tokens[x->count++] = token;
}

/* Of tokens[0..length) followed by path[0..depth). */
static ending ending_of(const drafter *d, int32_t length, const int32_t *path, int32_t depth) {
  ending x = {.count = 0};
  for (int32_t i = depth - 1; i >= 0 && x.count < NGRAM_MAX; i--) ending_add(d, &x, path[i]);
  for (int32_t i = length - 1; i >= 0 && x.count < NGRAM_MAX; i--) ending_add(d, &x, d->tokens[i]);
  return x;
}

static bool occurs_before(const drafter *d, int32_t place, const ending *x, int32_t n) {
  if (place < n) return false;
  for (int32_t i = 0; i < n; i++)
    if (d->tokens[place - 1 - i] != x->tokens[i]) return false;
  return true;
}

static bool is_new(const guess *list, int32_t count, int32_t token) {
  for (int32_t i = 0; i < count; i++)
    if (list[i].token == token) return false;
  return true;
}

/* Longest ending first, of each the most recent occurrence first; every token once. */
static int32_t look_up(const drafter *d, const ending *x, guess *list) {
  int32_t count = 0;
  for (int32_t n = x->count; n >= 1; n--) {
    int32_t place = d->newest[(size_t)(n - 1) * d->bucket_count + x->buckets[n - 1]], seen = 0;
    for (; place > 0 && seen < NGRAM_OCCURRENCES; place = d->older[place][n - 1]) {
      if (!occurs_before(d, place, x, n)) continue; /* another ending of the same bucket */
      seen++;
      if (!is_new(list, count, d->tokens[place])) continue;
      list[count++] = (guess){d->tokens[place], n};
      if (count == NGRAM_RANKS) return count;
    }
  }
  return count;
}

/* --- learning --- */

static void index_place(drafter *d, const ending *x, int32_t place) {
  for (int32_t n = 1; n <= x->count; n++) {
    int32_t *newest = &d->newest[(size_t)(n - 1) * d->bucket_count + x->buckets[n - 1]];
    d->older[place][n - 1] = *newest;
    *newest = place;
  }
}

/* What would have been guessed here, held against what came. Prompts repeat themselves less than answers do,
 * so only the answer counts. */
static void observe(drafter *d, const ending *x, int32_t place) {
  guess list[NGRAM_RANKS];
  int32_t count = look_up(d, x, list);
  for (int32_t rank = 0; rank < count; rank++) {
    d->tries[list[rank].length - 1][rank]++;
    d->hits[list[rank].length - 1][rank] += list[rank].token == d->tokens[place];
  }
}

static void learn(drafter *d, int32_t place) {
  ending x = ending_of(d, place, NULL, 0);
  if (place >= d->prompt_length) observe(d, &x, place);
  index_place(d, &x, place);
}

static void forget(drafter *d) {
  memset(d->newest, 0, NGRAM_MAX * d->bucket_count * sizeof *d->newest);
  memset(d->tries, 0, sizeof d->tries);
  memset(d->hits, 0, sizeof d->hits);
  d->length = 0;
}

static void ngram_advance(drafter *d, const prefix *committed) {
  bool grown = d->length > 0 && prefix_has(committed, d->length, d->hash);
  if (!grown) forget(d);
  d->tokens = committed->tokens;
  assert(committed->length <= d->room);
  for (int32_t place = d->length > 0 ? d->length : 1; place < committed->length; place++) learn(d, place);
  d->length = committed->length;
  d->hash = prefix_hash(committed);
}

static void ngram_close(drafter *d) {
  free(d->newest);
  free(d->older);
  free(d);
}

static drafter *ngram_open(void *shared, const prefix *committed, int32_t prompt_length,
                           const msg_options *options) {
  (void)shared;
  drafter *d = calloc(1, sizeof *d);
  if (!d) return NULL;
  d->prompt_length = prompt_length;
  d->room = committed->capacity; /* less if the session can never be as long */
  if (options->context >= committed->length && options->context < d->room) d->room = options->context;
  d->bucket_count = 1;
  for (d->bucket_shift = 64; d->bucket_count < (size_t)d->room || d->bucket_shift > 58; d->bucket_shift--)
    d->bucket_count *= 2;
  d->newest = calloc(NGRAM_MAX * d->bucket_count, sizeof *d->newest);
  d->older = calloc((size_t)d->room + 1, sizeof *d->older);
  if (!d->newest || !d->older) {
    ngram_close(d);
    return NULL;
  }
  ngram_advance(d, committed);
  return d;
}

/* --- guessing --- */

static double probability(const drafter *d, int32_t length, int32_t rank) {
  double hits = d->hits[length - 1][rank], tries = d->tries[length - 1][rank];
  return (hits + NGRAM_PRIOR * (double)prior[length - 1][rank]) / (tries + NGRAM_PRIOR);
}

/* Keeps the list in order of score; what came first stays first among equals. */
static void insert(draft_candidate *list, int32_t count, draft_candidate x) {
  for (; count > 0 && list[count - 1].score < x.score; count--) list[count] = list[count - 1];
  list[count] = x;
}

static int32_t ngram_candidates(drafter *d, const int32_t *path, int32_t depth, draft_candidate *out) {
  guess list[NGRAM_RANKS];
  ending x = ending_of(d, d->length, path, depth);
  int32_t found = look_up(d, &x, list), count = 0;
  for (int32_t rank = 0; rank < found; rank++) {
    double p = probability(d, list[rank].length, rank);
    if (p < NGRAM_FLOOR) continue;
    insert(out, count++, (draft_candidate){list[rank].token, (float)log(p)});
  }
  return count;
}

const drafter_kind drafter_ngram = {"ngram", ngram_open, ngram_close, ngram_advance, ngram_candidates};
