/* libs: model */
/* The cache against a naive model under random operations: contents, lengths, refusals and counters. */
#include "common/model/kv_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LAYERS     3
#define KV_HEADS   2
#define HEAD_DIM   8
#define SEQUENCES  3
#define CONTEXT    41 /* no multiple of a tile */
#define ROW_FLOATS (KV_HEADS * HEAD_DIM)
#define OPERATIONS 20000

static const model_config CONFIG = {.layers = LAYERS,
                                    .embed = 16,
                                    .heads = 2,
                                    .kv_heads = KV_HEADS,
                                    .head_dim = HEAD_DIM,
                                    .rope_dim = HEAD_DIM};

typedef struct naive_sequence {
  bool used, staged, written;
  int32_t length, rows[CONTEXT]; /* what each row was made from */
  int32_t stage_count, parents[KV_STAGE_MAX], stage_rows[KV_STAGE_MAX];
} naive_sequence;

typedef struct naive {
  ops *device;
  kv_cache *k;
  kv_type type;
  mem memory;
  naive_sequence s[SEQUENCES];
  kv_counters expected;
  int32_t next_row;
  uint64_t late_commits,
      never_copied; /* never_copied: rows that were gone before a forward would have copied them */
  uint32_t random;
} naive;

static int32_t roll(naive *n, int32_t below) {
  n->random = n->random * 1664525u + 1013904223u;
  return (int32_t)((n->random >> 8) % (uint32_t)below);
}

/* Component i of row `id` in a layer: small integers, exact in f16. */
static float component(int32_t id, int32_t layer, int32_t i, bool value) {
  return (float)((id * 7 + layer * 31 + i * 3 + value * 11) % 1021);
}

/* What a forward writes: rows [0, count) to all layers through the device, without rotation. */
static void write_rows(naive *n, const ops_row *rows, const int32_t *ids, int32_t count) {
  static float rope[KV_STAGE_MAX * 2 * HEAD_DIM], q[KV_STAGE_MAX * ROW_FLOATS], k[KV_STAGE_MAX * ROW_FLOATS],
      v[KV_STAGE_MAX * ROW_FLOATS];
  for (int32_t r = 0; r < count; r++)
    for (int32_t i = 0; i < HEAD_DIM; i++) rope[r * 2 * HEAD_DIM + i] = 1;
  for (int32_t layer = 0; layer < LAYERS; layer++) {
    for (int32_t i = 0; i < count * ROW_FLOATS; i++) {
      k[i] = component(ids[i / ROW_FLOATS], layer, i % ROW_FLOATS, false);
      v[i] = component(ids[i / ROW_FLOATS], layer, i % ROW_FLOATS, true);
    }
    n->device->table->rope_store(n->device, kv_shape(n->k), layer, rows, count, KV_HEADS,
                                 &(ops_rotary){.table = rope, .dim = HEAD_DIM}, q, k, v);
  }
}

static float half_to_float(uint16_t h) { /* of the small integers above */
  if (h == 0) return 0;
  float f = (float)(1024 + (h & 1023));
  for (int e = h >> 10; e < 25; e++) f /= 2;
  return f;
}

