#include "orchestrator/cli/word_wrap.h"

#include "common/base/utf8.h"
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#define TAB    8 /* columns */
#define ESCAPE '\033'

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

static void drop_blanks(word_wrap *w) {
  size_t n = 0;
  for (size_t i = 0; i < w->size; i++)
    if (!is_blank(w->held[i])) w->held[n++] = w->held[i];
  w->size = n;
  w->blanks = 0;
}

/* Gives out what is held, in a new line where this one has no room for it. What has no blank before it is
 * left to the terminal. */
static int give(word_wrap *w, size_t columns) {
  int rc = 0;
  if (w->column > 0 && w->blanks > 0 && w->column + w->blanks + w->width > columns) {
    drop_blanks(w);
    if (w->width > 0) {
      rc = w->put(w->context, "\n", 1);
      w->column = 0;
    }
  }
  if (rc == 0 && w->size) rc = w->put(w->context, w->held, w->size);
  w->column += w->blanks + w->width;
  if (w->column > columns) w->column = (w->column - 1) % columns + 1;
  w->blanks = w->width = w->size = 0;
  return rc;
}

/* A colour is a character without width. */
static size_t character(const char *text, size_t size, size_t *width) {
  size_t length;
  uint32_t code;
  const char *end = *text == ESCAPE ? memchr(text, 'm', size) : NULL;
  *width = 0;
  if (end) return (size_t)(end - text) + 1;
  utf8_next((const uint8_t *)text, size, &length, &code);
  int columns = utf8proc_charwidth((utf8proc_int32_t)code);
  *width = columns > 0 ? (size_t)columns : 0;
  return length;
}

/* A wide character is a word by itself. */
static int add_character(word_wrap *w, size_t columns, const char *text, size_t length, size_t width) {
  bool blank = is_blank(*text), wide = width > 1, breaks = w->width > 0 && (blank || wide);
  int rc = breaks || w->size + length > sizeof w->held ? give(w, columns) : 0;
  if (wide && w->blanks == 0 && w->column + width > columns) w->column = columns; /* none has half of it */
  memcpy(w->held + w->size, text, length);
  w->size += length;
  if (*text == '\t')
    w->blanks += TAB - (w->column + w->blanks) % TAB;
  else if (blank)
    w->blanks++;
  else
    w->width += width;
  return rc == 0 && (wide || w->width >= columns) ? give(w, columns) : rc;
}

int word_wrap_add(word_wrap *w, size_t columns, const char *text, size_t size) {
  int rc = 0;
  for (size_t at = 0, length, width; rc == 0 && at < size; at += length) {
    length = character(text + at, size - at, &width);
    if (text[at] != '\n') {
      rc = add_character(w, columns, text + at, length, width);
      continue;
    }
    rc = give(w, columns);
    if (rc == 0) rc = w->put(w->context, "\n", 1);
    w->column = 0;
  }
  return rc;
}

int word_wrap_end(word_wrap *w, size_t columns) {
  int rc = give(w, columns);
  w->column = 0;
  return rc;
}
