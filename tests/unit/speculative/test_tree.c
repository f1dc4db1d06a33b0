/* libs: speculative base */
/* The oracle of the property tests knows nothing of slots, ids or arrival: it holds every token path ever
 * sent and calls live those of which C is a proper prefix. */
#include "common/speculative/tree.h"

#include "common/base/err.h"
#include "tests/support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the shape of a tree --- */

/* Walks the links and holds every figure of the tree against them. Returns the nodes seen. */
static int32_t check_children(const tree *t, int32_t first, int32_t parent, int32_t depth, double total,
                              uint8_t *seen) {
  int32_t count = 0;
  uint64_t order = 0;
  for (int32_t s = first; s != -1; s = t->nodes[s].sibling) {
    const tree_node *n = &t->nodes[s];
    assert_true(s >= 0 && s < t->capacity && n->live && !seen[s]);
    seen[s] = 1;
    assert_int_equal(n->parent, parent);
    assert_int_equal(n->depth, depth);
    assert_true(n->score <= 0 && n->score >= TREE_SCORE_MIN);
    assert_true(fabs(n->total - (total + n->score)) <= 1e-3 + 1e-5 * fabs(total));
    assert_true(count == 0 || n->order > order); /* in order of arrival */
    order = n->order;
    for (int32_t o = n->sibling; o != -1; o = t->nodes[o].sibling)
      assert_int_not_equal(t->nodes[o].token, n->token);
    count += 1 + check_children(t, n->first_child, s, depth + 1, total + n->score, seen);
    if (parent != TREE_ROOT) assert_true(n->order > t->nodes[parent].order);
  }
  return count;
}

static void check_tree(const tree *t) {
  uint8_t seen[TREE_NODE_MAX] = {0};
  assert_int_equal(check_children(t, t->first_child, TREE_ROOT, 1, 0, seen), t->live_count);
  int32_t free_count = 0;
  for (int32_t s = t->free_slot; s != -1; s = t->nodes[s].sibling, free_count++) {
    assert_false(seen[s] || t->nodes[s].live);
    seen[s] = 1;
  }
  assert_int_equal(free_count + t->live_count, t->capacity);
}

static void refuses_bad_capacity(void **state) {
  (void)state;
  tree t;
  assert_int_equal(tree_init(&t, 0), ERR_ARG);
  assert_int_equal(tree_init(&t, TREE_NODE_MAX + 1), ERR_ARG);
  assert_int_equal(tree_init(&t, TREE_NODE_MAX), ERR_OK);
  check_tree(&t);
  tree_fini(&t);
}

static void a_raised_score_counts_below(void **state) {
  (void)state;
  tree t;
  assert_int_equal(tree_init(&t, 4), ERR_OK);
  int32_t a = tree_add(&t, TREE_ROOT, 10, -2, NULL), b = tree_add(&t, a, 11, -0.5f, NULL);
  int32_t other = tree_add(&t, TREE_ROOT, 12, -1, NULL);
  tree_raise(&t, a, -3); /* is no better */
  assert_true(t.nodes[a].score == -2 && t.nodes[b].total == -2.5f);
  tree_raise(&t, a, -0.25f);
  assert_true(t.nodes[a].total == -0.25f && t.nodes[b].total == -0.75f && t.nodes[other].total == -1);
  tree_raise(&t, a, 7);
  assert_true(t.nodes[a].score == 0);
  check_tree(&t);
  tree_fini(&t);
}

static void adds_finds_and_aliases(void **state) {
  (void)state;
  tree t;
  bool fresh;
  assert_int_equal(tree_init(&t, 4), ERR_OK);
  int32_t a = tree_add(&t, TREE_ROOT, 10, -1, &fresh);
  assert_true(a >= 0 && fresh);
  int32_t b = tree_add(&t, a, 10, -2, &fresh);
  assert_true(b >= 0 && b != a && fresh);
  int32_t c = tree_add(&t, TREE_ROOT, 11, -0.5f, NULL);
  assert_int_equal(tree_add(&t, TREE_ROOT, 10, 0, &fresh), a); /* an alias keeps the score */
  assert_false(fresh);
  assert_true(t.nodes[a].score == -1 && t.nodes[b].total == -3 && t.nodes[b].depth == 2);
  assert_int_equal(tree_child(&t, TREE_ROOT, 11), c);
  assert_int_equal(tree_child(&t, a, 10), b);
  assert_int_equal(tree_child(&t, b, 10), -1);
  assert_int_equal(tree_child(&t, TREE_ROOT, 12), -1);
  tree_add(&t, b, 1, 5, NULL);
  assert_true(t.nodes[tree_child(&t, b, 1)].score == 0); /* clamped */
  assert_int_equal(tree_add(&t, b, 2, -1, &fresh), ERR_FULL);
  assert_int_equal(tree_add(&t, a, 10, -1, &fresh), b); /* an alias needs no slot */
  assert_int_equal(t.live_count, 4);
  check_tree(&t);
  tree_reset(&t);
  assert_int_equal(t.live_count, 0);
  assert_int_equal(t.first_child, -1);
  check_tree(&t);
  assert_true(t.nodes[tree_add(&t, TREE_ROOT, 1, -1e9f, NULL)].score == TREE_SCORE_MIN);
  assert_true(t.nodes[tree_add(&t, TREE_ROOT, 2, NAN, NULL)].score == TREE_SCORE_MIN);
  tree_fini(&t);
}

static void depth_has_a_limit(void **state) {
  (void)state;
  tree t;
  assert_int_equal(tree_init(&t, TREE_NODE_MAX), ERR_OK);
  int32_t at = TREE_ROOT;
  for (int i = 0; i < TREE_DEPTH_MAX; i++) at = tree_add(&t, at, i, -0.25f, NULL);
  assert_true(at >= 0);
  assert_int_equal(t.nodes[at].depth, TREE_DEPTH_MAX);
  assert_int_equal(tree_add(&t, at, 0, -1, NULL), ERR_LIMIT);
  assert_int_equal(tree_advance(&t, (const int32_t[]){0}, 1), 1);
  assert_true(tree_add(&t, at, 0, -1, NULL) >= 0); /* one level up now */
  check_tree(&t);
  tree_fini(&t);
}

