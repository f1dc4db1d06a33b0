/* libs: model : far */
/* The cache against a naive model under random operations: contents, lengths, refusals and counters. Then the
 * cases in which a commit is still on its way when its rows, their staged places or its blocks are used. */
#include "tests/support/kv_probe.h"
#include "tests/support/random.h"

#define LAYERS     3
#define KV_HEADS   2
#define HEAD_DIM   8
#define SEQUENCES  3
#define CONTEXT    41 /* no multiple of a tile */
#define POOL_TILES 3  /* of staged rows, of all sequences: a tree may need two */
#define TILES      ((CONTEXT + OPS_TILE - 1) / OPS_TILE)
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
  kv_support *io;
  kv_cache *k;
  device_kv *mirror; /* one sequence, whose rows are only ever appended */
  kv_type type;
  mem memory;
  naive_sequence s[SEQUENCES];
  kv_counters expected;
  int32_t next_row;
  uint64_t crowded; /* stages refused because the pool had too few tiles */
  uint64_t random;
} naive;

static int32_t roll(naive *n, int32_t below) {
  return (int32_t)random_below(&n->random, (uint32_t)below);
}

/* Component i of row `id` in a layer: small integers, exact in f16. */
static float component(int32_t id, int32_t layer, int32_t i, bool value) {
  return (float)((id * 7 + layer * 31 + i * 3 + value * 11) % 1021);
}

static float component_of(const void *ids, int32_t row, int32_t layer, int32_t i, bool value) {
  return component(((const int32_t *)ids)[row], layer, i, value);
}

/* The forward has these rows; writes what they were made from. */
static void write_rows(naive *n, const int32_t *ids) {
  kv_support_write(n->io, kv_rows(n->k), component_of, ids);
}

static void check_values(naive *n, const int32_t *ids) {
  for (int32_t layer = 0; layer < LAYERS; layer++) {
    const float *values = kv_support_values(n->io, kv_rows(n->k), layer);
    for (int32_t i = 0; i < n->io->row_count * ROW_FLOATS; i++)
      if (values[i] != component(ids[i / ROW_FLOATS], layer, i % ROW_FLOATS, true))
        fail_msg("component %d of row %d is another's", i % ROW_FLOATS, i / ROW_FLOATS);
  }
}

/* Attention over all rows, here and where the same rows were appended plainly. */
static void check_keys(naive *n, int32_t seq, const int32_t *ids, int32_t count) {
  float q[ROW_FLOATS], got[LAYERS][ROW_FLOATS];
  int32_t first = 0;
  for (int32_t i = 0; i < ROW_FLOATS; i++) q[i] = (float)(roll(n, 2001) - 1000) / 4096000.0f;
  kv_support_begin(n->io);
  kv_support_append(n->io, seq, count - 1);
  for (int32_t layer = 0; layer < LAYERS; layer++)
    memcpy(got[layer], kv_support_attend(n->io, kv_rows(n->k), layer, q, &first), sizeof got[layer]);
  kv_support_begin(n->io);
  for (int32_t p = 0; p < count; p++) kv_support_append(n->io, 0, p);
  kv_support_write(n->io, n->mirror, component_of, ids);
  kv_support_begin(n->io);
  kv_support_append(n->io, 0, count - 1);
  for (int32_t layer = 0; layer < LAYERS; layer++)
    assert_memory_equal(got[layer], kv_support_attend(n->io, n->mirror, layer, q, &first), sizeof got[layer]);
}

/* The first `count` rows of the sequence are made from these. */
static void check_rows(naive *n, int32_t seq, const int32_t *ids, int32_t count) {
  kv_support_begin(n->io);
  for (int32_t p = 0; p < count; p++) kv_support_append(n->io, seq, p);
  if (count == 0) return;
  check_values(n, ids);
  check_keys(n, seq, ids, count);
}

