#include "common/base/terminal.h"

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

/* Bytes of the character that p[size] begins with; 0: it is none. Of two bytes, U+0080 to U+009F count as
 * none. */
static size_t character(const uint8_t *p, size_t size) {
  size_t length = p[0] < 0x80                   ? 1
                  : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                  : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                  : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                                : 0;
  if (length == 0 || length > size || (p[0] == 0xc2 && p[1] < 0xa0)) return 0;
  for (size_t i = 1; i < length; i++)
    if ((p[i] & 0xc0) != 0x80) return 0;
  return length;
}

static bool is_control(uint8_t byte) {
  return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
}

size_t terminal_clean(char *out, const char *text, size_t size) {
  static const char replacement[] = "\xef\xbf\xbd";
  const uint8_t *p = (const uint8_t *)text;
  size_t n = 0;
  for (size_t at = 0, length; at < size; at += length) {
    length = character(p + at, size - at);
    if (length == 1 && is_control(p[at])) {
      if (p[at] == '\r' && (at + 1 == size || p[at + 1] == '\n')) continue;
      out[n++] = '^';
      out[n++] = (char)(p[at] ^ 0x40);
    } else if (length) {
      memcpy(out + n, p + at, length);
      n += length;
    } else {
      length = p[at] == 0xc2 && at + 1 < size && (p[at + 1] & 0xc0) == 0x80 ? 2 : 1;
      memcpy(out + n, replacement, 3);
      n += 3;
    }
  }
  return n;
}

static ssize_t write_clean(void *to, const char *text, size_t size) {
  char *clean = malloc(TERMINAL_CLEAN_MAX(size) + 1);
  size_t n = clean ? terminal_clean(clean, text, size) : 0;
  bool written = clean && fwrite(clean, 1, n, to) == n && fflush(to) == 0;
  free(clean);
  return written ? (ssize_t)size : 0;
}

FILE *terminal_clean_stream(FILE *to) {
  if (!isatty(fileno(to))) return to;
  FILE *f = fopencookie(to, "w", (cookie_io_functions_t){.write = write_clean});
  if (f) setvbuf(f, NULL, _IOLBF, 1 << 16); /* whole lines, so that no character is cut */
  return f;
}
