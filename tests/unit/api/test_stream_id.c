/* libs: api */
/* The id of a stream's event, there and back, and what is none. */
#include "orchestrator/service/api/stream_id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static stream_id example(int32_t count) {
  stream_id id = {.name = "chatcmpl-00ff", .created = 1700000000, .seed = UINT64_MAX, .count = count};
  for (int32_t i = 0; i < count; i++)
    id.offsets[i] =
        (stream_offset){(size_t)i * 1000, 7 * i, stream_id_hash("text", (size_t)(i % 5)), i % 2 == 1};
  return id;
}

static void test_an_id_comes_back(void **state) {
  (void)state;
  for (int32_t count = 1; count <= STREAM_ID_CHOICES_MAX; count++) {
    const stream_id id = example(count);
    stream_id back;
    err e = {0};
    char text[STREAM_ID_TEXT_MAX + 1];
    stream_id_format(&id, text);
    if (stream_id_parse(&back, text, &e)) fail_msg("%s: %s", text, e.text);
    assert_string_equal(back.name, id.name);
    assert_true(back.created == id.created && back.seed == id.seed && back.count == count);
    for (int32_t i = 0; i < count; i++) {
      const stream_offset *a = &id.offsets[i], *b = &back.offsets[i];
      assert_true(a->bytes == b->bytes && a->tokens == b->tokens && a->hash == b->hash && a->over == b->over);
    }
  }
}

static void test_the_longest_id_has_room(void **state) {
  (void)state;
  stream_id id = {.created = INT64_MAX, .seed = UINT64_MAX, .count = STREAM_ID_CHOICES_MAX};
  char text[STREAM_ID_TEXT_MAX + 1];
  memset(id.name, 'x', STREAM_ID_NAME_MAX);
  for (int32_t i = 0; i < id.count; i++)
    id.offsets[i] = (stream_offset){SIZE_MAX / 2, INT32_MAX, UINT64_MAX, true};
  stream_id_format(&id, text);
  assert_true(strlen(text) <= STREAM_ID_TEXT_MAX);
}

static void test_what_is_none_is_refused(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "a",
                                      "a:1",
                                      "a:1:2",
                                      "a:1:2:",
                                      ":1:2:3.4.5",
                                      "a:1:2:3",
                                      "a:1:2:3.4",
                                      "a:1:2:3.4.",
                                      "a:x:2:3.4.5",
                                      "a:1:-2:3.4.5",
                                      "a:1:0x2:3.4.5",
                                      "a:1:2:3.4.5,",
                                      "a:1:2:3.4.5!!",
                                      "a:1:2: 3.4.5",
                                      "a:1:2:3.4.5 ",
                                      "a b:1:2:3.4.5",
                                      "a:1:2:3.80000000.5",
                                      "a:1:2:11111111111111111.4.5",
                                      "a:1:2:3.4.11111111111111111",
                                      "a:1:2:A.4.5",
                                      "a:1:2:3.4.5.6"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    stream_id id;
    err e = {0};
    if (stream_id_parse(&id, texts[i], &e) != ERR_FORMAT) fail_msg("'%s' was taken", texts[i]);
    assert_non_null(strstr(e.text, "Last-Event-ID"));
  }
  char many[1024] = "a:1:2:3.4.5"; /* more offsets than there are */
  for (int32_t i = 0; i < STREAM_ID_CHOICES_MAX; i++) strcat(many, ",3.4.5");
  stream_id id;
  err e = {0};
  assert_int_equal(stream_id_parse(&id, many, &e), ERR_FORMAT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_id_comes_back),
      cmocka_unit_test(test_the_longest_id_has_room),
      cmocka_unit_test(test_what_is_none_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
