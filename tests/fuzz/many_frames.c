/* many_frames SECONDS SEED FOLDER... - for so long frames, each a little different from one of those in the
 * folders (good ones, bad ones, and what fuzz_frame has found), or made of the parts of two of them
 * (frame_check.h). Without the instruments of a fuzzer this tries ten times as many in the same time; a
 * sanitizer or abort() tells of one that breaks something, and the file many_frames-crash has it. */
#include "tests/support/frame_check.h"
#include "tests/support/random.h"
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

enum { FRAMES_MAX = 1 << 16, BETWEEN_LOOKS = 4096 /* at the clock */ };

typedef struct frame {
  uint8_t *data;
  size_t size;
} frame;

static frame frames[FRAMES_MAX];
static size_t frame_count;

static void load(const char *path) {
  static uint8_t data[FRAME_CHECK_SIZE + 1];
  FILE *f = fopen(path, "rb");
  size_t size = f ? fread(data, 1, sizeof data, f) : 0;
  if (f) fclose(f);
  if (size == 0 || size > FRAME_CHECK_SIZE || frame_count == FRAMES_MAX) return;
  frame *fresh = &frames[frame_count++];
  *fresh = (frame){malloc(size), size};
  frame_check_require(fresh->data != NULL);
  memcpy(fresh->data, data, size);
}

static void load_folder(const char *folder) {
  DIR *d = opendir(folder);
  char path[4096];
  for (const struct dirent *e; d && (e = readdir(d));) {
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (e->d_name[0] != '.') load(path);
  }
  if (d) closedir(d);
}

/* The beginning of one and the end of another, of which a few bytes are changed. */
static void try_parts(const frame *a, const frame *b, uint64_t *random) {
  static uint8_t both[FRAME_CHECK_SIZE];
  uint64_t draw = random_next(random);
  size_t head = draw % (a->size + 1), tail = draw / 65536 % b->size + 1;
  if (head + tail > sizeof both) return;
  memcpy(both, a->data, head);
  memcpy(both + head, b->data + b->size - tail, tail);
  frame_check_related(both, head + tail, random);
}

static void try_one(uint64_t *random) {
  uint64_t draw = random_next(random);
  const frame *a = &frames[draw % frame_count], *b = &frames[(draw >> 32) % frame_count];
  if (draw >> 62)
    frame_check_related(a->data, a->size, random);
  else
    try_parts(a, b, random);
}

/* The frame under way. */
static void on_crash(int number) {
  int fd = open("many_frames-crash", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd >= 0 && frame_check_last) (void)!write(fd, frame_check_last, frame_check_last_size);
  signal(number, SIG_DFL);
  raise(number);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: many_frames SECONDS SEED FOLDER...\n");
    return 2;
  }
  time_t end = time(NULL) + atol(argv[1]);
  uint64_t random = strtoull(argv[2], NULL, 10);
  for (int i = 3; i < argc; i++) load_folder(argv[i]);
  if (frame_count == 0) {
    fprintf(stderr, "many_frames: there are no frames in these folders\n");
    return 2;
  }
  signal(SIGABRT, on_crash);
  signal(SIGSEGV, on_crash);
  while (time(NULL) < end)
    for (int i = 0; i < BETWEEN_LOOKS; i++) try_one(&random);
  printf("frames: %llu\n", (unsigned long long)frame_check_count);
  fprintf(stderr, "%llu of them were taken; they are made of %zu\n", (unsigned long long)frame_check_taken,
          frame_count);
  return 0;
}
