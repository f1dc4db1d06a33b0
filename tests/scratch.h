/* scratch.h - a folder of a test program's own, below TMPDIR or /tmp. It is gone with all that is in it when
 * the program ends, also if a test has failed. Include after cmocka.h. */
#pragma once

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCRATCH_MAX  94 /* bytes of a path in it, with its zero: short enough for a socket */
#define SCRATCH_BASE 30 /* of TMPDIR: a longer one leaves no room for names */

static char scratch_root[SCRATCH_MAX];
static pid_t scratch_owner;

static inline int scratch_remove_one(const char *path, const struct stat *s, int kind, struct FTW *at) {
  (void)s;
  (void)kind;
  (void)at;
  remove(path);
  return 0;
}

static inline void scratch_remove(const char *folder) {
  nftw(folder, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void scratch_end(void) {
  if (getpid() == scratch_owner) scratch_remove(scratch_root); /* a child of fork may end as well */
}

static inline const char *scratch_folder(void) {
  if (scratch_root[0]) return scratch_root;
  const char *base = getenv("TMPDIR");
  bool usable = base && base[0] == '/' && strlen(base) <= SCRATCH_BASE;
  snprintf(scratch_root, sizeof scratch_root, "%s/tandem-test-XXXXXX", usable ? base : P_tmpdir);
  assert_non_null(mkdtemp(scratch_root));
  scratch_owner = getpid();
  atexit(scratch_end);
  return scratch_root;
}

typedef struct scratch_path_text {
  char text[SCRATCH_MAX];
} scratch_path_text;

/* A path in that folder. */
static inline scratch_path_text scratch_path(const char *name) {
  scratch_path_text p;
  int size = snprintf(p.text, sizeof p.text, "%s/%s", scratch_folder(), name);
  assert_true(size < SCRATCH_MAX);
  return p;
}

/* Makes a folder in it, another one at each call. */
static inline scratch_path_text scratch_make_folder(void) {
  scratch_path_text p = scratch_path("XXXXXX");
  assert_non_null(mkdtemp(p.text));
  return p;
}
