#include "common/base/err.h"

#include "common/base/controls.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

int err_set(err *e, int code, const char *format, ...) {
  if (e) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    controls_hide(e->text); /* it may quote a file's name or what a peer says, and is read on a terminal */
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
