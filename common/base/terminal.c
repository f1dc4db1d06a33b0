#include "common/base/terminal.h"

#include "common/base/controls.h"
#include "common/base/utf8.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool terminal_is_smart(int fd) {
  const char *kind = getenv("TERM");
  return isatty(fd) && kind && *kind && strcmp(kind, "dumb") != 0;
}

bool terminal_takes_colours(int fd) {
  const char *plain = getenv("NO_COLOR");
  return terminal_is_smart(fd) && !(plain && *plain);
}

/* ---- what others say ---- */

typedef size_t (*cleaner)(char *out, const char *text, size_t size);

static size_t clean(char *out, const char *text, size_t size, bool (*hides)(uint32_t)) {
  static const char replacement[] = "\xef\xbf\xbd";
  size_t n = 0;
  for (size_t at = 0, length; at < size; at += length) {
    uint32_t code;
    bool good = utf8_next((const uint8_t *)text + at, size - at, &length, &code) == UTF8_CHARACTER;
    if (good && !hides(code)) {
      memcpy(out + n, text + at, length);
      n += length;
    } else if (good && length == 1) {
      if (code == '\r' && (at + 1 == size || text[at + 1] == '\n')) continue;
      out[n++] = '^';
      out[n++] = (char)(code ^ 0x40);
    } else {
      memcpy(out + n, replacement, 3);
      n += 3;
    }
  }
  return n;
}

size_t terminal_clean(char *out, const char *text, size_t size) {
  return clean(out, text, size, control_in_text);
}

size_t terminal_clean_message(char *out, const char *text, size_t size) {
  return clean(out, text, size, control_in_name);
}

/* ---- streams ---- */

static ssize_t write_by(cleaner cleans, FILE *to, const char *text, size_t size) {
  char *made = malloc(TERMINAL_CLEAN_MAX(size) + 1);
  size_t n = made ? cleans(made, text, size) : 0;
  bool written = made && fwrite(made, 1, n, to) == n && fflush(to) == 0;
  free(made);
  return written ? (ssize_t)size : 0;
}

static ssize_t write_clean(void *to, const char *text, size_t size) {
  return write_by(terminal_clean, to, text, size);
}

static ssize_t write_message(void *to, const char *text, size_t size) {
  return write_by(terminal_clean_message, to, text, size);
}

static FILE *stream_by(ssize_t (*writes)(void *, const char *, size_t), FILE *to) {
  FILE *f = fopencookie(to, "w", (cookie_io_functions_t){.write = writes});
  if (f) setvbuf(f, NULL, _IOLBF, 1 << 16); /* whole lines, so that no character is cut */
  return f;
}

FILE *terminal_clean_stream(FILE *to) {
  return isatty(fileno(to)) ? stream_by(write_clean, to) : to;
}

FILE *terminal_message_stream(FILE *to) {
  return stream_by(write_message, to);
}
