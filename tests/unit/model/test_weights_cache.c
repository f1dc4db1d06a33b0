/* libs: model : far */
/* Packed weights in a file: used when it is right, and only then. What is used shows in what was allocated;
 * what it is worth, in the logits, which are those of weights packed in memory. */
#include "common/model/weights_cache.h"
#include "tests/support/models.h"
#include "tests/support/scratch.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES 4096 /* weights_cache.h: a page */
#define CHECK_BYTES  16   /* its last ones: XXH3_128 of the others */

typedef struct fixture {
  gguf_builder builder;
  model_file *g;
  char dir[SCRATCH_MAX];
  float *logits; /* of weights packed in memory */
} fixture;

/* --- a model, opened with and without --- */

typedef struct opened {
  bool packed; /* not mapped */
  bool took;   /* memory for them */
  char told[4096];
} opened;

static float *logits_of(model *m) {
  const int32_t tokens[] = {3, 77, 201, 9};
  kv_cache *k = support_open_cache(m, 1, 32, KV_F16);
  support_prefill(m, k, kv_acquire(k), tokens, 4, 4);
  size_t bytes = (size_t)model_shape(m)->vocab * sizeof(float);
  float *copy = malloc(bytes);
  memcpy(copy, model_logits(m, 0, 3), bytes);
  kv_close(k);
  return copy;
}

/* Runs model_open with stderr going to `told`. */
static int open_and_listen(model **m, const model_file *g, const char *dir, mem *mm, char told[4096],
                           err *e) {
  const logger log = {"test", LOG_INFO};
  model_options o = {.repack_cache = dir, .log = &log};
  device *d = support_open_device(support_device(), OPS_MATH_INT8, 2, mm);
  FILE *heard = tmpfile();
  int saved = dup(STDERR_FILENO);
  assert_true(heard && saved >= 0 && dup2(fileno(heard), STDERR_FILENO) >= 0);
  int rc = model_open(m, g, d, &o, mm, e);
  if (rc != ERR_OK) d->table->close(d);
  dup2(saved, STDERR_FILENO);
  close(saved);
  rewind(heard);
  told[fread(told, 1, 4095, heard)] = 0;
  fclose(heard);
  return rc;
}

static opened open_once(const model_file *g, const char *dir, const float *expected) {
  mem mm = {0};
  err e = {0};
  opened o;
  model *m;
  if (open_and_listen(&m, g, dir, &mm, o.told, &e) != ERR_OK) fail_msg("%s", e.text);
  o.packed = !strstr(o.told, "mapped packed weights");
  o.took = mm.calls[MEM_WEIGHTS] > 0;
  float *logits = logits_of(m);
  assert_memory_equal(logits, expected, (size_t)model_shape(m)->vocab * sizeof(float));
  free(logits);
  support_close_model(m);
  return o;
}

static int32_t count_of(const char *text, const char *word) {
  int32_t n = 0;
  for (; (text = strstr(text, word)); text += strlen(word)) n++;
  return n;
}

/* A CPU serves from the mapping; another device takes a copy. */
static void assert_mapped(const fixture *f) {
  opened o = open_once(f->g, f->dir, f->logits);
  assert_false(o.packed);
  assert_int_equal(o.took, strncmp(support_device(), "cpu", 3) != 0);
  assert_int_equal(count_of(o.told, "warning"), 0);
  assert_int_equal(count_of(o.told, "mapped"), 1);
}

static void assert_refused(const fixture *f, const char *why) {
  opened o = open_once(f->g, f->dir, f->logits);
  assert_true(o.packed && o.took);
  assert_int_equal(count_of(o.told, "warning"), 1);
  if (!strstr(o.told, why)) fail_msg("'%s' does not say '%s'", o.told, why);
}

/* --- the folder --- */

/* The path of its only file; fails where there is another number of them. */
static void only_file(const char *dir, char path[PATH_MAX]) {
  int32_t files = 0;
  DIR *d = opendir(dir);
  for (struct dirent *entry; (entry = readdir(d));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, PATH_MAX, "%s/%s", dir, entry->d_name);
    files++;
  }
  closedir(d);
  assert_int_equal(files, 1);
}