static void advance_keeps_what_is_below(void **state) {
  (void)state;
  tree t;
  assert_int_equal(tree_init(&t, 16), ERR_OK);
  int32_t a = tree_add(&t, TREE_ROOT, 1, -1, NULL), b = tree_add(&t, TREE_ROOT, 2, -2, NULL);
  int32_t aa = tree_add(&t, a, 1, -3, NULL), ab = tree_add(&t, a, 2, -4, NULL),
          ba = tree_add(&t, b, 1, -5, NULL);
  int32_t aba = tree_add(&t, ab, 7, -6, NULL);
  uint32_t stamp = t.nodes[b].stamp, kept = t.nodes[ab].stamp;
  assert_int_equal(tree_advance(&t, NULL, 0), 0);
  assert_int_equal(t.live_count, 6);
  assert_int_equal(tree_advance(&t, (const int32_t[]){1}, 1), 1);
  check_tree(&t);
  assert_int_equal(t.live_count, 3);
  assert_false(t.nodes[a].live || t.nodes[b].live || t.nodes[ba].live);
  assert_true(t.nodes[b].stamp > stamp);
  assert_int_equal(t.nodes[ab].stamp, kept);
  assert_true(t.nodes[aa].parent == TREE_ROOT && t.nodes[aa].total == -3);
  assert_true(t.nodes[aba].depth == 2 && t.nodes[aba].total == -10);
  assert_int_equal(tree_advance(&t, (const int32_t[]){2, 9, 7}, 3), 1); /* off the tree at its second token */
  assert_int_equal(t.live_count, 0);
  check_tree(&t);
  tree_fini(&t);
}

/* --- choosing --- */

static void grow_randomly(tree *t, uint64_t *rng, int32_t nodes, uint32_t scores) {
  for (int32_t i = 0; i < nodes; i++) {
    int32_t slot = (int32_t)random_below(rng, (uint32_t)t->capacity + 1) - 1;
    if (slot >= 0 && !t->nodes[slot].live) slot = TREE_ROOT;
    tree_add(t, slot, (int32_t)random_below(rng, 6), -(float)random_below(rng, scores) / 8, NULL);
  }
}

static const tree *sorted_tree; /* qsort has no context argument */

static int by_rank(const void *x, const void *y) {
  const tree_node *a = &sorted_tree->nodes[*(const int32_t *)x],
                  *b = &sorted_tree->nodes[*(const int32_t *)y];
  if (a->total != b->total) return a->total > b->total ? -1 : 1;
  return a->order < b->order ? -1 : 1;
}

/* All live nodes of permitted depth, sorted: the first ones are the best ones. */
static int32_t best_by_sorting(const tree *t, int32_t count, int32_t depth_max, int32_t *slots) {
  int32_t n = 0;
  for (int32_t s = 0; s < t->capacity; s++)
    if (t->nodes[s].live && t->nodes[s].depth <= depth_max) slots[n++] = s;
  sorted_tree = t;
  qsort(slots, (size_t)n, sizeof *slots, by_rank);
  return n < count ? n : count;
}

static void select_takes_the_best(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    uint64_t rng = seed;
    tree t;
    assert_int_equal(tree_init(&t, 1 + (int32_t)random_below(&rng, 200)), ERR_OK);
    grow_randomly(&t, &rng, (int32_t)random_below(&rng, 200),
                  1 + random_below(&rng, 12)); /* few scores: many ties, some all 0 */
    if (t.first_child >= 0 && random_below(&rng, 3) == 0) tree_advance(&t, &t.nodes[t.first_child].token, 1);
    int32_t count = (int32_t)random_below(&rng, 70), depth_max = (int32_t)random_below(&rng, 8);
    int32_t slots[TREE_NODE_MAX], parents[TREE_NODE_MAX], want[TREE_NODE_MAX];
    int32_t n = tree_select(&t, count, depth_max, slots, parents);
    assert_int_equal(n, best_by_sorting(&t, count, depth_max, want));
    for (int32_t i = 0; i < n; i++) {
      assert_int_equal(slots[i], want[i]);
      assert_true(parents[i] < i);
      int32_t parent = t.nodes[slots[i]].parent;
      assert_int_equal(parents[i] < 0 ? TREE_ROOT : slots[parents[i]], parent);
    }
    tree_fini(&t);
  }
}

/* The dense form of a tree of rows, which the forward pass never uses. Row 0 is the root; column c <
 * committed is the key of position c, column committed + j that of row j. mask [rows][committed + rows]: 1
 * where the row sees the column. positions [rows]: siblings share one. */
static void dense_mask(const int32_t *parents, int32_t rows, int32_t committed, uint8_t *mask,
                       int32_t *positions) {
  size_t width = (size_t)committed + (size_t)rows;
  for (int32_t row = 0; row < rows; row++) {
    uint8_t *own = mask + (size_t)row * width;
    int32_t parent = parents[row];
    if (row == 0) {
      memset(own, 1, (size_t)committed);
      memset(own + committed, 0, (size_t)rows);
    } else {
      memcpy(own, mask + (size_t)parent * width, width); /* all that the parent sees */
    }
    own[committed + row] = 1;
    positions[row] = row == 0 ? committed : positions[parent] + 1;
  }
}

/* The rows of a verify, their paths listed as the forward pass does (up the parents), against the dense mask.
 */
static void path_form_is_the_mask(void **state) {
  (void)state;
  enum { ROWS = 65, COMMITTED_MAX = 40 };
  static uint8_t mask[ROWS * (COMMITTED_MAX + ROWS)];
  for (uint64_t seed = 1; seed <= 200; seed++) {
    uint64_t rng = seed;
    tree t;
    assert_int_equal(tree_init(&t, 128), ERR_OK);
    grow_randomly(&t, &rng, 120, 9);
    int32_t slots[ROWS], above[ROWS], parents[ROWS] = {-1}, positions[ROWS];
    int32_t rows = 1 + tree_select(&t, (int32_t)random_below(&rng, ROWS), TREE_DEPTH_MAX, slots, above);
    for (int32_t i = 1; i < rows; i++) parents[i] = above[i - 1] + 1;
    int32_t committed = (int32_t)random_below(&rng, COMMITTED_MAX + 1), width = committed + rows;
    dense_mask(parents, rows, committed, mask, positions);

    for (int32_t i = 0; i < rows; i++) {
      uint8_t path[COMMITTED_MAX + ROWS] = {0};
      memset(path, 1, (size_t)committed);
      int32_t length = 0;
      for (int32_t r = i; r >= 0; r = parents[r], length++) path[committed + r] = 1;
      assert_memory_equal(mask + i * width, path, (size_t)width);
      assert_int_equal(positions[i], committed + length - 1);
      assert_int_equal(positions[i], committed + (i ? t.nodes[slots[i - 1]].depth : 0));
      for (int32_t k = 1; k < i; k++) /* siblings share a position and do not see each other */
        if (parents[k] == parents[i]) assert_true(positions[k] == positions[i] && !path[committed + k]);
    }
    tree_fini(&t);
  }
}

