/* frame_check.h - what must hold of any bytes that come as a frame: they are refused with a named rule and
 * little memory, or taken, and then what was decoded encodes to a frame that decodes and encodes to the same
 * again, and a deep copy is no different. */
#pragma once

#include "wire/actions.h"
#include "wire/codec.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Those that are derived from others have at most so many bytes. */
enum { FRAME_CHECK_SIZE = 2048 };

extern uint64_t frame_check_count, frame_check_taken;
extern const uint8_t *frame_check_last; /* the frame that is being checked */
extern size_t frame_check_last_size;

void frame_check_require(int condition);

void frame_check(const uint8_t *data, size_t size);

/* One to four bytes are others; now and then it is cut. */
void frame_check_related(const uint8_t *data, size_t size, uint64_t *random);
