/* chat_source.h - the text of a chat template in one normal form, so that two writings of the same template
 * compare equal: comments and what Jinja strips around tags (with trim_blocks and lstrip_blocks, as
 * transformers sets them) are gone; inside tags are no blanks but between words, 'text' in single quotes with
 * its newlines as themselves, x.role for x['role'], 'ab' for 'a' + 'b'. Source: Jinja's documentation of its
 * syntax. */
#pragma once

#include <stddef.h>

/* malloc'd; NULL: out of memory. What is no template of Jinja's comes out as something, too. */
char *chat_template_source_normal(const char *text, size_t size);
