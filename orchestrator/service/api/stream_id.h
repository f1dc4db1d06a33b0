/* stream_id.h - the id of a server-sent event: how far the stream has come, so that a client whose
 * connection was cut can send it as Last-Event-ID, with the same body, and gets what follows. An answer is
 * the same whenever it is decoded with the same seed, so the id holds all that is needed, and a server that
 * was started anew takes it as well.
 *
 * ANSWER:CREATED:SEED:OFFSET,OFFSET,... (numbers in hex): an offset for each choice, BYTES.TOKENS.HASH of its
 * text and of the tokens whose log-probabilities were sent, with `!` at the end after its last event. */
#pragma once

#include "common/base/err.h"
#include "common/base/hash.h"

#define STREAM_ID_CHOICES_MAX 16 /* streams of more have no ids */
#define STREAM_ID_NAME_MAX    47 /* bytes of an answer's id */
#define STREAM_ID_TEXT_MAX    (STREAM_ID_NAME_MAX + 40 + STREAM_ID_CHOICES_MAX * 48)

typedef struct stream_offset { /* of a choice */
  size_t bytes;                /* of text that was sent */
  int32_t tokens;              /* whose log-probabilities were sent */
  uint64_t hash;               /* of the text: stream_id_hash */
  bool over;                   /* its last event was sent */
} stream_offset;

typedef struct stream_id {
  char name[STREAM_ID_NAME_MAX + 1]; /* the answer's id */
  int64_t created;
  uint64_t seed;
  int32_t count;
  stream_offset offsets[STREAM_ID_CHOICES_MAX];
} stream_id;

uint64_t stream_id_hash(const char *text, size_t size);
/* A line without its end. */
void stream_id_format(const stream_id *id, char out[STREAM_ID_TEXT_MAX + 1]);
/* ERR_FORMAT: it is none. */
int stream_id_parse(stream_id *out, const char *text, err *e);
