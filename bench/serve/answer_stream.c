#include "bench/serve/answer_stream.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void answer_stream_init(answer_stream *s) {
  *s = (answer_stream){.tokens = -1, .drafted = -1, .accepted = -1};
}

void answer_stream_fini(answer_stream *s) {
  free(s->line.bytes);
  free(s->text.bytes);
  free(s->gaps_us);
  answer_stream_init(s);
}

static bool append(answer_text *t, const char *bytes, size_t size) {
  if (t->size + size > t->capacity) {
    size_t capacity = 2 * (t->size + size);
    char *grown = realloc(t->bytes, capacity);
    if (!grown) return false;
    t->bytes = grown;
    t->capacity = capacity;
  }
  if (size) memcpy(t->bytes + t->size, bytes, size);
  t->size += size;
  return true;
}

static bool add_gap(answer_stream *s, uint64_t us) {
  if (s->gap_count == s->gap_capacity) {
    size_t capacity = s->gap_capacity ? 2 * s->gap_capacity : 256;
    uint32_t *grown = realloc(s->gaps_us, capacity * sizeof *grown);
    if (!grown) return false;
    s->gaps_us = grown;
    s->gap_capacity = capacity;
  }
  s->gaps_us[s->gap_count++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
  return true;
}

static int add_text(answer_stream *s, const json_t *text, uint64_t now_us) {
  size_t size = json_string_length(text);
  if (size == 0) return ERR_OK;
  if (s->first_us && !add_gap(s, now_us - s->last_us)) return ERR_NOMEM;
  if (!s->first_us) s->first_us = now_us;
  s->last_us = now_us;
  return append(&s->text, json_string_value(text), size) ? ERR_OK : ERR_NOMEM;
}

static void take_int(const json_t *object, const char *key, int64_t *out) {
  const json_t *value = json_object_get(object, key);
  if (json_is_integer(value)) *out = json_integer_value(value);
}

/* "error" is an object with a message at OpenAI and most others, and a string at some. */
static void take_error(answer_stream *s, const json_t *error) {
  const char *message = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
  if (error && !json_is_null(error))
    snprintf(s->error, sizeof s->error, "%s", message ? message : "the server answers with an error");
}

static int take_object(answer_stream *s, const json_t *o, uint64_t now_us) {
  const json_t *choice = json_array_get(json_object_get(o, "choices"), 0);
  const json_t *delta = json_object_get(choice, "delta"), *usage = json_object_get(o, "usage");
  const json_t *ours = json_object_get(usage, "speculation"), *timings = json_object_get(o, "timings");
  take_error(s, json_object_get(o, "error"));
  take_int(usage, "completion_tokens", &s->tokens);
  take_int(ours, "draft_tokens", &s->drafted);
  take_int(ours, "accepted_tokens", &s->accepted);
  take_int(timings, "draft_n", &s->drafted);
  take_int(timings, "draft_n_accepted", &s->accepted);
  int code = add_text(s, json_object_get(choice, "text"), now_us);
  if (!code) code = add_text(s, json_object_get(delta, "reasoning_content"), now_us);
  return code ? code : add_text(s, json_object_get(delta, "content"), now_us);
}

static int take_json(answer_stream *s, const char *bytes, size_t size, uint64_t now_us) {
  json_t *o = json_loadb(bytes, size, 0, NULL);
  int code = json_is_object(o) ? take_object(s, o, now_us) : ERR_FORMAT;
  json_decref(o);
  return code;
}

static bool begins_with(const answer_text *t, const char *word) {
  size_t size = strlen(word);
  return t->size >= size && memcmp(t->bytes, word, size) == 0;
}

static int take_line(answer_stream *s, uint64_t now_us) {
  answer_text *line = &s->line;
  while (line->size && (line->bytes[line->size - 1] == '\r' || line->bytes[line->size - 1] == ' '))
    line->size--;
  size_t skip = begins_with(line, "data:") ? strlen("data:") : 0;
  while (skip && skip < line->size && line->bytes[skip] == ' ') skip++;
  const char *bytes = line->bytes + skip;
  size_t size = line->size - skip;
  line->size = 0;
  if (skip && size == strlen("[DONE]") && memcmp(bytes, "[DONE]", size) == 0) {
    s->done = true;
    return ERR_OK;
  }
  if (skip || (size && bytes[0] == '{')) return take_json(s, bytes, size, now_us);
  return ERR_OK; /* an empty line, a comment, or a field that says nothing here */
}

int answer_stream_take(answer_stream *s, const char *bytes, size_t size, uint64_t now_us) {
  int code = ERR_OK;
  while (size && !code) {
    const char *end = memchr(bytes, '\n', size);
    size_t part = end ? (size_t)(end - bytes) : size;
    if (s->line.size + part > ANSWER_STREAM_LINE_MAX) return ERR_LIMIT;
    if (!append(&s->line, bytes, part)) return ERR_NOMEM;
    if (end) code = take_line(s, now_us);
    bytes += part + (end != NULL);
    size -= part + (end != NULL);
  }
  return code;
}

int answer_stream_end(answer_stream *s, uint64_t now_us) {
  return s->line.size ? take_line(s, now_us) : ERR_OK;
}
