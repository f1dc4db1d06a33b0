/* libs: base */
#include "common/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

/* Random123's kat_vectors, philox4x32 with 10 rounds. */
static void published_answers(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], answer[4];
  } known[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    philox_block b = philox4x32(known[i].counter, known[i].key);
    assert_memory_equal(b.lane, known[i].answer, sizeof b.lane);
  }
}

static void run_is_one_by_one(void **state) {
  (void)state;
  const uint32_t key[2] = {7, 9};
  uint32_t counter[4] = {0xfffffffd, 1, 2, 3}; /* wraps within the run */
  uint32_t out[4 * 9 + 1];
  out[36] = 0x5eed;
  philox_run(counter, key, 9, out);
  for (int b = 0; b < 9; b++, counter[0]++) {
    philox_block one = philox4x32(counter, key);
    assert_memory_equal(out + 4 * b, one.lane, sizeof one.lane);
  }
  assert_int_equal(out[36], 0x5eed);
  philox_run(counter, key, 0, out + 36);
  assert_int_equal(out[36], 0x5eed);
}

static void unit_is_exact_and_open(void **state) {
  (void)state;
  assert_true(philox_unit(0) == 0x1p-24f);
  assert_true(philox_unit(0xffffffff) == 1 - 0x1p-24f);
  assert_true(philox_unit(0x80000000) == 0.5f + 0x1p-24f);
  assert_true(philox_unit(511) == philox_unit(0)); /* the low 9 bits do not count */
  for (uint32_t i = 0; i < 1u << 23; i += 977) {
    double exact = (i + 0.5) / 8388608.0;
    assert_true((double)philox_unit(i << 9) == exact);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_answers),
      cmocka_unit_test(run_is_one_by_one),
      cmocka_unit_test(unit_is_exact_and_open),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