static float read_element(const naive *n, const void *data, size_t i) {
  return n->type == KV_F16 ? half_to_float(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

static void check_row(const naive *n, int32_t seq, int32_t position, int32_t id) {
  const ops_kv *rows = kv_pointers(n->k, seq);
  size_t all = (size_t)kv_shape(n->k)->blocks * OPS_TILE;
  size_t p = (size_t)rows->map[position / OPS_TILE].at * OPS_TILE + (size_t)(position % OPS_TILE);
  for (int32_t layer = 0; layer < LAYERS; layer++) {
    for (int32_t i = 0; i < ROW_FLOATS; i++) {
      size_t head = (size_t)(layer * KV_HEADS + i / HEAD_DIM), d = (size_t)(i % HEAD_DIM);
      size_t tile = (head * all / OPS_TILE + p / OPS_TILE) * HEAD_DIM + d;
      float key = read_element(n, rows->keys, tile * OPS_TILE + p % OPS_TILE);
      float value = read_element(n, rows->values, (head * all + p) * HEAD_DIM + d);
      assert_true(key == component(id, layer, i, false));
      assert_true(value == component(id, layer, i, true));
    }
  }
}

static void check_counters(const naive *n) {
  kv_counters c = kv_count(n->k), e = n->expected;
  uint64_t row_bytes = 2 * LAYERS * ROW_FLOATS * (n->type == KV_F16 ? 2 : 4), open = 0, written = 0;
  for (int32_t i = 0; i < SEQUENCES; i++) {
    if (n->s[i].staged) open += (uint64_t)n->s[i].stage_count;
  }
  assert_int_equal(c.stage_operations, e.stage_operations);
  assert_int_equal(c.staged_rows, e.staged_rows);
  assert_int_equal(c.appended_rows, e.appended_rows);
  assert_int_equal(c.committed_rows, e.committed_rows);
  assert_int_equal(c.rejected_rows, e.rejected_rows);
  assert_int_equal(c.rewound_rows, e.rewound_rows);
  assert_int_equal(c.refusals, e.refusals);
  written = e.appended_rows + e.committed_rows + n->device->counters.staged_writes / LAYERS;
  assert_int_equal(c.bytes_written, written * row_bytes);
  assert_int_equal(c.staged_rows, c.committed_rows + c.rejected_rows + open);
  uint64_t late = 0;
  for (int32_t i = 0; i < SEQUENCES; i++)
    if (n->s[i].used) late += (uint64_t)kv_pointers(n->k, i)->late;
  assert_int_equal(n->device->counters.commit_copies, (c.committed_rows - late - n->never_copied) * LAYERS);
}

static void check_all(const naive *n) {
  for (int32_t i = 0; i < SEQUENCES; i++) {
    if (!n->s[i].used) continue;
    assert_int_equal(kv_length(n->k, i), n->s[i].length);
    int32_t there = n->s[i].length - kv_pointers(n->k, i)->late; /* the others are on their way */
    for (int32_t p = 0; p < there; p++) check_row(n, i, p, n->s[i].rows[p]);
  }
  check_counters(n);
}

static void try_acquire(naive *n) {
  int32_t expected = ERR_FULL;
  for (int32_t i = SEQUENCES - 1; i >= 0; i--) {
    if (!n->s[i].used) expected = i;
  }
  assert_int_equal(kv_acquire(n->k), expected);
  if (expected >= 0) n->s[expected] = (naive_sequence){.used = true};
}

static void naive_drop(naive *n, naive_sequence *s, int32_t kept) {
  if (s->staged) n->expected.rejected_rows += (uint64_t)(s->stage_count - kept);
  s->staged = s->written = false;
}

static void try_append(naive *n, int32_t seq) {
  naive_sequence *s = &n->s[seq];
  int32_t count = 1 + roll(n, 20);
  int expected = s->staged ? ERR_STATE : s->length + count > CONTEXT ? ERR_LIMIT : ERR_OK;
  assert_int_equal(kv_check_append(n->k, seq, count), expected);
  if (expected != ERR_OK) return;
  ops_row rows[CONTEXT];
  for (int32_t i = 0; i < count; i++) {
    rows[i] = (ops_row){.kv = kv_pointers(n->k, seq), .position = s->length + i, .length = s->length + i + 1};
    s->rows[s->length + i] = n->next_row++;
  }
  write_rows(n, rows, s->rows + s->length, count);
  kv_appended(n->k, seq, count);
  s->length += count;
  n->expected.appended_rows += (uint64_t)count;
}

/* A random tree, now and then a wrong one. Returns what kv_stage has to answer. */
static int make_tree(naive *n, const naive_sequence *s, int32_t *parents, int32_t *count) {
  int32_t depth[KV_STAGE_MAX + 1] = {1}, deepest = 1;
  *count = roll(n, 50) == 0 ? roll(n, 2) * (KV_STAGE_MAX + 1) : 1 + roll(n, 12);
  parents[0] = -1;
  for (int32_t i = 1; i < *count; i++) {
    parents[i] = roll(n, 3) ? i - 1 : roll(n, i);
    depth[i] = depth[parents[i]] + 1;
    if (depth[i] > deepest) deepest = depth[i];
  }
  if (s->staged) return ERR_STATE;
  if (*count == 0) return ERR_ARG;
  if (*count > KV_STAGE_MAX) return ERR_LIMIT;
  if (roll(n, 20) == 0) { /* a second root, the row itself, or a later one */
    int32_t bad = roll(n, *count), wrong[] = {bad ? -1 : 0, bad, bad + 1};
    parents[bad] = wrong[roll(n, 3)];
    return ERR_ARG;
  }
  return s->length + deepest > CONTEXT ? ERR_LIMIT : ERR_OK;
}

static void try_stage(naive *n, int32_t seq) {
  naive_sequence *s = &n->s[seq];
  int32_t parents[KV_STAGE_MAX + 1], count;
  int expected = make_tree(n, s, parents, &count);
  assert_int_equal(kv_stage(n->k, seq, parents, count), expected);
  if (expected != ERR_OK) {
    n->expected.refusals++;
    return;
  }
  s->staged = true;
  s->stage_count = count;
  memcpy(s->parents, parents, (size_t)count * sizeof *parents);
  n->expected.stage_operations++;
  n->expected.staged_rows += (uint64_t)count;
}

static void try_forward_of_tree(naive *n, int32_t seq) {
  naive_sequence *s = &n->s[seq];
  int32_t other[KV_STAGE_MAX] = {-1, 0, 0, 1};
  if (!s->staged || s->written) {
    assert_int_equal(kv_check_tree(n->k, seq, other, 1), ERR_STATE);
    return;
  }
  memcpy(other, s->parents, sizeof other);
  other[s->stage_count - 1]++;
  assert_int_equal(kv_check_tree(n->k, seq, other, s->stage_count), ERR_ARG);
  assert_int_equal(kv_check_tree(n->k, seq, s->parents, s->stage_count + 1), ERR_ARG);
  assert_int_equal(kv_check_tree(n->k, seq, s->parents, s->stage_count), ERR_OK);
  ops_row rows[KV_STAGE_MAX];
  int32_t slots[KV_STAGE_MAX];
  for (int32_t i = 0; i < s->stage_count; i++) {
    slots[i] = i;
    rows[i] =
        (ops_row){.kv = kv_pointers(n->k, seq), .length = s->length, .path_count = 1, .path = &slots[i]};
    s->stage_rows[i] = n->next_row++;
  }
  write_rows(n, rows, s->stage_rows, s->stage_count);
  kv_staged(n->k, seq);
  s->written = true;
}

/* A chain from the root row downwards by random children; returns its length. */
static int32_t random_path(naive *n, const naive_sequence *s, int32_t *path) {
  int32_t count = 0, at = -1;
  for (;;) {
    int32_t children[KV_STAGE_MAX], found = 0;
    for (int32_t i = 0; i < s->stage_count; i++) {
      if (s->parents[i] == at) children[found++] = i;
    }
    if (!found || roll(n, 5) == 0) return count;
    path[count++] = at = children[roll(n, found)];
  }
}

static void try_commit(naive *n, int32_t seq) {
  naive_sequence *s = &n->s[seq];
  int32_t path[KV_STAGE_MAX + 1] = {0}, count = s->staged ? random_path(n, s, path) : roll(n, 2);
  int expected = !s->staged || (count && !s->written) ? ERR_STATE : ERR_OK;
  if (expected == ERR_OK && count && roll(n, 8) == 0) { /* skips a link, repeats one, or leaves the stage */
    int32_t i = roll(n, count), wrong[] = {s->stage_count, -1, i ? path[0] : s->stage_count};
    path[i] = wrong[roll(n, 3)];
    expected = ERR_ARG;
  }
  bool late = roll(n, 2);
  assert_int_equal((late ? kv_commit_late : kv_commit)(n->k, seq, path, count), expected);
  n->late_commits += late && expected == ERR_OK && count;
  if (expected != ERR_OK) {
    n->expected.refusals++;
    return;
  }
  for (int32_t i = 0; i < count; i++) s->rows[s->length++] = s->stage_rows[path[i]];
  n->expected.committed_rows += (uint64_t)count;
  naive_drop(n, s, count);
}

static void try_settle(naive *n, int32_t seq) {
  kv_settle(n->k, seq);
  assert_int_equal(kv_pointers(n->k, seq)->late, 0);
}

static void try_rollback(naive *n, int32_t seq) {
  naive_sequence *s = &n->s[seq];
  int32_t length = roll(n, s->length + 3) - 1;
  if (length < 0 || length > s->length) {
    assert_int_equal(kv_rollback(n->k, seq, length), ERR_ARG);
    return;
  }
  int32_t late = kv_pointers(n->k, seq)->late, gone = s->length - length;
  n->never_copied += (uint64_t)(late < gone ? late : gone);
  assert_int_equal(kv_rollback(n->k, seq, length), ERR_OK);
  n->expected.rewound_rows += (uint64_t)(s->length - length);
  s->length = length;
  naive_drop(n, s, 0);
}

static void try_release(naive *n, int32_t seq) {
  if (roll(n, 4)) return;
  n->never_copied += (uint64_t)kv_pointers(n->k, seq)->late;
  kv_release(n->k, seq);
  naive_drop(n, &n->s[seq], 0);
  n->s[seq].used = false;
}

static void open_naive(naive *n, kv_type type) {
  err e = {0};
  kv_options o = {.sequences = SEQUENCES, .context = CONTEXT, .type = type};
  n->type = type;
  n->device = ops_cpu_open(OPS_CPU_C, 1);
  assert_int_equal(kv_open(&n->k, &CONFIG, &o, &n->memory, &e), ERR_OK);
  kv_bind(n->k, n->device);
}

static void close_naive(naive *n) {
  kv_close(n->k);
  n->device->table->close(n->device);
}

static void random_operations(kv_type type) {
  static void (*const operations[])(naive *, int32_t) = {try_append,   try_stage,  try_forward_of_tree,
                                                         try_commit,   try_commit, try_settle,
                                                         try_rollback, try_release};
  const int32_t kinds = sizeof operations / sizeof operations[0];
  naive *n = calloc(1, sizeof *n);
  n->random = 7;
  open_naive(n, type);
  for (int32_t i = 0; i < OPERATIONS; i++) {
    int32_t seq = roll(n, SEQUENCES);
    if (n->s[seq].used)
      operations[roll(n, kinds)](n, seq);
    else
      try_acquire(n);
    check_counters(n);
    if (i % 16 == 0) check_all(n);
  }
  kv_counters c = n->expected;
  print_message(
      "staged %llu in %llu, committed %llu, rejected %llu, rewound %llu, appended %llu, refused %llu\n",
      (unsigned long long)c.staged_rows, (unsigned long long)c.stage_operations,
      (unsigned long long)c.committed_rows, (unsigned long long)c.rejected_rows,
      (unsigned long long)c.rewound_rows, (unsigned long long)c.appended_rows,
      (unsigned long long)c.refusals);
  assert_true(c.committed_rows > 500 && c.rejected_rows > 500 && c.rewound_rows > 500 && c.refusals > 500);
  assert_true(n->late_commits > 100 && n->never_copied > 100);
  close_naive(n);
  free(n);
}

static void random_operations_f32(void **state) {
  (void)state;
  random_operations(KV_F32);
}

static void random_operations_f16(void **state) {
  (void)state;
  random_operations(KV_F16);
}

/* --- a stage that grows --- */

typedef struct grown { /* what stands in each slot */
  int32_t parent[KV_STAGE_MAX], row[KV_STAGE_MAX], count;
} grown;

static int32_t grown_depth(const grown *g, int32_t slot) {
  int32_t depth = 0;
  for (; slot >= 0; slot = g->parent[slot]) depth++;
  return depth;
}

/* A staged row, or -1 for the committed rows' end. */
static int32_t some_row(naive *n, const grown *g) {
  int32_t found[KV_STAGE_MAX], count = 0;
  for (int32_t i = 0; i < KV_STAGE_MAX; i++)
    if (g->parent[i] != KV_SLOT_FREE) found[count++] = i;
  return count == 0 || roll(n, 4) == 0 ? -1 : found[roll(n, count)];
}

static void grow_some(naive *n, grown *g) {
  naive_sequence *s = &n->s[0];
  int32_t parents[8], slots[8], paths[8][KV_STAGE_MAX], ids[8], count = 1 + roll(n, 8);
  int expected = count > KV_STAGE_MAX - g->count ? ERR_LIMIT : ERR_OK;
  for (int32_t i = 0; i < count; i++) {
    parents[i] = some_row(n, g);
    if (expected == ERR_OK && s->length + grown_depth(g, parents[i]) >= CONTEXT) expected = ERR_LIMIT;
  }
  if (expected == ERR_OK && roll(n, 10) == 0) {
    while (parents[0] == -1 || g->parent[parents[0]] != KV_SLOT_FREE) parents[0] = roll(n, KV_STAGE_MAX);
    expected = ERR_ARG; /* hangs from nothing */
  }
  assert_int_equal(kv_grow(n->k, 0, parents, count, slots), expected);
  if (expected != ERR_OK) return;
  assert_int_equal(kv_check_tree(n->k, 0, parents, count), ERR_OK);
  ops_row rows[8];
  for (int32_t i = 0; i < count; i++) {
    assert_int_equal(g->parent[slots[i]], KV_SLOT_FREE);
    g->parent[slots[i]] = parents[i];
    ids[i] = g->row[slots[i]] = n->next_row++;
    int32_t depth = kv_path(n->k, 0, i, paths[i]);
    assert_int_equal(depth, grown_depth(g, slots[i]));
    for (int32_t k = 0; k < depth; k++) assert_int_equal(g->parent[paths[i][k]], k ? paths[i][k - 1] : -1);
    rows[i] =
        (ops_row){.kv = kv_pointers(n->k, 0), .length = s->length, .path_count = depth, .path = paths[i]};
  }
  assert_int_equal(kv_grow(n->k, 0, parents, 1, slots), ERR_STATE); /* its forward has not run */
  write_rows(n, rows, ids, count);
  kv_staged(n->k, 0);
  g->count += count;
}

static void take_path(naive *n, grown *g) {
  naive_sequence *s = &n->s[0];
  int32_t path[KV_STAGE_MAX] = {0}, last = some_row(n, g), count = grown_depth(g, last), kept = 0;
  for (int32_t i = count, slot = last; i > 0; slot = g->parent[slot]) path[--i] = slot;
  assert_int_equal(kv_commit_keep(n->k, 0, path, count), ERR_OK);
  if (count == 0) return;
  for (int32_t i = 0; i < count; i++) s->rows[s->length++] = g->row[path[i]];
  grown before = *g;
  for (int32_t i = 0; i < KV_STAGE_MAX; i++) {
    int32_t above = before.parent[i] == KV_SLOT_FREE ? -1 : before.parent[i];
    while (above >= 0 && above != last) above = before.parent[above];
    bool keeps = above == last && before.parent[i] != KV_SLOT_FREE;
    g->parent[i] = !keeps ? KV_SLOT_FREE : before.parent[i] == last ? -1 : before.parent[i];
    kept += keeps;
  }
  g->count = kept;
}

static void check_grown(const naive *n, const grown *g) {
  const ops_kv *rows = kv_pointers(n->k, 0);
  for (int32_t i = 0; i < KV_STAGE_MAX; i++) {
    assert_int_equal(kv_parent(n->k, 0, i), g->parent[i]);
    if (g->parent[i] == KV_SLOT_FREE) continue;
    float value = read_element(n, rows->stage_values, (size_t)i * HEAD_DIM + 1); /* layer 0, head 0 */
    assert_true(value == component(g->row[i], 0, 1, true));
  }
  for (int32_t p = 0; p < n->s[0].length; p++) check_row(n, 0, p, n->s[0].rows[p]);
}

/* Rows stay where they are and as they are while others come, are committed above them or are dropped. */
static void a_stage_grows_and_keeps(void **state) {
  (void)state;
  naive *n = calloc(1, sizeof *n);
  grown *g = calloc(1, sizeof *g);
  int32_t grew = 0, kept = 0;
  n->random = 11;
  open_naive(n, KV_F16);
  try_acquire(n);
  for (int32_t i = 0; i < KV_STAGE_MAX; i++) g->parent[i] = KV_SLOT_FREE;
  for (int32_t i = 0; i < 6000; i++) {
    int32_t kind = roll(n, 12), before = g->count;
    if (kind < 8)
      grow_some(n, g);
    else if (kind < 11)
      take_path(n, g);
    if (kind == 11 || n->s[0].length > CONTEXT - 4) {
      int32_t length = roll(n, n->s[0].length + 1);
      assert_int_equal(kv_rollback(n->k, 0, length), ERR_OK);
      n->s[0].length = length;
      g->count = 0;
      for (int32_t k = 0; k < KV_STAGE_MAX; k++) g->parent[k] = KV_SLOT_FREE;
    }
    grew += g->count > before;
    kept += kind >= 8 && kind < 11 && g->count > 0 && g->count < before;
    check_grown(n, g);
    kv_counters c = kv_count(n->k);
    assert_int_equal(c.staged_rows, c.committed_rows + c.rejected_rows + (uint64_t)g->count);
  }
  assert_true(grew > 500 && kept > 100);
  free(g);
  close_naive(n);
  free(n);
}

/* Off means untouched: appending and rolling back take nothing for speculation; one stage takes it once. */
static void staging_is_taken_at_the_first_stage(void **state) {
  (void)state;
  naive *n = calloc(1, sizeof *n);
  open_naive(n, KV_F16);
  const int32_t chain[] = {-1, 0, 1};
  try_acquire(n);
  for (int32_t i = 0; i < 50; i++) {
    try_append(n, 0);
    try_rollback(n, 0);
  }
  assert_int_equal(n->memory.calls[MEM_SPECULATION], 0);
  assert_int_equal(n->device->counters.staged_writes + n->device->counters.commit_copies, 0);
  assert_int_equal(kv_rollback(n->k, 0, 0), ERR_OK);
  assert_int_equal(kv_stage(n->k, 0, chain, 3), ERR_OK);
  assert_int_equal(kv_commit(n->k, 0, chain, 0), ERR_OK);
  assert_int_equal(kv_stage(n->k, 0, chain, 3), ERR_OK);
  assert_int_equal(n->memory.calls[MEM_SPECULATION], 1);
  close_naive(n);
  free(n);
}

static void impossible_options_are_refused(void **state) {
  (void)state;
  const kv_options bad[] = {{.sequences = 0, .context = 16},
                            {.sequences = 1, .context = 0},
                            {.sequences = 1, .context = MODEL_CONTEXT_MAX + 1}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    err e = {0};
    kv_cache *k;
    assert_int_equal(kv_open(&k, &CONFIG, &bad[i], NULL, &e), ERR_ARG);
    assert_null(k);
    assert_int_equal(e.code, ERR_ARG);
  }
  kv_close(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_operations_f32),          cmocka_unit_test(random_operations_f16),
      cmocka_unit_test(a_stage_grows_and_keeps),        cmocka_unit_test(staging_is_taken_at_the_first_stage),
      cmocka_unit_test(impossible_options_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
