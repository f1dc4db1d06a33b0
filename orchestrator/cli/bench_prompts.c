#include "orchestrator/cli/bench_prompts.h"

#include "orchestrator/service/request_json.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define NO_CATEGORY "other"

static json_t *first_turn(const json_t *line) {
  const json_t *first = json_array_get(json_object_get(line, "turns"), 0);
  return json_is_string(first) ? json_pack("[{s:s, s:O}]", "role", "user", "content", first) : NULL;
}

/* A line of the same prompt as `batch' takes it, or NULL: it has none. Ids go before text, because a text
 * that was rendered by a chat template already must not be rendered again. */
static json_t *request_line(const json_t *line) {
  static const char *const keys[] = {"prompt_ids", "messages", "prompt"};
  json_t *turns = first_turn(line);
  if (turns) return json_pack("{s:s, s:o}", "id", "", "messages", turns);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    json_t *value = json_object_get(line, keys[i]);
    if (value) return json_pack("{s:s, s:O}", "id", "", keys[i], value);
  }
  return NULL;
}

static int category_of(bench_prompts *p, const json_t *line, int32_t *out, err *e) {
  const char *name = json_string_value(json_object_get(line, "category"));
  if (!name) name = NO_CATEGORY;
  for (*out = 0; *out < p->category_count; ++*out)
    if (strcmp(p->categories[*out], name) == 0) return ERR_OK;
  if (p->category_count == BENCH_PROMPTS_CATEGORIES_MAX)
    return err_set(e, ERR_LIMIT, "there are more than %d categories", BENCH_PROMPTS_CATEGORIES_MAX);
  p->categories[p->category_count] = strdup(name);
  return p->categories[p->category_count++] ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

static int read_request(const json_t *line, const request *defaults, int32_t vocabulary, request *out,
                        err *e) {
  json_t *prompt = request_line(line), *id = NULL;
  if (!prompt) return err_set(e, ERR_ARG, "it has none of prompt_ids, messages, turns and prompt");
  char *text = json_dumps(prompt, JSON_COMPACT);
  int rc = text ? request_json_read(text, strlen(text), defaults, vocabulary, out, &id, e)
                : err_set(e, ERR_NOMEM, "out of memory");
  json_decref(id);
  free(text);
  json_decref(prompt);
  return rc;
}

static int add_line(bench_prompts *p, const char *text, size_t size, long number, const request *defaults,
                    int32_t vocabulary, err *e) {
  bench_prompt *grown = realloc(p->list, (p->count + 1) * sizeof *grown);
  if (!grown) return err_set(e, ERR_NOMEM, "out of memory");
  p->list = grown;
  bench_prompt *fresh = &p->list[p->count];
  *fresh = (bench_prompt){.line = number};
  json_t *line = json_loadb(text, size, 0, NULL);
  int rc = json_is_object(line) ? category_of(p, line, &fresh->category, e)
                                : err_set(e, ERR_FORMAT, "it is no JSON object");
  if (rc == ERR_OK) {
    request_init(&fresh->request);
    p->count++; /* from now on it is released */
    rc = read_request(line, defaults, vocabulary, &fresh->request, e);
  }
  json_decref(line);
  return rc;
}

int bench_prompts_read(bench_prompts *p, const input_file *in, const request *defaults, int32_t vocabulary,
                       err *e) {
  *p = (bench_prompts){0};
  long number = 0;
  for (size_t at = 0; at < in->size;) {
    const char *line = in->data + at, *end = memchr(line, '\n', in->size - at);
    size_t size = end ? (size_t)(end - line) : in->size - at;
    err why = {0};
    at += size + 1;
    number++;
    if (request_json_is_blank(line, size)) continue;
    int rc = add_line(p, line, size, number, defaults, vocabulary, &why);
    if (rc != ERR_OK) return err_set(e, rc, "line %ld: %s", number, why.text);
  }
  return p->count ? ERR_OK : err_set(e, ERR_ARG, "it has no prompts");
}

void bench_prompts_fini(bench_prompts *p) {
  for (size_t i = 0; i < p->count; i++) request_fini(&p->list[i].request);
  for (int32_t i = 0; i < p->category_count; i++) free(p->categories[i]);
  free(p->list);
  *p = (bench_prompts){0};
}