static int32_t remove_files(const char *dir) {
  int32_t files = 0;
  DIR *d = opendir(dir);
  for (struct dirent *entry; (entry = readdir(d));) {
    if (entry->d_name[0] != '.') files += unlinkat(dirfd(d), entry->d_name, 0) == 0;
  }
  closedir(d);
  return files;
}

static off_t size_of(const char *path) {
  struct stat s;
  assert_int_equal(stat(path, &s), 0);
  return s.st_size;
}

/* Changes one byte of the header; `seal`: and makes the check right again. */
static void change_byte(const char *path, long at, bool seal) {
  uint8_t header[HEADER_BYTES];
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fread(header, 1, sizeof header, file), sizeof header);
  header[at] ^= 1;
  hash16 check = hash_bytes(header, HEADER_BYTES - CHECK_BYTES);
  if (seal) memcpy(header + HEADER_BYTES - CHECK_BYTES, check.bytes, CHECK_BYTES);
  rewind(file);
  assert_int_equal(fwrite(header, 1, sizeof header, file), sizeof header);
  assert_int_equal(fclose(file), 0);
}

static int set_up(void **state) {
  fixture *f = calloc(1, sizeof *f);
  f->g = support_tiny_file(&f->builder);
  strcpy(f->dir, scratch_make_folder().text);
  model *m = support_open_model(f->g, OPS_MATH_INT8, support_device(), 1);
  f->logits = logits_of(m);
  support_close_model(m);
  *state = f;
  return 0;
}

static int tear_down(void **state) {
  fixture *f = *state;
  remove_files(f->dir);
  rmdir(f->dir);
  free(f->logits);
  model_file_close(f->g);
  gb_free(&f->builder);
  free(f);
  return 0;
}

/* --- tests --- */

static void the_second_start_maps(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], name[33];
  opened first = open_once(f->g, f->dir, f->logits);
  assert_true(first.packed && first.took);
  assert_int_equal(count_of(first.told, "warning"), 0);
  assert_int_equal(count_of(first.told, "wrote"), 1);
  only_file(f->dir, path);
  hash_format(hash_bytes(f->builder.bytes, f->builder.size), name);
  assert_non_null(strstr(path, name));
  assert_non_null(strstr(path, ".packed"));
  assert_mapped(f);
  assert_mapped(f);
  only_file(f->dir, path);
}

/* The last byte of the file is far behind the sample that its fingerprint is of. */
static void other_weights_are_packed_anew(void **state) {
  fixture *f = *state;
  hash16 sample = model_file_fingerprint(f->g);
  (void)open_once(f->g, f->dir, f->logits);
  f->builder.bytes[f->builder.size - 1] ^= 0x11;
  assert_true(hash_equal(sample, model_file_fingerprint(f->g)));
  model *m = support_open_model(f->g, OPS_MATH_INT8, support_device(), 1);
  float *logits = logits_of(m);
  support_close_model(m);
  assert_memory_not_equal(logits, f->logits, SUPPORT_TINY_VOCAB * sizeof *logits);
  opened second = open_once(f->g, f->dir, logits);
  assert_true(second.packed);
  assert_int_equal(count_of(second.told, "warning"), 0);
  free(logits);
}

static void two_share_a_file(void **state) {
  fixture *f = *state;
  err e = {0};
  char told[4096];
  model *m[2];
  (void)open_once(f->g, f->dir, f->logits);
  for (int i = 0; i < 2; i++) assert_int_equal(open_and_listen(&m[i], f->g, f->dir, NULL, told, &e), ERR_OK);
  support_close_model(m[0]);
  float *logits = logits_of(m[1]);
  assert_memory_equal(logits, f->logits, (size_t)model_shape(m[1])->vocab * sizeof(float));
  free(logits);
  support_close_model(m[1]);
}

