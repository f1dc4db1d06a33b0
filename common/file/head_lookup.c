#include "common/file/head_lookup.h"

#include "common/file/head_config.h"
#include "common/file/json.h"
#include "common/file/vocabulary.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ENDING ".gguf"

/* --- what it is --- */

static bool is_head_gguf(const gguf *g) {
  static const char kind[] = "eagle3";
  gguf_string s;
  return gguf_get_string(g, "general.architecture", &s) && s.size == sizeof kind - 1 &&
         memcmp(s.data, kind, s.size) == 0;
}

/* Heads in the EAGLE layout have a smaller vocabulary, or an architecture that says Eagle. */
static bool is_head_config(const json_t *config) {
  const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
  return json_object_get(config, "speculators_model_type") || json_object_get(config, "draft_vocab_size") ||
         (name && strstr(name, "Eagle"));
}

static bool is_head_folder(const char *folder) {
  char path[PATH_MAX], *text = NULL;
  json_t *config = NULL;
  size_t size;
  err e;
  bool fits = snprintf(path, sizeof path, "%s/config.json", folder) < (int)sizeof path;
  bool head = fits && json_read(path, path, &text, &size, &e) == ERR_OK && text &&
              json_parse_object(&config, path, text, size, &e) == ERR_OK && is_head_config(config);
  json_decref(config);
  free(text);
  return head;
}

bool head_lookup_is_head(const char *path) {
  struct stat s;
  gguf *g;
  err e;
  if (stat(path, &s) == 0 && S_ISDIR(s.st_mode)) return is_head_folder(path);
  if (gguf_open(&g, path, &e) != ERR_OK) return false;
  bool head = is_head_gguf(g);
  gguf_close(g);
  return head;
}

/* --- whose it is --- */

/* Its tensors are checked when somebody opens it. */
static bool fits(const gguf *g, const model_file *target, const hash16 *words) {
  head_config c;
  hash16 own;
  err e;
  return head_config_read_gguf(&c, g, model_file_config(target), &e) == ERR_OK &&
         vocabulary_hash_gguf(g, &own, &e) == ERR_OK && hash_equal(own, *words);
}

static bool is_head_of(const char *path, const model_file *target, const hash16 *words) {
  gguf *g;
  err e;
  if (gguf_open(&g, path, &e) != ERR_OK) return false;
  bool head = is_head_gguf(g) && fits(g, target, words);
  gguf_close(g);
  return head;
}

static int is_gguf(const struct dirent *entry) {
  size_t size = strlen(entry->d_name), ending = strlen(ENDING);
  return size > ending && strcmp(entry->d_name + size - ending, ENDING) == 0;
}

bool head_lookup_find(const char *folder, const model_file *target, char out[PATH_MAX]) {
  struct dirent **list;
  hash16 words;
  err e;
  bool found = false;
  if (model_file_vocabulary(target, &words, &e) != ERR_OK) return false;
  int count = scandir(folder, &list, is_gguf, alphasort);
  if (count < 0) return false;
  for (int i = 0; i < count; i++) {
    if (!found && snprintf(out, PATH_MAX, "%s/%s", folder, list[i]->d_name) < PATH_MAX)
      found = is_head_of(out, target, &words);
    free(list[i]);
  }
  free(list);
  return found;
}