/* --- digest --- */

static void digest_is_of_the_set(void **state) {
  (void)state;
  tree a, b;
  tree_init(&a, 16);
  tree_init(&b, 300);
  assert_int_equal(tree_digest(&a), 0);
  int32_t s = tree_add(&a, TREE_ROOT, 1, -1, NULL);
  tree_add(&a, s, 2, -1, NULL);
  tree_add(&a, TREE_ROOT, 2, -1, NULL);
  tree_add(&b, TREE_ROOT, 2, -7, NULL); /* other order, scores and capacity */
  assert_true(tree_digest(&a) != tree_digest(&b));
  s = tree_add(&b, TREE_ROOT, 1, -7, NULL);
  assert_true(tree_digest(&a) != tree_digest(&b));
  tree_add(&b, s, 2, -7, NULL);
  assert_true(tree_digest(&a) == tree_digest(&b));
  tree_reset(&b);
  s = tree_add(&b, TREE_ROOT, 2, -1, NULL); /* same tokens, other paths: 1 below 2 */
  tree_add(&b, s, 1, -1, NULL);
  tree_add(&b, TREE_ROOT, 1, -1, NULL);
  assert_true(tree_digest(&a) != tree_digest(&b));
  tree_reset(&b);
  tree_add(&b, TREE_ROOT, 1, -1, NULL); /* as many of each token: the second 2 below 2 */
  s = tree_add(&b, TREE_ROOT, 2, -1, NULL);
  tree_add(&b, s, 2, -1, NULL);
  assert_true(tree_digest(&a) != tree_digest(&b));
  tree_fini(&a);
  tree_fini(&b);
}

/* --- one batch at a time: the rules by name --- */

typedef struct target {
  tree t;
  tree_ids ids;
  int32_t tokens[8192];
  int32_t length;
} target;

static int target_setup(void **state) {
  target *g = calloc(1, sizeof *g);
  if (!g || tree_init(&g->t, 64) || tree_ids_init(&g->ids)) return -1;
  tree_ids_reset(&g->ids, 1);
  for (int32_t i = 0; i < 10; i++) g->tokens[g->length++] = 100 + i;
  *state = g;
  return 0;
}

static int target_teardown(void **state) {
  target *g = *state;
  tree_ids_fini(&g->ids);
  tree_fini(&g->t);
  free(g);
  return 0;
}

#define BATCH_MAX 5000

/* Nodes as (parent, token) pairs, score -1 each. */
static tree_verdict receive(target *g, int32_t base, uint64_t first_id, int32_t count,
                            const int64_t (*nodes)[2], int32_t *added) {
  static uint64_t parents[BATCH_MAX];
  static int32_t tokens[BATCH_MAX];
  static float scores[BATCH_MAX];
  for (int32_t i = 0; i < count; i++) {
    parents[i] = (uint64_t)nodes[i][0];
    tokens[i] = (int32_t)nodes[i][1];
    scores[i] = -1;
  }
  const tree_delta b = {base, first_id, count, parents, tokens, scores};
  tree_verdict v = tree_receive(&g->t, &g->ids, g->tokens, g->length, &b, added);
  check_tree(&g->t);
  return v;
}

#define RECEIVE(g, base, first, added, ...)                                                                  \
  receive(g, base, first, (int32_t)(sizeof((int64_t[][2]){__VA_ARGS__}) / sizeof(int64_t[2])),               \
          (const int64_t[][2]){__VA_ARGS__}, added)

static void commit(target *g, const int32_t *tokens, int32_t count) {
  tree_ids *maps[] = {&g->ids};
  tree_commit(&g->t, maps, 1, g->length, tokens, count);
  memcpy(g->tokens + g->length, tokens, (size_t)count * sizeof *tokens);
  g->length += count;
  check_tree(&g->t);
}

#define COMMIT(g, ...)                                                                                       \
  commit(g, (const int32_t[]){__VA_ARGS__}, (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

static bool has_path(const tree *t, const int32_t *path, int32_t count) {
  int32_t s = TREE_ROOT;
  for (int32_t i = 0; i < count; i++)
    if ((s = tree_child(t, s, path[i])) < 0) return false;
  return true;
}

#define HAS(g, ...)                                                                                          \
  has_path(&(g)->t, (const int32_t[]){__VA_ARGS__},                                                          \
           (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

/* Parent 0 means position base - 1, whatever the root is by now. */
static void parent_zero_is_the_base(void **state) {
  target *g = *state;
  int32_t added;
  /* Base 7: C[7] = 107, C[8] = 108, C[9] = 109 are the target's lead. */
  assert_int_equal(RECEIVE(g, 7, 1, &added, {0, 107}, {1, 108}, {2, 109}, {3, 55}, {0, 109}, {5, 56}),
                   TREE_TAKEN);
  assert_int_equal(added, 1);
  assert_int_equal(g->t.live_count, 1);
  assert_true(HAS(g, 55));
  assert_int_equal(g->ids.ring[1].state, TREE_ID_TRUNK);
  assert_int_equal(g->ids.ring[1].position, 7);
  assert_int_equal(g->ids.ring[3].position, 9);
  assert_int_equal(g->ids.ring[4].state, TREE_ID_LIVE);
  assert_int_equal(g->ids.ring[5].state, TREE_ID_DEAD); /* 109 is not C[7] */
  assert_int_equal(g->ids.ring[6].state, TREE_ID_DEAD);
  assert_int_equal(RECEIVE(g, 10, 7, &added, {0, 57}), TREE_TAKEN);
  assert_true(HAS(g, 57) && HAS(g, 55));
}

/* A node whose parent has become trunk is not lost: it hangs at the parent's position. */
static void trunk_parent_still_counts(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {1, 2}), TREE_TAKEN);
  COMMIT(g, 1, 2, 3); /* ids 1 and 2 are trunk at 10 and 11, C ends in 3 at 12 */
  assert_int_equal(g->t.live_count, 0);
  /* Sent before the draft knew of that: below id 2 a 3, which is trunk too, and then a live one. */
  assert_int_equal(RECEIVE(g, 10, 3, &added, {2, 3}, {3, 4}, {2, 9}, {1, 2}, {6, 3}, {7, 5}), TREE_TAKEN);
  assert_int_equal(added, 2);
  assert_true(HAS(g, 4) && HAS(g, 5));
  assert_int_equal(g->ids.ring[3].position, 12);
  assert_int_equal(g->ids.ring[5].state, TREE_ID_DEAD);
  assert_int_equal(g->ids.ring[6].position, 11); /* an alias of id 2 */
}

static void commit_keeps_ids_in_step(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 5}, {1, 3}), TREE_TAKEN);
  assert_int_equal(added, 5); /* id 6 is an alias of id 3 */
  COMMIT(g, 1, 3);
  static const int want[] = {
      0, TREE_ID_TRUNK, TREE_ID_DEAD, TREE_ID_TRUNK, TREE_ID_DEAD, TREE_ID_LIVE, TREE_ID_TRUNK};
  for (int id = 1; id <= 6; id++) assert_int_equal(g->ids.ring[id].state, want[id]);
  assert_int_equal(g->ids.ring[1].position, 10);
  assert_int_equal(g->ids.ring[3].position, 11);
  assert_int_equal(g->ids.ring[6].position, 11);
  /* A slot used again is another node: id 4's old slot must not come alive. */
  assert_int_equal(RECEIVE(g, 12, 7, &added, {6, 8}, {6, 9}, {6, 10}, {4, 11}), TREE_TAKEN);
  assert_int_equal(added, 3);
  COMMIT(g, 8, 8);
  for (int id = 2; id <= 10; id++)
    assert_int_equal(g->ids.ring[id].state, id == 3 || id == 6 || id == 7 ? TREE_ID_TRUNK : TREE_ID_DEAD);
  assert_int_equal(g->ids.ring[7].position, 12);
}

