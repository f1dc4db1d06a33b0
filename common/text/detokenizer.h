/* detokenizer.h - turns ids into text as they come. It never emits half a UTF-8 character, and finds stop
 * strings that span tokens.
 *
 * Bytes that can no longer become valid UTF-8 come out as U+FFFD, one for each maximal ill-formed part (as
 * Python's errors="replace" does). Stop strings are searched in that text byte by byte, so the borders of
 * tokens do not matter: the string that is completed first counts, and of several completed by the same byte
 * the longest. A special token that gives no text completes a string that ends with its spelling. The
 * detokenizer holds back an unfinished character and the longest end of the text that may
 * still become a stop string. */
#pragma once

#include "common/text/tokenizer.h"

#define DETOKENIZER_STOP_MAX       16  /* stop strings */
#define DETOKENIZER_STOP_BYTES_MAX 256 /* bytes of one */

typedef struct detokenizer detokenizer;

/* stops[stop_count]: NUL-terminated UTF-8, not empty, within the limits, and, with skip_special, nothing
 * behind the spelling of a special token (else ERR_ARG), copied. skip_special: special tokens give no text.
 * begins: the ids begin a text, so the blank that some vocabularies put before it (tokenizer_strips_blank) is
 * left out; else they go on with one. */
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
/* Bytes of whole characters that are held back. */
size_t detokenizer_held(const detokenizer *d);
/* Gives them, and not an unfinished character: the text ends here, but more tokens may complete that another
 * time. */
void detokenizer_cut(detokenizer *d, detokenizer_out *out);
/* Ends the text and gives what was held back. An unfinished character comes out as U+FFFD, which may complete
 * a stop string. After a stop, both functions give no text and set `stopped` again. */
int detokenizer_end(detokenizer *d, detokenizer_out *out);
