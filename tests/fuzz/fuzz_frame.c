/* libs: wire base */
/* Any bytes as a frame: tests/support/frame_check.h tells what must hold. Corpus: wire/vectors. Each input
 * that is not long is followed by frames that differ from it in a few bytes, which costs a fraction of what
 * libFuzzer's own turn does. */
#include "tests/support/frame_check.h"
#include <stdio.h>

enum { RELATED = 64 };

__attribute__((destructor)) static void report(void) {
  fprintf(stderr, "frames: %llu\n", (unsigned long long)frame_check_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint64_t random = 0x9e3779b97f4a7c15u + size;
  frame_check(data, size);
  if (size == 0 || size > FRAME_CHECK_SIZE) return 0;
  for (size_t i = 0; i < size; i++) random = (random ^ data[i]) * 0x100000001b3u;
  random |= 1;
  for (int i = 0; i < RELATED; i++) frame_check_related(data, size, &random);
  return 0;
}
