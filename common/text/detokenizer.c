#include "common/text/detokenizer.h"

#include "common/base/utf8.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

/* A stop string searched for by Knuth, Morris and Pratt: one state, never a second look at a byte. */
typedef struct stop {
  uint16_t size, matched;                         /* matched: bytes of it that the text ends with */
  uint16_t fall_back[DETOKENIZER_STOP_BYTES_MAX]; /* longest proper border of the first i + 1 bytes */
  char text[DETOKENIZER_STOP_BYTES_MAX];
} stop;

/* Offsets count all text and all bytes since the beginning. */
struct detokenizer {
  const tokenizer *t;
  bool skip_special, stopped;
  bool drop_blank; /* nothing has come yet, and a blank does not count */
  int32_t stop_count;
  stop *stops; /* [stop_count] */

  uint8_t partial[UTF8_SEQUENCE_MAX]; /* an unfinished character */
  size_t partial_size;
  uint64_t raw; /* bytes decoded, the partial ones excluded */

  char *held; /* text not yet forgotten; [0, shown) was given out by the last call */
  size_t held_size, held_capacity, shown;
  uint64_t held_at; /* offset of held[0] in the text */

  /* Where tokens begin, for those that a stop may still cut: first a raw offset, then one in the text. */
  uint64_t *begins;
  size_t begin_count, begin_capacity, begun; /* [0, begun): in the text */
  int32_t settled;                           /* tokens before these: kept for certain */
};

/* ---- alloc and free ---- */

static void stop_prepare(stop *s, const char *text, size_t size) {
  *s = (stop){.size = (uint16_t)size};
  memcpy(s->text, text, size);
  for (uint16_t i = 1, k = 0; i < size; i++) {
    while (k && text[i] != text[k]) k = s->fall_back[k - 1];
    if (text[i] == text[k]) k++;
    s->fall_back[i] = k;
  }
}

static int check_stop(const char *text, err *e) {
  size_t size = strlen(text);
  if (size == 0) return err_set(e, ERR_ARG, "a stop string is empty: leave it out");
  if (size > DETOKENIZER_STOP_BYTES_MAX)
    return err_set(e, ERR_ARG, "a stop string has %zu bytes; at most %d are taken: shorten it", size,
                   DETOKENIZER_STOP_BYTES_MAX);
  if (utf8_valid(text, size) != size)
    return err_set(e, ERR_ARG, "a stop string is not UTF-8: convert it to UTF-8");
  return ERR_OK;
}

/* sizes[at]: of the longest special token that is spelt at text[at]. */
static void find_marks(const tokenizer *t, const char *text, size_t sizes[DETOKENIZER_STOP_BYTES_MAX]) {
  size_t end = strlen(text), size;
  for (int32_t id = 0; id < tokenizer_size(t); id++) {
    const char *mark = tokenizer_is_special(t, id) ? tokenizer_piece(t, id, &size) : NULL;
    for (size_t at = 0; mark && size > 0 && at + size <= end; at++)
      if (size > sizes[at] && memcmp(text + at, mark, size) == 0) sizes[at] = size;
  }
}

/* A special token has no text. A stop may be one, or end with one, but what goes on behind one never comes.
 */
static int check_marks(const tokenizer *t, const char *text, err *e) {
  size_t sizes[DETOKENIZER_STOP_BYTES_MAX] = {0}, at = 0;
  find_marks(t, text, sizes);
  while (text[at] && !sizes[at]) at++;
  if (!text[at] || !text[at + sizes[at]]) return ERR_OK;
  return err_set(e, ERR_ARG,
                 "the stop string \"%s\" goes on behind the special token %.*s, and would never come: end it "
                 "there, or leave that token out",
                 text, (int)sizes[at], text + at);
}

