/* controls.h - characters that are not shown, but do something to a terminal or to the text around them. */
#pragma once

#include "common/base/utf8.h"
#include <stdbool.h>
#include <string.h>

typedef struct control_range {
  uint32_t first, last;
} control_range;

static const control_range controls_in_text[] = {{0, '\t' - 1},
                                                 {'\n' + 1, 0x1f},
                                                 {0x7f, 0x9f},
                                                 {0x202a, 0x202e},
                                                 {0x2066, 0x2069}},
                           controls_in_name[] = {{0x61c, 0x61c}, {0x200e, 0x200f}, {0x2028, 0x2029}};

static inline bool controls_have(const control_range *list, size_t count, uint32_t code) {
  for (size_t i = 0; i < count; i++)
    if (code >= list[i].first && code <= list[i].last) return true;
  return false;
}

/* Nothing that others say may hold it: a control character but for the newline and the tab, or one that
 * reverses the order in which the text behind it is shown (embeddings, overrides and isolates). */
static inline bool control_in_text(uint32_t code) {
  return controls_have(controls_in_text, sizeof controls_in_text / sizeof *controls_in_text, code);
}

/* Or one that a name or a message does not need, and that makes it look like another: a mark of direction or
 * a separator of lines. Text of languages that are written from the right may have these. */
static inline bool control_in_name(uint32_t code) {
  return control_in_text(code) ||
         controls_have(controls_in_name, sizeof controls_in_name / sizeof *controls_in_name, code);
}

/* Puts "?" for each of these in a name or a message, and for bytes that are no UTF-8. */
static inline void controls_hide(char *text) {
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
