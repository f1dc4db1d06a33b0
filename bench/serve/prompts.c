#include "bench/serve/prompts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
  const prompts_options *options;
  const char *path;
  json_t **list; /* [count], "messages" or a prompt */
  size_t count, capacity;
  err *e;
} reader;

/* A new reference to the prompt of a line, or NULL. */
static json_t *prompt_of(const json_t *line, bool chat) {
  json_t *messages = json_object_get(line, "messages"), *ids = json_object_get(line, "prompt_ids");
  json_t *text = json_object_get(line, "turns") ? json_array_get(json_object_get(line, "turns"), 0)
                                                : json_object_get(line, "prompt");
  if (chat && json_is_array(messages)) return json_incref(messages);
  if (!chat && json_is_array(ids)) return json_incref(ids);
  if (!json_is_string(text)) return NULL;
  return chat ? json_pack("[{s:s, s:O}]", "role", "user", "content", text) : json_incref(text);
}

static int keep(reader *r, json_t *prompt) {
  if (r->count == r->capacity) {
    size_t capacity = r->capacity ? 2 * r->capacity : 64;
    json_t **grown = realloc(r->list, capacity * sizeof *grown);
    if (!grown) {
      json_decref(prompt);
      return err_set(r->e, ERR_NOMEM, "out of memory");
    }
    r->list = grown;
    r->capacity = capacity;
  }
  r->list[r->count++] = prompt;
  return ERR_OK;
}

static int take_line(reader *r, const char *text, size_t size, long number) {
  if (strspn(text, " \t\r\n") == size) return ERR_OK;
  json_t *line = json_loadb(text, size, 0, NULL);
  json_t *prompt = line ? prompt_of(line, r->options->chat) : NULL;
  json_decref(line);
  if (prompt) return keep(r, prompt);
  return err_set(r->e, ERR_FORMAT, "%.200s, line %ld: a JSON object with %s is needed", r->path, number,
                 r->options->chat ? "\"messages\", \"turns\" or \"prompt\""
                                  : "\"prompt\", \"turns\" or \"prompt_ids\"");
}

static int read_lines(reader *r) {
  FILE *f = fopen(r->path, "r");
  if (!f) return err_set(r->e, ERR_ARG, "cannot read %.200s: %s", r->path, strerror(errno));
  char *text = NULL;
  size_t room = 0;
  int code = ERR_OK;
  ssize_t size;
  for (long number = 1; !code && (size = getline(&text, &room, f)) >= 0; number++)
    code = take_line(r, text, (size_t)size, number);
  free(text);
  fclose(f);
  if (!code && !r->count) code = err_set(r->e, ERR_FORMAT, "%.200s: there is no prompt in it", r->path);
  return code;
}

static char *body_of(const prompts_options *o, json_t *prompt) {
  json_t *b = json_pack("{s:s, s:O, s:i, s:f, s:b, s:{s:b}}", "model", o->model,
                        o->chat ? "messages" : "prompt", prompt, "max_tokens", (int)o->max_tokens,
                        "temperature", o->temperature, "stream", 1, "stream_options", "include_usage", 1);
  if (b && o->seed >= 0) json_object_set_new(b, "seed", json_integer(o->seed));
  if (b && o->no_speculation) json_object_set_new(b, "speculation", json_pack("{s:b}", "enabled", 0));
  char *text = b ? json_dumps(b, JSON_COMPACT) : NULL;
  json_decref(b);
  return text;
}

static int make_bodies(const reader *r, size_t count, char ***out, size_t *out_count) {
  size_t all = count ? count : r->count;
  char **bodies = calloc(all, sizeof *bodies);
  for (size_t i = 0; i < all && bodies; i++) {
    bodies[i] = body_of(r->options, r->list[i % r->count]);
    if (bodies[i]) continue;
    prompts_free(bodies, i);
    bodies = NULL;
  }
  *out = bodies;
  *out_count = bodies ? all : 0;
  return bodies ? ERR_OK : err_set(r->e, ERR_NOMEM, "out of memory");
}

int prompts_read(char ***out, size_t *out_count, const char *path, size_t count, const prompts_options *o,
                 err *e) {
  reader r = {.options = o, .path = path, .e = e};
  *out = NULL;
  *out_count = 0;
  int code = read_lines(&r);
  if (!code) code = make_bodies(&r, count, out, out_count);
  for (size_t i = 0; i < r.count; i++) json_decref(r.list[i]);
  free(r.list);
  return code;
}

void prompts_free(char **bodies, size_t count) {
  for (size_t i = 0; bodies && i < count; i++) free(bodies[i]);
  free(bodies);
}
