/* line_editor.h - reads lines that a person types at a terminal, with editing and history by libedit, while
 * the loop runs on.
 *
 * One thread, and one editor in a program. While no line is read the terminal neither echoes nor gathers
 * lines, so what is typed then becomes the beginning of the next line; Ctrl-C always raises SIGINT. Where
 * neither stdout nor stderr is a terminal nothing is drawn, and stdin's lines are taken as the terminal gives
 * them. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

typedef enum {
  LINE_TEXT,
  LINE_INTERRUPTED, /* line_editor_interrupt: the line is dropped */
  LINE_END          /* Ctrl-D on an empty line, the terminal is gone, or `over` says so */
} line_kind;

typedef struct line_editor_options {
  uv_loop_t *loop;
  const char *history;       /* a file, made with its folder; NULL: none is kept beyond the program's end */
  bool (*over)(void *owner); /* returns true when no line is wanted any more */
  void *owner;
} line_editor_options;

typedef struct line_editor line_editor;

/* ERR_IO, ERR_NOMEM. */
int line_editor_open(line_editor **out, const line_editor_options *o, err *e);
/* Restores the terminal. The loop must run once more before it is closed. NULL is allowed. */
void line_editor_close(line_editor *l);

/* Runs the loop until there is a line: *text [*size], UTF-8, until the next call. It may have line ends
 * inside: those of a paste, or of lines that end with '\'. keep: it goes into the history. */
line_kind line_editor_read(line_editor *l, const char *prompt, bool keep, const char **text, size_t *size);
/* Ends the line of a prompt that nothing follows any more, where nothing is drawn. */
void line_editor_end_prompt(const line_editor *l);
/* After LINE_INTERRUPTED: was the dropped line empty? */
bool line_editor_was_empty(const line_editor *l);

/* Drops the line that is being read; to be called from a callback of the loop. */
void line_editor_interrupt(line_editor *l);
/* Restores the terminal at once, for a program that is about to exit. */
void line_editor_restore(line_editor *l);
