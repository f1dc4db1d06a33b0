#include "orchestrator/cli/verify_trees.h"

#include "common/base/controls.h"
#include "common/base/output_file.h"
#include "common/base/utf8.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PREFIX_MAX (4 * (WIRE_BUDGET_MAX + 1))
#define COLUMNS    100 /* where the terminal does not say */
#define TEXT_MAX   256 /* bytes of one token's text, escaped */
#define WIDEST     (PREFIX_MAX + TEXT_MAX + 64)

typedef struct verified {                                    /* one verify step */
  int32_t parents[WIRE_BUDGET_MAX], tokens[WIRE_BUDGET_MAX]; /* [count]; parent -1: the root */
  bool accepted[WIRE_BUDGET_MAX];
  int32_t count, accepted_count;
  int32_t position, bonus;
} verified;

typedef struct printer {
  FILE *to;
  const text_model *model;
  const verified *step;
  int columns;
} printer;

/* ---- what was recorded ---- */

static bool take_nodes(verified *v, const json_t *tree) {
  size_t count = json_array_size(tree);
  if (!json_is_array(tree) || count > WIRE_BUDGET_MAX) return false;
  for (size_t i = 0; i < count; i++) {
    const json_t *node = json_array_get(tree, i), *parent = json_array_get(node, 0),
                 *token = json_array_get(node, 1);
    if (!json_is_integer(parent) || !json_is_integer(token)) return false;
    json_int_t p = json_integer_value(parent);
    if (p < -1 || p >= (json_int_t)i) return false;
    v->parents[i] = (int32_t)p;
    v->tokens[i] = (int32_t)json_integer_value(token);
  }
  v->count = (int32_t)count;
  return true;
}

static int32_t child(const verified *v, int32_t parent, int32_t token) {
  for (int32_t i = parent + 1; i < v->count; i++)
    if (v->parents[i] == parent && v->tokens[i] == token) return i;
  return -1;
}

/* The walk that the target has made: all of its tokens but the last are nodes. */
static bool take_walk(verified *v, const json_t *sampled) {
  size_t count = json_array_size(sampled);
  int32_t at = -1;
  if (count == 0) return false;
  for (size_t i = 0; i + 1 < count; i++) {
    at = child(v, at, (int32_t)json_integer_value(json_array_get(sampled, i)));
    if (at < 0) return false;
    v->accepted[at] = true;
    v->accepted_count++;
  }
  v->bonus = (int32_t)json_integer_value(json_array_get(sampled, count - 1));
  return true;
}

static bool take_step(verified *v, const char *line) {
  json_t *o = json_loads(line, 0, NULL);
  *v = (verified){.position = (int32_t)json_integer_value(json_object_get(o, "position"))};
  bool ok = take_nodes(v, json_object_get(o, "tree")) && take_walk(v, json_object_get(o, "sampled"));
  json_decref(o);
  return ok;
}

/* ---- what is printed ---- */

/* "\" three\"": control characters and bytes that are no UTF-8 are escaped. */
static void quote(const printer *p, int32_t token, char out[TEXT_MAX]) {
  size_t size = 0, n = 0;
  const char *text = p->model->tokens ? tokenizer_piece(p->model->tokens, token, &size) : NULL;
  if (!text) {
    snprintf(out, TEXT_MAX, "%d", token);
    return;
  }
  out[n++] = '"';
  for (size_t i = 0, length; i < size && n + 8 < TEXT_MAX; i += length) {
    uint32_t code = 0;
    utf8_kind kind = utf8_next((const uint8_t *)text + i, size - i, &length, &code);
    if (kind != UTF8_CHARACTER || code < ' ' || control_in_name(code)) {
      n += (size_t)snprintf(out + n, TEXT_MAX - n, "\\x%02x", (unsigned char)text[i]);
      length = 1;
    } else {
      if (code == '"' || code == '\\') out[n++] = '\\';
      memcpy(out + n, text + i, length);
      n += length;
    }
  }
  snprintf(out + n, TEXT_MAX - n, "\"");
}

/* Cuts at a character, so that the line has at most `columns` of them. */
static void put_line(const printer *p, char *line) {
  int columns = 0;
  for (char *c = line; *c; c++) {
    if (((unsigned char)*c & 0xc0) == 0x80) continue;
    if (columns++ == p->columns) *c-- = 0;
  }
  fprintf(p->to, "%s\n", line);
}

static bool is_last(const verified *v, int32_t node) {
  for (int32_t i = node + 1; i < v->count; i++)
    if (v->parents[i] == v->parents[node]) return false;
  return true;
}

static void put_node(const printer *p, int32_t node, const char *indent) {
  char line[WIDEST], text[TEXT_MAX], below[PREFIX_MAX];
  bool last = is_last(p->step, node);
  quote(p, p->step->tokens[node], text);
  snprintf(line, sizeof line, "%s%s %s %s", indent, last ? "`-" : "|-", p->step->accepted[node] ? "*" : " ",
           text);
  put_line(p, line);
  snprintf(below, sizeof below, "%s%s", indent, last ? "  " : "| ");
  for (int32_t i = node + 1; i < p->step->count; i++)
    if (p->step->parents[i] == node) put_node(p, i, below);
}

static void put_step(const printer *p) {
  const verified *v = p->step;
  char line[WIDEST], text[TEXT_MAX];
  quote(p, v->bonus, text);
  snprintf(line, sizeof line, "at %d: %d of %d nodes accepted (*), then %s", v->position, v->accepted_count,
           v->count, text);
  put_line(p, line);
  for (int32_t i = 0; i < v->count; i++)
    if (v->parents[i] < 0) put_node(p, i, "");
}

/* ---- the file ---- */

int verify_trees_begin(char path[VERIFY_TREES_PATH_MAX], err *e) {
  const char *folder = getenv("TMPDIR");
  snprintf(path, VERIFY_TREES_PATH_MAX, "%s/tandem-steps-XXXXXX", folder && *folder ? folder : "/tmp");
  int fd = mkstemp(path);
  if (fd < 0) return err_set(e, ERR_IO, "cannot make the file %s: %s", path, strerror(errno));
  close(fd);
  return ERR_OK;
}

static int columns(void) {
  struct winsize size = {0};
  bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : COLUMNS;
}

int verify_trees_end(const char *path, const char *out, const text_model *m, err *e) {
  FILE *to = *out ? output_file_open(out, "a", e) : stderr;
  int rc = to ? verify_trees_print(to, path, m, *out ? INT32_MAX : columns(), e) : e->code;
  if (*out && to && fclose(to) != 0 && rc == ERR_OK)
    rc = err_set(e, ERR_IO, "cannot write %s: %s", out, strerror(errno));
  unlink(path);
  return rc;
}

int verify_trees_print(FILE *to, const char *path, const text_model *m, int columns, err *e) {
  FILE *in = fopen(path, "r");
  if (!in) return err_set(e, ERR_IO, "cannot read %s: %s", path, strerror(errno));
  char *line = NULL;
  size_t capacity = 0;
  int rc = ERR_OK;
  for (long number = 1; rc == ERR_OK && getline(&line, &capacity, in) >= 0; number++) {
    verified v;
    const printer p = {to, m, &v, columns};
    if (!take_step(&v, line))
      rc = err_set(e, ERR_FORMAT, "%s: line %ld is no step", path, number);
    else if (v.count > 0)
      put_step(&p);
  }
  free(line);
  fclose(in);
  return rc;
}
