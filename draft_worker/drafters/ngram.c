/* Prompt and output lookup: finds the longest ending of the path that has occurred before, and proposes what
 * followed it. Everything here is a function of C and the prompt's length alone: the same tokens give the
 * same candidates, however and whenever they arrived. Source of the method: A. Saxena, "Prompt Lookup
 * Decoding" (2023). */
#include "draft_worker/drafters/ngram.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NGRAM_MAX         8                      /* tokens of the longest ending that is looked up */
#define NGRAM_CANDIDATES  DRAFTER_CANDIDATES_MAX /* for one position */
#define NGRAM_OCCURRENCES 16                     /* of one ending, the most recent ones, that are looked at */
#define NGRAM_FLOOR       0.03 /* a candidate less probable than this is not worth sending */
#define NGRAM_PRIOR       8    /* the table below counts as so many observations */
#define NGRAM_HEADER_MAX  16   /* tokens of a chat template's header, at most */

/* A candidate's case: how many occurrences of its ending it followed (1, 2, more), and how many of them other
 * tokens followed (none, no more than it, more). */
#define NGRAM_AGREE 3
#define NGRAM_CASES (NGRAM_AGREE * 3)

/* How often a candidate is right, by the ending's length (rows) and the case (columns). Measured on greedy
 * completions of SmolLM2-135M-Instruct to 96 prompts of Spec-Bench, 9,619 positions, smoothed where there
 * were few. A session corrects it by its own completion. */
static const float prior[NGRAM_MAX][NGRAM_CASES] = {
    {0.33f, 0.10f, 0.03f, 0.44f, 0.15f, 0.06f, 0.80f, 0.31f, 0.11f},
    {0.57f, 0.15f, 0.07f, 0.75f, 0.26f, 0.15f, 0.90f, 0.29f, 0.13f},
    {0.69f, 0.20f, 0.07f, 0.77f, 0.32f, 0.12f, 0.90f, 0.30f, 0.13f},
    {0.70f, 0.20f, 0.07f, 0.82f, 0.33f, 0.12f, 0.90f, 0.32f, 0.15f},
    {0.77f, 0.23f, 0.10f, 0.82f, 0.36f, 0.15f, 0.90f, 0.35f, 0.15f},
    {0.78f, 0.23f, 0.10f, 0.86f, 0.36f, 0.15f, 0.90f, 0.35f, 0.15f},
    {0.83f, 0.24f, 0.10f, 0.88f, 0.36f, 0.15f, 0.90f, 0.35f, 0.15f},
    {0.87f, 0.31f, 0.15f, 0.95f, 0.50f, 0.15f, 0.99f, 0.60f, 0.20f},
};

struct immediate_session {
  const int32_t *tokens; /* C */
  int32_t length;        /* of C, all of it indexed */
  hash16 hash;
  int32_t prompt_length, room;
  int32_t stops[WIRE_STOPS_MAX], stop_count; /* tokens that end a turn */
  int32_t header;  /* tokens of a chat template between the end of one turn and the text of the next; 0: not a
                      chat */
  int32_t opening; /* tokens of the header that the prompt begins with */
  int32_t marked;  /* the last of C's tokens [0, length) that are the template's own end here */
  int bucket_shift;
  /* A position is the index of the token that followed an ending; 0: none. */
  int32_t *newest;             /* [NGRAM_MAX][buckets] */
  int32_t (*older)[NGRAM_MAX]; /* [room]: the position before, in the same bucket */
  size_t bucket_count;
  int32_t tries[NGRAM_MAX][NGRAM_CASES], hits[NGRAM_MAX][NGRAM_CASES];
};

/* The last tokens of a path, newest first. */
typedef struct ending {
  int32_t tokens[NGRAM_MAX];
  int32_t count;
  size_t buckets[NGRAM_MAX]; /* of the last 1, 2, ... tokens */
} ending;

typedef struct continuation {
  int32_t token;
  int32_t length; /* of the ending that found it */
  int32_t kase;   /* column of `prior` */
} continuation;

