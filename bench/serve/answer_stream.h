/* answer_stream.h - an answer of an OpenAI server as it arrives: server-sent events of /v1/chat/completions
 * or /v1/completions, each a line "data: " and a JSON object, the last one "data: [DONE]"; or, where a
 * request was refused, one JSON object with "error". What other servers add is ignored. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ANSWER_STREAM_LINE_MAX  (16u << 20) /* bytes */
#define ANSWER_STREAM_ERROR_MAX 240

typedef struct answer_text {
  char *bytes; /* [size], not terminated */
  size_t size, capacity;
} answer_text;

typedef struct answer_stream {
  answer_text line, text;     /* what has come of the present line; the answer so far */
  uint64_t first_us, last_us; /* when the first and the last text came; 0: none has come */
  uint32_t *gaps_us;          /* [gap_count] times between two events with text */
  size_t gap_count, gap_capacity;
  int64_t tokens;                      /* by the server's usage; -1: it has not told */
  int64_t drafted, accepted;           /* draft tokens, by ours or llama-server's figures; -1: not told */
  bool done;                           /* [DONE] has come */
  char error[ANSWER_STREAM_ERROR_MAX]; /* the server's; "": none */
} answer_stream;

void answer_stream_init(answer_stream *s);
void answer_stream_fini(answer_stream *s);

/* Takes the next bytes of the body, in pieces of any size. ERR_FORMAT: an event is no JSON object; ERR_LIMIT:
 * a line is longer than ANSWER_STREAM_LINE_MAX; ERR_NOMEM. */
int answer_stream_take(answer_stream *s, const char *bytes, size_t size, uint64_t now_us);
/* No more bytes come: the last line may lack its end. Errors as above. */
int answer_stream_end(answer_stream *s, uint64_t now_us);