/* The slot of an id whose node is gone may hold another node: neither a parent nor a commit takes it for
 * that. */
static void a_stamp_tells_a_slot_used_again(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}), TREE_TAKEN);
  tree_reset(&g->t);
  assert_int_equal(tree_add(&g->t, TREE_ROOT, 2, -1, NULL), g->ids.ring[1].slot);
  assert_int_equal(RECEIVE(g, 10, 2, &added, {1, 3}), TREE_TAKEN);
  assert_int_equal(added, 0);
  COMMIT(g, 2);
  assert_int_equal(g->ids.ring[1].state, TREE_ID_DEAD);
}

static void gap_changes_nothing(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {1, 2}), TREE_TAKEN);
  uint64_t digest = tree_digest(&g->t);
  assert_int_equal(RECEIVE(g, 10, 4, &added, {0, 3}), TREE_GAP);
  assert_int_equal(added, 0);
  assert_int_equal(g->ids.next, 3);
  assert_true(tree_digest(&g->t) == digest);
  assert_int_equal(RECEIVE(g, 10, 3, &added, {0, 3}), TREE_TAKEN);
  assert_int_equal(added, 1);
}

static void repetition_is_skipped(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {1, 2}), TREE_TAKEN);
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {1, 2}), TREE_TAKEN);
  assert_int_equal(added, 0);
  assert_int_equal(g->ids.next, 3);
  /* In part: ids 2 and 3, of which 2 is known. What the repeated part says does not matter. */
  assert_int_equal(RECEIVE(g, 10, 2, &added, {0, 77}, {2, 3}), TREE_TAKEN);
  assert_int_equal(added, 1);
  assert_true(HAS(g, 1, 2, 3));
  assert_false(HAS(g, 77));
  assert_int_equal(g->ids.next, 4);
  COMMIT(g, 1, 2, 3, 4);
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {1, 2}, {2, 3}), TREE_TAKEN); /* late */
  assert_int_equal(g->t.live_count, 0);
  const tree_delta empty = {.base = 14, .first_id = 4};
  assert_int_equal(tree_receive(&g->t, &g->ids, g->tokens, g->length, &empty, &added), TREE_TAKEN);
}

static void invalid_changes_nothing(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}), TREE_TAKEN);
  assert_int_equal(RECEIVE(g, 10, 2, &added, {1, 2}, {3, 4}), TREE_INVALID); /* its own parent */
  assert_int_equal(RECEIVE(g, 10, 2, &added, {1, 2}, {4, 4}), TREE_INVALID);
  assert_int_equal(RECEIVE(g, 10, 1, &added, {1, 2}), TREE_INVALID); /* in a repetition too */
  assert_int_equal(RECEIVE(g, 10, 0, &added, {0, 2}), TREE_INVALID);
  assert_int_equal(RECEIVE(g, 10, UINT64_MAX, &added, {0, 1}, {0, 2}), TREE_INVALID); /* ids do not wrap */
  assert_int_equal(g->t.live_count, 1);
  assert_int_equal(g->ids.next, 2);
}

/* Fills the tree to `left` free slots; ids go on from ids.next. */
static void fill(target *g, int32_t left) {
  int32_t added;
  while (g->t.live_count < g->t.capacity - left) {
    int64_t node[1][2] = {{0, 1000 + g->t.live_count}};
    assert_int_equal(receive(g, g->length, g->ids.next, 1, (const int64_t(*)[2])node, &added), TREE_TAKEN);
  }
}

typedef struct picture {
  tree t;
  tree_node nodes[64];
  uint64_t next;
  uint64_t of[64];
} picture;

static picture take_picture(const target *g) {
  picture p = {.t = g->t, .next = g->ids.next};
  memcpy(p.nodes, g->t.nodes, sizeof p.nodes);
  for (int32_t s = 0; s < 64; s++) p.of[s] = g->t.nodes[s].live ? tree_ids_of(&g->ids, &g->t, s) : 0;
  return p;
}

static void overflow_restores_exactly(void **state) {
  target *g = *state;
  int32_t added;
  fill(g, 3);
  COMMIT(g, 1000); /* makes the free list and the stamps uneven */
  fill(g, 3);
  picture before = take_picture(g);
  /* Fresh, child of it, alias of the fresh one, alias of an old one, child of an alias, one too many. */
  uint64_t n = g->ids.next;
  assert_int_equal(RECEIVE(g, 11, n, &added, {0, 1}, {(int64_t)n, 2}, {0, 1}, {0, 1000 + 63 - 4},
                           {(int64_t)n + 2, 3}, {0, 4}),
                   TREE_OVERFLOW);
  assert_int_equal(added, 0);
  picture after = take_picture(g);
  assert_memory_equal(&after, &before, sizeof after);
  /* All but the last fit. */
  assert_int_equal(RECEIVE(g, 11, n, &added, {0, 1}, {(int64_t)n, 2}, {0, 1}, {(int64_t)n + 2, 3}),
                   TREE_TAKEN);
  assert_int_equal(added, 3);
}

