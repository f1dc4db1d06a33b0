/* config_source.h - looks up a model's configuration by key, in the metadata of a GGUF or in a config.json,
 * so that one reader (model_config.h) serves both. */
#pragma once

#include "common/file/gguf.h"
#include <jansson.h>

#define CONFIG_KEY_MAX 96

typedef struct config_source { /* exactly one of file and json is set; they outlive it */
  const gguf *file;
  char architecture[32]; /* the first part of a GGUF's keys */
  const json_t *json;
  const json_t *rope; /* rope_parameters (transformers 5) or rope_scaling (before); NULL: neither */
} config_source;

typedef struct config_value {
  enum { CONFIG_MISSING, CONFIG_NUMBER, CONFIG_FLAG, CONFIG_TEXT, CONFIG_LIST, CONFIG_OTHER } kind;
  bool whole;       /* a number without a fraction, of an integer's type */
  double number;    /* a flag's is 0 or 1 */
  const char *text; /* [size], not NUL-terminated */
  size_t size;
} config_value;

/* ERR_FORMAT: the file does not name its architecture. Neither function checks that tandem supports it. */
int config_source_gguf(config_source *s, const gguf *g, err *e);
int config_source_json(config_source *s, const json_t *object, err *e);

/* Finds a value. `key` is a GGUF's key without its architecture, or a member of config.json; "rope:NAME" is a
 * member of `rope`. A null counts as missing, and so does the key NULL. */
config_value config_find(const config_source *s, const char *key);
bool config_is(config_value v, const char *text);
/* The key as it stands in the file, for a message. Returns out. */
const char *config_key(const config_source *s, const char *key, char out[CONFIG_KEY_MAX]);
