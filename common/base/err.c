#include "common/base/err.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

/* A sentence may quote a file's name or what a peer says, and is read on a terminal: no control character
 * gets there, neither of one byte nor of two (U+0080 to U+009F). */
static void make_plain(char *text) {
  for (unsigned char *p = (unsigned char *)text; *p; p++) {
    bool two = p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f;
    if ((*p < ' ' && *p != '\n' && *p != '\t') || *p == 0x7f || two) *p = '?';
    if (two) *++p = '?';
  }
}

int err_set(err *e, int code, const char *format, ...) {
  if (e) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    make_plain(e->text);
    e->code = code;
  }
  return code;
}

const char *err_name(int code) {
  switch (code) {
  case ERR_OK:
    return "ok";
#define ERR_CASE(name, number, text)                                                                         \
  case number:                                                                                               \
    return text;
    ERR_LIST(ERR_CASE)
#undef ERR_CASE
  }
  return "unknown";
}
