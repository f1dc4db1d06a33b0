#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/scratch.h"

#include <ftw.h>

static char scratch_root[SCRATCH_MAX];
static pid_t scratch_owner;

static int scratch_remove_one(const char *path, const struct stat *s, int kind, struct FTW *at) {
  (void)s;
  (void)kind;
  (void)at;
  remove(path);
  return 0;
}

void scratch_remove(const char *folder) {
  nftw(folder, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void scratch_end(void) {
  if (getpid() == scratch_owner) scratch_remove(scratch_root); /* a child of fork may end as well */
}

const char *scratch_folder(void) {
  if (scratch_root[0]) return scratch_root;
  const char *base = getenv("TMPDIR");
  bool usable = base && base[0] == '/' && strlen(base) <= SCRATCH_BASE;
  snprintf(scratch_root, sizeof scratch_root, "%s/tandem-test-XXXXXX", usable ? base : P_tmpdir);
  assert_non_null(mkdtemp(scratch_root));
  scratch_owner = getpid();
  atexit(scratch_end);
  return scratch_root;
}

scratch_path_text scratch_path(const char *name) {
  scratch_path_text p;
  int size = snprintf(p.text, sizeof p.text, "%s/%s", scratch_folder(), name);
  assert_true(size < SCRATCH_MAX);
  return p;
}

scratch_path_text scratch_make_folder(void) {
  scratch_path_text p = scratch_path("XXXXXX");
  assert_non_null(mkdtemp(p.text));
  return p;
}
