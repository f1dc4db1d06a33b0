/* printable.h - makes paths, and names that come out of a file, fit for a message. */
#pragma once

#include <stdint.h>

#define PRINTABLE_PATH_MAX 156 /* bytes of a path in a message, its NUL included */
#define PRINTABLE_TEXT_MAX 68  /* of a name from a file */

/* Copies the path, or its end where it is too long. */
void printable_path(char out[PRINTABLE_PATH_MAX], const char *path);
/* Copies the text; every byte that is not printable ASCII becomes '?', and a long text is cut. Returns out.
 */
const char *printable_text(char out[PRINTABLE_TEXT_MAX], const void *data, uint64_t size);
