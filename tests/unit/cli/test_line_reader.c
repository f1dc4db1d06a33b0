/* libs: cli */
#include "orchestrator/cli/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

enum { LINE_MAX_BYTES = 10 };

typedef struct rig {
  uv_loop_t loop;
  line_reader l;
  int ends[2];
  int calls; /* of on_more */
} rig;

static void on_more(void *owner) {
  ((rig *)owner)->calls++;
}

static void open_at(rig *r, int fd) {
  assert_int_equal(uv_loop_init(&r->loop), 0);
  line_reader_open(&r->l, &r->loop, fd, LINE_MAX_BYTES, on_more, r);
}

static void open_pipe(rig *r) {
  *r = (rig){0};
  assert_int_equal(pipe(r->ends), 0);
  open_at(r, r->ends[0]);
}

static void close_all(rig *r) {
  line_reader_stop(&r->l);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&r->loop), 0);
  line_reader_fini(&r->l);
}

static void put(rig *r, const char *text) {
  assert_int_equal(write(r->ends[1], text, strlen(text)), (int)strlen(text));
}

static void expect(rig *r, const char *want) {
  const char *line;
  size_t size;
  assert_true(line_reader_next(&r->l, &line, &size));
  assert_int_equal(size, strlen(want));
  assert_memory_equal(line, want, size);
}

static void expect_none(rig *r) {
  const char *line;
  size_t size;
  assert_false(line_reader_next(&r->l, &line, &size));
}

static void test_lines_may_come_in_pieces(void **state) {
  (void)state;
  rig r;
  open_pipe(&r);
  expect_none(&r);
  put(&r, "one\n\ntw");
  uv_run(&r.loop, UV_RUN_ONCE);
  assert_int_equal(r.calls, 1);
  expect(&r, "one");
  expect(&r, "");
  expect_none(&r);
  assert_false(line_reader_ended(&r.l));
  put(&r, "o\nthree");
  uv_run(&r.loop, UV_RUN_ONCE);
  expect(&r, "two");
  close(r.ends[1]);
  expect(&r, "three"); /* the last one needs no end */
  expect_none(&r);
  assert_true(line_reader_ended(&r.l));
  assert_int_equal(r.l.failed, 0);
  close_all(&r);
  close(r.ends[0]);
}

/* What has been read and not taken is still to come after the end of the stream. */
/* A byte order mark before the first line is none of it, also one that comes in pieces; elsewhere it is text.
 */
static void test_a_mark_before_the_first_line_is_left_out(void **state) {
  (void)state;
  rig r;
  open_pipe(&r);
  put(&r, "\xef\xbb");
  expect_none(&r);
  put(&r, "\xbf"
          "one\n\xef\xbb\xbftwo\n");
  expect(&r, "one");
  expect(&r, "\xef\xbb\xbftwo");
  close(r.ends[1]);
  close_all(&r);
  close(r.ends[0]);
}

static void test_the_end_is_after_the_last_line(void **state) {
  (void)state;
  rig r;
  open_pipe(&r);
  put(&r, "a\nb\nc");
  close(r.ends[1]);
  expect(&r, "a");
  assert_false(line_reader_ended(&r.l));
  expect(&r, "b");
  expect(&r, "c");
  expect_none(&r);
  assert_true(line_reader_ended(&r.l));
  close_all(&r);
  close(r.ends[0]);
}

/* Cut to one byte more than there may be, so that its reader sees it; what follows it is not lost. */
static void test_a_long_line_is_cut_and_its_rest_skipped(void **state) {
  (void)state;
  rig r;
  open_pipe(&r);
  put(&r, "0123456789\n0123456789a\n0123456789abc");
  expect(&r, "0123456789");
  expect(&r, "0123456789a");
  expect(&r, "0123456789a");
  put(&r, "defghijklmnopqrstuvwxyz");
  expect_none(&r);
  put(&r, "!\nnext\n");
  expect(&r, "next");
  close(r.ends[1]);
  close_all(&r);
  close(r.ends[0]);
}

/* Lines about as long as they may be, with an end or without, one after the other, however the stream is cut:
 * the same lines come out. */
