#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/head_target.h"

head_target_files head_target_open(int missing) {
  head_target_files t = {.bytes = gb_begin(3)};
  gguf_builder *b = &t.bytes;
  err e;
  support_tiny_keys(b);
  gb_vocabulary(b, missing);
  gb_tensor(b, "token_embd.weight", SUPPORT_TINY_EMBED, HEAD_TARGET_VOCABULARY, GGUF_Q8_0);
  for (int32_t i = 0; i < SUPPORT_TINY_LAYERS; i++) support_tiny_layer(b, i);
  gb_tensor(b, "output_norm.weight", SUPPORT_TINY_EMBED, 0, GGUF_F32);
  gb_end(b);
  if (gguf_open_memory(&t.g, b->bytes, b->size, &e)) fail_msg("%s", e.text);
  if (model_file_open_memory(&t.file, b->bytes, b->size, &e)) fail_msg("%s", e.text);
  return t;
}

void head_target_close(head_target_files *t) {
  model_file_close(t->file);
  gguf_close(t->g);
  gb_free(&t->bytes);
}

void head_target_put(const char *in, const char *name, const head_shape *s, const head_target_files *t) {
  head_builder b = {0};
  folder source = head_folder(&b, s, "");
  const model_config config = head_target(s);
  char path[160];
  head_file *head;
  err e;
  if (head_file_open(&head, source.path, &config, &e)) fail_msg("%s", e.text);
  snprintf(path, sizeof path, "%s/%s", in, name);
  if (head_gguf_write(head, t->g, path, &e)) fail_msg("%s", e.text);
  head_file_close(head);
  folder_remove(&source);
}

void head_target_remove(const char *in, const char *name) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", in, name);
  unlink(path);
}
