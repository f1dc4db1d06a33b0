/* verify_trees.h - prints the draft tree of every verify step, with what was accepted, from the file that a
 * target has written with --record-steps. */
#pragma once

#include "orchestrator/service/text_model.h"
#include <stdio.h>

#define VERIFY_TREES_PATH_MAX 512

/* Makes an empty file for a target's steps, and sets path to its name. ERR_IO. */
int verify_trees_begin(char path[VERIFY_TREES_PATH_MAX], err *e);
/* The target has ended: prints its trees to the end of the file `out` or, if that is "", to stderr, as wide
 * as the terminal; and removes the file of the steps. The errors of verify_trees_print. */
int verify_trees_end(const char *path, const char *out, const text_model *m, err *e);

/* No line is wider than `columns`. Plain steps are left out. ERR_IO; ERR_FORMAT names the line. */
int verify_trees_print(FILE *to, const char *path, const text_model *m, int columns, err *e);
