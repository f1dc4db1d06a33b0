/* plain_text.h - text as some editors and shells write it, made plain: every reader of a text that a user
 * gives by a file or a pipe goes through here. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>

/* Bytes of the byte order mark with which the text begins: 3 or 0. */
size_t plain_text_mark(const char *text, size_t size);
/* Takes the byte order mark away, and the CR of each CRLF, in place: the new size. A CR alone stays. */
size_t plain_text_clean(char *text, size_t size);
/* ERR_FORMAT with a sentence: it is UTF-16 or UTF-32, whose bytes mean nothing here. `name` names the file.
 */
int plain_text_check(const char *text, size_t size, const char *name, err *e);
