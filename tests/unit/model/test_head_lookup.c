/* libs: model file */
#include "common/file/head_lookup.h"

#include "tests/support/head_target.h"

static void test_a_targets_head_is_found(void **state) {
  (void)state;
  head_target_files own = head_target_open(0), other = head_target_open(3);
  folder f = folder_make();
  head_shape deep = HEAD_TARGET_SHAPE;
  char path[PATH_MAX];
  deep.taps[0] = SUPPORT_TINY_LAYERS + 1;
  assert_false(head_lookup_find(f.path, own.file, path));
  assert_false(head_lookup_find("/there/is/no/such/folder", own.file, path));
  head_target_put(f.path, "a.gguf", &HEAD_TARGET_SHAPE, &other); /* another vocabulary */
  head_target_put(f.path, "b.gguf", &deep, &own);                /* for a deeper target */
  head_target_put(f.path, "c.bin", &HEAD_TARGET_SHAPE, &own);    /* another ending */
  assert_false(head_lookup_find(f.path, own.file, path));
  head_target_put(f.path, "e.gguf", &HEAD_TARGET_SHAPE, &own);
  head_target_put(f.path, "d.gguf", &HEAD_TARGET_SHAPE, &own);
  assert_true(head_lookup_find(f.path, own.file, path));
  assert_string_equal(path + strlen(f.path), "/d.gguf");
  for (const char *name = "a.gguf\0b.gguf\0c.bin\0d.gguf\0e.gguf\0"; *name; name += strlen(name) + 1)
    head_target_remove(f.path, name);
  folder_remove(&f);
  head_target_close(&own);
  head_target_close(&other);
}

static void test_heads_are_told_from_models(void **state) {
  (void)state;
  head_target_files t = head_target_open(0);
  head_builder b = {0};
  folder head = head_folder(&b, &HEAD_TARGET_SHAPE, ""), other = folder_make();
  char path[160];
  assert_true(head_lookup_is_head(head.path));
  head_target_put(head.path, "x.gguf", &HEAD_TARGET_SHAPE, &t);
  snprintf(path, sizeof path, "%s/x.gguf", head.path);
  assert_true(head_lookup_is_head(path));
  folder_put_text(&other, "config.json", "{\"architectures\": [\"LlamaForCausalLM\"]}");
  assert_false(head_lookup_is_head(other.path));
  folder_put(&other, "model.gguf", t.bytes.bytes, t.bytes.size);
  snprintf(path, sizeof path, "%s/model.gguf", other.path);
  assert_false(head_lookup_is_head(path));
  assert_false(head_lookup_is_head("/there/is/no/such/file"));
  head_target_remove(head.path, "x.gguf");
  folder_remove(&head);
  folder_remove(&other);
  head_target_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_targets_head_is_found),
      cmocka_unit_test(test_heads_are_told_from_models),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
