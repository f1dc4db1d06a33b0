#include "common/base/log_json.h"

#include "common/base/json_text.h"
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SESSION_DIGITS 16
#define TIME_MAX       40

/* UTC, to the microsecond. */
static json_t *time_of(int64_t wall_us) {
  time_t seconds = (time_t)(wall_us / 1000000);
  struct tm utc;
  char day[TIME_MAX] = "", whole[2 * TIME_MAX];
  if (gmtime_r(&seconds, &utc)) strftime(day, sizeof day, "%FT%T", &utc);
  snprintf(whole, sizeof whole, "%s.%06dZ", day, (int)(wall_us % 1000000));
  return json_string(whole);
}

static json_t *text_of(const char *text, size_t size) {
  json_t *whole = json_stringn(text, size);
  char *ascii = whole ? NULL : strndup(text, size);
  for (char *c = ascii; c && *c; c++)
    if (*c & 0x80) *c = '?';
  if (ascii) whole = json_string(ascii);
  free(ascii);
  return whole;
}

/* The text behind `word` where it begins with that, or NULL. */
static const char *after(const char *text, const char *word) {
  size_t size = strlen(word);
  return strncmp(text, word, size) == 0 ? text + size : NULL;
}

static const char *add_request(json_t *o, const char *text) {
  const char *id = after(text, "request "), *end = id ? strstr(id, ": ") : NULL;
  if (!end) return text;
  json_object_set_new(o, "request", text_of(id, (size_t)(end - id)));
  return end + 2;
}

static void add_session(json_t *o, const char *text) {
  const char *id = after(text, "session ");
  size_t digits = 0;
  while (id && digits < SESSION_DIGITS && isxdigit((unsigned char)id[digits])) digits++;
  if (digits == SESSION_DIGITS && !isxdigit((unsigned char)id[digits]))
    json_object_set_new(o, "session", text_of(id, digits));
}

char *log_json_line(const char *program, const char *level, int64_t wall_us, const char *text) {
  json_t *o = json_object();
  json_object_set_new(o, "time", time_of(wall_us));
  json_object_set_new(o, "level", json_string(level));
  json_object_set_new(o, "program", json_string(program));
  add_session(o, add_request(o, text));
  json_object_set_new(o, "text", text_of(text, strlen(text)));
  char *object = json_text(o, JSON_COMPACT), *line = NULL;
  if (object && asprintf(&line, "%s\n", object) < 0) line = NULL;
  free(object);
  json_decref(o);
  return line;
}
