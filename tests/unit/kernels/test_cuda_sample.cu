/* libs: kernels_cuda_emulated */
/* The choice of tokens against the C reference, and against its definition (ops.h). */
#include "tests/support/cuda_cache.h"

#include <algorithm>

PORTABLE_C_BEGIN
#include "common/base/noise.h"
#include "kernels/cpu/sample.h"
PORTABLE_C_END

#define KEPT   2 /* rows whose logits are kept, before those that choose */
#define BUCKET 8 /* rows of the grid */

typedef std::vector<std::vector<float>> rows_of_logits;

static int32_t defined_choice(const std::vector<float> &z, const ops_sampling &choice) {
  const noise_source source = {choice.seed, choice.choice, choice.position};
  float best = -INFINITY;
  int32_t id = -1;
  for (int32_t i = 0; i < (int32_t)z.size(); i++) {
    if (!(z[(size_t)i] < INFINITY)) return -1;
    if (z[(size_t)i] == -INFINITY) continue;
    const float value = choice.scale == 0 ? z[(size_t)i] : z[(size_t)i] * choice.scale + noise_of(&source, i);
    if (value > best || (value == best && id < 0)) {
      best = value;
      id = i;
    }
  }
  return id;
}

static int32_t reference_choice(std::vector<float> z, const ops_sampling &choice) {
  const int32_t vocabulary = (int32_t)z.size();
  cpu_winner w = {-INFINITY, INT32_MAX};
  z.resize((z.size() + OPS_GROUP - 1) / OPS_GROUP * OPS_GROUP, -INFINITY);
  cpu_sample_c(z.data(), OPS_GROUP, 0, vocabulary, &choice, &w);
  return w.id == INT32_MAX ? -1 : w.id;
}

/* Row i takes choices[i]. Rows before them, and past them, are NaNs. */
static std::vector<int32_t> chosen(const rows_of_logits &rows, const std::vector<ops_sampling> &choices) {
  const size_t vocabulary = rows[0].size();
  std::vector<float> logits(BUCKET * vocabulary, NAN);
  for (size_t i = 0; i < rows.size(); i++)
    memcpy(&logits[(KEPT + i) * vocabulary], rows[i].data(), vocabulary * sizeof(float));
  cuda_batch batch = {};
  batch.choices = to_device(choices);
  batch.head_count = KEPT + (int32_t)rows.size();
  batch.logit_count = KEPT;
  cuda_batch *device = to_device(&batch, 1);
  float *z = to_device(logits);
  int32_t *ids = to_device(std::vector<int32_t>(BUCKET, -1));
  uint8_t *scratch;
  assert_int_equal(cudaMalloc((void **)&scratch, cuda_sample_bytes(BUCKET, (int32_t)vocabulary)),
                   cudaSuccess);
  cuda_sample(NULL, {device, BUCKET, true}, (int32_t)vocabulary, z, ids, scratch);
  std::vector<int32_t> out = from_device(ids, BUCKET);
  for (void *p : {(void *)batch.choices, (void *)device, (void *)z, (void *)ids, (void *)scratch})
    cudaFree(p);
  for (size_t i = rows.size(); i < BUCKET; i++) assert_int_equal(out[i], -1);
  out.resize(rows.size());
  return out;
}

static void check(const rows_of_logits &rows, const std::vector<ops_sampling> &choices) {
  const std::vector<int32_t> ids = chosen(rows, choices);
  for (size_t i = 0; i < rows.size(); i++) {
    assert_int_equal(ids[i], defined_choice(rows[i], choices[i]));
    assert_int_equal(ids[i], reference_choice(rows[i], choices[i]));
  }
}

/* Without noise, and with noise that decides little, or all. Each row has the logits in another order. */
static void check_scales(std::vector<float> z, uint64_t seed) {
  const float scales[] = {0, 1, 1.25f, 1e5f, 1e-3f, 0.7f};
  rows_of_logits rows;
  std::vector<ops_sampling> choices;
  for (uint32_t i = 0; i < 6; i++) {
    rows.push_back(z);
    std::rotate(z.begin(), z.begin() + (ptrdiff_t)(z.size() / 3), z.end());
    choices.push_back({scales[i], seed * 0x9e3779b97f4a7c15u + i, i % 3, 100 * i});
  }
  check(rows, choices);
}

static std::vector<float> logits_of(size_t count, float scale, uint64_t seed) {
  std::vector<float> z = numbers(count, seed);
  for (float &x : z) x *= scale;
  return z;
}

static void vocabularies_of_every_size(void **state) {
  (void)state;
  for (size_t count : {1, 3, 4, 5, 1023, 1024, 1025, 5000, 49152})
    for (uint64_t seed = 1; seed <= 4; seed++) check_scales(logits_of(count, 10, seed), seed);
}

static void the_best_may_be_anywhere_in_a_large_vocabulary(void **state) {
  (void)state;
  std::vector<float> z(300000, 0);
  for (size_t at : {299999, 5, 270000, 131072}) {
    z[at] += (float)at + 1000000;
    assert_int_equal(chosen({z}, {{0, 1, 2, 3}})[0], at);
    z[at] = 0;
  }
}

static void flat_logits_leave_it_to_the_noise(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    check_scales(std::vector<float>(2100, 0.5f), seed);
    check_scales(logits_of(2100, 2, seed), seed);
  }
}

static void the_lowest_id_wins_ties(void **state) {
  (void)state;
  for (size_t first : {0, 1, 31, 130, 1023, 1024, 2047}) {
    std::vector<float> z(2100, -1);
    z[first] = z[first + 1] = z[2099] = first % 2 ? 7.0f : 3e38f;
    assert_int_equal(chosen({z}, {{0, 1, 2, 3}})[0], first);
    check_scales(z, first);
  }
  std::vector<float> zeros(2100, -1);
  zeros[70] = -0.0f;
  zeros[1500] = 0.0f;
  assert_int_equal(chosen({zeros}, {{0, 1, 2, 3}})[0], 70);
}

/* Wherever it is, and whatever the others are. */
static void nothing_is_chosen_among_what_is_no_number(void **state) {
  (void)state;
  for (float other : {NAN, -NAN, INFINITY})
    for (size_t at : {0, 1, 31, 130, 1023, 1024, 2047, 2099}) {
      std::vector<float> z = logits_of(2100, 10, at);
      z[at] = other;
      check_scales(z, at);
      assert_int_equal(chosen({z}, {{0, 1, 2, 3}})[0], -1);
      assert_int_equal(chosen({z}, {{1, 1, 2, 3}})[0], -1);
    }
}

static void minus_infinity_is_never_chosen(void **state) {
  (void)state;
  std::vector<float> z(3000, -INFINITY);
  check_scales(z, 1);
  assert_int_equal(chosen({z}, {{1, 1, 2, 3}})[0], -1);
  z[2600] = -1e30f;
  check_scales(z, 2);
  assert_int_equal(chosen({z}, {{1, 1, 2, 3}})[0], 2600);
  z[2600] = -3e38f; /* times some of the scales it is -infinity, and yet a choice */
  check_scales(z, 3);
  for (size_t i = 0; i < z.size(); i += 7) z[i] = number_of(i);
  check_scales(z, 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(vocabularies_of_every_size),
      cmocka_unit_test(the_best_may_be_anywhere_in_a_large_vocabulary),
      cmocka_unit_test(flat_logits_leave_it_to_the_noise),
      cmocka_unit_test(the_lowest_id_wins_ties),
      cmocka_unit_test(nothing_is_chosen_among_what_is_no_number),
      cmocka_unit_test(minus_infinity_is_never_chosen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
