/* libs: model */
/* What a refusal for lack of memory says. */
#include "common/model/memory_needs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static const memory_needs MODEL = {.weights = 900 * MIB,
                                   .activations = 20 * MIB,
                                   .rows = 400 * MIB,
                                   .stage = 4 * MIB,
                                   .sessions = 4,
                                   .context = 4096};

static void expect(const memory_needs *n, size_t left, const char *device, const char *text) {
  err e = {0};
  assert_int_equal(memory_needs_check(n, left, device, &e), text ? ERR_NOMEM : ERR_OK);
  if (text) assert_string_equal(e.text, text);
}

static void what_fits_is_not_refused(void **state) {
  (void)state;
  expect(&MODEL, 1324 * MIB, "cuda:0", NULL);
  expect(&MODEL, SIZE_MAX, "cuda:0", NULL);
  err e = {0};
  assert_int_equal(memory_needs_check(&MODEL, 1324 * MIB - 1, "cuda:0", &e), ERR_NOMEM);
}

static void a_refusal_tells_every_part_and_what_would_fit(void **state) {
  (void)state;
  const char *needs = "the model needs 1.3 GiB (900 MiB for weights, 20.0 MiB for activations, 404 MiB for a "
                      "cache of 4 sessions of 4096 tokens), and cuda:0 has ";
  const struct {
    size_t left;
    const char *has;
  } table[] = {
      {1224 * MIB, "1.2 GiB left: give at most --sessions 3 or --ctx 3072"}, /* 300 MiB for rows */
      {1124 * MIB, "1.1 GiB left: give at most --sessions 2 or --ctx 2048"},
      {974 * MIB, "974 MiB left: give at most --ctx 512"},
      {924 * MIB, "924 MiB left: end what else uses it, or use another --device or a smaller model"},
      {0, "0 bytes left: end what else uses it, or use another --device or a smaller model"},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    char text[ERR_TEXT_MAX];
    strcat(strcpy(text, needs), table[i].has);
    expect(&MODEL, table[i].left, "cuda:0", text);
  }
}

static void what_is_there_already_is_not_mentioned(void **state) {
  (void)state;
  memory_needs n = {.rows = 100 * MIB, .sessions = 1, .context = 1600};
  expect(&n, 50 * MIB, "cpu:c",
         "a cache of 1 session of 1600 tokens needs 100 MiB, and cpu:c has 50.0 MiB left: give at most --ctx "
         "800");
  n = (memory_needs){.weights = 100 * MIB, .activations = 10 * MIB};
  expect(&n, 50 * MIB, "cpu:c",
         "the model needs 110 MiB (100 MiB for weights, 10.0 MiB for activations), and cpu:c has 50.0 MiB "
         "left: end what else uses it, or use another --device or a smaller model");
}

static void a_virtual_cache_is_told_in_blocks(void **state) {
  (void)state;
  const memory_needs n = {.rows = 100 * MIB, .sessions = 8, .context = 4096, .blocks = 1000};
  expect(&n, 60 * MIB, NULL,
         "a cache of 1000 blocks of 16 tokens needs 100 MiB, and --kv-memory allows 60.0 MiB: give at most "
         "--kv-blocks 600");
  expect(&n, 10, NULL,
         "a cache of 1000 blocks of 16 tokens needs 100 MiB, and --kv-memory allows 10 bytes: allow more");
}

/* Of the device only the rest is wanted; of the host, which has less than so many bytes, the rows. */
static void rows_in_the_hosts_memory_are_looked_for_there(void **state) {
  (void)state;
  memory_needs n = MODEL;
  n.in_host = true;
  expect(&n, 924 * MIB, "cuda:0", NULL);
  expect(&n, 924 * MIB - 1, "cuda:0",
         "the model needs 924 MiB (900 MiB for weights, 20.0 MiB for activations, 4.0 MiB for the staging of "
         "trees), and cuda:0 has 924 MiB left: end what else uses it, or use another --device or a smaller "
         "model");
  expect(&n, 1300 * MIB, NULL,
         "the model needs 1.3 GiB (900 MiB for weights, 20.0 MiB for activations, 404 MiB for a cache of 4 "
         "sessions of 4096 tokens), and --kv-memory allows 1.3 GiB: give at most --sessions 3 or --ctx 3840");
  n.rows = (size_t)900 << 40;
  err e = {0};
  assert_int_equal(memory_needs_check(&n, SIZE_MAX, "cuda:0", &e), ERR_NOMEM);
  assert_non_null(strstr(e.text, "a cache of 4 sessions of 4096 tokens needs 900 TiB, and the host has "));
  n.sessions = n.context = 1;
  assert_int_equal(memory_needs_check(&n, SIZE_MAX, "cuda:0", &e), ERR_NOMEM);
  assert_non_null(strstr(e.text, " left: end what else uses it, or leave out --kv-in host"));
}

static void rows_that_the_host_does_not_lock_are_refused_with_the_numbers(void **state) {
  (void)state;
  err e = {0};
  assert_int_equal(memory_needs_refuse_in_host(&MODEL, &e), ERR_NOMEM);
  assert_string_equal(
      e.text,
      "a cache of 4 sessions of 4096 tokens needs 400 MiB of the host's memory, page-locked, "
      "and that, or what it takes beside it, was not given: lower --sessions or --ctx, or leave out --kv-in "
      "host");
}

/* Numbers of the largest machines. */
static void no_number_is_too_large(void **state) {
  (void)state;
  const memory_needs n = {.weights = (size_t)900 << 40,
                          .activations = (size_t)900 << 30,
                          .rows = (size_t)900 << 40,
                          .sessions = 1024,
                          .context = 1 << 20};
  err e = {0};
  assert_int_equal(memory_needs_check(&n, (size_t)1700 << 40, "cuda:0", &e), ERR_NOMEM);
  assert_non_null(strstr(e.text,
                         "the model needs 1801 TiB (900 TiB for weights, 900 GiB for activations, 900 "
                         "TiB for a cache of 1024 sessions of 1048576 tokens), and cuda:0 has 1700 "
                         "TiB left: give at most --sessions "));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_fits_is_not_refused),
      cmocka_unit_test(a_refusal_tells_every_part_and_what_would_fit),
      cmocka_unit_test(what_is_there_already_is_not_mentioned),
      cmocka_unit_test(a_virtual_cache_is_told_in_blocks),
      cmocka_unit_test(rows_in_the_hosts_memory_are_looked_for_there),
      cmocka_unit_test(rows_that_the_host_does_not_lock_are_refused_with_the_numbers),
      cmocka_unit_test(no_number_is_too_large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