/* 2^32 nodes have come before: a batch that does not fit is taken back over that edge too. */
static void overflow_after_many_nodes(void **state) {
  target *g = *state;
  int32_t added;
  fill(g, 3);
  g->t.next_order = UINT64_C(0xfffffffe);
  uint64_t n = g->ids.next;
  assert_int_equal(RECEIVE(g, 10, n, &added, {0, 1}, {(int64_t)n, 2}, {0, 3}, {0, 4}), TREE_OVERFLOW);
  assert_int_equal(added, 0);
  assert_int_equal(g->ids.next, n);
  assert_int_equal(g->t.live_count, g->t.capacity - 3);
  assert_int_equal(RECEIVE(g, 10, n, &added, {0, 1}, {(int64_t)n, 2}, {0, 3}), TREE_TAKEN);
  check_tree(&g->t);
}

/* What a map names stays, with all above it; the rest is gone, and its slots are there again. */
static void unnamed_nodes_go(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {1, 2}, {0, 3}, {3, 4}, {4, 5}), TREE_TAKEN);
  tree_ids_reset(&g->ids, 2); /* another generation names some of them again, and one more */
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 3}, {1, 4}, {1, 6}), TREE_TAKEN);
  assert_int_equal(tree_ids_live(&g->ids, &g->t), 3);
  assert_int_equal(g->t.live_count, 6);
  tree_keep_named(&g->t, (tree_ids *[]){&g->ids}, 1);
  check_tree(&g->t);
  assert_int_equal(g->t.live_count, 3);
  assert_true(HAS(g, 3, 4));
  assert_true(HAS(g, 3, 6));
  assert_false(HAS(g, 1));
  assert_false(HAS(g, 3, 4, 5));
  tree_keep_named(&g->t, NULL, 0);
  assert_int_equal(g->t.live_count, 0);
  check_tree(&g->t);
}

static void too_deep_restores_exactly(void **state) {
  target *g = *state;
  int32_t added;
  tree_fini(&g->t);
  tree_init(&g->t, TREE_NODE_MAX);
  static int64_t chain[TREE_DEPTH_MAX + 1][2];
  for (int i = 0; i <= TREE_DEPTH_MAX; i++) chain[i][0] = i, chain[i][1] = 7;
  assert_int_equal(receive(g, 10, 1, TREE_DEPTH_MAX + 1, (const int64_t(*)[2])chain, &added), TREE_OVERFLOW);
  assert_int_equal(g->t.live_count, 0);
  assert_int_equal(g->ids.next, 1);
  assert_int_equal(g->t.next_order, 0);
  assert_int_equal(receive(g, 10, 1, TREE_DEPTH_MAX, (const int64_t(*)[2])chain, &added), TREE_TAKEN);
  assert_int_equal(added, TREE_DEPTH_MAX);
}

/* More than TREE_IDS_MAX to remember: the aliases of one live node. */
static void too_many_ids_are_a_gap(void **state) {
  target *g = *state;
  int32_t added;
  static int64_t nodes[BATCH_MAX][2];
  for (int i = 0; i < BATCH_MAX; i++) nodes[i][0] = 0, nodes[i][1] = 5;
  assert_int_equal(receive(g, 10, 1, TREE_IDS_MAX + 1, (const int64_t(*)[2])nodes, &added), TREE_GAP);
  assert_int_equal(g->t.live_count, 0);
  assert_int_equal(receive(g, 10, 1, TREE_IDS_MAX, (const int64_t(*)[2])nodes, &added), TREE_TAKEN);
  assert_int_equal(added, 1);
  assert_int_equal(RECEIVE(g, 10, TREE_IDS_MAX + 1, &added, {0, 6}), TREE_GAP);
  assert_false(HAS(g, 6));
  assert_int_equal(g->ids.next, TREE_IDS_MAX + 1);
  /* The node becomes trunk: remembered as long as the draft's base may need it, then forgotten. */
  COMMIT(g, 5, 6);
  assert_int_equal(RECEIVE(g, 11, TREE_IDS_MAX + 1, &added, {0, 6}), TREE_GAP);
  assert_int_equal(RECEIVE(g, 12, TREE_IDS_MAX + 1, &added, {0, 7}), TREE_TAKEN);
  assert_true(HAS(g, 7));
}

static void trim_goes_oldest_first(void **state) {
  target *g = *state;
  int32_t added;
  assert_int_equal(RECEIVE(g, 10, 1, &added, {0, 1}, {0, 2}, {1, 3}, {3, 4}, {0, 1}), TREE_TAKEN);
  COMMIT(g, 1, 3); /* trunk at 10, dead, trunk at 11, live, trunk at 10 */
  tree_ids_trim(&g->ids, &g->t, 11);
  assert_int_equal(g->ids.oldest, 1); /* position 10 is base - 1 */
  tree_ids_trim(&g->ids, &g->t, 12);
  assert_int_equal(g->ids.oldest, 3);
  tree_ids_trim(&g->ids, &g->t, 13);
  assert_int_equal(g->ids.oldest, 4); /* a live one stops it */
  /* A forgotten parent is dead. */
  assert_int_equal(RECEIVE(g, 12, 6, &added, {1, 3}, {6, 9}, {5, 3}, {8, 9}), TREE_TAKEN);
  assert_int_equal(added, 1);
  assert_int_equal(g->ids.ring[6].state, TREE_ID_DEAD);
  assert_int_equal(g->ids.ring[8].position, 11);
  COMMIT(g, 4);
  tree_ids_trim(&g->ids, &g->t, 14);
  assert_int_equal(g->ids.oldest, g->ids.next);
}

static void draft_gives_ids(void **state) {
  target *g = *state;
  int32_t a = tree_add(&g->t, TREE_ROOT, 1, -1, NULL), b = tree_add(&g->t, a, 2, -1, NULL);
  assert_int_equal(tree_ids_of(&g->ids, &g->t, a), 0);
  assert_int_equal(tree_ids_give(&g->ids, &g->t, a), 1);
  assert_int_equal(tree_ids_give(&g->ids, &g->t, b), 2);
  assert_int_equal(tree_ids_of(&g->ids, &g->t, a), 1);
  assert_int_equal(tree_ids_of(&g->ids, &g->t, b), 2);
  COMMIT(g, 1);
  assert_int_equal(tree_ids_of(&g->ids, &g->t, b), 2);
  int32_t c = tree_add(&g->t, TREE_ROOT, 9, -1, NULL);
  assert_int_equal(c, a); /* the slot is used again, but is another node */
  assert_int_equal(tree_ids_of(&g->ids, &g->t, c), 0);
  while (g->ids.next <= TREE_IDS_MAX) tree_ids_give(&g->ids, &g->t, c);
  assert_int_equal(tree_ids_give(&g->ids, &g->t, c), 0);
  assert_int_equal(tree_ids_of(&g->ids, &g->t, c), 3);
  tree_ids_reset(&g->ids, 2);
  assert_int_equal(g->ids.generation, 2);
  assert_int_equal(tree_ids_of(&g->ids, &g->t, c), 0);
  assert_int_equal(tree_ids_give(&g->ids, &g->t, c), 1);
}

