/* libs: speculative base */
#include "common/speculative/prefix.h"

#include "common/base/err.h"
#include "tests/support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#define CAPACITY 200
#define SEED     0x1234567890abcdefu

/* The chain again, from its definition alone. */
static hash16 naive_hash(uint64_t seed, const int32_t *tokens, int32_t length) {
  hash16 h = {{0}};
  for (int32_t i = 0; i < length; i++) h = hash_next(h, seed, tokens[i]);
  return h;
}

static void assert_holds(const prefix *p, const int32_t *tokens, int32_t length) {
  assert_int_equal(p->length, length);
  if (length) assert_memory_equal(p->tokens, tokens, (size_t)length * sizeof *tokens);
  assert_true(hash_equal(prefix_hash(p), naive_hash(p->seed, tokens, length)));
}

static void grows_and_shrinks(void **state) {
  (void)state;
  prefix p;
  int32_t model[CAPACITY], length = 0;
  uint64_t rng = 1;
  assert_int_equal(prefix_init(&p, CAPACITY, SEED), ERR_OK);
  assert_true(hash_is_zero(prefix_hash(&p)));
  for (int step = 0; step < 3000; step++) {
    int32_t piece[60], count = (int32_t)random_below(&rng, 60);
    for (int32_t i = 0; i < count; i++) piece[i] = (int32_t)random_below(&rng, 50000);
    if (random_below(&rng, 5)) {
      bool fits = length + count <= CAPACITY;
      assert_int_equal(prefix_append(&p, piece, count), fits ? ERR_OK : ERR_LIMIT);
      if (fits) memcpy(model + length, piece, (size_t)count * sizeof *piece);
      if (fits) length += count;
    } else {
      length = (int32_t)random_below(&rng, (uint32_t)length + 1);
      prefix_truncate(&p, length);
    }
    assert_holds(&p, model, length);
    int32_t at = (int32_t)random_below(&rng, (uint32_t)length + 1);
    assert_true(prefix_has(&p, at, naive_hash(SEED, model, at)));
  }
  prefix_fini(&p);
}

/* As if it had been so from the first token. */
static void another_seed(void **state) {
  (void)state;
  prefix p;
  int32_t tokens[100];
  for (int32_t i = 0; i < 100; i++) tokens[i] = 7 * i;
  assert_int_equal(prefix_init(&p, CAPACITY, SEED), ERR_OK);
  prefix_append(&p, tokens, 90);
  prefix_truncate(&p, 80);
  prefix_reseed(&p, SEED + 1);
  assert_holds(&p, tokens, 80);
  assert_true(prefix_has(&p, 40, naive_hash(SEED + 1, tokens, 40)));
  prefix_append(&p, tokens + 80, 20);
  assert_holds(&p, tokens, 100);
  prefix_fini(&p);
}

/* Length alone is no identity. */
static void has_compares_the_hash(void **state) {
  (void)state;
  const int32_t one[] = {1, 2, 3}, other[] = {1, 9, 3};
  prefix p, q;
  prefix_init(&p, 10, SEED);
  prefix_init(&q, 10, SEED);
  prefix_append(&p, one, 3);
  prefix_append(&q, other, 3);
  assert_true(prefix_has(&p, 3, prefix_hash(&p)));
  assert_false(prefix_has(&p, 3, prefix_hash(&q)));
  assert_false(prefix_has(&p, 2, prefix_hash(&p)));
  assert_true(prefix_has(&p, 1, q.hashes[1]));
  assert_false(prefix_has(&p, 2, q.hashes[2]));
  assert_false(prefix_has(&p, 4, (hash16){{0}}));
  assert_false(prefix_has(&p, -1, (hash16){{0}}));
  prefix_truncate(&p, 2);
  assert_false(prefix_has(&p, 3, p.hashes[3])); /* what lies behind the length is not held */
  prefix_reset(&p, SEED + 1);
  assert_int_equal(p.length, 0);
  prefix_append(&p, one, 3);
  assert_true(hash_equal(prefix_hash(&p), naive_hash(SEED + 1, one, 3)));
  prefix_fini(&p);
  prefix_fini(&q);
}

