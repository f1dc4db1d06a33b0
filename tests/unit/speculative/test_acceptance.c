/* libs: speculative */
#include "common/speculative/acceptance.h"
#include "tests/support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

enum { ROWS_MAX = 65, ALPHABET = 4 };

typedef struct model { /* a toy target: the next token is a function of the path's tokens alone */
  const int32_t *tokens, *parents;
  uint64_t salt;
  int32_t calls;
} model;

static int32_t next_token(uint64_t salt, const int32_t *path, int32_t count) {
  uint64_t h = salt;
  for (int32_t i = 0; i < count; i++) h = (h ^ (uint64_t)path[i]) * 0x9e3779b97f4a7c15u + (h >> 29);
  return (int32_t)((h >> 40) % ALPHABET);
}

static int32_t pick(void *context, int32_t row, const int32_t *path, int32_t depth) {
  model *m = context;
  int32_t tokens[ROWS_MAX];
  m->calls++;
  assert_int_equal(path[depth], row);
  assert_int_equal(path[0], 0);
  for (int32_t i = 1; i <= depth; i++) {
    assert_int_equal(m->parents[path[i]], path[i - 1]);
    tokens[i - 1] = m->tokens[path[i]];
  }
  return next_token(m->salt, tokens, depth);
}

/* The row with exactly this path of tokens, by looking at every row; -1 when there is none. */
static int32_t row_with_path(const model *m, int32_t rows, const int32_t *path, int32_t count) {
  for (int32_t row = 0; row < rows; row++) {
    int32_t r = row, at = count;
    while (r != 0 && at > 0 && m->tokens[r] == path[at - 1]) r = m->parents[r], at--;
    if (r == 0 && at == 0) return row;
  }
  return -1;
}

static bool listed(const int32_t *list, int32_t count, int32_t token) {
  for (int32_t i = 0; i < count; i++)
    if (list[i] == token) return true;
  return false;
}

/* Plain decode, going on as long as the tokens so far are a path of the tree. */
static int32_t plain(const model *m, int32_t rows, const int32_t *stops, int32_t stop_count, int32_t limit,
                     int32_t *walked, int32_t *out) {
  int32_t count = 0, row;
  while ((row = row_with_path(m, rows, out, count)) >= 0) {
    walked[count] = row;
    out[count] = next_token(m->salt, out, count);
    count++;
    if (count == limit || listed(stops, stop_count, out[count - 1])) break;
  }
  return count;
}

/* parents[i] < i, no two children of one parent with the same token; most nodes follow the model. */
static int32_t random_tree(uint64_t *rng, model *m, int32_t *tokens, int32_t *parents) {
  int32_t rows = 1, want = 1 + (int32_t)random_below(rng, ROWS_MAX);
  m->tokens = tokens, m->parents = parents;
  tokens[0] = 0, parents[0] = -1;
  for (int tries = 0; rows < want && tries < 500; tries++) {
    int32_t parent = (int32_t)random_below(rng, (uint32_t)rows), token = (int32_t)random_below(rng, ALPHABET),
            path[ROWS_MAX], n = 0;
    for (int32_t r = parent; r != 0; r = parents[r]) n++;
    for (int32_t r = parent, at = n; r != 0; r = parents[r]) path[--at] = tokens[r];
    if (random_below(rng, 2)) token = next_token(m->salt, path, n);
    path[n] = token;
    if (row_with_path(m, rows, path, n + 1) >= 0) continue;
    tokens[rows] = token, parents[rows++] = parent;
  }
  return rows;
}

static void walk_is_plain_decode(void **state) {
  (void)state;
  int64_t accepted = 0, stopped = 0, limited = 0, full = 0;
  for (uint64_t seed = 1; seed <= 3000; seed++) {
    uint64_t rng = seed;
    int32_t tokens[ROWS_MAX], parents[ROWS_MAX],
        stops[2] = {(int32_t)random_below(&rng, 40), (int32_t)random_below(&rng, 40)};
    model m = {.salt = seed * 77};
    int32_t rows = random_tree(&rng, &m, tokens, parents);
    int32_t limit = 1 + (int32_t)random_below(&rng, 12), stop_count = (int32_t)random_below(&rng, 3);
    int32_t walked[ROWS_MAX], out[ROWS_MAX], path[ROWS_MAX], sampled[ROWS_MAX];
    int32_t n = plain(&m, rows, stops, stop_count, limit, walked, out);
    assert_int_equal(
        acceptance_walk(tokens, parents, rows, stops, stop_count, limit, pick, &m, path, sampled), n);
    assert_memory_equal(path, walked, (size_t)n * sizeof *path);
    assert_memory_equal(sampled, out, (size_t)n * sizeof *sampled);
    assert_int_equal(m.calls, n); /* a row that is not walked is not sampled */
    accepted += n - 1;
    limited += n == limit;
    stopped += n < limit && listed(stops, stop_count, out[n - 1]);
    full += n == rows && rows > 1;
  }
  assert_true(accepted > 3000 && limited > 100 && stopped > 50 && full > 20); /* every end was met */
}

static int32_t scripted(void *context, int32_t row, const int32_t *path, int32_t depth) {
  (void)path, (void)depth;
  return ((const int32_t *)context)[row];
}

static void ends_by_name(void **state) {
  (void)state;
  /* root -> 1 -> 2 -> 3, and a sibling 9 of the 1. */
  const int32_t tokens[] = {0, 1, 9, 2, 3}, parents[] = {-1, 0, 0, 1, 3};
  int32_t path[5], sampled[5];
  int32_t all[] = {1, 2, 7, 3, 4}, stop[] = {3, 2};
  assert_int_equal(acceptance_walk(tokens, parents, 5, NULL, 0, 100, scripted, all, path, sampled), 4);
  assert_memory_equal(path, ((const int32_t[]){0, 1, 3, 4}), 4 * sizeof *path);
  assert_memory_equal(sampled, ((const int32_t[]){1, 2, 3, 4}), 4 * sizeof *path);
  /* The stop token is a node as well, but nothing may follow it. */
  assert_int_equal(acceptance_walk(tokens, parents, 5, stop, 2, 100, scripted, all, path, sampled), 2);
  assert_int_equal(sampled[1], 2);
  assert_int_equal(acceptance_walk(tokens, parents, 5, NULL, 0, 1, scripted, all, path, sampled), 1);
  assert_int_equal(sampled[0], 1);
  /* Without a tree, and with a tree that is all wrong: one token, plain decode's. */
  int32_t none[] = {5};
  assert_int_equal(acceptance_walk(tokens, parents, 1, NULL, 0, 100, scripted, none, path, sampled), 1);
  assert_int_equal(sampled[0], 5);
  assert_int_equal(acceptance_walk(tokens, parents, 5, NULL, 0, 100, scripted, none, path, sampled), 1);
  /* A token of another branch is no child: 9's row has no 2 below it. */
  int32_t other[] = {9, 0, 2, 0, 0};
  assert_int_equal(acceptance_walk(tokens, parents, 5, NULL, 0, 100, scripted, other, path, sampled), 2);
  assert_int_equal(path[1], 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(walk_is_plain_decode),
      cmocka_unit_test(ends_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
