/* scratch.h - a folder of a test program's own, below TMPDIR or /tmp. It is gone with all that is in it when
 * the program ends, also if a test has failed. Include after cmocka.h. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCRATCH_MAX  94 /* bytes of a path in it, with its zero: short enough for a socket */
#define SCRATCH_BASE 30 /* of TMPDIR: a longer one leaves no room for names */

void scratch_remove(const char *folder);

const char *scratch_folder(void);

typedef struct scratch_path_text {
  char text[SCRATCH_MAX];
} scratch_path_text;

/* A path in that folder. */
scratch_path_text scratch_path(const char *name);

/* Makes a folder in it, another one at each call. */
scratch_path_text scratch_make_folder(void);