/* --- the property: equal live sets, against the set of all paths --- */

enum { LENGTH_MAX = 120, PATHS_MAX = 600, DRAFTS = 2, LOG_MAX = 200, SEND_MAX = 12, ALPHABET = 3 };

typedef struct path {
  int16_t length;
  uint8_t tokens[LENGTH_MAX];
} path;

typedef struct sent { /* one NODES frame on its way */
  int32_t base, count;
  uint64_t first_id, parents[SEND_MAX];
  int32_t tokens[SEND_MAX];
  float scores[SEND_MAX];
  path paths[SEND_MAX];
} sent;

typedef struct draft {
  tree t;
  tree_ids ids, at_target; /* its own map, and what the target keeps for it */
  int32_t length;          /* of C as it knows it */
  sent log[LOG_MAX];
  int32_t sent_count, received_count;
} draft;

typedef struct world {
  uint64_t rng;
  tree t;
  int32_t c[LENGTH_MAX];
  int32_t length;
  draft drafts[DRAFTS];
  int32_t draft_count;
  path known[PATHS_MAX]; /* every path that reached the target */
  int32_t known_count;
  int64_t trunk_arrivals, live_arrivals, dead_arrivals, aliases;
} world;

static bool is_live_path(const path *p, const int32_t *c, int32_t length) {
  if (p->length <= length) return false;
  for (int32_t i = 0; i < length; i++)
    if (p->tokens[i] != c[i]) return false;
  return true;
}

static bool is_trunk_path(const path *p, const int32_t *c, int32_t length) {
  if (p->length > length) return false;
  for (int32_t i = 0; i < p->length; i++)
    if (p->tokens[i] != c[i]) return false;
  return true;
}

static bool same_path(const path *a, const path *b) {
  return a->length == b->length && memcmp(a->tokens, b->tokens, (size_t)a->length) == 0;
}

/* The path of a live node of a draft, from position 0. */
static path path_of(const world *w, const draft *d, int32_t slot) {
  path p = {.length = (int16_t)(d->length + d->t.nodes[slot].depth)};
  for (int32_t i = 0; i < d->length; i++) p.tokens[i] = (uint8_t)w->c[i];
  for (int32_t at = p.length - 1; slot != TREE_ROOT; slot = d->t.nodes[slot].parent)
    p.tokens[at--] = (uint8_t)d->t.nodes[slot].token;
  return p;
}

/* A tree holds exactly the paths of list[0..count) that are live for C = c[0..length). */
static void assert_live_set(const tree *t, const path *list, int32_t count, const int32_t *c,
                            int32_t length) {
  int32_t live = 0;
  for (int32_t i = 0; i < count; i++) {
    if (!is_live_path(&list[i], c, length)) continue;
    bool first = true;
    for (int32_t k = 0; k < i && first; k++) first = !same_path(&list[k], &list[i]);
    live += first;
    int32_t slot = TREE_ROOT;
    for (int32_t k = length; k < list[i].length && slot != -2; k++) {
      slot = tree_child(t, slot, list[i].tokens[k]);
      if (slot < 0) fail_msg("a live path is missing");
    }
  }
  assert_int_equal(live, t->live_count);
}

static void draft_grow(world *w, draft *d) {
  int32_t tries = 1 + (int32_t)random_below(&w->rng, 8);
  for (int32_t i = 0; i < tries; i++) {
    int32_t slot = (int32_t)random_below(&w->rng, (uint32_t)d->t.live_count + 1) - 1;
    if (slot < 0 || !d->t.nodes[slot].live) slot = TREE_ROOT;
    int32_t depth = slot == TREE_ROOT ? 0 : d->t.nodes[slot].depth;
    if (d->length + depth + 2 >= LENGTH_MAX) continue;
    tree_add(&d->t, slot, (int32_t)random_below(&w->rng, ALPHABET), -(float)random_below(&w->rng, 9), NULL);
  }
}

/* What the draft may name as the parent of a child of the root: 0, or an id of the node that became the root.
 */
static uint64_t root_name(world *w, const draft *d) {
  for (uint64_t id = d->ids.oldest; id < d->ids.next; id++) {
    const tree_id *e = &d->ids.ring[id % TREE_IDS_MAX];
    if (e->state == TREE_ID_TRUNK && e->position == d->length - 1 && random_below(&w->rng, 2)) return id;
  }
  return 0;
}

static void draft_send(world *w, draft *d) {
  if (d->sent_count == LOG_MAX) return;
  sent *b = &d->log[d->sent_count++];
  *b = (sent){.base = d->length, .first_id = d->ids.next};
  int32_t room = (int32_t)random_below(&w->rng, SEND_MAX + 1); /* perhaps empty: only the base is news */
  for (int32_t s = 0; s < d->t.capacity && b->count < room; s++) {
    const tree_node *n = &d->t.nodes[s];
    bool again =
        n->live && random_below(&w->rng, 20) == 0; /* a second id for one node: an alias at the target */
    if (!n->live || (tree_ids_of(&d->ids, &d->t, s) && !again)) continue;
    uint64_t parent = n->parent == TREE_ROOT ? root_name(w, d) : tree_ids_of(&d->ids, &d->t, n->parent);
    if (n->parent != TREE_ROOT && parent == 0) continue; /* its parent goes first */
    b->parents[b->count] = parent;
    b->tokens[b->count] = n->token;
    b->scores[b->count] = n->score;
    b->paths[b->count++] = path_of(w, d, s);
    assert_true(tree_ids_give(&d->ids, &d->t, s) > 0);
  }
}

static void count_arrival(world *w, const path *p) {
  if (is_trunk_path(p, w->c, w->length))
    w->trunk_arrivals++;
  else if (is_live_path(p, w->c, w->length))
    w->live_arrivals++;
  else
    w->dead_arrivals++;
}

