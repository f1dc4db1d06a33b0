/* detokenizer.h - ids to text as they come: never half a UTF-8 character, stop strings that span tokens.
 *
 * Bytes that can no longer become valid UTF-8 come out as U+FFFD, one for each maximal ill-formed part (as
 * Python's errors="replace" does). Stop strings are looked for in that text, byte by byte: the one completed
 * first counts, of several completed by the same byte the longest; so tokens' borders do not matter. Held
 * back is the longest end of the text that may still become a stop string, and an unfinished character. */
#pragma once

#include "common/text/tokenizer.h"

#define DETOKENIZER_STOP_MAX       16  /* stop strings */
#define DETOKENIZER_STOP_BYTES_MAX 256 /* bytes of one */

typedef struct detokenizer detokenizer;

/* stops[stop_count]: NUL-terminated UTF-8, not empty, within the limits (ERR_ARG), copied. skip_special:
 * special tokens give no text. begins: the ids begin a text, so the blank that some vocabularies put before
 * it (tokenizer_strips_blank) is left out; else they go on with one. */
int detokenizer_alloc(detokenizer **out, const tokenizer *t, const char *const *stops, int32_t stop_count,
                      bool skip_special, bool begins, err *e);
void detokenizer_free(detokenizer *d);

typedef struct detokenizer_out {
  const char *text; /* safe to show now; until the next call */
  size_t size;
  bool stopped;        /* a stop string was completed: text ends before it, nothing may follow */
  int32_t keep_tokens; /* tokens fed so far, less those cut: when stopped, those that begin before the stop
                          string begins (a token begins with the character that holds its first byte; one
                          without text, where the next begins) */
} detokenizer_out;

int detokenizer_feed(detokenizer *d, int32_t id, detokenizer_out *out); /* ERR_ARG: no such id; ERR_NOMEM */
/* What was held back, at the end of the answer; an unfinished character comes out as U+FFFD, and may complete
 * a stop string. After a stop both give no text and `stopped` again. */
int detokenizer_end(detokenizer *d, detokenizer_out *out);
