/* libs: target wire base */
#include "target_worker/taps.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const int32_t layers[] = {2, 15, 27};

static msg_feature_request request(void) {
  return (msg_feature_request){.taps = layers, .tap_count = 3, .type = WIRE_BF16};
}

static taps_offer offer(void) {
  return (taps_offer){
      .layers = 30, .embed = 576, .fc = {{7}}, .fc_taps = {2, 15, 27}, .fc_tap_count = 3, .fc_width = 576};
}

static void test_raw_states_are_granted_one_behind_the_other(void **state) {
  (void)state;
  const msg_feature_request r = request();
  const taps_offer o = offer();
  taps_set t;
  err e;
  assert_int_equal(taps_grant(&o, &r, &t, &e), ERR_OK);
  assert_int_equal(t.count, 3);
  assert_memory_equal(t.list, layers, sizeof layers);
  assert_int_equal(t.width, 3 * 576);
  assert_false(t.fused);
  assert_int_equal(taps_row_bytes(&t), 2 * 3 * 576);
}

static void test_fc_is_applied_where_its_weights_are_the_same(void **state) {
  (void)state;
  msg_feature_request r = request();
  taps_offer o = offer();
  taps_set t;
  err e;
  r.fc = o.fc;
  assert_int_equal(taps_grant(&o, &r, &t, &e), ERR_OK);
  assert_true(t.fused);
  assert_int_equal(t.width, 576);
  r.fc.bytes[3] = 1;
  assert_int_equal(taps_grant(&o, &r, &t, &e), ERR_OK);
  assert_false(t.fused);
  r.fc = o.fc;
  o.fc_taps[1] = 14; /* another head's weights would get other states */
  assert_int_equal(taps_grant(&o, &r, &t, &e), ERR_OK);
  assert_false(t.fused);
}

static void test_a_head_for_another_model_is_refused(void **state) {
  (void)state;
  const int32_t last[] = {30}, beyond[] = {2, 31};
  msg_feature_request r = request();
  taps_offer o = offer();
  taps_set t;
  err e;
  r.taps = last, r.tap_count = 1;
  assert_int_equal(taps_grant(&o, &r, &t, &e), ERR_OK);
  r.taps = beyond, r.tap_count = 2;
  assert_int_equal(taps_grant(&o, &r, &t, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "layer 31"));
  r = request();
  o.embed = WIRE_FEATURE_WIDTH_MAX / 3 + 1;
  assert_int_equal(taps_grant(&o, &r, &t, &e), ERR_LIMIT);
  assert_int_equal(t.count, 0);
}

static void test_a_target_without_taps_grants_none(void **state) {
  (void)state;
  const msg_feature_request r = request();
  const taps_offer none = {0};
  taps_set t;
  err e;
  assert_int_equal(taps_grant(&none, &r, &t, &e), ERR_OK);
  assert_int_equal(t.count, 0);
}

static void test_bf16_is_the_nearest_and_ties_go_to_even(void **state) {
  (void)state;
  static const struct {
    uint32_t bits;
    uint16_t half;
  } cases[] = {{0x3F800000, 0x3F80}, {0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81},
               {0xC0490FDB, 0xC049}, {0x7F7FFFFF, 0x7F80}, {0x00000001, 0x0000}, {0x80000000, 0x8000},
               {0x7F800000, 0x7F80}, {0x7F800001, 0x7FC0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    float value;
    uint16_t half;
    memcpy(&value, &cases[i].bits, sizeof value);
    taps_pack(WIRE_BF16, &value, 1, (uint8_t *)&half);
    assert_int_equal(half, cases[i].half);
  }
  float values[] = {1.5f, -0.0f}, same[2];
  taps_pack(WIRE_F32, values, 2, (uint8_t *)same);
  assert_memory_equal(values, same, sizeof values);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_raw_states_are_granted_one_behind_the_other),
      cmocka_unit_test(test_fc_is_applied_where_its_weights_are_the_same),
      cmocka_unit_test(test_a_head_for_another_model_is_refused),
      cmocka_unit_test(test_a_target_without_taps_grants_none),
      cmocka_unit_test(test_bf16_is_the_nearest_and_ties_go_to_even),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
