#include "bench/policy_replay/steps.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_ROWS_MAX 64   /* widths whose costs are read */
#define LENGTH_MAX    4096 /* of a recording */

/* The nodes of one step, parents before children. */
struct recorded_tree {
  recorded_tree *before; /* of the step before */
  int32_t position, count;
  struct {
    int32_t parent, token;
    float score;
  } nodes[];
};

typedef struct sums {
  double us[LINE_ROWS_MAX + 1], count[LINE_ROWS_MAX + 1];
} sums;

static int32_t int_of(const json_t *o, const char *name) {
  return (int32_t)json_integer_value(json_object_get(o, name));
}

static recorded_tree *read_tree(const json_t *line, recorded_tree *before) {
  const json_t *nodes = json_object_get(line, "nodes");
  size_t count = json_array_size(nodes);
  recorded_tree *t = malloc(sizeof *t + count * sizeof t->nodes[0]);
  if (!t) return before;
  *t = (recorded_tree){.before = before, .position = int_of(line, "position"), .count = (int32_t)count};
  for (size_t i = 0; i < count; i++) {
    const json_t *n = json_array_get(nodes, i);
    t->nodes[i].parent = (int32_t)json_integer_value(json_array_get(n, 0));
    t->nodes[i].token = (int32_t)json_integer_value(json_array_get(n, 1));
    t->nodes[i].score = (float)json_number_value(json_array_get(n, 2));
  }
  return t;
}

/* The session's recording, a new one with a prompt that no other has; NULL: there is no room. */
static recording *recording_of(const json_t *line, recording *list, int32_t *count, int32_t most) {
  unsigned long long id = strtoull(json_string_value(json_object_get(line, "session")), NULL, 16);
  for (int32_t i = 0; i < *count; i++)
    if (list[i].session == id) return &list[i];
  int32_t prompt = int_of(line, "position");
  if (*count == most || prompt < 1 || prompt >= LENGTH_MAX) return NULL;
  recording *r = &list[(*count)++];
  *r = (recording){.session = id, .length = prompt, .prompt_length = prompt};
  r->tokens = calloc(LENGTH_MAX, sizeof *r->tokens);
  if (!r->tokens) abort();
  for (int32_t i = 0; i < prompt; i++) r->tokens[i] = *count;
  return r;
}

static void read_step(const json_t *line, recording *r, sums *s) {
  const json_t *sampled = json_object_get(line, "sampled");
  int32_t rows = int_of(line, "rows");
  if (int_of(line, "position") != r->length) return; /* moved, or repaired meanwhile */
  r->trees = read_tree(line, r->trees);
  for (size_t i = 0; i < json_array_size(sampled) && r->length < LENGTH_MAX; i++)
    r->tokens[r->length++] = (int32_t)json_integer_value(json_array_get(sampled, i));
  bool alone = int_of(line, "steps") == 1 && !json_is_true(json_object_get(line, "prompts"));
  if (!alone || rows < 1 || rows > LINE_ROWS_MAX) return;
  s->us[rows] += json_number_value(json_object_get(line, "forward_us"));
  s->count[rows]++;
}

static void write_costs(const sums *s, char *out, size_t size) {
  size_t used = 0;
  double most = 1;
  out[0] = 0;
  if (s->count[1] == 0) return;
  for (int32_t rows = 1; rows <= LINE_ROWS_MAX && used + 32 < size; rows++) {
    if (s->count[rows] == 0) continue;
    double cost = s->us[rows] / s->count[rows] / (s->us[1] / s->count[1]);
    if (cost > most) most = cost; /* a wider one costs no less */
    used += (size_t)snprintf(out + used, size - used, "%s%d:%.3f", used ? "," : "", rows, most);
  }
  if (!strchr(out, ',')) out[0] = 0;
}

int32_t steps_read(const char *path, recording *list, int32_t most, char *costs, size_t costs_size) {
  FILE *file = fopen(path, "r");
  char *text = NULL;
  size_t room = 0;
  int32_t count = 0;
  sums s = {0};
  while (file && getline(&text, &room, file) > 0) {
    json_t *line = json_loads(text, 0, NULL);
    bool is_step = json_is_string(json_object_get(line, "session"));
    recording *r = is_step ? recording_of(line, list, &count, most) : NULL;
    if (r) read_step(line, r, &s);
    json_decref(line);
  }
  free(text);
  if (file) fclose(file);
  write_costs(&s, costs, costs_size);
  return count;
}

static int32_t child(const recorded_tree *t, int32_t parent, int32_t token) {
  for (int32_t i = parent + 1; i < t->count; i++)
    if (t->nodes[i].parent == parent && t->nodes[i].token == token) return i;
  return -2;
}

int32_t steps_candidates(const recording *r, int32_t length, const int32_t *path, int32_t depth,
                         draft_candidate *out) {
  const recorded_tree *t = r->trees;
  while (t && t->position > length) t = t->before;
  if (!t) return 0;
  int32_t at = -1, count = 0;
  for (int32_t i = t->position; i < length && at != -2; i++) at = child(t, at, r->tokens[i]);
  for (int32_t i = 0; i < depth && at != -2; i++) at = child(t, at, path[i]);
  for (int32_t i = 0; at != -2 && i < t->count && count < DRAFT_CANDIDATES_MAX; i++)
    if (t->nodes[i].parent == at)
      out[count++] = (draft_candidate){.token = t->nodes[i].token, .score = t->nodes[i].score};
  return count;
}
