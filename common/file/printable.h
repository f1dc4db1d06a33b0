/* label.h - names of files, and what files call things, fit for a message. */
#pragma once

#include <stdint.h>

#define PRINTABLE_PATH_MAX 156 /* bytes of a path in a message, its NUL included */
#define PRINTABLE_TEXT_MAX 68  /* of a name from a file */

/* The path, or its end. */
void printable_path(char out[PRINTABLE_PATH_MAX], const char *path);
/* What is no printable ASCII becomes '?'; what is long, is cut. Returns out. */
const char *printable_text(char out[PRINTABLE_TEXT_MAX], const void *data, uint64_t size);