static void ending_add(const immediate_session *d, ending *x, int32_t token) {
  uint64_t before = x->count ? (uint64_t)x->buckets[x->count - 1] : 0;
  uint64_t h = (before + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint32_t)token;
  h = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
  x->buckets[x->count] = (size_t)(h >> d->bucket_shift);
  x->tokens[x->count++] = token;
}

/* Of tokens[0..length) followed by path[0..depth), as far back as the template's last mark. */
static ending ending_of(const immediate_session *d, int32_t length, const int32_t *path, int32_t depth) {
  ending x = {.count = 0};
  for (int32_t i = depth - 1; i >= 0 && x.count < NGRAM_MAX; i--) ending_add(d, &x, path[i]);
  for (int32_t i = length - 1; i >= d->marked && x.count < NGRAM_MAX; i--) ending_add(d, &x, d->tokens[i]);
  return x;
}

static bool occurs_before(const immediate_session *d, int32_t position, const ending *x, int32_t n) {
  if (position < n) return false;
  for (int32_t i = 0; i < n; i++)
    if (d->tokens[position - 1 - i] != x->tokens[i]) return false;
  return true;
}

static bool is_new(const continuation *list, int32_t count, int32_t token) {
  for (int32_t i = 0; i < count; i++)
    if (list[i].token == token) return false;
  return true;
}

static int32_t case_of(int32_t agree, int32_t others) {
  int32_t row = agree < NGRAM_AGREE ? agree : NGRAM_AGREE;
  return (row - 1) * 3 + (others > 0) + (others > agree);
}

/* What followed the ending of n tokens, the most recent occurrence first. */
static int32_t followers(const immediate_session *d, const ending *x, int32_t n, int32_t *tokens) {
  int32_t position = d->newest[(size_t)(n - 1) * d->bucket_count + x->buckets[n - 1]], count = 0;
  for (; position > 0 && count < NGRAM_OCCURRENCES; position = d->older[position][n - 1])
    if (occurs_before(d, position, x, n))
      tokens[count++] = d->tokens[position]; /* else: of the same bucket only */
  return count;
}

/* Longest ending first, of each the most recent occurrence first; every token once. */
static int32_t look_up(const immediate_session *d, const ending *x, continuation *list) {
  int32_t count = 0, tokens[NGRAM_OCCURRENCES];
  for (int32_t n = x->count; n >= 1; n--) {
    int32_t seen = followers(d, x, n, tokens);
    for (int32_t i = 0; i < seen; i++) {
      if (!is_new(list, count, tokens[i])) continue;
      int32_t agree = 0;
      for (int32_t k = i; k < seen; k++) agree += tokens[k] == tokens[i];
      list[count++] = (continuation){tokens[i], n, case_of(agree, seen - agree)};
      if (count == NGRAM_CANDIDATES) return count;
    }
  }
  return count;
}

/* --- a chat template's marks --- */

/* A template writes the same tokens around every turn. They say nothing about the text: what followed the
 * header of an earlier turn does not tell how this reply begins. The template is not known here, but the
 * tokens that end a turn are, and the header stands between the last of them and the reply. */

static bool is_stop(const immediate_session *d, int32_t token) {
  for (int32_t i = 0; i < d->stop_count; i++)
    if (d->stops[i] == token) return true;
  return false;
}

static int32_t header_length(const immediate_session *d, const prefix *committed) {
  for (int32_t n = 0; n <= NGRAM_HEADER_MAX && n < d->prompt_length; n++)
    if (is_stop(d, committed->tokens[d->prompt_length - 1 - n])) return n;
  return 0;
}

/* The first header follows no turn, and may follow a token that begins every text. It ends as all of them do.
 */
static int32_t opening_length(const immediate_session *d, const prefix *committed) {
  int32_t last = committed->tokens[d->prompt_length - 1];
  for (int32_t i = 0; i <= d->header && i < d->prompt_length; i++)
    if (d->header > 0 && committed->tokens[i] == last) return i + 1;
  return 0;
}

