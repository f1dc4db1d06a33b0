/* chat_template_source.h - brings the text of a chat template into one normal form, so that two spellings of
 * the same template compare equal. Comments are removed, and so is what Jinja strips around tags (with
 * trim_blocks and lstrip_blocks, as transformers sets them). Inside tags, blanks stand only between words,
 * text is in single quotes with plain newlines, x['role'] becomes x.role, and 'a' + 'b' becomes 'ab'. Source:
 * Jinja's documentation of its syntax. */
#pragma once

#include <stddef.h>

/* Returns the normal form, malloc'd, or NULL when memory is out. A text that is no Jinja template also gives
 * some text. */
char *chat_template_source_normal(const char *text, size_t size);
