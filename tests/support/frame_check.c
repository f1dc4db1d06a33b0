#include "tests/support/frame_check.h"
#include "tests/support/random.h"

uint64_t frame_check_count, frame_check_taken;
const uint8_t *frame_check_last;
size_t frame_check_last_size;

void frame_check_require(int condition) {
  if (!condition) abort();
}

static void frame_check_message(const msg *m) {
  static codec_buffer first, second;
  static arena memory;
  msg again;
  err e;
  if (!memory.limit) arena_init(&memory, CODEC_ARENA_MAX);
  arena_reset(&memory);
  frame_check_taken++;
  frame_check_require(codec_encode(m, &first, &e) == ERR_OK);
  frame_check_require(codec_decode(first.data, first.size, &memory, &again, &e) == ERR_OK);
  frame_check_require(codec_encode(&again, &second, &e) == ERR_OK);
  frame_check_require(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
  arena_reset(&memory);
  const msg *copy = actions_copy(&memory, m);
  frame_check_require(copy && codec_encode(copy, &second, &e) == ERR_OK);
  frame_check_require(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
}

void frame_check(const uint8_t *data, size_t size) {
  static arena memory;
  msg m;
  err e;
  e.code = 0; /* its text is not cleared for every frame */
  frame_check_count++;
  frame_check_last = data;
  frame_check_last_size = size;
  if (!memory.limit) arena_init(&memory, CODEC_ARENA_MAX);
  arena_reset(&memory);
  int code = codec_decode(data, size, &memory, &m, &e);
  if (code == ERR_OK) {
    frame_check_message(&m);
  } else {
    frame_check_require(code == ERR_PROTOCOL || code == ERR_LIMIT || code == ERR_VERSION);
    frame_check_require(e.code == code && strncmp(e.text, "R-", 2) == 0);
  }
}

/* Room for a frame at the end of a page, behind which nothing may be read: a read beyond the frame ends the
 * program, with a sanitizer or without, and no frame costs an allocation. */
static uint8_t *frame_check_room(size_t size) {
  static uint8_t *end;
  const size_t page = 65536; /* a multiple of every system's */
  if (!end) {
    uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    frame_check_require(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    end = pages + page;
  }
  frame_check_require(size <= FRAME_CHECK_SIZE);
  return end - size;
}

void frame_check_related(const uint8_t *data, size_t size, uint64_t *random) {
  uint64_t draw = random_next(random);
  size_t cut = draw % 16 == 0 ? draw / 16 % size + 1 : size;
  uint8_t *copy = frame_check_room(cut);
  memcpy(copy, data, cut);
  for (uint64_t i = 0; i <= draw / 256 % 4; i++) {
    uint64_t change = random_next(random);
    uint8_t *byte = &copy[change % cut];
    *byte = change >> 62 ? (uint8_t)(change >> 32) : *byte ^ (uint8_t)(1 << (change >> 32) % 8);
  }
  frame_check(copy, cut);
}