static void apply_rule(void **state) {
  (void)state;
  const int32_t truth[] = {5, 6, 7, 8, 9, 10}, wrong[] = {5, 6, 0, 8, 9, 10};
  static const struct {
    const char *name;
    int32_t base, count;
    int tokens;   /* 0: of truth, 1: of wrong */
    int32_t hash; /* length of truth that it is the hash of; -1: of wrong at base + count */
    prefix_verdict verdict;
    int32_t appended;
  } cases[] = {
      {"next", 4, 2, 0, 6, PREFIX_APPLIED, 2},
      {"nothing", 4, 0, 0, 4, PREFIX_APPLIED, 0},
      {"repetition", 1, 2, 0, 3, PREFIX_APPLIED, 0},
      {"exact repetition", 0, 4, 0, 4, PREFIX_APPLIED, 0},
      {"overlap", 2, 3, 0, 5, PREFIX_APPLIED, 1},
      {"beyond", 5, 1, 0, 6, PREFIX_BEYOND, 0},
      {"beyond and empty", 6, 0, 0, 6, PREFIX_BEYOND, 0},
      {"overlap differs", 2, 3, 1, -1, PREFIX_CONFLICT, 0},
      {"overlap differs, right hash", 2, 3, 1, 5, PREFIX_CONFLICT, 0},
      {"repetition differs", 1, 2, 1, -1, PREFIX_CONFLICT, 0},
      {"other past, equal tokens, new ones", 4, 2, 1, -1, PREFIX_CONFLICT, 0},
      {"other past, equal tokens, old ones", 3, 1, 1, -1, PREFIX_CONFLICT, 0},
      {"empty with another hash", 4, 0, 0, -1, PREFIX_CONFLICT, 0},
      {"empty in the past with another hash", 3, 0, 0, -1, PREFIX_CONFLICT, 0},
      {"hash of another length", 4, 2, 0, 5, PREFIX_CONFLICT, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    prefix p;
    prefix_init(&p, 6, SEED);
    prefix_append(&p, truth, 4);
    const int32_t *tokens = (cases[i].tokens ? wrong : truth) + cases[i].base;
    hash16 hash = cases[i].hash < 0 ? naive_hash(SEED, wrong, cases[i].base + cases[i].count)
                                    : naive_hash(SEED, truth, cases[i].hash);
    int32_t appended = -1;
    prefix_verdict v = prefix_apply(&p, cases[i].base, tokens, cases[i].count, hash, &appended);
    if (v != cases[i].verdict || appended != cases[i].appended)
      fail_msg("%s: verdict %d", cases[i].name, (int)v);
    assert_holds(&p, truth, 4 + cases[i].appended);
    prefix_fini(&p);
  }
}

static void apply_at_capacity(void **state) {
  (void)state;
  const int32_t truth[] = {5, 6, 7, 8, 9};
  prefix p;
  int32_t appended;
  prefix_init(&p, 4, SEED);
  prefix_append(&p, truth, 3);
  assert_int_equal(prefix_apply(&p, 3, truth + 3, 2, naive_hash(SEED, truth, 5), &appended), PREFIX_LIMIT);
  assert_holds(&p, truth, 3);
  assert_int_equal(prefix_apply(&p, 0, truth, 5, naive_hash(SEED, truth, 5), &appended), PREFIX_LIMIT);
  assert_int_equal(prefix_apply(&p, 0, truth, INT32_MAX, naive_hash(SEED, truth, 5), &appended),
                   PREFIX_LIMIT);
  assert_int_equal(prefix_apply(&p, 1, truth + 1, 3, naive_hash(SEED, truth, 4), &appended), PREFIX_APPLIED);
  assert_holds(&p, truth, 4);
  prefix_fini(&p);
}

/* A stream cut into pieces, lost, repeated and reordered: whatever was applied is a prefix of the truth, and
 * a piece asked for by RESEND always helps. */
static void stream_survives_the_network(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    uint64_t rng = seed;
    int32_t truth[CAPACITY];
    for (int i = 0; i < CAPACITY; i++) truth[i] = (int32_t)random_below(&rng, 3);
    prefix p;
    prefix_init(&p, CAPACITY, seed);
    int beyond = 0;
    while (p.length < CAPACITY) {
      int32_t before = p.length;
      bool resend = random_below(&rng, 4) == 0;
      int32_t base = resend ? before : (int32_t)random_below(&rng, CAPACITY);
      int32_t count =
          1 + (int32_t)random_below(&rng, (uint32_t)(CAPACITY - base < 12 ? CAPACITY - base : 12));
      int32_t appended;
      prefix_verdict v =
          prefix_apply(&p, base, truth + base, count, naive_hash(seed, truth, base + count), &appended);
      assert_int_equal(v, base > before ? PREFIX_BEYOND : PREFIX_APPLIED);
      beyond += v == PREFIX_BEYOND;
      if (resend) assert_int_equal(appended, count);
      assert_holds(&p, truth, before + appended);
    }
    assert_true(beyond > 0);
    prefix_fini(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(grows_and_shrinks),     cmocka_unit_test(another_seed),
      cmocka_unit_test(has_compares_the_hash), cmocka_unit_test(apply_rule),
      cmocka_unit_test(apply_at_capacity),     cmocka_unit_test(stream_survives_the_network),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
