/* libs: kernels */
/* The kernels that list the best tokens, on every instruction set that this processor has, against a list
 * made from the definition: noise_of for each token. The op is in test_ops_rank.c. */
#include "kernels/cpu/cpu_isa.h"
#include "tests/support/choices.h"

enum { OUTPUTS = 333, TOKENS = 5000 };

static const cpu_kernels *kernels[CPU_ISA_COUNT];
static int32_t kernel_count;

static int find_kernels(void **state) {
  (void)state;
  for (cpu_isa isa = CPU_C; isa < CPU_ISA_COUNT; isa++)
    if (cpu_isa_has(isa)) kernels[kernel_count++] = cpu_isa_kernels(isa);
  return 0;
}

/* Outputs, some of no token; no token twice. */
typedef struct outputs {
  float logits[OUTPUTS];
  int32_t tokens[OUTPUTS];
  int32_t n, first;
  bool listed; /* else output i is token first + i */
} outputs;

static int32_t token_of(const outputs *o, int32_t i) {
  return o->listed ? o->tokens[i] : o->first + i;
}

static void fill(outputs *o, int shape) {
  static const float spread[] = {0.01f, 1, 10, 0, 3};
  o->n = 1 + (int32_t)(random_bits() % OUTPUTS);
  o->first = (int32_t)(random_bits() % TOKENS);
  o->listed = random_bits() % 4 != 0;
  for (int32_t i = 0; i < o->n; i++) {
    o->logits[i] = random_float() * spread[shape];
    if (shape == 4 && random_bits() % 3 == 0) o->logits[i] = -INFINITY;
    o->tokens[i] = random_bits() % 5 == 0 ? -1 : (int32_t)(random_bits() % 7) + 7 * ((i * 211) % OUTPUTS);
  }
}

/* By a full sort of insertions. */
static int32_t defined_list(const outputs *o, const ops_sampling *c, int32_t room, ranking_token *list) {
  int32_t count = 0;
  for (int32_t i = 0; i < o->n; i++) {
    const int32_t token = token_of(o, i);
    if (token < 0 || !(o->logits[i] > -INFINITY)) continue;
    const float value = c->scale == 0 ? o->logits[i] : choice_value(c, o->logits[i], token);
    int32_t at = count < room ? count++ : room;
    for (; at > 0 &&
           (value > list[at - 1].value || (value == list[at - 1].value && token < list[at - 1].token));
         at--)
      if (at < room) list[at] = list[at - 1];
    if (at < room) list[at] = (ranking_token){token, value};
  }
  return count;
}

static void assert_lists(const outputs *o, const ops_sampling *c, int32_t room) {
  ranking_token want[SAMPLER_RANKED_MAX], got[SAMPLER_RANKED_MAX];
  const int32_t count = defined_list(o, c, room, want);
  for (int32_t k = 0; k < kernel_count; k++) {
    ranking_list best;
    ranking_init(&best, got, room);
    assert_true(kernels[k]->rank(o->logits, o->listed ? o->tokens : NULL, o->first, o->n, c, &best));
    assert_int_equal(ranking_count(&best), count);
    if (memcmp(got, want, (size_t)count * sizeof *got) != 0)
      fail_msg("%s: another list of %d of %d outputs", kernels[k]->name, count, o->n);
  }
}

static void lists_are_those_of_the_definition(void **state) {
  (void)state;
  static outputs o;
  for (int round = 0; round < 4000; round++) {
    fill(&o, round % 5);
    ops_sampling c = choice_random(round);
    assert_lists(&o, &c, 1 + (int32_t)(random_bits() % SAMPLER_RANKED_MAX));
  }
}

/* Where all other outputs are of no token, the noise of one comes out, of each in its turn. */
static void every_lane_has_its_noise(void **state) {
  (void)state;
  static outputs o = {.n = OUTPUTS, .listed = true};
  for (int32_t at = 0; at < OUTPUTS; at++) {
    const ops_sampling c = {.scale = 0.7f, .seed = 1 + (uint64_t)at, .position = (uint32_t)at, .choice = 2};
    for (int32_t i = 0; i < OUTPUTS; i++) o.tokens[i] = -1;
    o.tokens[at] = at + (at % 3 == 0) * 0x7fff0000;
    assert_lists(&o, &c, 2);
  }
}

/* A NaN or an infinity counts where it is of a token, wherever it stands. */
static void what_is_no_number_is_told(void **state) {
  (void)state;
  static outputs o = {.n = OUTPUTS, .listed = true};
  const float no_numbers[] = {NAN, -NAN, INFINITY};
  for (int32_t i = 0; i < OUTPUTS; i++) o.tokens[i] = i;
  for (int32_t at = 0; at < OUTPUTS; at++) {
    for (int greedy = 0; greedy < 2; greedy++) {
      const ops_sampling c = {.scale = greedy ? 0 : 1, .seed = 5};
      o.logits[at] = no_numbers[at % 3];
      for (int32_t k = 0; k < kernel_count; k++) {
        ranking_token list[4];
        ranking_list best;
        ranking_init(&best, list, 4);
        assert_false(kernels[k]->rank(o.logits, o.tokens, 0, o.n, &c, &best));
        o.tokens[at] = -1;
        ranking_init(&best, list, 4);
        assert_true(kernels[k]->rank(o.logits, o.tokens, 0, o.n, &c, &best));
        o.tokens[at] = at;
      }
      o.logits[at] = 0;
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lists_are_those_of_the_definition),
      cmocka_unit_test(every_lane_has_its_noise),
      cmocka_unit_test(what_is_no_number_is_told),
  };
  return cmocka_run_group_tests(tests, find_kernels, NULL);
}