static tree_verdict deliver(world *w, draft *d, int32_t index) {
  sent *b = &d->log[index];
  const tree_delta batch = {b->base, b->first_id, b->count, b->parents, b->tokens, b->scores};
  int32_t added, before = w->t.live_count;
  tree_verdict v = tree_receive(&w->t, &d->at_target, w->c, w->length, &batch, &added);
  assert_int_equal(w->t.live_count, before + added);
  return v;
}

static void target_receive_next(world *w, draft *d) {
  if (d->received_count == d->sent_count) return;
  sent *b = &d->log[d->received_count];
  if (w->known_count + b->count > PATHS_MAX) return;
  if (d->received_count + 1 < d->sent_count && b->count &&
      random_below(&w->rng, 4) == 0) { /* the frame after it, too early */
    uint64_t digest = tree_digest(&w->t), next = d->at_target.next;
    assert_int_equal(deliver(w, d, d->received_count + 1), TREE_GAP);
    assert_true(tree_digest(&w->t) == digest && d->at_target.next == next);
  }
  assert_int_equal(deliver(w, d, d->received_count++), TREE_TAKEN);
  for (int32_t i = 0; i < b->count; i++) {
    count_arrival(w, &b->paths[i]);
    for (int32_t k = 0; k < w->known_count; k++)
      if (same_path(&w->known[k], &b->paths[i])) {
        w->aliases++;
        break;
      }
    w->known[w->known_count++] = b->paths[i];
  }
}

static void target_receive_again(world *w, draft *d) {
  if (d->received_count == 0) return;
  uint64_t digest = tree_digest(&w->t);
  assert_int_equal(deliver(w, d, (int32_t)random_below(&w->rng, (uint32_t)d->received_count)), TREE_TAKEN);
  assert_true(tree_digest(&w->t) == digest);
}

/* Down the tree for a while, then perhaps a token of the target's own. */
static void target_commit(world *w) {
  int32_t tokens[8], count = 0, want = 1 + (int32_t)random_below(&w->rng, 4), slot = TREE_ROOT;
  while (count < want) {
    int32_t child = slot == TREE_ROOT ? w->t.first_child : slot < 0 ? -1 : w->t.nodes[slot].first_child;
    bool follow = child >= 0 && random_below(&w->rng, 6) > 0;
    tokens[count] = follow ? w->t.nodes[child].token : (int32_t)random_below(&w->rng, ALPHABET);
    slot = tree_child(&w->t, slot, tokens[count++]);
    if (slot < 0) break;
  }
  if (w->length + count > LENGTH_MAX - 30) return;
  tree_ids *maps[DRAFTS] = {&w->drafts[0].at_target, &w->drafts[1].at_target};
  tree_commit(&w->t, maps, w->draft_count, w->length, tokens, count);
  memcpy(w->c + w->length, tokens, (size_t)count * sizeof *tokens);
  w->length += count;
}

static void draft_learn(world *w, draft *d, int32_t count) {
  if (count > w->length - d->length) count = w->length - d->length;
  tree_ids *maps[] = {&d->ids};
  tree_commit(&d->t, maps, 1, d->length, w->c + d->length, count);
  d->length += count;
  if (random_below(&w->rng, 2)) tree_ids_trim(&d->ids, &d->t, d->length);
}

/* A draft's live set is its own paths, sent or not: those in its log must be there if live for its C. */
static void check_draft(const world *w, const draft *d) {
  check_tree(&d->t);
  for (int32_t b = 0; b < d->sent_count; b++)
    for (int32_t i = 0; i < d->log[b].count; i++) {
      const path *p = &d->log[b].paths[i];
      if (!is_live_path(p, w->c, d->length)) continue;
      int32_t slot = TREE_ROOT;
      for (int32_t k = d->length; k < p->length; k++)
        assert_true((slot = tree_child(&d->t, slot, p->tokens[k])) >= 0);
      uint64_t id = tree_ids_of(&d->ids, &d->t, slot);
      assert_true(id >= 1 && id < d->ids.next);
    }
}

static void world_step(world *w) {
  draft *d = &w->drafts[random_below(&w->rng, (uint32_t)w->draft_count)];
  switch (random_below(&w->rng, 12)) {
  case 0:
  case 1:
  case 2:
    draft_grow(w, d);
    break;
  case 3:
  case 4:
    draft_send(w, d);
    break;
  case 5:
  case 6:
  case 7:
    target_receive_next(w, d);
    break;
  case 8:
    target_receive_again(w, d);
    break;
  case 9:
    target_commit(w);
    break;
  default:
    draft_learn(w, d, 1 + (int32_t)random_below(&w->rng, 5));
    break;
  }
  check_tree(&w->t);
  assert_live_set(&w->t, w->known, w->known_count, w->c, w->length);
  check_draft(w, d);
}

static void world_init(world *w, uint64_t seed, int32_t drafts) {
  memset(w, 0, sizeof *w);
  w->rng = seed;
  w->draft_count = drafts;
  assert_int_equal(tree_init(&w->t, TREE_NODE_MAX), ERR_OK);
  w->length = 1 + (int32_t)random_below(&w->rng, 5);
  for (int32_t i = 0; i < w->length; i++) w->c[i] = (int32_t)random_below(&w->rng, ALPHABET);
  for (int32_t i = 0; i < DRAFTS; i++) {
    draft *d = &w->drafts[i];
    assert_int_equal(tree_init(&d->t, 40), ERR_OK);
    assert_int_equal(tree_ids_init(&d->ids), ERR_OK);
    assert_int_equal(tree_ids_init(&d->at_target), ERR_OK);
    d->length = w->length;
  }
}

static void world_fini(world *w) {
  tree_fini(&w->t);
  for (int32_t i = 0; i < DRAFTS; i++) {
    tree_fini(&w->drafts[i].t);
    tree_ids_fini(&w->drafts[i].ids);
    tree_ids_fini(&w->drafts[i].at_target);
  }
}

static bool has_unsent(const draft *d) {
  for (int32_t s = 0; s < d->t.capacity; s++)
    if (d->t.nodes[s].live && !tree_ids_of(&d->ids, &d->t, s)) return true;
  return false;
}

static bool at_rest(const world *w) {
  for (int32_t i = 0; i < w->draft_count; i++) {
    const draft *d = &w->drafts[i];
    if (d->length < w->length || d->received_count < d->sent_count || has_unsent(d)) return false;
  }
  return true;
}