static void check_counters(const naive *n) {
  kv_counters c = kv_count(n->k), e = n->expected;
  const ops_counters *counted = &n->io->device->counters;
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
  assert_int_equal(c.bytes_spared, e.rejected_rows * row_bytes);
  assert_memory_equal(c.refusals, e.refusals, sizeof c.refusals);
  written = e.appended_rows + e.committed_rows + counted->staged_writes / LAYERS;
  assert_int_equal(c.bytes_written, written * row_bytes);
  assert_int_equal(c.staged_rows, c.committed_rows + c.rejected_rows + open);
  assert_int_equal(counted->commit_copies, c.committed_rows * LAYERS);
}

static void check_all(naive *n) {
  for (int32_t i = 0; i < SEQUENCES; i++) {
    if (!n->s[i].used) continue;
    assert_int_equal(kv_length(n->k, i), n->s[i].length);
    check_rows(n, i, n->s[i].rows, n->s[i].length);
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
  kv_support_begin(n->io);
  for (int32_t i = 0; i < count; i++) {
    kv_support_append(n->io, seq, s->length + i);
    s->rows[s->length + i] = n->next_row++;
  }
  write_rows(n, s->rows + s->length);
  kv_appended(n->k, seq, count);
  s->length += count;
  n->expected.appended_rows += (uint64_t)count;
}

static int32_t tiles_of(int32_t rows) {
  return (rows + OPS_TILE - 1) / OPS_TILE;
}

static int32_t free_tiles(const naive *n) {
  int32_t tiles = POOL_TILES;
  for (int32_t i = 0; i < SEQUENCES; i++)
    if (n->s[i].used && n->s[i].staged) tiles -= tiles_of(n->s[i].stage_count);
  return tiles;
}

/* A random tree, now and then a wrong one. Returns what kv_stage has to answer. */
static int make_tree(naive *n, const naive_sequence *s, int32_t *parents, int32_t *count) {
  int32_t depth[KV_STAGE_MAX + 1] = {1}, deepest = 1;
  *count = roll(n, 50) == 0 ? roll(n, 2) * (KV_STAGE_MAX + 1) : 1 + roll(n, 20);
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
  if (s->length + deepest > CONTEXT) return ERR_LIMIT;
  bool crowded = tiles_of(*count) > free_tiles(n);
  n->crowded += crowded;
  return crowded ? ERR_LIMIT : ERR_OK;
}

static void expect_refusal(naive *n, int code) {
  n->expected.refusals[code == ERR_ARG     ? KV_REFUSED_ARGUMENT
                       : code == ERR_STATE ? KV_REFUSED_STATE
                                           : KV_REFUSED_LIMIT]++;
}

static void try_stage(naive *n, int32_t seq) {
  naive_sequence *s = &n->s[seq];
  int32_t parents[KV_STAGE_MAX + 1], count;
  int expected = make_tree(n, s, parents, &count);
  assert_int_equal(kv_stage(n->k, seq, parents, count), expected);
  if (expected != ERR_OK) {
    expect_refusal(n, expected);
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
  kv_support_begin(n->io);
  for (int32_t i = 0; i < s->stage_count; i++) {
    int32_t path[KV_STAGE_MAX], depth = kv_path(n->k, seq, i, path);
    kv_support_stage(n->io, seq, s->length, path, depth);
    s->stage_rows[i] = n->next_row++;
  }
  write_rows(n, s->stage_rows);
  check_values(n, s->stage_rows);
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
  assert_int_equal(kv_commit(n->k, seq, path, count), expected);
  if (expected != ERR_OK) {
    expect_refusal(n, expected);
    return;
  }
  for (int32_t i = 0; i < count; i++) s->rows[s->length++] = s->stage_rows[path[i]];
  n->expected.committed_rows += (uint64_t)count;
  naive_drop(n, s, count);
}

static void try_rollback(naive *n, int32_t seq) {
  naive_sequence *s = &n->s[seq];
  int32_t length = roll(n, s->length + 3) - 1;
  if (length < 0 || length > s->length) {
    assert_int_equal(kv_rollback(n->k, seq, length), ERR_ARG);
    return;
  }
  assert_int_equal(kv_rollback(n->k, seq, length), ERR_OK);
  n->expected.rewound_rows += (uint64_t)(s->length - length);
  s->length = length;
  naive_drop(n, s, 0);
}

static void try_release(naive *n, int32_t seq) {
  if (roll(n, 4)) return;
  kv_release(n->k, seq);
  naive_drop(n, &n->s[seq], 0);
  n->s[seq].used = false;
}

static void open_naive(naive *n, kv_type type, int32_t blocks, int32_t stage) {
  err e = {0};
  kv_options o = {.sequences = SEQUENCES, .context = CONTEXT, .type = type, .blocks = blocks, .stage = stage};
  n->type = type;
  n->io = kv_support_open(&CONFIG, &n->memory);
  device *d = n->io->device;
  assert_int_equal(kv_open(&n->k, d, &CONFIG, &o, &n->memory, &e), ERR_OK);
  ops_kv_shape shape = *kv_shape(n->k);
  int32_t blocks_of_mirror[TILES] = {0, 1, 2};
  shape.sequences = 1;
  shape.blocks = TILES;
  assert_non_null(n->mirror = d->table->kv_open(d, &shape));
  d->table->kv_map(d, n->mirror, 0, blocks_of_mirror, TILES);
}

static void close_naive(naive *n) {
  kv_close(n->k);
  n->io->device->table->kv_close(n->io->device, n->mirror);
  kv_support_close(n->io);
  free(n);
}

static void random_operations(kv_type type) {
  static void (*const operations[])(naive *, int32_t) = {
      try_append, try_stage, try_forward_of_tree, try_commit, try_commit, try_rollback, try_release};
  const int32_t kinds = sizeof operations / sizeof operations[0];
  naive *n = calloc(1, sizeof *n);
  n->random = 7;
  open_naive(n, type, 0, POOL_TILES * OPS_TILE);
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
  uint64_t refused = 0;
  for (int i = 0; i < KV_REFUSALS; i++) refused += c.refusals[i];
  print_message(
      "staged %llu in %llu, committed %llu, rejected %llu, rewound %llu, appended %llu, refused %llu\n",
      (unsigned long long)c.staged_rows, (unsigned long long)c.stage_operations,
      (unsigned long long)c.committed_rows, (unsigned long long)c.rejected_rows,
      (unsigned long long)c.rewound_rows, (unsigned long long)c.appended_rows, (unsigned long long)refused);
  assert_true(c.committed_rows > 500 && c.rejected_rows > 500 && c.rewound_rows > 500 && refused > 500);
  assert_true(n->crowded > 100);
  close_naive(n);
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
  int32_t pool[KV_STAGE_MAX]; /* which row of the pool it is */
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
  int32_t levels[8] = {1}, each = 1, before[8] = {-1};
  const bool tree = roll(n, 3) == 0; /* or rows that each hang from another one */
  for (int32_t i = 1; i < count && tree; i++) {
    before[i] = roll(n, 2) ? i - 1 : roll(n, i);
    levels[i] = levels[before[i]] + 1;
    each = levels[i] > each ? levels[i] : each;
  }
  int expected = count > KV_STAGE_MAX - g->count ? ERR_LIMIT : ERR_OK;
  for (int32_t i = 0; i < (tree ? 1 : count); i++) {
    parents[i] = some_row(n, g);
    if (expected == ERR_OK && s->length + grown_depth(g, parents[i]) + each > CONTEXT) expected = ERR_LIMIT;
  }
  if (expected == ERR_OK && roll(n, 10) == 0) {
    while (parents[0] == -1 || g->parent[parents[0]] != KV_SLOT_FREE) parents[0] = roll(n, KV_STAGE_MAX);
    expected = ERR_ARG; /* hangs from nothing */
  }
  assert_int_equal(tree ? kv_grow_tree(n->k, 0, parents[0], before, count, slots)
                        : kv_grow(n->k, 0, parents, count, slots),
                   expected);
  if (expected != ERR_OK) return;
  for (int32_t i = 1; i < count && tree; i++) parents[i] = slots[before[i]];
  assert_int_equal(kv_check_tree(n->k, 0, parents, count), ERR_OK);
  kv_support_begin(n->io);
  for (int32_t i = 0; i < count; i++) {
    assert_int_equal(g->parent[slots[i]], KV_SLOT_FREE);
    g->parent[slots[i]] = parents[i];
    ids[i] = g->row[slots[i]] = n->next_row++;
    int32_t depth = kv_path(n->k, 0, i, paths[i]);
    assert_int_equal(depth, grown_depth(g, slots[i]));
    g->pool[slots[i]] = paths[i][depth - 1];
    for (int32_t k = depth, slot = slots[i]; k > 0; slot = g->parent[slot])
      assert_int_equal(paths[i][--k], g->pool[slot]);
    kv_support_stage(n->io, 0, s->length, paths[i], depth);
  }
  assert_int_equal(kv_grow(n->k, 0, parents, 1, slots), ERR_STATE); /* its forward has not run */
  write_rows(n, ids);
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

static void check_grown(naive *n, const grown *g) {
  int32_t ids[KV_STAGE_MAX], count = 0;
  kv_support_begin(n->io);
  for (int32_t i = 0; i < KV_STAGE_MAX; i++) {
    assert_int_equal(kv_parent(n->k, 0, i), g->parent[i]);
    if (g->parent[i] == KV_SLOT_FREE) continue;
    kv_support_stage(n->io, 0, n->s[0].length, &g->pool[i], 1);
    ids[count++] = g->row[i];
  }
  if (count > 0) check_values(n, ids);
  check_rows(n, 0, n->s[0].rows, n->s[0].length);
}

/* Rows stay where they are and as they are while others come, are committed above them or are dropped. */
static void a_stage_grows_and_keeps(void **state) {
  (void)state;
  naive *n = calloc(1, sizeof *n);
  grown *g = calloc(1, sizeof *g);
  int32_t grew = 0, kept = 0;
  n->random = 11;
  open_naive(n, KV_F16, 0, 0);
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
}

/* Off means untouched: appending and rolling back take nothing for speculation; one stage takes it once. */
static void staging_is_taken_at_the_first_stage(void **state) {
  (void)state;
  naive *n = calloc(1, sizeof *n);
  open_naive(n, KV_F16, 0, 0);
  const int32_t chain[] = {-1, 0, 1};
  try_acquire(n);
  for (int32_t i = 0; i < 50; i++) {
    try_append(n, 0);
    try_rollback(n, 0);
  }
  assert_int_equal(n->memory.calls[MEM_SPECULATION], 0);
  assert_int_equal(n->io->device->counters.staged_writes + n->io->device->counters.commit_copies, 0);
  assert_int_equal(kv_rollback(n->k, 0, 0), ERR_OK);
  assert_int_equal(kv_stage(n->k, 0, chain, 3), ERR_OK);
  uint64_t once = n->memory.calls[MEM_SPECULATION];
  assert_int_equal(kv_commit(n->k, 0, chain, 0), ERR_OK);
  assert_int_equal(kv_stage(n->k, 0, chain, 3), ERR_OK);
  assert_true(once > 0 && n->memory.calls[MEM_SPECULATION] == once);
  close_naive(n);
}

static void impossible_options_are_refused(void **state) {
  (void)state;
  const kv_options bad[] = {{.sequences = 0, .context = 16},
                            {.sequences = 1, .context = 0},
                            {.sequences = 1, .context = MODEL_CONTEXT_MAX + 1},
                            {.sequences = 1, .context = 16, .stage = KV_STAGE_ROWS_MAX + 1},
                            {.sequences = 1, .context = 16, .stage = -1}};
  naive *n = calloc(1, sizeof *n);
  open_naive(n, KV_F16, 0, 0);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    err e = {0};
    kv_cache *k;
    assert_int_equal(kv_open(&k, n->io->device, &CONFIG, &bad[i], NULL, &e), ERR_ARG);
    assert_null(k);
    assert_int_equal(e.code, ERR_ARG);
  }
  kv_close(NULL);
  close_naive(n);
}

/* --- how much memory --- */

static void what_it_will_take_is_told_before(void **state) {
  (void)state;
  for (int32_t blocks = 0; blocks <= 21; blocks += 21) {
    for (kv_type type = KV_F32; type <= KV_F16; type++) {
      mem m = {0};
      err e = {0};
      kv_cache *k;
      const kv_options o = {.sequences = 3, .context = 100, .type = type, .blocks = blocks, .stage = 40};
      kv_support *io = kv_support_open(&CONFIG, &m);
      device *d = io->device;
      memory_needs n = kv_needs(&CONFIG, &o);
      assert_int_equal(kv_open(&k, d, &CONFIG, &o, NULL, &e), ERR_OK);
      assert_true(m.bytes[MEM_KV] >= n.rows && m.bytes[MEM_KV] < n.rows + n.rows / 4 + 4096); /* and tables */
      assert_true(d->table->kv_stage(d, kv_rows(k)));
      assert_true(m.bytes[MEM_SPECULATION] >= n.stage && m.bytes[MEM_SPECULATION] < 2 * n.stage + 4096);
      kv_close(k);
      kv_support_close(io);
    }
  }
}

static size_t total(const kv_options *o) {
  const memory_needs n = kv_needs(&CONFIG, o);
  return n.rows + n.stage;
}

static void it_is_made_as_large_as_the_memory_allows(void **state) {
  (void)state;
  const kv_options asked = {.sequences = 3, .context = 500, .type = KV_F16, .stage = 40};
  const size_t all = total(&asked);
  for (size_t bytes = all / 4; bytes < all * 2; bytes += all / 16) {
    kv_options o = asked, pool = asked, more;
    kv_fit(&CONFIG, &o, bytes);
    assert_true(total(&o) <= bytes && o.context <= asked.context && o.blocks == 0);
    more = o, more.context += KV_BLOCK;
    assert_true(o.context == asked.context || total(&more) > bytes);
    pool.blocks = 1;
    kv_fit(&CONFIG, &pool, bytes);
    assert_true(total(&pool) <= bytes && pool.context == asked.context);
    more = pool, more.blocks++;
    assert_true(total(&more) > bytes);
  }
  kv_options least = asked;
  kv_fit(&CONFIG, &least, 1);
  assert_int_equal(least.context, KV_BLOCK);
}

static device *open_limited(size_t most, mem *m) {
  device *d;
  err e = {0};
  const device_options limited = {.math = OPS_MATH_INT8, .threads = 1, .memory = most};
  if (device_open(&d, "cpu:c", &limited, m, &e) != ERR_OK) fail_msg("%s", e.text);
  return d;
}

/* Where its rows would fit, but not its trees: refused with the numbers, and nothing has been taken. */
static void it_is_refused_where_there_is_no_room(void **state) {
  (void)state;
  err e = {0};
  mem m = {0};
  kv_cache *k;
  const kv_options o = {.sequences = 3, .context = 500, .type = KV_F16, .stage = 1000};
  const memory_needs n = kv_needs(&CONFIG, &o);
  device *d = open_limited((size_t)64 << 20, NULL);
  size_t own = ((size_t)64 << 20) - d->table->left(d);
  d->table->close(d);
  d = open_limited(own + n.rows + n.stage / 2, &m);
  assert_int_equal(kv_open(&k, d, &CONFIG, &o, NULL, &e), ERR_NOMEM);
  assert_null(k);
  assert_int_equal(m.bytes[MEM_KV], 0);
  assert_non_null(strstr(e.text, "a cache of 3 sessions of 500 tokens needs "));
  assert_non_null(strstr(e.text, "--ctx "));
  d->table->close(d);
}

/* Rows in the host's memory need none of the device's. A processor takes them from its own all the same, and
 * so cannot give them here. */
static void rows_in_the_hosts_memory_need_none_of_the_devices(void **state) {
  (void)state;
  err e = {0};
  kv_cache *k;
  const kv_options o = {.sequences = 3, .context = 50000, .type = KV_F16, .stage = 64};
  device *d = open_limited((size_t)1 << 20, NULL);
  assert_true(kv_needs(&CONFIG, &o).rows > (size_t)1 << 20);
  assert_int_equal(kv_open(&k, d, &CONFIG, &o, NULL, &e), ERR_NOMEM);
  assert_non_null(strstr(e.text, "cpu:c has "));
  d->kv_in_host = true;
  assert_int_equal(kv_open(&k, d, &CONFIG, &o, NULL, &e), ERR_NOMEM);
  assert_null(k);
  assert_non_null(strstr(
      e.text, "of the host's memory, page-locked, and that, or what it takes beside it, was not given"));
  d->table->close(d);
}

/* --- what is queued first is done first --- */

/* Rows `first`, first + 1, ... as a chain below the sequence's last row; all of them are written. */
static void stage_chain(naive *n, int32_t seq, int32_t first, int32_t count) {
  int32_t parents[KV_STAGE_MAX] = {0}, ids[KV_STAGE_MAX], path[KV_STAGE_MAX];
  for (int32_t i = 0; i < count; i++) parents[i] = i - 1, ids[i] = first + i;
  assert_int_equal(kv_stage(n->k, seq, parents, count), ERR_OK);
  kv_support_begin(n->io);
  for (int32_t i = 0; i < count; i++) {
    int32_t depth = kv_path(n->k, seq, i, path);
    kv_support_stage(n->io, seq, kv_length(n->k, seq), path, depth);
  }
  write_rows(n, ids);
  kv_staged(n->k, seq);
}

static void commit_chain(naive *n, int32_t seq, int32_t count) {
  int32_t path[KV_STAGE_MAX];
  for (int32_t i = 0; i < count; i++) path[i] = i;
  assert_int_equal(kv_commit(n->k, seq, path, count), ERR_OK);
}

static void append_rows(naive *n, int32_t seq, int32_t first, int32_t count) {
  int32_t ids[CONTEXT];
  kv_support_begin(n->io);
  for (int32_t i = 0; i < count; i++) {
    kv_support_append(n->io, seq, kv_length(n->k, seq) + i);
    ids[i] = first + i;
  }
  assert_int_equal(kv_check_append(n->k, seq, count), ERR_OK);
  write_rows(n, ids);
  kv_appended(n->k, seq, count);
}

/* The sequence's rows are first[0], first[0] + 1, ... for count[0] rows, then first[1], ... */
static void check_runs(naive *n, int32_t seq, int32_t runs, const int32_t *first, const int32_t *count) {
  int32_t ids[CONTEXT], length = 0;
  for (int32_t r = 0; r < runs; r++)
    for (int32_t i = 0; i < count[r]; i++) ids[length++] = first[r] + i;
  assert_int_equal(kv_length(n->k, seq), length);
  check_rows(n, seq, ids, length);
}
#define CHECK_RUNS(n, seq, runs, first, count)                                                               \
  check_runs(n, seq, runs, (const int32_t[])first, (const int32_t[])count)
#define LIST(...)                                                                                            \
  { __VA_ARGS__ }

static naive *open_sequences(int32_t blocks, int32_t stage) {
  naive *n = calloc(1, sizeof *n);
  open_naive(n, KV_F16, blocks, stage);
  for (int32_t i = 0; i < SEQUENCES; i++) assert_int_equal(kv_acquire(n->k), i);
  return n;
}

/* The next sequence stages into the tile that the commit reads. */
static void a_tile_is_used_again_at_once(void **state) {
  (void)state;
  naive *n = open_sequences(0, OPS_TILE);
  stage_chain(n, 0, 100, 5);
  commit_chain(n, 0, 5);
  stage_chain(n, 1, 200, 9);
  commit_chain(n, 1, 9);
  stage_chain(n, 0, 300, 7);
  commit_chain(n, 0, 2);
  stage_chain(n, 2, 400, 16);
  commit_chain(n, 2, 1);
  CHECK_RUNS(n, 0, 2, LIST(100, 300), LIST(5, 2));
  CHECK_RUNS(n, 1, 1, LIST(200), LIST(9));
  CHECK_RUNS(n, 2, 1, LIST(400), LIST(1));
  close_naive(n);
}

static void a_rollback_follows_a_commit(void **state) {
  (void)state;
  naive *n = open_sequences(0, 0);
  append_rows(n, 0, 10, 14);
  stage_chain(n, 0, 100, 8);
  commit_chain(n, 0, 8);
  assert_int_equal(kv_rollback(n->k, 0, 16), ERR_OK); /* two of the eight stay, in two tiles */
  append_rows(n, 0, 500, 3);
  CHECK_RUNS(n, 0, 3, LIST(10, 100, 500), LIST(14, 2, 3));
  stage_chain(n, 0, 200, 4);
  commit_chain(n, 0, 4);
  assert_int_equal(kv_rollback(n->k, 0, 15), ERR_OK); /* before the commit's rows */
  stage_chain(n, 0, 600, 4);
  commit_chain(n, 0, 3); /* at the places of both commits before */
  CHECK_RUNS(n, 0, 3, LIST(10, 100, 600), LIST(14, 1, 3));
  kv_release(n->k, 0);
  assert_int_equal(kv_acquire(n->k), 0);
  append_rows(n, 0, 700, 20);
  CHECK_RUNS(n, 0, 1, LIST(700), LIST(20));
  close_naive(n);
}

/* A block goes to another sequence while rows are on their way to it: what that one writes is written later.
 */
static void a_block_changes_hands_after_a_commit(void **state) {
  (void)state;
  naive *n = open_sequences(6, 0);
  kv_map(n->k, 0, (const int32_t[]){4, 1}, 2, 0);
  append_rows(n, 0, 10, 16);
  stage_chain(n, 0, 100, 6);
  commit_chain(n, 0, 6);
  kv_release(n->k, 0);
  kv_map(n->k, 1, (const int32_t[]){1, 0}, 2, 0);
  append_rows(n, 1, 200, 3); /* over what the commit brings to block 1 */
  CHECK_RUNS(n, 1, 1, LIST(200), LIST(3));
  kv_map(n->k, 2, (const int32_t[]){4, 1, 5}, 3, 16); /* the rows that were there before */
  CHECK_RUNS(n, 2, 1, LIST(10), LIST(16));
  close_naive(n);
}

/* The sequence gets other blocks after its commit: the rows are where they were committed. */
static void a_commit_goes_to_the_blocks_of_its_time(void **state) {
  (void)state;
  naive *n = open_sequences(6, 0);
  kv_map(n->k, 0, (const int32_t[]){0, 1}, 2, 0);
  kv_map(n->k, 1, (const int32_t[]){2, 3}, 2, 0);
  append_rows(n, 0, 10, 15);
  append_rows(n, 1, 50, 20);
  stage_chain(n, 0, 100, 5);
  commit_chain(n, 0, 5);
  kv_map(n->k, 0, (const int32_t[]){2, 3}, 2, 20); /* what the other one has */
  CHECK_RUNS(n, 0, 1, LIST(50), LIST(20));
  CHECK_RUNS(n, 1, 1, LIST(50), LIST(20));
  kv_map(n->k, 2, (const int32_t[]){0, 1}, 2, 20);
  CHECK_RUNS(n, 2, 2, LIST(10, 100), LIST(15, 5));
  close_naive(n);
}

/* One sequence fills a block by a commit, and another reads it before the first one's next forward. */
static void two_sequences_share_a_block(void **state) {
  (void)state;
  naive *n = open_sequences(6, 0);
  kv_map(n->k, 0, (const int32_t[]){0, 1}, 2, 0);
  append_rows(n, 0, 10, 12);
  stage_chain(n, 0, 100, 7);
  commit_chain(n, 0, 7);
  kv_map(n->k, 1, (const int32_t[]){0, 2}, 2, 16);
  append_rows(n, 1, 200, 2);
  CHECK_RUNS(n, 1, 3, LIST(10, 100, 200), LIST(12, 4, 2));
  assert_int_equal(kv_shared(n->k, 0, 1, 100), 16);
  assert_int_equal(kv_shared(n->k, 1, 0, 1), 16);
  assert_int_equal(kv_shared(n->k, 0, 1, 0), 0);
  stage_chain(n, 1, 300, 3);
  commit_chain(n, 1, 3);
  CHECK_RUNS(n, 0, 2, LIST(10, 100), LIST(12, 7));
  CHECK_RUNS(n, 1, 4, LIST(10, 100, 200, 300), LIST(12, 4, 2, 3));
  close_naive(n);
}

/* Refused whole, for a tree and for a growing stage; what others give back is there at once. */
static void a_pool_without_tiles_refuses(void **state) {
  (void)state;
  naive *n = open_sequences(0, 2 * OPS_TILE);
  const int32_t parents[20] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
  const int32_t roots[17] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  int32_t slots[17];
  stage_chain(n, 0, 100, 3);
  kv_counters before = kv_count(n->k);
  assert_int_equal(kv_stage(n->k, 1, parents, 20), ERR_LIMIT);
  assert_int_equal(kv_grow(n->k, 1, roots, 17, slots), ERR_LIMIT);
  assert_int_equal(kv_grow_tree(n->k, 1, -1, roots, 0, slots), ERR_ARG);
  assert_int_equal(kv_count(n->k).refusals[KV_REFUSED_LIMIT], before.refusals[KV_REFUSED_LIMIT] + 2);
  assert_int_equal(kv_count(n->k).staged_rows, before.staged_rows);
  assert_int_equal(kv_parent(n->k, 1, 0), KV_SLOT_FREE);
  assert_int_equal(kv_check_append(n->k, 1, 1), ERR_OK); /* no stage is open */
  stage_chain(n, 1, 200, 16);
  assert_int_equal(kv_stage(n->k, 2, parents, 1), ERR_LIMIT);
  assert_int_equal(kv_rollback(n->k, 1, 0), ERR_OK);
  stage_chain(n, 2, 300, 4);
  commit_chain(n, 0, 3);
  commit_chain(n, 2, 4);
  CHECK_RUNS(n, 0, 1, LIST(100), LIST(3));
  CHECK_RUNS(n, 2, 1, LIST(300), LIST(4));
  stage_chain(n, 1, 400, 20);
  commit_chain(n, 1, 20);
  CHECK_RUNS(n, 1, 1, LIST(400), LIST(20));
  close_naive(n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_operations_f32),
      cmocka_unit_test(random_operations_f16),
      cmocka_unit_test(a_stage_grows_and_keeps),
      cmocka_unit_test(staging_is_taken_at_the_first_stage),
      cmocka_unit_test(impossible_options_are_refused),
      cmocka_unit_test(what_it_will_take_is_told_before),
      cmocka_unit_test(it_is_made_as_large_as_the_memory_allows),
      cmocka_unit_test(it_is_refused_where_there_is_no_room),
      cmocka_unit_test(rows_in_the_hosts_memory_need_none_of_the_devices),
      cmocka_unit_test(a_tile_is_used_again_at_once),
      cmocka_unit_test(a_rollback_follows_a_commit),
      cmocka_unit_test(a_block_changes_hands_after_a_commit),
      cmocka_unit_test(a_commit_goes_to_the_blocks_of_its_time),
      cmocka_unit_test(two_sequences_share_a_block),
      cmocka_unit_test(a_pool_without_tiles_refuses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
