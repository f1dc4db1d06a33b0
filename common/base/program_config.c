#include "common/base/program_config.h"

#include "common/base/output_file.h"
#include "common/base/program_options.h"
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define WHERE_MAX 4096 /* bytes of "PROGRAM: FILE:LINE" */

typedef struct config {
  const char *path, *program;
  const struct argp *parser;
  void *input;
} config;

static yaml_document_t document; /* flags point into it */

/* ---- what is wrong ---- */

static _Noreturn void __attribute__((format(printf, 3, 4)))
refuse(const config *c, size_t line, const char *format, ...) {
  va_list arguments;
  fprintf(stderr, "%s: %s:%zu: ", c->program, c->path, line + 1);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(argp_err_exit_status);
}

/* argp adds to an error where help is; the first line is enough here, and all comes at once, from a buffer.
 */
static ssize_t write_first_line(void *cookie, const char *text, size_t size) {
  const char *end = memchr(text, '\n', size);
  (void)cookie;
  fwrite(text, 1, end ? (size_t)(end - text) + 1 : size, stderr);
  return (ssize_t)size;
}

/* ---- a flag ---- */

static const char *text_of(const config *c, const yaml_node_t *n, const char *of) {
  const char *text = n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
  if (!text) refuse(c, n->start_mark.line, "%s must be one value, not a mapping or a list", of);
  if (strlen(text) != n->data.scalar.length) refuse(c, n->start_mark.line, "%s holds a NUL character", of);
  return text;
}

static bool is_plain(const yaml_node_t *n, const char *word) {
  return n->type == YAML_SCALAR_NODE && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
         strcmp((const char *)n->data.scalar.value, word) == 0;
}

static void give(const config *c, const struct argp_option *o, const char *value, size_t line) {
  char where[WHERE_MAX];
  FILE *errors = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_first_line});
  snprintf(where, sizeof where, "%s: %s:%zu", c->program, c->path, line + 1);
  struct argp_state state = {.root_argp = c->parser,
                             .input = c->input,
                             .name = where,
                             .err_stream = errors ? errors : stderr,
                             .out_stream = stdout};
  c->parser->parser(o->key, (char *)value, &state);
  if (errors) fclose(errors);
}

static void give_one(const config *c, const struct argp_option *o, const char *name, const yaml_node_t *n) {
  bool optional = o->flags & OPTION_ARG_OPTIONAL, switches = is_plain(n, "true") || is_plain(n, "false");
  size_t line = n->start_mark.line;
  if (!o->arg && !switches) refuse(c, line, "%s must be true or false", name);
  if (!o->arg || (optional && switches)) {
    if (is_plain(n, "true")) give(c, o, NULL, line);
    return;
  }
  if (is_plain(n, "") || is_plain(n, "~") || is_plain(n, "null")) refuse(c, line, "%s has no value", name);
  give(c, o, text_of(c, n, name), line);
}

static void give_value(const config *c, const struct argp_option *o, const char *name, const yaml_node_t *n) {
  if (n->type != YAML_SEQUENCE_NODE || !(o->flags & PROGRAM_OPTION_REPEATED)) {
    give_one(c, o, name, n);
    return;
  }
  for (const yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++)
    give_one(c, o, name, yaml_document_get_node(&document, *i));
}

static const struct argp_option *option_of(const config *c, const char *name, size_t line) {
  const struct argp_option *o = program_option(c->parser->options, name, strlen(name));
  const char *near = o ? NULL : program_nearest_flag(c->parser->options, name);
  if (o && o->key == PROGRAM_KEY_CONFIG) refuse(c, line, "a config file names no other one: drop %s", name);
  if (!o)
    refuse(c, line, "there is no flag %s%s%s%s", name, near ? ": did you mean " : "", near ? near : "",
           near ? "?" : "");
  return o;
}

static void refuse_twice(const config *c, const yaml_node_t *all, const yaml_node_pair_t *pair,
                         const char *name) {
  const yaml_node_t *n = yaml_document_get_node(&document, pair->key);
  for (const yaml_node_pair_t *p = all->data.mapping.pairs.start; p < pair; p++)
    if (strcmp(text_of(c, yaml_document_get_node(&document, p->key), "a flag"), name) == 0)
      refuse(c, n->start_mark.line, "%s stands here a second time", name);
}

static void give_all(const config *c, const yaml_node_t *all) {
  if (all->type != YAML_MAPPING_NODE)
    refuse(c, all->start_mark.line, "a config file has lines such as `max-tokens: 64', and this is none");
  for (const yaml_node_pair_t *p = all->data.mapping.pairs.start; p < all->data.mapping.pairs.top; p++) {
    const yaml_node_t *key = yaml_document_get_node(&document, p->key);
    const char *name = text_of(c, key, "a flag");
    refuse_twice(c, all, p, name);
    give_value(c, option_of(c, name, key->start_mark.line), name,
               yaml_document_get_node(&document, p->value));
  }
}

/* ---- the file ---- */

static void load(const config *c, FILE *from) {
  yaml_parser_t y;
  yaml_document_t more;
  if (!yaml_parser_initialize(&y)) refuse(c, 0, "out of memory");
  yaml_parser_set_input_file(&y, from);
  if (!yaml_parser_load(&y, &document) || !yaml_parser_load(&y, &more))
    refuse(c, y.problem_mark.line, "this is no YAML: %s", ferror(from) ? strerror(errno) : y.problem);
  const yaml_node_t *second = yaml_document_get_root_node(&more);
  if (second) refuse(c, second->start_mark.line, "a config file has one document, and here begins another");
  yaml_document_delete(&more);
  yaml_parser_delete(&y);
}

void program_config_read(const char *path, const struct argp *parser, const char *program, void *input) {
  const config c = {path, program, parser, input};
  FILE *from = fopen(path, "r");
  if (!from) {
    fprintf(stderr, "%s: cannot read the config file %s: %s\n", program, path, strerror(errno));
    exit(argp_err_exit_status);
  }
  output_file_spare(path);
  load(&c, from);
  fclose(from);
  const yaml_node_t *all = yaml_document_get_root_node(&document); /* none in an empty file */
  if (all) give_all(&c, all);
}
