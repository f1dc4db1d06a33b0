#include "common/text/chat_template_source.h"

#include "common/base/plain_text.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct scan {
  const char *p, *end;
  char *out; /* never longer than the text: every change shortens */
  size_t size;
  bool line_begins; /* what follows stands at the beginning of a line */
} scan;

static bool is_at(const scan *s, const char *what) {
  size_t size = strlen(what);
  return (size_t)(s->end - s->p) >= size && memcmp(s->p, what, size) == 0;
}

static bool is_blank(char c) {
  return isspace((unsigned char)c);
}

static bool is_word(char c) {
  return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static void put(scan *s, char c) {
  s->out[s->size++] = c;
}

static char last(const scan *s) {
  return s->size ? s->out[s->size - 1] : '\0';
}

static void skip_blanks(scan *s) {
  while (s->p < s->end && is_blank(*s->p)) s->p++;
}

/* ---- inside a tag ---- */

/* x['name'] is x.name. */
static bool take_item(scan *s) {
  const char *p = s->p + 1;
  if (!(is_word(last(s)) || last(s) == ']' || last(s) == ')')) return false;
  while (p < s->end && is_blank(*p)) p++;
  if (p == s->end || (*p != '\'' && *p != '"')) return false;
  const char *name = p + 1, *name_end = name;
  while (name_end < s->end && is_word(*name_end)) name_end++;
  if (name_end == name || name_end == s->end || *name_end != *p || isdigit((unsigned char)*name))
    return false;
  for (p = name_end + 1; p < s->end && is_blank(*p);) p++;
  if (p == s->end || *p != ']') return false;
  put(s, '.');
  memmove(s->out + s->size, name, (size_t)(name_end - name));
  s->size += (size_t)(name_end - name);
  s->p = p + 1;
  return true;
}

/* Nothing binds the string before p closer than the + on its left. */
static bool stands_free(const scan *s, const char *p) {
  while (p < s->end && is_blank(*p)) p++;
  return p == s->end || !strchr("|.[(*", *p);
}

static void take_string(scan *s) {
  const char quote = *s->p, *end = s->p + 1;
  bool plain = true; /* may stand in single quotes as it is */
  for (; end < s->end && *end != quote; end++) {
    plain &= *end != '\'';
    end += *end == '\\' && end + 1 < s->end;
  }
  bool joins = s->size >= 2 && last(s) == '+' && s->out[s->size - 2] == '\'' && (plain || quote == '\'') &&
               stands_free(s, end + 1);
  if (joins)
    s->size -= 2;
  else
    put(s, plain ? '\'' : quote);
  for (const char *p = s->p + 1; p < end && p < s->end; p++) {
    bool escape = *p == '\\' && p + 1 < end;
    if (escape && p[1] == 'n') {
      put(s, '\n');
      p++;
    } else if (escape && p[1] == '"' && plain) {
      put(s, *++p);
    } else {
      put(s, *p);
      if (escape) put(s, *++p);
    }
  }
  put(s, plain ? '\'' : quote);
  s->p = end < s->end ? end + 1 : s->end;
}

/* From after the tag's beginning to before `close`, or its sign. */
static void take_code(scan *s, const char *close) {
  while (s->p < s->end && !is_at(s, close)) {
    bool sign = (*s->p == '-' || *s->p == '+') && s->p + 1 < s->end;
    s->p += sign;
    bool closes = is_at(s, close);
    s->p -= sign;
    if (sign && closes) return;
    if (is_blank(*s->p)) {
      skip_blanks(s);
      if (s->p < s->end && is_word(*s->p) && is_word(last(s))) put(s, ' ');
    } else if (*s->p == '\'' || *s->p == '"') {
      take_string(s);
    } else if (*s->p != '[' || !take_item(s)) {
      put(s, *s->p++);
    }
  }
}

/* ---- tags ---- */

typedef struct tag {
  const char *open, *close;
} tag;

static const tag TAGS[] = {{"{{", "}}"}, {"{%", "%}"}, {"{#", "#}"}};
enum { TAG_VARIABLE, TAG_BLOCK, TAG_COMMENT, TAG_COUNT };

static int tag_at(const scan *s) {
  int i = 0;
  while (i < TAG_COUNT && !is_at(s, TAGS[i].open)) i++;
  return i;
}

/* What Jinja strips off the text from `begin` on, before a tag. */
static void strip_before(scan *s, size_t begin, bool all, bool line) {
  size_t at = s->size;
  while (at > begin && is_blank(s->out[at - 1]) && (all || s->out[at - 1] != '\n')) at--;
  if (all || (line && (at > begin ? s->out[at - 1] == '\n' : s->line_begins))) s->size = at;
}

static void take_tag(scan *s, int kind, size_t data_begin) {
  const tag *t = &TAGS[kind];
  char sign = s->p + 2 < s->end ? s->p[2] : '\0';
  strip_before(s, data_begin, sign == '-', kind != TAG_VARIABLE && sign != '+');
  size_t begin = s->size;
  s->p += 2;
  if (sign == '-' || sign == '+') s->p++;
  put(s, t->open[0]), put(s, t->open[1]);
  if (kind == TAG_COMMENT)
    while (s->p < s->end && !is_at(s, t->close)) s->p++;
  else
    take_code(s, t->close);
  bool strips = s->p < s->end && *s->p == '-', keeps = s->p < s->end && *s->p == '+';
  if (kind == TAG_COMMENT) strips = s->p < s->end && s->p[-1] == '-';
  if (kind != TAG_COMMENT) s->p += strips || keeps;
  s->p += is_at(s, t->close) ? 2 : 0;
  put(s, t->close[0]), put(s, t->close[1]);
  if (kind == TAG_COMMENT) s->size = begin;
  if (strips)
    skip_blanks(s);
  else if (kind != TAG_VARIABLE && !keeps && s->p < s->end && *s->p == '\n')
    s->p++;
  s->line_begins = s->p[-1] == '\n';
}

/* Jinja takes CRLF and CR for LF. */
static size_t break_lines(const char *text, size_t size, char *out) {
  size_t kept = 0;
  for (size_t i = 0; i < size; i++) {
    if (text[i] != '\r')
      out[kept++] = text[i];
    else if (i + 1 == size || text[i + 1] != '\n')
      out[kept++] = '\n';
  }
  return kept;
}

char *chat_template_source_normal(const char *text, size_t size) {
  char *lines = malloc(size + 1);
  /* a string and a tag that are cut short are closed */
  scan s = {.p = lines, .out = malloc(size + 8), .line_begins = true};
  if (!s.out || !lines) {
    free(lines), free(s.out);
    return NULL;
  }
  size_t mark = plain_text_mark(text, size);
  size = break_lines(text + mark, size - mark, lines);
  s.end = lines + size;
  if (size && lines[size - 1] == '\n') s.end--;
  for (size_t begin = 0; s.p < s.end;) {
    int kind = tag_at(&s);
    if (kind == TAG_COUNT) {
      put(&s, *s.p++);
      continue;
    }
    take_tag(&s, kind, begin);
    begin = s.size;
  }
  s.out[s.size] = '\0';
  free(lines);
  return s.out;
}