/* The end of a turn in the prompt, and the header that follows it; or the one that the prompt begins with. */
static bool is_mark(const immediate_session *d, int32_t position) {
  if (d->header == 0 || position >= d->prompt_length) return false;
  if (position < d->opening) return true;
  for (int32_t i = position; i >= 0 && i >= position - d->header; i--)
    if (is_stop(d, d->tokens[i])) return true;
  return false;
}

/* --- learning --- */

static void index_position(immediate_session *d, const ending *x, int32_t position) {
  for (int32_t n = 1; n <= x->count; n++) {
    int32_t *newest = &d->newest[(size_t)(n - 1) * d->bucket_count + x->buckets[n - 1]];
    d->older[position][n - 1] = *newest;
    *newest = position;
  }
}

/* Compares what would have been proposed here with the token that came. Prompts repeat themselves less than
 * completions do, so only the completion counts. */
static void observe(immediate_session *d, const ending *x, int32_t position) {
  continuation list[NGRAM_CANDIDATES];
  int32_t count = look_up(d, x, list);
  for (int32_t i = 0; i < count; i++) {
    d->tries[list[i].length - 1][list[i].kase]++;
    d->hits[list[i].length - 1][list[i].kase] += list[i].token == d->tokens[position];
  }
}

static void learn(immediate_session *d, int32_t position) {
  if (is_mark(d, position)) {
    d->marked = position + 1;
    return;
  }
  ending x = ending_of(d, position, NULL, 0);
  if (position >= d->prompt_length) observe(d, &x, position);
  index_position(d, &x, position);
}

static void forget(immediate_session *d) {
  memset(d->newest, 0, NGRAM_MAX * d->bucket_count * sizeof *d->newest);
  memset(d->tries, 0, sizeof d->tries);
  memset(d->hits, 0, sizeof d->hits);
  d->length = d->marked = 0;
}

static void ngram_advance(immediate_session *d, const prefix *committed) {
  bool grown = d->length > 0 && prefix_has(committed, d->length, d->hash);
  if (!grown) forget(d);
  d->tokens = committed->tokens;
  assert(committed->length <= d->room);
  for (int32_t position = d->length > 0 ? d->length : 1; position < committed->length; position++)
    learn(d, position);
  d->length = committed->length;
  d->hash = prefix_hash(committed);
}

static void ngram_close(immediate_session *d) {
  free(d->newest);
  free(d->older);
  free(d);
}

static immediate_session *ngram_open(void *shared, const prefix *committed, int32_t prompt_length,
                                     const msg_options *options) {
  (void)shared;
  immediate_session *d = calloc(1, sizeof *d);
  if (!d) return NULL;
  d->prompt_length = prompt_length;
  d->stop_count = options->stop_count;
  for (int32_t i = 0; i < d->stop_count; i++) d->stops[i] = options->stops[i];
  d->header = header_length(d, committed);
  d->opening = opening_length(d, committed);
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

/* --- candidates --- */

static double probability(const immediate_session *d, const continuation *g) {
  double hits = d->hits[g->length - 1][g->kase], tries = d->tries[g->length - 1][g->kase];
  return (hits + NGRAM_PRIOR * (double)prior[g->length - 1][g->kase]) / (tries + NGRAM_PRIOR);
}

/* Keeps the list in order of score; what came first stays first among equals. */
static void insert(draft_candidate *list, int32_t count, draft_candidate x) {
  for (; count > 0 && list[count - 1].score < x.score; count--) list[count] = list[count - 1];
  list[count] = x;
}

static int32_t ngram_candidates(immediate_session *d, const int32_t *path, int32_t depth,
                                draft_candidate *out) {
  continuation list[NGRAM_CANDIDATES];
  ending x = ending_of(d, d->length, path, depth);
  int32_t found = look_up(d, &x, list), count = 0;
  for (int32_t i = 0; i < found; i++) {
    double p = probability(d, &list[i]);
    if (p < NGRAM_FLOOR) continue;
    insert(out, count++, (draft_candidate){.token = list[i].token, .score = (float)log(p)});
  }
  return count;
}

const immediate_kind ngram_kind = {"ngram", ngram_open, ngram_close, ngram_advance, ngram_candidates};
