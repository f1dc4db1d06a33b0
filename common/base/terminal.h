/* terminal.h - what may be written to a terminal: its own codes besides plain lines, and nothing of others'
 * codes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Is there a terminal at `fd` that takes escape sequences: TERM is set, and is not "dumb"? */
bool terminal_is_smart(int fd);
/* And does the user want them? Whoever sets NO_COLOR gets plain lines: no colours, and no line that is
 * written over. */
bool terminal_takes_colours(int fd);

/* Makes harmless what answers, prompts, files and peers say: control characters would move the cursor, change
 * the title, or answer in the user's name. Those below U+0020 and U+007F become "^[" and the like; the others
 * of controls.h, and bytes that are no UTF-8, U+FFFD. Newlines and tabs stay; a CR before a newline or at the
 * end is left out. Writes to out[TERMINAL_CLEAN_MAX(size)], which is not text: the bytes. text: whole
 * characters. */
#define TERMINAL_CLEAN_MAX(size) (3 * (size))
size_t terminal_clean(char *out, const char *text, size_t size);
/* The same for messages and names, which hold no marks of direction either. */
size_t terminal_clean_message(char *out, const char *text, size_t size);

/* From now on what is printed to this stream is clean, where a terminal is behind it. Called before anything
 * is printed. NULL: out of memory. */
FILE *terminal_clean_stream(FILE *to);
/* A stream for messages that are printed to `to`, wherever that goes; to fclose(). NULL: out of memory. */
FILE *terminal_message_stream(FILE *to);
