/* libs: serve_bench */
/* Streams of OpenAI servers in pieces of any size: the text, its times, the figures, and what is no stream.
 */
#include "bench/serve/answer_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char chat[] = ": a comment\n"
                           "event: message\r\n"
                           "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\r\n\r\n"
                           "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n"
                           "data:{\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n"
                           "data: {\"choices\":[{\"delta\":{\"content\":\"l\\u00f6\"}}],\"usage\":null}\n\n"
                           "data: {\"choices\":[],\"usage\":{\"completion_tokens\":7,\"speculation\":"
                           "{\"draft_tokens\":5,\"accepted_tokens\":3}}}\n\n"
                           "data: [DONE]\r\n\r\n";

/* The stream in pieces of `size` bytes, one each 10 us from 1000 on; the last one at *end. */
static int take_in_pieces(answer_stream *s, const char *text, size_t size, uint64_t *end) {
  size_t all = strlen(text);
  int code = ERR_OK;
  *end = 1000;
  answer_stream_init(s);
  for (size_t at = 0; at < all && !code; at += size, *end += 10)
    code = answer_stream_take(s, text + at, all - at < size ? all - at : size, *end);
  return code ? code : answer_stream_end(s, *end);
}

static void test_pieces_of_any_size_are_one_stream(void **state) {
  (void)state;
  for (size_t size = 1; size <= sizeof chat; size++) {
    answer_stream s;
    uint64_t end;
    assert_int_equal(take_in_pieces(&s, chat, size, &end), ERR_OK);
    assert_int_equal(s.text.size, strlen("Hell\u00f6"));
    assert_memory_equal(s.text.bytes, "Hell\u00f6", s.text.size);
    assert_true(s.done);
    assert_int_equal(s.tokens, 7);
    assert_int_equal(s.drafted, 5);
    assert_int_equal(s.accepted, 3);
    assert_int_equal(s.gap_count, 1);
    assert_string_equal(s.error, "");
    assert_true(s.first_us >= 1000 && s.first_us <= s.last_us && s.last_us < end);
    assert_int_equal(s.gaps_us[0], s.last_us - s.first_us);
    answer_stream_fini(&s);
  }
}

static void test_times_are_those_of_text(void **state) {
  (void)state;
  static const char *const lines[] = {
      "data: {\"choices\":[{\"text\":\"\"}]}\n", "data: {\"choices\":[{\"text\":\"a\"}]}\n",
      "data: {\"choices\":[{\"text\":\"b\"}]}\n", "data: {\"choices\":[{\"text\":\"\"}]}\n"};
  answer_stream s;
  answer_stream_init(&s);
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    assert_int_equal(answer_stream_take(&s, lines[i], strlen(lines[i]), 100 * (i + 1)), ERR_OK);
  assert_int_equal(s.first_us, 200);
  assert_int_equal(s.last_us, 300);
  assert_int_equal(s.gap_count, 1);
  assert_int_equal(s.gaps_us[0], 100);
  assert_int_equal(s.tokens, -1); /* nobody has told */
  assert_false(s.done);
  answer_stream_fini(&s);
}

static void test_other_servers_figures(void **state) {
  (void)state;
  answer_stream s;
  uint64_t end;
  assert_int_equal(
      take_in_pieces(&s,
                     "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}],\"usage\":{"
                     "\"completion_tokens\":2},\"timings\":{\"draft_n\":9,\"draft_n_accepted\":4}}\n",
                     1000, &end),
      ERR_OK);
  assert_int_equal(s.text.size, 2);
  assert_int_equal(s.tokens, 2);
  assert_int_equal(s.drafted, 9);
  assert_int_equal(s.accepted, 4);
  answer_stream_fini(&s);
}

static void test_errors_of_the_server_are_kept(void **state) {
  (void)state;
  static const struct {
    const char *body, *says;
  } cases[] = {
      {"{\"error\":{\"message\":\"no such model\",\"code\":404}}",
       "no such model"}, /* a line without its end */
      {"{\"error\":\"busy\"}\n", "busy"},
      {"data: {\"error\":{}}\n", "the server answers with an error"},
      {"data: {\"error\":null,\"choices\":[]}\n", ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    answer_stream s;
    uint64_t end;
    assert_int_equal(take_in_pieces(&s, cases[i].body, 3, &end), ERR_OK);
    assert_string_equal(s.error, cases[i].says);
    answer_stream_fini(&s);
  }
}

static void test_what_is_no_stream_is_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"data: {\"choices\":\n", "data: []\n", "data: 1\n", "data: [DONE] no\n",
                                    "{\n"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    answer_stream s;
    uint64_t end;
    assert_int_equal(take_in_pieces(&s, bad[i], 4, &end), ERR_FORMAT);
    answer_stream_fini(&s);
  }
}

static void test_a_line_without_end_is_refused(void **state) {
  (void)state;
  static char block[1 << 20];
  memset(block, 'x', sizeof block);
  answer_stream s;
  answer_stream_init(&s);
  int code = ERR_OK;
  size_t taken = 0;
  for (; !code; taken += sizeof block) code = answer_stream_take(&s, block, sizeof block, 1);
  assert_int_equal(code, ERR_LIMIT);
  assert_int_equal(taken, ANSWER_STREAM_LINE_MAX + sizeof block);
  answer_stream_fini(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces_of_any_size_are_one_stream),
      cmocka_unit_test(test_times_are_those_of_text),
      cmocka_unit_test(test_other_servers_figures),
      cmocka_unit_test(test_errors_of_the_server_are_kept),
      cmocka_unit_test(test_what_is_no_stream_is_refused),
      cmocka_unit_test(test_a_line_without_end_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
