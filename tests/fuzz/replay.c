/* replay CORPUS... - gives a fuzzer's function each input of these files, one after the other, without
 * libFuzzer: what a fuzzer has found once is tried before every change. Each input stands behind its length
 * (4 bytes, little-endian); scripts/fuzz_corpus.py writes such files. A sanitizer, or abort(), tells of an
 * input that breaks something, and its number in the file is the last one told on a terminal. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size,
                        size_t max); /* of libFuzzer, for those who mutate by themselves */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max) {
  (void)data, (void)max;
  return size;
}

/* How many inputs there were; each lies alone in memory, so that a sanitizer sees what reads past its end. */
static int replay(FILE *f, const char *path) {
  uint8_t prefix[4];
  int count = 0;
  while (fread(prefix, 1, sizeof prefix, f) == sizeof prefix) {
    size_t size = prefix[0] | (size_t)prefix[1] << 8 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 24;
    uint8_t *data = malloc(size ? size : 1);
    if (!data || fread(data, 1, size, f) != size) {
      free(data);
      fprintf(stderr, "%s: input %d is cut\n", path, count);
      return 0;
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%s: input %d, %zu bytes ", path, count, size);
    count++;
    LLVMFuzzerTestOneInput(data, size);
    free(data);
  }
  fprintf(stderr, "\n%s: %d inputs\n", path, count);
  return count;
}

int main(int argc, char **argv) {
  int good = argc > 1;
  for (int i = 1; i < argc; i++) {
    FILE *f = fopen(argv[i], "rb");
    if (!f) fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
    good &= f && replay(f, argv[i]) > 0;
    if (f) fclose(f);
  }
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
