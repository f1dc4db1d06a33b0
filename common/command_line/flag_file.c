#include "common/command_line/flag_file.h"

#include "common/base/output_file.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

typedef struct file {
  const char *path;
  const flag_program *reader;
} file;

static yaml_document_t document; /* flags point into it, until another file is read */

/* SpecPV's names (arXiv 2512.02337), which requests know too. */
static const struct {
  const char *name, *flag;
} others[] = {{"enable_specpv", "partial-kv"},
              {"specpv_block_size", "partial-kv-block"},
              {"specpv_n_sink_blocks", "partial-kv-sink"},
              {"specpv_n_retrieval_blocks", "partial-kv-retrieval"},
              {"specpv_n_window_blocks", "partial-kv-window"},
              {"specpv_n_spec_tokens_buf", "partial-kv-buffer"},
              {"specpv_partial_threshold", "partial-kv-threshold"},
              {"specpv_full_refresh_interval", "partial-kv-refresh"},
              {"specpv_lossy", "partial-kv-lossy"}};

/* ---- what is wrong ---- */

/* "FILE:LINE: ", in a buffer that the next one takes. */
static const char *where(const file *c, size_t line) {
  static char text[PATH_MAX + 32];
  snprintf(text, sizeof text, "%s:%zu: ", c->path, line + 1);
  return text;
}

/* ---- a flag ---- */

static const char *text_of(const file *c, const yaml_node_t *n, const char *of) {
  const char *text = n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
  if (!text)
    flag_refuse(c->reader, where(c, n->start_mark.line), "%s must be one value, not a mapping or a list", of);
  if (strlen(text) != n->data.scalar.length)
    flag_refuse(c->reader, where(c, n->start_mark.line), "%s holds a NUL character", of);
  return text;
}

static bool is_plain(const yaml_node_t *n, const char *word) {
  return n->type == YAML_SCALAR_NODE && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
         strcmp((const char *)n->data.scalar.value, word) == 0;
}

static void give_one(const file *c, const flag_row *row, const char *name, const yaml_node_t *n) {
  bool switches = is_plain(n, "true") || is_plain(n, "false");
  size_t line = n->start_mark.line;
  if (!row->argument && !switches) flag_refuse(c->reader, where(c, line), "%s must be true or false", name);
  if (!row->argument || (flag_is_optional(row) && switches)) {
    if (is_plain(n, "true")) flag_give(c->reader, row, NULL, FLAG_FROM_FILE, "");
    return;
  }
  if (is_plain(n, "") || is_plain(n, "~") || is_plain(n, "null"))
    flag_refuse(c->reader, where(c, line), "%s has no value", name);
  flag_give(c->reader, row, text_of(c, n, name), FLAG_FROM_FILE, where(c, line));
}

static void give_value(const file *c, const flag_row *row, const char *name, const yaml_node_t *n) {
  if (n->type != YAML_SEQUENCE_NODE || row->type != FLAG_MANY) {
    give_one(c, row, name, n);
    return;
  }
  for (const yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++)
    give_one(c, row, name, yaml_document_get_node(&document, *i));
}

/* The flag's own name. */
static const char *name_of(const file *c, const yaml_node_t *key) {
  const char *name = text_of(c, key, "a flag");
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (strcmp(others[i].name, name) == 0) return others[i].flag;
  return name;
}

static const flag_row *row_of(const file *c, const char *name, size_t line) {
  const flag_row *row = flag_named(c->reader->command, name, strlen(name));
  const char *near = row ? NULL : flag_nearest(c->reader->command, name);
  if (row && row->id == FLAG_config)
    flag_refuse(c->reader, where(c, line), "a config file names no other one: drop %s", name);
  if (!row)
    flag_refuse(c->reader, where(c, line), "there is no flag %s%s%s%s", name, near ? ": did you mean " : "",
                near ? near : "", near ? "?" : "");
  return row;
}

static void refuse_twice(const file *c, const yaml_node_t *all, const yaml_node_pair_t *pair,
                         const char *name) {
  const yaml_node_t *n = yaml_document_get_node(&document, pair->key);
  for (const yaml_node_pair_t *p = all->data.mapping.pairs.start; p < pair; p++)
    if (strcmp(name_of(c, yaml_document_get_node(&document, p->key)), name) == 0)
      flag_refuse(c->reader, where(c, n->start_mark.line), "%s stands here a second time", name);
}

static void give_all(const file *c, const yaml_node_t *all) {
  if (all->type != YAML_MAPPING_NODE)
    flag_refuse(c->reader, where(c, all->start_mark.line),
                "a config file has lines such as `max-tokens: 64', and this is none");
  for (const yaml_node_pair_t *p = all->data.mapping.pairs.start; p < all->data.mapping.pairs.top; p++) {
    const yaml_node_t *key = yaml_document_get_node(&document, p->key);
    const char *name = name_of(c, key);
    refuse_twice(c, all, p, name);
    give_value(c, row_of(c, name, key->start_mark.line), name, yaml_document_get_node(&document, p->value));
  }
}

/* ---- the file ---- */

static void load(const file *c, FILE *from) {
  yaml_parser_t y;
  yaml_document_t more;
  if (!yaml_parser_initialize(&y)) flag_refuse(c->reader, where(c, 0), "out of memory");
  yaml_parser_set_input_file(&y, from);
  yaml_document_delete(&document);
  if (!yaml_parser_load(&y, &document) || !yaml_parser_load(&y, &more))
    flag_refuse(c->reader, where(c, y.problem_mark.line), "this is no YAML: %s",
                ferror(from) ? strerror(errno) : y.problem);
  const yaml_node_t *second = yaml_document_get_root_node(&more);
  if (second)
    flag_refuse(c->reader, where(c, second->start_mark.line),
                "a config file has one document, and here begins another");
  yaml_document_delete(&more);
  yaml_parser_delete(&y);
}

void flag_file_read(const flag_program *r, const char *path) {
  const file c = {path, r};
  FILE *from = fopen(path, "r");
  if (!from) flag_refuse(r, "", "cannot read the config file %s: %s", path, strerror(errno));
  output_file_spare(path);
  load(&c, from);
  fclose(from);
  const yaml_node_t *all = yaml_document_get_root_node(&document); /* none in an empty file */
  if (all) give_all(&c, all);
}
