/* codec.h - msg <-> one MessagePack frame. wire/PROTOCOL.md gives every field, in order.
 *
 * A frame is scanned first, without recursion or allocation (size, depth, counts against the bytes left, no
 * map, no ext, no trailing byte), and only then unpacked. Each rule has an error sentence of its own. */
#pragma once

#include "common/base/arena.h"
#include "common/base/err.h"
#include "wire/message.h"
#include <stddef.h>

typedef struct codec_buffer { /* grows, is reused: a steady state allocates nothing */
  uint8_t *data;
  size_t size, capacity;
} codec_buffer;
void codec_buffer_fini(codec_buffer *b);

/* Replaces the buffer's content. ERR_LIMIT when a field or the frame passes a limit, ERR_PROTOCOL when
 * another rule is broken, ERR_NOMEM. Strings that are no clean UTF-8 go out with '?' for each bad byte. */
int codec_encode(const msg *m, codec_buffer *out, err *e);

#define CODEC_ARENA_MAX (2u << 20) /* bytes of arena that are enough for any frame */

/* On ERR_OK *m is filled, its arrays in `a`. Otherwise ERR_PROTOCOL, ERR_LIMIT, ERR_VERSION, ERR_NOMEM and *m
 * is undefined, except that m->type, m->session and m->epoch are set when they could be read, else 0. The
 * text of an error begins with the name of the rule that was broken: "R-INT-LOW: OPEN.prompt_length ...". */
int codec_decode(const uint8_t *data, size_t size, arena *a, msg *m, err *e);
