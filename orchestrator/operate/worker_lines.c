#include "orchestrator/operate/worker_lines.h"

#include "wire/endpoint.h"
#include "wire/message.h"
#include <string.h>

static const char *text_in(const json_t *o, const char *key) {
  const char *text = json_string_value(json_object_get(o, key));
  return text ? text : "";
}

static long long number_in(const json_t *o, const char *key) {
  return (long long)json_integer_value(json_object_get(o, key));
}

/* What a worker says of itself, without what could steer a terminal. */
static wire_brief word_in(const json_t *w, const char *key) {
  return wire_brief_of(wire_text(text_in(w, key)));
}

/* An endpoint without its key. */
static void print_word(FILE *to, const char *before, const json_t *w, const char *key) {
  wire_brief word = word_in(w, key);
  if (*word.text) fprintf(to, "%s%.*s", before, ENDPOINT_PLAIN(word.text));
}

static void print_one(FILE *to, const json_t *w) {
  char sessions[48];
  long long most = number_in(w, "session_max");
  int n = snprintf(sessions, sizeof sessions, "%lld", number_in(w, "load"));
  if (most) snprintf(sessions + n, sizeof sessions - (size_t)n, " of %lld", most);
  wire_brief id = word_in(w, "id"), role = word_in(w, "role"), state = word_in(w, "state");
  fprintf(to, "%-8.8s  %-6.16s  %-7.16s  %8s  ", id.text, role.text, state.text, sessions);
  print_word(to, "", w, "numerics_id");
  print_word(to, "", w, "method");
  print_word(to, " on ", w, "device");
  print_word(to, " at ", w, "endpoint");
  fputs("\n", to);
}

void worker_lines_print(FILE *to, const json_t *workers) {
  size_t i;
  const json_t *w;
  fprintf(to, "%-8s  %-6s  %-7s  %8s  %s\n", "WORKER", "ROLE", "STATE", "SESSIONS", "WHAT");
  json_array_foreach(workers, i, w) print_one(to, w);
}

const char *worker_lines_find(const json_t *workers, const char *digits, err *e) {
  const char *found = NULL;
  size_t i;
  const json_t *w;
  json_array_foreach(workers, i, w) {
    const char *id = text_in(w, "id");
    if (!*digits || strncmp(id, digits, strlen(digits)) != 0) continue;
    if (found) return err_set(e, ERR_ARG, "'%.40s' begins several ids: give more digits", digits), NULL;
    found = id;
  }
  if (!found) err_set(e, ERR_GONE, "no worker's id begins with '%.40s': `tandem workers' tells them", digits);
  return found;
}
