/* libs: kernels_cuda_emulated base : cost=10 */
/* The best tokens of a row on the device, against sampler_rank, by memcmp. */
#include "tests/support/cuda_cache.h"

#include "kernels/cuda/rank.h"

#define BUCKET 26 /* more than the rows of a batch */

/* A row of the sampler, with its own memory. */
struct request {
  sampler_options options;
  std::vector<float> logits;
  std::vector<int32_t> history, extra, bias_tokens;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask; /* none: all are allowed */
  int32_t prompt_count, position, count;
};

struct list {
  std::vector<ranking_token> ranked;
};

enum { MAPPED = 3100 }; /* tokens, where a map tells which of them the columns are */

static std::vector<list> expected_of(const std::vector<request> &requests, const std::vector<int32_t> &map) {
  std::vector<list> lists;
  for (const request &r : requests) {
    const int32_t vocabulary = map.empty() ? (int32_t)r.logits.size() : MAPPED;
    std::vector<float> z = r.logits;
    if (!map.empty()) z.assign(MAPPED, -INFINITY);
    for (size_t i = 0; i < map.size(); i++)
      if (map[i] >= 0) z[(size_t)map[i]] = r.logits[i];
    sampler *s;
    assert_int_equal(sampler_alloc(&s, vocabulary), ERR_OK);
    const sampler_row row = {r.history.data(),
                             (int32_t)r.history.size(),
                             r.extra.data(),
                             (int32_t)r.extra.size(),
                             r.prompt_count,
                             r.bias_tokens.data(),
                             r.bias_values.data(),
                             (int32_t)r.bias_tokens.size(),
                             r.mask.empty() ? NULL : r.mask.data()};
    ranking_token out[SAMPLER_RANKED_MAX];
    const int32_t count = sampler_rank(s, &r.options, &row, z.data(), r.position, r.count, out);
    sampler_free(s);
    list l;
    for (int32_t i = 0; i < count; i++) l.ranked.push_back({out[i].token, out[i].value});
    lists.push_back(l);
  }
  return lists;
}

/* --- a batch on the device --- */

struct rank_arrays {
  std::vector<cuda_ranking> rankings;
  std::vector<float> logits;
  std::vector<int32_t> tokens, bias_tokens;
  std::vector<float> bias_values;
  std::vector<uint32_t> masks;
};

template <class T> static ops_slice append(std::vector<T> *to, const std::vector<T> &from) {
  const ops_slice s = {(int32_t)to->size(), (int32_t)from.size()};
  to->insert(to->end(), from.begin(), from.end());
  return s;
}

static rank_arrays arrays_of(const std::vector<request> &requests) {
  rank_arrays a = {};
  for (size_t i = 0; i < requests.size(); i++) {
    const request &r = requests[requests.size() - 1 - i]; /* lines need not be in the rows' order */
    append(&a.logits, r.logits);
  }
  for (size_t i = 0; i < requests.size(); i++) {
    const request &r = requests[i];
    const sampler_options &o = r.options;
    cuda_ranking k = {};
    k.line = (int32_t)(requests.size() - 1 - i);
    k.count = r.count;
    k.scale = sampler_scale(&o);
    k.top_k = o.top_k;
    k.top_p = o.top_p;
    k.min_p = o.min_p;
    k.repeat_penalty = o.repeat_penalty;
    k.presence_penalty = o.presence_penalty;
    k.frequency_penalty = o.frequency_penalty;
    k.prompt_count = r.prompt_count;
    k.choice = o.choice;
    k.position = (uint32_t)r.position;
    k.seed = o.seed;
    k.history[0] = append(&a.tokens, r.history);
    k.history[1] = append(&a.tokens, r.extra);
    k.bias = append(&a.bias_tokens, r.bias_tokens);
    append(&a.bias_values, r.bias_values);
    k.mask = r.mask.empty() ? -1 : append(&a.masks, r.mask).first;
    a.rankings.push_back(k);
  }
  return a;
}

static std::vector<list> ranked(const std::vector<request> &requests, const std::vector<int32_t> &map) {
  const rank_arrays a = arrays_of(requests);
  const int32_t columns = (int32_t)requests[0].logits.size(), vocabulary = map.empty() ? columns : MAPPED;
  cuda_rank_batch batch = {to_device(a.rankings),    (int32_t)requests.size(), to_device(a.tokens),
                           to_device(a.bias_tokens), to_device(a.bias_values), to_device(a.masks)};
  cuda_rank_batch *device = to_device(&batch, 1);
  float *logits = to_device(a.logits);
  int32_t *ids = to_device(map);
  ops_ranked *out = to_device(std::vector<ops_ranked>(BUCKET, {-1, {}}));
  uint8_t *scratch = to_device(std::vector<uint8_t>(cuda_rank_bytes(BUCKET, vocabulary), 0xff));
  cuda_rank(NULL, device, BUCKET, {logits, columns, vocabulary, columns, map.empty() ? NULL : ids}, out,
            scratch);
  const std::vector<ops_ranked> all = from_device(out, BUCKET);
  std::vector<list> lists;
  for (size_t i = 0; i < requests.size(); i++) {
    assert_in_range(all[i].count, 0, SAMPLER_RANKED_MAX);
    lists.push_back({std::vector<ranking_token>(all[i].list, all[i].list + all[i].count)});
  }
  assert_int_equal(all[requests.size()].count, -1);
  for (void *p :
       {(void *)batch.rankings, (void *)batch.tokens, (void *)batch.bias_tokens, (void *)batch.bias_values,
        (void *)batch.masks, (void *)device, (void *)logits, (void *)ids, (void *)out, (void *)scratch})
    cudaFree(p);
  return lists;
}