static void test_limits_hold_in_pieces_of_every_size(void **state) {
  (void)state;
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
  for (int first = 0; first <= 2 * LINE_MAX_BYTES + 2; first++)
    for (int second = LINE_MAX_BYTES - 2; second <= LINE_MAX_BYTES + 2; second++)
      for (int ended = 0; ended < 2; ended++) {
        enum { MOST = LINE_MAX_BYTES + 1 }; /* a longer one is cut to it */
        char text[64];
        int size =
            snprintf(text, sizeof text, "%.*s\n%.*s%s", first, letters, second, letters, ended ? "\n" : "");
        const int wants[] = {first < MOST ? first : MOST, second < MOST ? second : MOST};
        for (int piece = 1; piece <= size; piece++) {
          const char *line;
          size_t got;
          int lines_seen = 0;
          rig r;
          open_pipe(&r);
          for (int at = 0; at < size; at += piece) {
            int n = piece < size - at ? piece : size - at;
            assert_int_equal(write(r.ends[1], text + at, (size_t)n), n);
            if (at + n == size) close(r.ends[1]);
            while (line_reader_next(&r.l, &line, &got)) {
              assert_true(lines_seen < 2);
              assert_int_equal(got, wants[lines_seen]);
              assert_memory_equal(line, letters, got);
              lines_seen++;
            }
          }
          assert_int_equal(lines_seen, 2);
          assert_true(line_reader_ended(&r.l));
          close_all(&r);
          close(r.ends[0]);
        }
      }
}

/* A file cannot be watched: it is always ready. */
static void test_a_file_is_always_ready(void **state) {
  (void)state;
  char text[20];
  rig r = {0};
  int fd = open(scratch_path("lines").text, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  for (int i = 0; i < 30000; i++) dprintf(fd, "%d\n", i);
  lseek(fd, 0, SEEK_SET);
  open_at(&r, fd);
  for (int i = 0; i < 30000; i++) {
    snprintf(text, sizeof text, "%d", i);
    expect(&r, text);
  }
  expect_none(&r);
  assert_true(line_reader_ended(&r.l));
  close_all(&r);
  close(fd);
}

static void test_what_cannot_be_read_fails(void **state) {
  (void)state;
  rig r = {0};
  int fd = open("/", O_RDONLY | O_DIRECTORY);
  open_at(&r, fd);
  expect_none(&r);
  assert_true(line_reader_ended(&r.l));
  assert_int_equal(r.l.failed, EISDIR);
  close_all(&r);
  close(fd);
}

/* It may be the terminal, which other programs read and write. */
static void test_a_descriptor_stays_blocking(void **state) {
  (void)state;
  rig r;
  open_pipe(&r);
  expect_none(&r);
  assert_false(fcntl(r.ends[0], F_GETFL) & O_NONBLOCK);
  put(&r, "a\n");
  uv_run(&r.loop, UV_RUN_ONCE);
  expect(&r, "a");
  assert_false(fcntl(r.ends[0], F_GETFL) & O_NONBLOCK);
  close(r.ends[1]);
  close_all(&r);
  close(r.ends[0]);
}

static void test_nothing_is_read_after_a_stop(void **state) {
  (void)state;
  rig r;
  open_pipe(&r);
  put(&r, "a\nb\n");
  expect(&r, "a");
  line_reader_stop(&r.l);
  assert_false(line_reader_ended(&r.l)); /* what was read is still given */
  expect(&r, "b");
  assert_true(line_reader_ended(&r.l));
  close_all(&r); /* twice is allowed */
  close(r.ends[0]);
  close(r.ends[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines_may_come_in_pieces),
                                     cmocka_unit_test(test_a_mark_before_the_first_line_is_left_out),
                                     cmocka_unit_test(test_the_end_is_after_the_last_line),
                                     cmocka_unit_test(test_a_long_line_is_cut_and_its_rest_skipped),
                                     cmocka_unit_test(test_limits_hold_in_pieces_of_every_size),
                                     cmocka_unit_test(test_a_file_is_always_ready),
                                     cmocka_unit_test(test_what_cannot_be_read_fails),
                                     cmocka_unit_test(test_nothing_is_read_after_a_stop),
                                     cmocka_unit_test(test_a_descriptor_stays_blocking)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