int detokenizer_alloc(detokenizer **out, const tokenizer *t, const char *const *stops, int32_t stop_count,
                      bool skip_special, bool begins, err *e) {
  *out = NULL;
  if (stop_count < 0 || stop_count > DETOKENIZER_STOP_MAX)
    return err_set(e, ERR_ARG, "%d stop strings; at most %d are taken", stop_count, DETOKENIZER_STOP_MAX);
  for (int32_t i = 0; i < stop_count; i++) {
    int rc = check_stop(stops[i], e);
    if (rc == ERR_OK && skip_special) rc = check_marks(t, stops[i], e);
    if (rc) return rc;
  }
  detokenizer *d = calloc(1, sizeof *d);
  if (d) d->stops = calloc((size_t)stop_count + 1, sizeof *d->stops);
  if (!d || !d->stops) {
    detokenizer_free(d);
    return err_set(e, ERR_NOMEM, "out of memory for the detokenizer");
  }
  d->t = t;
  d->skip_special = skip_special;
  d->drop_blank = begins && tokenizer_strips_blank(t);
  d->stop_count = stop_count;
  for (int32_t i = 0; i < stop_count; i++) stop_prepare(&d->stops[i], stops[i], strlen(stops[i]));
  *out = d;
  return ERR_OK;
}

void detokenizer_free(detokenizer *d) {
  if (!d) return;
  free(d->stops);
  free(d->held);
  free(d->begins);
  free(d);
}

/* ---- memory: taken before a call changes anything ---- */

static int grow(void **items, size_t *capacity, size_t needed, size_t size) {
  if (needed <= *capacity) return ERR_OK;
  size_t bigger = needed < 64 ? 64 : 2 * needed;
  void *p = realloc(*items, bigger * size);
  if (!p) return ERR_NOMEM;
  *items = p;
  *capacity = bigger;
  return ERR_OK;
}

/* Room for one more token of `bytes` bytes: each of them, and of the partial ones, is at most one U+FFFD. */
static int reserve(detokenizer *d, size_t bytes) {
  size_t text = d->held_size + (bytes + d->partial_size) * (sizeof REPLACEMENT - 1);
  if (grow((void **)&d->held, &d->held_capacity, text, 1)) return ERR_NOMEM;
  return grow((void **)&d->begins, &d->begin_capacity, d->begin_count + 1, sizeof *d->begins);
}

/* ---- text ---- */

/* Longest of the stops that this byte completes, 0: none. */
static size_t step_stops(detokenizer *d, char byte) {
  size_t completed = 0;
  for (int32_t i = 0; i < d->stop_count; i++) {
    stop *s = &d->stops[i];
    while (s->matched && byte != s->text[s->matched]) s->matched = s->fall_back[s->matched - 1];
    if (byte == s->text[s->matched]) s->matched++;
    if (s->matched < s->size) continue;
    if (s->size > completed) completed = s->size;
    s->matched = s->fall_back[s->size - 1];
  }
  return completed;
}

/* Appends one character; a stop completed in it takes itself out again. */
static void append(detokenizer *d, const char *text, size_t size) {
  for (size_t i = 0; i < size && !d->stopped; i++) {
    d->held[d->held_size++] = text[i];
    size_t completed = step_stops(d, text[i]);
    if (!completed) continue;
    d->stopped = true;
    d->held_size -= completed;
  }
}

/* Tokens whose first byte lies before raw offset `end` begin with the character at the text's end. */
static void begin_tokens(detokenizer *d, uint64_t end) {
  while (d->begun < d->begin_count && d->begins[d->begun] < end)
    d->begins[d->begun++] = d->held_at + d->held_size;
}

/* One character, or what stands for ill-formed bytes: `length` raw bytes that became text[size]. */
static void take(detokenizer *d, size_t length, const char *text, size_t size) {
  d->raw += length;
  begin_tokens(d, d->raw);
  bool dropped = d->drop_blank && size == 1 && *text == ' ';
  d->drop_blank = false;
  if (!dropped) append(d, text, size);
}

/* Takes whole characters and ill-formed parts off p[size]; returns the bytes taken. */
static size_t take_all(detokenizer *d, const uint8_t *p, size_t size) {
  size_t at = 0, length;
  uint32_t code;
  while (at < size && !d->stopped) {
    utf8_kind kind = utf8_next(p + at, size - at, &length, &code);
    if (kind == UTF8_PARTIAL) break;
    if (kind == UTF8_CHARACTER)
      take(d, length, (const char *)p + at, length);
    else
      take(d, length, REPLACEMENT, sizeof REPLACEMENT - 1);
    at += length;
  }
  return at;
}