static void check(const std::vector<request> &requests, const std::vector<int32_t> &map) {
  const std::vector<list> got = ranked(requests, map), expected = expected_of(requests, map);
  for (size_t i = 0; i < requests.size(); i++) {
    assert_int_equal(got[i].ranked.size(), expected[i].ranked.size());
    for (size_t k = 0; k < got[i].ranked.size(); k++) {
      const ranking_token a = got[i].ranked[k], b = expected[i].ranked[k];
      if (memcmp(&a, &b, sizeof a))
        fail_msg("row %zu, place %zu: token %d, %.9g instead of token %d, %.9g", i, k, a.token,
                 (double)a.value, b.token, (double)b.value);
    }
  }
}

/* --- cases --- */

static std::vector<float> scaled_numbers(size_t count, float scale, uint64_t seed) {
  std::vector<float> z = numbers(count, seed);
  for (float &x : z) x *= scale;
  return z;
}

static request plain(const std::vector<float> &logits, uint64_t seed) {
  request r = {};
  r.options.temperature = 0.8f;
  r.options.top_p = 1;
  r.options.repeat_penalty = 1;
  r.options.seed = seed * 0x9e3779b97f4a7c15u;
  r.options.choice = (uint32_t)seed % 3;
  r.logits = logits;
  r.position = (int32_t)seed * 10;
  r.count = (int32_t)(seed % SAMPLER_RANKED_MAX) + 1;
  return r;
}

/* Every filter and all of them, at several temperatures. */
static std::vector<request> filtered(const std::vector<float> &logits, uint64_t seed) {
  const float temperatures[] = {0, 0.8f, 1, 3}, top_ps[] = {1, 0.95f, 0.3f, 1e-6f},
              min_ps[] = {0, 0.05f, 0.9f};
  const int32_t top_ks[] = {0, 1, 5, 40, 1000000};
  std::vector<request> requests;
  for (uint64_t i = 0; i < 24; i++) {
    request r = plain(logits, seed + i);
    const uint32_t random = hash_of(seed * 1000 + i);
    r.options.temperature = temperatures[random % 4];
    r.options.top_p = top_ps[random / 4 % 4];
    r.options.min_p = min_ps[random / 16 % 3];
    r.options.top_k = top_ks[random / 48 % 5];
    requests.push_back(r);
  }
  return requests;
}

static void filters_are_those_of_the_sampler(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 2; seed++)
    for (size_t vocabulary : {1, 33, 1000, 5001})
      check(filtered(scaled_numbers(vocabulary, seed % 2 ? 12.0f : 2.0f, seed), seed), {});
}

/* Few different logits: filters and lists end among ties. */
static void ties_go_by_id(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 4; seed++) {
    std::vector<float> z = scaled_numbers(3000, 8, seed);
    for (float &x : z) x = seed < 3 ? rintf(x) : rintf(x) / 2 - 30;
    for (size_t i = 0; i < z.size(); i += 50) z[i] = i % 100 ? 0.0f : -0.0f;
    check(filtered(z, seed), {});
  }
  check(filtered(std::vector<float>(3000, 0.25f), 7), {});
}

static void minus_infinity_is_left_out(void **state) {
  (void)state;
  std::vector<float> z = scaled_numbers(2000, 10, 3);
  for (size_t i = 0; i < z.size(); i += 3) z[i] = -INFINITY;
  check(filtered(z, 1), {});
  std::vector<float> few(2000, -INFINITY);
  check(filtered(few, 3), {});
  few[1999] = -3e38f;
  check(filtered(few, 4), {});
}

/* Wherever it is, and whatever is asked for. */
static void nothing_is_listed_among_what_is_no_number(void **state) {
  (void)state;
  for (float other : {NAN, -NAN, INFINITY})
    for (size_t at : {0, 77, 1023, 1024, 1999}) {
      std::vector<float> z = scaled_numbers(2000, 10, at);
      z[at] = other;
      for (const list &l : ranked(filtered(z, at), {})) assert_int_equal(l.ranked.size(), 0);
    }
}