static void a_length_that_is_wrong(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  (void)open_once(f->g, f->dir, f->logits);
  only_file(f->dir, path);
  off_t whole = size_of(path);
  const struct {
    off_t size;
    const char *why;
  } cases[] = {{0, "cut short"},
               {100, "cut short"},
               {HEADER_BYTES - 1, "cut short"},
               {HEADER_BYTES, "not as long as it says"},
               {whole - 1, "not as long as it says"},
               {whole + 1, "not as long as it says"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(truncate(path, cases[i].size), 0);
    assert_refused(f, cases[i].why);
    assert_int_equal(size_of(path), whole); /* written anew */
    assert_mapped(f);
  }
}

static void a_header_that_is_wrong(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  (void)open_once(f->g, f->dir, f->logits);
  only_file(f->dir, path);
  for (long at = 0; at < HEADER_BYTES; at += at < 100 ? 1 : 333) {
    change_byte(path, at, false);
    assert_refused(f, at < 8 ? "no file of packed weights" : "is damaged");
  }
  change_byte(path, HEADER_BYTES - 1, false);
  assert_refused(f, "is damaged");
  for (long at = 0; at < 88; at++) { /* every field speaks for itself */
    change_byte(path, at, true);
    opened o = open_once(f->g, f->dir, f->logits);
    assert_true(o.packed && o.took && count_of(o.told, "warning") == 1);
  }
  assert_mapped(f);
}

/* Bits may turn over on a disk. */
static void data_that_is_wrong(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  (void)open_once(f->g, f->dir, f->logits);
  only_file(f->dir, path);
  const long places[] = {HEADER_BYTES, (HEADER_BYTES + (long)size_of(path)) / 2, (long)size_of(path) - 1};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    FILE *file = fopen(path, "r+b");
    fseek(file, places[i], SEEK_SET);
    int byte = fgetc(file);
    fseek(file, places[i], SEEK_SET);
    fputc(byte ^ 1, file);
    assert_int_equal(fclose(file), 0);
    assert_refused(f, "is damaged");
    assert_mapped(f);
  }
}

/* Another model's file, under this one's name. */
static void a_file_of_another_model(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], other_path[PATH_MAX];
  gguf_builder b;
  model_file *other = support_tiny_file(&b);
  const gguf_tensor *t = model_file_tensor(other, MODEL_OUTPUT_NORM, 0);
  ((float *)(uintptr_t)t->data)[0] += 1.0f;
  model *m = support_open_model(other, OPS_MATH_INT8, support_device(), 1);
  float *expected = logits_of(m);
  support_close_model(m);
  assert_memory_not_equal(expected, f->logits, SUPPORT_TINY_VOCAB * sizeof(float));
  (void)open_once(f->g, f->dir, f->logits);
  only_file(f->dir, path);
  unlink(path);
  (void)open_once(other, f->dir, expected);
  only_file(f->dir, other_path);
  assert_int_equal(rename(other_path, path), 0);
  assert_refused(f, "another model");
  assert_mapped(f);
  free(expected);
  model_file_close(other);
  gb_free(&b);
}

static void a_folder_that_is_not_there(void **state) {
  fixture *f = *state;
  char dir[PATH_MAX], told[4096];
  const char *const names[] = {"none", "file"};
  snprintf(dir, sizeof dir, "%s/file", f->dir);
  fclose(fopen(dir, "w"));
  for (int i = 0; i < 2; i++) {
    err e = {0};
    mem mm = {0};
    model *m;
    snprintf(dir, sizeof dir, "%s/%s", f->dir, names[i]);
    assert_int_equal(open_and_listen(&m, f->g, dir, &mm, told, &e), ERR_IO);
    assert_null(m);
    assert_string_equal(told, "");
    assert_non_null(strstr(e.text, dir));
    assert_non_null(strstr(e.text, "--repack-cache"));
    assert_int_equal(mm.calls[MEM_WEIGHTS], 0);
  }
  assert_int_equal(remove_files(f->dir), 1); /* "file": nothing else was left */
}

/* A full disk, played by a limit on the size of files: the model opens, and no half file is left. */
static void a_file_that_cannot_be_written(void **state) {
  fixture *f = *state;
  struct rlimit before;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){HEADER_BYTES + 1000, before.rlim_max}), 0);
  opened o = open_once(f->g, f->dir, f->logits);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  assert_true(o.packed && o.took);
  assert_int_equal(count_of(o.told, "warning"), 1);
  assert_int_equal(remove_files(f->dir), 0);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      CASE(the_second_start_maps),   CASE(two_share_a_file),           CASE(other_weights_are_packed_anew),
      CASE(a_length_that_is_wrong),  CASE(a_header_that_is_wrong),     CASE(data_that_is_wrong),
      CASE(a_file_of_another_model), CASE(a_folder_that_is_not_there), CASE(a_file_that_cannot_be_written),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