/* A token's bytes: first those that finish (or spoil) the partial character, then the rest. */
static void decode(detokenizer *d, const uint8_t *p, size_t size) {
  while (d->partial_size && size && !d->stopped) {
    d->partial[d->partial_size++] = *p++;
    size--;
    size_t taken = take_all(d, d->partial, d->partial_size);
    d->partial_size -= taken;
    memmove(d->partial, d->partial + taken, d->partial_size);
  }
  if (d->partial_size || d->stopped) return;
  size_t taken = take_all(d, p, size);
  if (d->stopped) return;
  d->partial_size = size - taken;
  assert(d->partial_size < UTF8_SEQUENCE_MAX);
  memcpy(d->partial, p + taken, d->partial_size);
}

/* ---- calls ---- */

/* Drops what the last call gave out. */
static void forget_shown(detokenizer *d) {
  d->held_size -= d->shown;
  memmove(d->held, d->held + d->shown, d->held_size);
  d->held_at += d->shown;
  d->shown = 0;
}

/* Tokens that begin before text offset `limit` are kept for certain: a stop can only begin at it or later. */
static void settle(detokenizer *d, uint64_t limit) {
  size_t n = 0;
  while (n < d->begun && d->begins[n] < limit) n++;
  if (n == 0) return;
  d->settled += (int32_t)n;
  d->begin_count -= n;
  d->begun -= n;
  memmove(d->begins, d->begins + n, d->begin_count * sizeof *d->begins);
}

static size_t undecided(const detokenizer *d) {
  size_t longest = 0;
  for (int32_t i = 0; i < d->stop_count; i++)
    if (d->stops[i].matched > longest) longest = d->stops[i].matched;
  return longest;
}

static void give(detokenizer *d, size_t keep_back, detokenizer_out *out) {
  d->shown = d->held_size - keep_back;
  settle(d, d->held_at + d->shown);
  int32_t tokens = d->settled + (d->stopped ? 0 : (int32_t)d->begin_count);
  *out = (detokenizer_out){d->held ? d->held : "", d->shown, d->stopped, tokens};
}

/* Does the text end with the first `size` bytes of the stop? */
static bool ends_with_beginning(const stop *s, size_t size) {
  size_t matched = s->matched;
  while (matched > size) matched = s->fall_back[matched - 1];
  return matched == size;
}

/* A special token has no text, but a stop string may be, or end with, its spelling. What such a string has
 * before that is taken out again, of several strings that of the longest. */
static void stop_by_special(detokenizer *d, const char *spelling, size_t size) {
  size_t longest = 0;
  for (int32_t i = 0; i < d->stop_count && size > 0; i++) {
    const stop *s = &d->stops[i];
    size_t before = s->size - size;
    bool fits = s->size >= size && memcmp(s->text + before, spelling, size) == 0;
    if (!fits || (before > 0 && d->partial_size > 0) || !ends_with_beginning(s, before)) continue;
    d->stopped = true;
    if (before > longest) longest = before;
  }
  d->held_size -= longest;
}

int detokenizer_feed(detokenizer *d, int32_t id, detokenizer_out *out) {
  size_t size;
  *out = (detokenizer_out){.text = ""};
  const char *piece = tokenizer_piece(d->t, id, &size);
  if (!piece) return ERR_ARG;
  bool hidden = d->skip_special && tokenizer_is_special(d->t, id);
  if (d->held) forget_shown(d);
  if (!d->stopped) {
    if (reserve(d, size)) return ERR_NOMEM;
    d->begins[d->begin_count++] = d->raw + d->partial_size;
    if (hidden)
      stop_by_special(d, piece, size);
    else
      decode(d, (const uint8_t *)piece, size);
  }
  give(d, d->stopped ? 0 : undecided(d), out);
  return ERR_OK;
}

size_t detokenizer_held(const detokenizer *d) {
  return d->held_size - d->shown;
}

void detokenizer_cut(detokenizer *d, detokenizer_out *out) {
  if (d->held) forget_shown(d);
  give(d, 0, out);
}

int detokenizer_end(detokenizer *d, detokenizer_out *out) {
  *out = (detokenizer_out){.text = ""};
  if (d->held) forget_shown(d);
  if (!d->stopped && d->partial_size) {
    if (reserve(d, 0)) return ERR_NOMEM;
    take(d, d->partial_size, REPLACEMENT, sizeof REPLACEMENT - 1);
    d->partial_size = 0;
  }
  give(d, 0, out);
  return ERR_OK;
}