/* From the largest float to the smallest: filters end far below the best. */
static void logits_may_be_far_apart(void **state) {
  (void)state;
  std::vector<float> z(100, 3e38f);
  for (size_t i = 1; i < z.size(); i++) z[i] = -3e38f + 1e36f * number_of(i);
  check(filtered(z, 1), {});
  for (size_t i = 0; i < z.size(); i++) z[i] = ldexpf(i % 2 ? 1.0f : -1.0f, (int)i * 2 - 110);
  check(filtered(z, 2), {});
}

/* Tokens of the history are among them many times, and outside the vocabulary. */
static std::vector<request> adjusted(uint64_t seed) {
  std::vector<request> requests = filtered(scaled_numbers(2001, 6, seed), seed);
  for (size_t i = 0; i < requests.size(); i++) {
    request &r = requests[i];
    r.options.repeat_penalty = i % 3 == 0 ? 1 : i % 3 == 1 ? 1.3f : 0.7f;
    r.options.presence_penalty = i % 5 == 0 ? 0 : i % 5 == 1 ? 0.7f : -1.1f;
    r.options.frequency_penalty = i % 7 == 0 ? 0 : i % 7 < 4 ? 0.3f : -0.1f;
    for (uint64_t k = 0; k < 300; k++) r.history.push_back((int32_t)(hash_of(k + i) % 2100) - 20);
    for (uint64_t k = 0; k < 2000 && i % 4 == 3; k++) r.history.push_back((int32_t)(hash_of(k) % 50));
    r.extra = {r.history[3], 1999, 2000, 2001, 5, 5};
    for (uint64_t k = 0; k < 500; k++) r.extra.push_back((int32_t)(hash_of(k * 7 + i) % 2001));
    r.prompt_count = i % 6 == 0 ? 0 : (int32_t)(hash_of(i) % (r.history.size() + 8));
    for (int32_t k = 0; k < 40 && i % 2; k++) {
      r.bias_tokens.push_back((k * 7 % 20) * 103 - 103);
      r.bias_values.push_back(2.1f * number_of((uint64_t)k));
    }
    for (uint64_t k = 0; k < 63 && i % 4 > 1; k++) r.mask.push_back(hash_of(k * seed) & hash_of(k + seed));
    if (i == 7) r.mask.assign(63, 0);
  }
  return requests;
}

static void penalties_biases_and_masks_come_first(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 3; seed++) check(adjusted(seed), {});
}

static void a_map_tells_the_tokens_of_columns(void **state) {
  (void)state;
  std::vector<int32_t> map;
  for (int32_t column = 0; column < 2001; column++) map.push_back((column * 37 + 11) % MAPPED);
  check(filtered(scaled_numbers(2001, 8, 1), 1), map);
  check(filtered(scaled_numbers(2001, 8, 9), 9), std::vector<int32_t>(2001, -1));
  std::vector<request> requests = adjusted(4);
  for (request &r : requests)
    if (!r.mask.empty()) r.mask.resize(97, 0xffffffff); /* of more tokens than columns */
  check(requests, map);
}

/* A few of all logits, and with one penalty, bias, mask or filter. */
static void one_change_to_rows_without_filters(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 6; seed++) {
    std::vector<request> requests;
    for (uint64_t i = 0; i < 7; i++) {
      request r = plain(scaled_numbers(3001, 6, seed), seed + i);
      r.options.temperature = seed % 2 ? 0 : 0.8f;
      r.count = (int32_t)(seed * 3 + i) % 8 + 1;
      const int32_t best = expected_of({r}, {})[0].ranked[0].token;
      if (i == 1) r.options.repeat_penalty = 3, r.history = {best, best};
      if (i == 2) r.bias_tokens = {best}, r.bias_values = {-30};
      if (i == 3) r.mask.assign(94, ~(1u << (best % 32)));
      if (i == 4) r.options.top_k = 1;
      if (i == 5) r.options.top_p = 1e-6f;
      if (i == 6) r.options.min_p = 0.9f;
      requests.push_back(r);
    }
    check(requests, {});
  }
}

/* Then most of them are left out before their noise is known. */
static void a_thread_may_see_many_tokens(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 2; seed++) {
    request r = plain(scaled_numbers(40001, 0.5f, seed), seed);
    r.count = 8;
    check({r}, {});
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(filters_are_those_of_the_sampler),
      cmocka_unit_test(ties_go_by_id),
      cmocka_unit_test(minus_infinity_is_left_out),
      cmocka_unit_test(nothing_is_listed_among_what_is_no_number),
      cmocka_unit_test(logits_may_be_far_apart),
      cmocka_unit_test(penalties_biases_and_masks_come_first),
      cmocka_unit_test(a_map_tells_the_tokens_of_columns),
      cmocka_unit_test(one_change_to_rows_without_filters),
      cmocka_unit_test(a_thread_may_see_many_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