/* All unsent nodes go out, all frames and tokens are taken, in a random order. */
static void come_to_rest(world *w) {
  for (int turn = 0; turn < 1000 && !at_rest(w); turn++) {
    draft *d = &w->drafts[random_below(&w->rng, (uint32_t)w->draft_count)];
    switch (random_below(&w->rng, 3)) {
    case 0:
      if (has_unsent(d)) draft_send(w, d);
      break;
    case 1:
      draft_learn(w, d, 1 + (int32_t)random_below(&w->rng, 5));
      break;
    default:
      target_receive_next(w, d);
      break;
    }
  }
}

static uint64_t union_digest(const world *w) {
  tree t;
  assert_int_equal(tree_init(&t, TREE_NODE_MAX), ERR_OK);
  for (int32_t i = 0; i < w->known_count; i++) {
    int32_t slot = TREE_ROOT;
    if (!is_live_path(&w->known[i], w->c, w->length)) continue;
    for (int32_t k = w->length; k < w->known[i].length; k++)
      slot = tree_add(&t, slot, w->known[i].tokens[k], 0, NULL);
  }
  uint64_t digest = tree_digest(&t);
  tree_fini(&t);
  return digest;
}

static void run_worlds(int32_t drafts, uint64_t seeds) {
  world *w = malloc(sizeof *w);
  assert_non_null(w);
  int64_t trunk = 0, live = 0, dead = 0, aliases = 0, alive = 0;
  for (uint64_t seed = 1; seed <= seeds; seed++) {
    world_init(w, seed, drafts);
    for (int step = 0; step < 150 && w->known_count < PATHS_MAX - 5 * SEND_MAX; step++) world_step(w);
    for (int32_t i = 0; i < drafts; i++) {
      draft_learn(w, &w->drafts[i], LENGTH_MAX);
      for (int k = 0; k < 4; k++) draft_grow(w, &w->drafts[i]);
    }
    come_to_rest(w);
    assert_true(at_rest(w));
    assert_live_set(&w->t, w->known, w->known_count, w->c, w->length);
    alive += w->t.live_count;
    assert_true(tree_digest(&w->t) == union_digest(w));
    if (drafts == 1) assert_true(tree_digest(&w->t) == tree_digest(&w->drafts[0].t));
    trunk += w->trunk_arrivals;
    live += w->live_arrivals;
    dead += w->dead_arrivals;
    aliases += w->aliases;
    world_fini(w);
  }
  print_message(
      "%d draft(s), %d worlds: nodes arrived as trunk %ld, live %ld, dead %ld, known before %ld; compared "
      "at rest: %ld live nodes\n",
      (int)drafts, (int)seeds, (long)trunk, (long)live, (long)dead, (long)aliases, (long)alive);
  assert_true(trunk > 500 && live > 500 && dead > 500 && aliases > 500); /* every case was met */
  assert_true(alive > 2 * (int64_t)seeds);
  free(w);
}

static void both_sides_agree(void **state) {
  (void)state;
  run_worlds(1, 500);
}

static void several_drafts_merge(void **state) {
  (void)state;
  run_worlds(2, 500);
}

/* The same frames and tokens, taken in every interleaving of two streams: one digest. */
static void order_does_not_matter(void **state) {
  (void)state;
  const int32_t truth[] = {9, 1, 2, 0, 1};
  static const struct {
    int32_t base;
    uint64_t first_id;
    int32_t count;
    uint64_t parents[4];
    int32_t tokens[4];
  } frames[] = {
      {1, 1, 4, {0, 1, 1, 0}, {1, 2, 0, 2}},
      {1, 5, 4, {2, 5, 2, 4}, {0, 1, 2, 1}},
      {1, 9, 3, {6, 9, 3}, {2, 0, 1}},
      {1, 12, 4, {6, 0, 13, 10}, {0, 1, 2, 1}},
  };
  enum { FRAMES = 4, COMMITS = 4 };
  uint64_t digest = 0;
  int orders = 0;
  for (unsigned order = 0; order < 1u << (FRAMES + COMMITS); order++) {
    if (__builtin_popcount(order) != FRAMES) continue;
    tree t;
    tree_ids ids, *maps[] = {&ids};
    assert_int_equal(tree_init(&t, 32), ERR_OK);
    assert_int_equal(tree_ids_init(&ids), ERR_OK);
    int32_t length = 1, frame = 0, added;
    for (int i = 0; i < FRAMES + COMMITS; i++) {
      if (order >> i & 1) {
        const tree_delta b = {frames[frame].base,    frames[frame].first_id, frames[frame].count,
                              frames[frame].parents, frames[frame].tokens,   (const float[]){-1, -1, -1, -1}};
        assert_int_equal(tree_receive(&t, &ids, truth, length, &b, &added), TREE_TAKEN);
        frame++;
      } else {
        tree_commit(&t, maps, 1, length, truth + length, 1);
        length++;
      }
    }
    if (orders++ == 0) digest = tree_digest(&t);
    assert_true(t.live_count == 4 && tree_digest(&t) == digest);
    tree_ids_fini(&ids);
    tree_fini(&t);
  }
  assert_int_equal(orders, 70);
}

#define WITH_TARGET(f) cmocka_unit_test_setup_teardown(f, target_setup, target_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refuses_bad_capacity),
      cmocka_unit_test(adds_finds_and_aliases),
      cmocka_unit_test(a_raised_score_counts_below),
      cmocka_unit_test(depth_has_a_limit),
      cmocka_unit_test(advance_keeps_what_is_below),
      cmocka_unit_test(select_takes_the_best),
      cmocka_unit_test(path_form_is_the_mask),
      cmocka_unit_test(digest_is_of_the_set),
      WITH_TARGET(parent_zero_is_the_base),
      WITH_TARGET(trunk_parent_still_counts),
      WITH_TARGET(commit_keeps_ids_in_step),
      WITH_TARGET(a_stamp_tells_a_slot_used_again),
      WITH_TARGET(gap_changes_nothing),
      WITH_TARGET(repetition_is_skipped),
      WITH_TARGET(invalid_changes_nothing),
      WITH_TARGET(overflow_restores_exactly),
      WITH_TARGET(overflow_after_many_nodes),
      WITH_TARGET(unnamed_nodes_go),
      WITH_TARGET(too_deep_restores_exactly),
      WITH_TARGET(too_many_ids_are_a_gap),
      WITH_TARGET(trim_goes_oldest_first),
      WITH_TARGET(draft_gives_ids),
      cmocka_unit_test(both_sides_agree),
      cmocka_unit_test(several_drafts_merge),
      cmocka_unit_test(order_does_not_matter),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
