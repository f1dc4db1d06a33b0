/* libs: wire base */
/* Files of keys: what is made, what is read, and what is wrong with them in one sentence. */
#include "tests/support/transport_nodes.h"
#include <errno.h>
#include <sys/stat.h>

#define D16   "0123456789abcdef"
#define KEY   D16 D16 D16 D16
#define OTHER "FF23456789abcdef" D16 D16 D16

static char deeper[SCRATCH_MAX];

static int setup(void **state) {
  (void)state;
  snprintf(deeper, sizeof deeper, "%s", scratch_path("files/a/keys").text);
  make_keys(deeper);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  scratch_remove(scratch_path("files").text);
  return 0;
}

static const char *in_folder(const char *name) {
  static char path[200];
  snprintf(path, sizeof path, "%s/%s", deeper, name);
  return path;
}

static void write_to(const char *name, const char *text) {
  FILE *f = fopen(in_folder(name), "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static mode_t mode_of(const char *path) {
  struct stat s;
  assert_int_equal(stat(path, &s), 0);
  return s.st_mode & 07777;
}

static keys *opened(wire_role role) {
  keys *k;
  err e = {0};
  if (keys_open(&k, deeper, role, &e) != ERR_OK) fail_msg("%s", e.text);
  return k;
}

static void refused(wire_role role, int code, const char *text) {
  keys *k;
  err e = {0};
  int got = keys_open(&k, deeper, role, &e);
  if (got != code || !strstr(e.text, text)) fail_msg("%s: %s", err_name(got), e.text);
  assert_null(k);
}

static void test_new_keys_are_private_and_know_each_other(void **state) {
  (void)state;
  static const wire_role roles[] = {WIRE_ROLE_ORCHESTRATOR, WIRE_ROLE_TARGET, WIRE_ROLE_DRAFT};
  key_bytes orchestrator;
  err e = {0};
  assert_int_equal(mode_of(in_folder("target.key")), 0600);
  assert_int_equal(mode_of(deeper), 0700);
  for (int i = 0; i < 3; i++) {
    keys *k = opened(roles[i]);
    assert_memory_not_equal(keys_secret(k), keys_public(k), KEY_BYTES);
    for (int j = 0; j < 3; j++) {
      keys *other = opened(roles[j]);
      assert_int_equal(keys_roles(other, keys_public(k), &e), KEYS_ROLE(roles[i]));
      keys_close(other);
    }
    assert_int_equal(keys_roles(k, keys_secret(k), &e), 0);
    assert_int_equal(keys_orchestrator(k, &orchestrator, &e), ERR_OK);
    if (i == 0) assert_memory_equal(&orchestrator, keys_public(k), KEY_BYTES);
    keys_close(k);
  }
}

static void test_keys_that_are_there_stay(void **state) {
  (void)state;
  keys *k = opened(WIRE_ROLE_DRAFT);
  key_bytes before = *keys_public(k), public;
  err e = {0};
  keys_close(k);
  assert_int_equal(keys_create(deeper, WIRE_ROLE_DRAFT, "again", &public, &e), ERR_STATE);
  assert_non_null(strstr(e.text, "draft.key is there already and stays"));
  k = opened(WIRE_ROLE_DRAFT);
  assert_memory_equal(&before, keys_public(k), KEY_BYTES);
  keys_close(k);
}

static bool is_there(const char *name) {
  return access(in_folder(name), F_OK) == 0;
}

/* Whatever stops it: either a key is there and has its line, or neither is. */
static void test_half_a_key_is_not_left(void **state) {
  (void)state;
  char half[200];
  key_bytes public;
  err e = {0};
  snprintf(half, sizeof half, "%s", in_folder("half"));
  assert_int_equal(mkdir(half, 0700), 0);
  assert_int_equal(mkdir(in_folder("half/allowed"), 0700), 0);
  assert_int_equal(keys_create(half, WIRE_ROLE_DRAFT, "me", &public, &e), ERR_IO);
  assert_non_null(strstr(e.text, "half/allowed: "));
  assert_false(is_there("half/draft.key"));
  assert_int_equal(rmdir(in_folder("half/allowed")), 0);
  assert_int_equal(keys_create(half, WIRE_ROLE_DRAFT, "me", &public, &e), ERR_OK);
  unlink(in_folder("half/allowed")); /* it was stopped between the two files */
  assert_int_equal(keys_create(half, WIRE_ROLE_DRAFT, "me", &public, &e), ERR_STATE);
  keys *k;
  assert_int_equal(keys_open(&k, half, WIRE_ROLE_DRAFT, &e), ERR_OK);
  assert_int_equal(keys_roles(k, keys_public(k), &e), KEYS_ROLE(WIRE_ROLE_DRAFT));
  keys_close(k);
  unlink(in_folder("half/allowed"));
  unlink(in_folder("half/draft.key"));
  rmdir(half);
}

static void test_a_list_is_read_again_when_it_changes(void **state) {
  (void)state;
  keys *k = opened(WIRE_ROLE_TARGET);
  key_bytes key, other;
  err e = {0};
  assert_true(key_parse(KEY, KEY_HEX, &key) && key_parse(OTHER, KEY_HEX, &other));
  assert_int_equal(keys_roles(k, &key, &e), 0);
  write_to("allowed",
           "# people\n\n  draft\t" KEY " box # of a friend\r\ntarget " KEY "\norchestrator " OTHER);
  assert_int_equal(keys_roles(k, &key, &e), KEYS_ROLE(WIRE_ROLE_TARGET) | KEYS_ROLE(WIRE_ROLE_DRAFT));
  assert_int_equal(keys_roles(k, &other, &e), KEYS_ROLE(WIRE_ROLE_ORCHESTRATOR));
  assert_int_equal(e.code, ERR_OK);
  write_to("allowed", "target " OTHER "\nbad\n"); /* nobody comes in by a list that is half right */
  assert_int_equal(keys_roles(k, &other, &e), 0);
  assert_int_equal(e.code, ERR_FORMAT);
  unlink(in_folder("allowed"));
  e = (err){0};
  assert_int_equal(keys_roles(k, &other, &e), 0);
  assert_int_equal(e.code, ERR_IO);
  write_to("allowed", "target " OTHER "\n");
  assert_int_equal(keys_roles(k, &other, &e), KEYS_ROLE(WIRE_ROLE_TARGET));
  keys_close(k);
}

static void test_a_bad_line_is_named(void **state) {
  (void)state;
  static const struct {
    const char *text, *why;
  } cases[] = {{"guest " KEY, "line 1: \"guest\" is no role"},
               {"\n#x\ndraft " D16, "line 3: \"" D16 "\" is no key"},
               {"draft", "line 1: \"\" is no key"},
               {"draft " D16 D16 D16 "0123456789abcdeg", "is no key: one has 64"},
               {"secret " KEY, "is a secret key, which nobody else may see"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_to("allowed", cases[i].text);
    refused(WIRE_ROLE_DRAFT, ERR_FORMAT, cases[i].why);
  }
  write_to("allowed", "draft " KEY "\n");
  write_to("draft.key", "public " KEY "\n");
  refused(WIRE_ROLE_DRAFT, ERR_FORMAT, "has no line \"secret KEY\": remove it");
  write_to("draft.key", "secret " D16 "\n");
  refused(WIRE_ROLE_DRAFT, ERR_FORMAT, "draft.key, line 1: the key has not 64");
}

static void test_too_much_is_refused(void **state) {
  (void)state;
  FILE *f = fopen(in_folder("allowed"), "w");
  assert_non_null(f);
  for (int i = 0; i <= KEYS_MAX; i++) fprintf(f, "draft %04x%.60s\n", i, KEY);
  fclose(f);
  refused(WIRE_ROLE_DRAFT, ERR_LIMIT, "has more than 512 keys");
  f = fopen(in_folder("allowed"), "w");
  assert_non_null(f);
  for (int i = 0; i <= KEYS_FILE_MAX; i++) fputc('\n', f);
  fclose(f);
  refused(WIRE_ROLE_DRAFT, ERR_LIMIT, "has more than 65536 bytes");
}

/* Whoever else could read the key could pass for us; whoever else could change the list could come in. */
static void test_files_of_others_are_refused(void **state) {
  (void)state;
  chmod(in_folder("draft.key"), 0640);
  refused(WIRE_ROLE_DRAFT, ERR_IO,
          "has mode 0640, so other users of this machine can read it: run chmod go-rwx");
  chmod(in_folder("draft.key"), 0600);
  chmod(in_folder("allowed"), 0664);
  refused(WIRE_ROLE_DRAFT, ERR_IO, "allowed has mode 0664, so other users of this machine can change it");
  chmod(in_folder("allowed"), 0644);
  chmod(deeper, 0770);
  refused(WIRE_ROLE_DRAFT, ERR_IO, "keys has mode 0770, so other users of this machine can change it");
  chmod(deeper, 0700);
  keys_close(opened(WIRE_ROLE_DRAFT));
}

static void test_a_missing_key_says_how_to_make_one(void **state) {
  (void)state;
  unlink(in_folder("target.key"));
  refused(WIRE_ROLE_TARGET, ERR_IO, "/target.key: No such file or directory; `tandem keygen' makes keys");
  unlink(in_folder("allowed"));
  refused(WIRE_ROLE_DRAFT, ERR_IO, "/allowed: No such file or directory; `tandem keygen' makes keys");
  keys *k;
  err e = {0};
  const scratch_path_text none = scratch_path("none/keys");
  char text[200];
  snprintf(text, sizeof text, "no keys: %s: No such file or directory; `tandem keygen'", none.text);
  assert_int_equal(keys_open(&k, none.text, WIRE_ROLE_DRAFT, &e), ERR_IO);
  assert_non_null(strstr(e.text, text));
}

static void test_one_orchestrator_is_called_without_its_key(void **state) {
  (void)state;
  keys *k = opened(WIRE_ROLE_DRAFT);
  key_bytes found;
  err e = {0};
  write_to("allowed", "draft " KEY "\n");
  assert_int_equal(keys_orchestrator(k, &found, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "has no line of an orchestrator"));
  write_to("allowed", "orchestrator " KEY "\norchestrator " OTHER "\n");
  assert_int_equal(keys_orchestrator(k, &found, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "has 2 orchestrators: add the key of the one to call"));
  keys_close(k);
}

static void test_the_folder_is_that_of_the_account(void **state) {
  (void)state;
  char path[PATH_MAX];
  err e = {0};
  assert_int_equal(keys_folder("x", path, &e), ERR_OK);
  assert_string_equal(path, "x");
  setenv("XDG_CONFIG_HOME", "/c", 1);
  setenv("HOME", "/h", 1);
  assert_int_equal(keys_folder(NULL, path, &e), ERR_OK);
  assert_string_equal(path, "/c/tandem/keys");
  setenv("XDG_CONFIG_HOME", "relative", 1);
  assert_int_equal(keys_folder(NULL, path, &e), ERR_OK);
  assert_string_equal(path, "/h/.config/tandem/keys");
  unsetenv("HOME");
  assert_int_equal(keys_folder(NULL, path, &e), ERR_ARG);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_new_keys_are_private_and_know_each_other),
      TEST(test_keys_that_are_there_stay),
      TEST(test_half_a_key_is_not_left),
      TEST(test_a_list_is_read_again_when_it_changes),
      TEST(test_a_bad_line_is_named),
      TEST(test_too_much_is_refused),
      TEST(test_files_of_others_are_refused),
      TEST(test_a_missing_key_says_how_to_make_one),
      TEST(test_one_orchestrator_is_called_without_its_key),
      TEST(test_the_folder_is_that_of_the_account),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
