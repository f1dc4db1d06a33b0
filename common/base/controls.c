#include "common/base/controls.h"

#include "common/base/utf8.h"
#include <string.h>

typedef struct range {
  uint32_t first, last;
} range;

static const range in_text[] = {{0, '\t' - 1},
                                {'\n' + 1, 0x1f},
                                {0x7f, 0x9f},
                                {0x202a, 0x202e},
                                {0x2066, 0x2069}},
                   in_name[] = {{0x61c, 0x61c}, {0x200e, 0x200f}, {0x2028, 0x2029}};

static bool is_in(const range *list, size_t count, uint32_t code) {
  for (size_t i = 0; i < count; i++)
    if (code >= list[i].first && code <= list[i].last) return true;
  return false;
}

bool control_in_text(uint32_t code) {
  return is_in(in_text, sizeof in_text / sizeof *in_text, code);
}

bool control_in_name(uint32_t code) {
  return control_in_text(code) || is_in(in_name, sizeof in_name / sizeof *in_name, code);
}

void controls_hide(char *text) {
  char *out = text;
  size_t left = strlen(text), length;
  for (; left; text += length, left -= length) {
    uint32_t code;
    bool good = utf8_next((const uint8_t *)text, left, &length, &code) == UTF8_CHARACTER;
    if (good && !control_in_name(code)) {
      memmove(out, text, length);
      out += length;
    } else {
      *out++ = '?';
    }
  }
  *out = 0;
}
