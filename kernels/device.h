/* device.h - what computes a model: its memory, its forward pass, its answer.
 *
 * The model's graph is written once, over this table (common/model/model.c). A device owns its memory, which
 * nobody else can read: device_memory, device_act and device_kv are incomplete types. A forward is
 *
 *   begin(batch)  op op op ...  end  wait
 *
 * Ops return nothing and may be queued, recorded and replayed: nothing between begin and end depends on an
 * answer. All arguments are copied at the call, so the caller's arrays are its own again when it returns.
 * What is queued first is done first: an op, a commit and a map see everything that was queued before them.
 * One thread calls the functions of an instance. ops.h defines what the ops compute. */
#pragma once

#include "common/base/err.h"
#include "common/base/mem.h"
#include "kernels/ops.h"

typedef struct device device;
typedef struct device_memory device_memory; /* bytes on the device */
typedef struct device_act device_act; /* [rows][columns] f32 on the device, and its private forms of them */
typedef struct device_kv device_kv;   /* all rows of a cache, their block tables, and the staging pool */

/* A matrix as `pack` makes it. columns is a multiple of OPS_BLOCK for the quantised types, of OPS_UNIT for
 * those named _K. */
typedef struct device_weight {
  ops_type type;
  int32_t rows, columns; /* outputs, inputs */
  const device_memory *memory;
  size_t at; /* its first byte, a multiple of 64 */
} device_weight;

typedef struct device_vector { /* f32; memory NULL: there is none */
  const device_memory *memory;
  size_t at; /* its first byte, a multiple of 64 */
} device_vector;

/* The tokens [0, count) that rows are ranked by. memory NULL: token t is output t of the head. With memory:
 * output i is token i32 [i], i < outputs, and no token at all where that is < 0. Then a row is ranked by
 * outputs [0, common) and those of its ranking's `own`, in which no token is there twice. */
typedef struct device_ids {
  const device_memory *memory;
  size_t at; /* its first byte, a multiple of 64 */
  int32_t count, outputs, common;
} device_ids;

typedef struct device_linear {
  device_weight w;
  device_act *y;      /* [rows][w.rows] */
  bool add;           /* y += instead of y = */
  device_vector bias; /* [w.rows], added to y at last */
} device_linear;

/* Rotary positions: the angle of pair i at position p (of a row: position + rope_shift) is (float)p *
 * frequency[i] in f32; cosine and sine of it are computed in f64 (common/model/rope.h), rounded to f32 and
 * multiplied by `times`. */
typedef struct device_rope {
  device_vector frequency; /* [dim / 2] */
  int32_t dim;
  float times;
} device_rope;

/* How queries and keys are transformed before they are used or stored. A head is normed (as by `norm`) over
 * its components where q_norm, k_norm [head_dim] are there, and then its first rope.dim components are
 * rotated, pairs (2i, 2i + 1). */
typedef struct device_rotary {
  device_vector q_norm, k_norm;
  float eps;
} device_rotary;

typedef struct device_options {
  ops_math math;
  int32_t threads;        /* of a CPU, and of the host's work for any other device; in [1, OPS_THREADS_MAX] */
  int32_t threads_beside; /* of a CPU: so many compute while another program does (`beside`); 0: all */
  int32_t spin_us;        /* that a thread without work spins before it sleeps; 0: cpus_spin_us */
  const int32_t *cpus;    /* [cpu_count] processors to bind the threads to, the caller's first; NULL: none */
  int32_t cpu_count;
  size_t memory;   /* bytes that the device may take; 0: what it has */
  bool kv_in_host; /* of a device with a memory of its own: device.kv_in_host */
  bool tested;     /* refused, unless each op computes the bits of the C reference (devices/self_test.h) */
} device_options;

typedef struct device_table {
  /* --- what it is --- */
  const char *name;   /* "cpu:avx2", "cuda:0": what HELLO and doctor say */
  const char *layout; /* the name of the packed form; it changes whenever that form changes */

  /* --- memory: only between forwards --- */
  /* Zeroed. Counted by tag. NULL: out of memory, which is no lasting state. */
  device_memory *(*take)(device *d, mem_tag tag, size_t bytes);
  void (*drop)(device *d, device_memory *m); /* NULL is allowed */
  /* Bytes that could be taken now, about; others may take them first. SIZE_MAX: it is not known. */
  size_t (*left)(const device *d);
  /* A window of the host's memory to write bytes [at, at + bytes) of m into; `filled` ends it, and only then
   * they are there. One window at a time. NULL: more than window_max at once. */
  void *(*fill)(device *d, device_memory *m, size_t at, size_t bytes);
  int (*filled)(device *d); /* ops_code */
  size_t (*window_max)(const device *d);
  /* Serves from the host's memory, which stays the caller's and unchanged until drop; NULL: this device needs
   * a copy (take, fill). */
  device_memory *(*adopt)(device *d, const void *host, size_t bytes);
  int (*read)(device *d, const device_memory *m, size_t at, size_t bytes, void *out); /* ops_code */

  /* Host work, no device's. Bytes of a packed matrix, a multiple of 64; 0 when they do not fit size_t. */
  size_t (*packed_bytes)(ops_type type, int32_t rows, int32_t columns);
  /* Packs groups [first, last) of OPS_GROUP rows from the file's row-major form; out is the beginning of the
   * whole matrix. Lanes past the last row are zero. Groups stand in their order, each of packed_bytes of
   * OPS_GROUP rows. May be called by several threads for different groups. */
  void (*pack)(ops_type type, int32_t rows, int32_t columns, const void *file, void *out, int32_t first,
               int32_t last);
  /* body(context, i) for every i in [0, count) on the instance's host threads. */
  void (*parallel)(device *d, int32_t count, void (*body)(void *context, int32_t i), void *context);
  /* From the next forward on: does another program compute on the same processors? Then threads_beside of the
   * threads compute. NULL: it makes no difference. */
  void (*beside)(device *d, bool another);

  /* --- activations: made at open. input: a linear reads it, so the device keeps its int8 form where its
   * math wants one --- */
  device_act *(*act)(device *d, int32_t rows, int32_t columns, bool input);
  void (*act_drop)(device *d, device_act *a);
  /* Tests and benchmarks: rows [0, rows) from or to the host's memory; between forwards. */
  void (*act_write)(device *d, device_act *a, int32_t rows, const float *from);
  int (*act_read)(device *d, const device_act *a, int32_t rows, float *to);

  /* --- the cache --- */
  device_kv *(*kv_open)(device *d, const ops_kv_shape *s);
  void (*kv_close)(device *d, device_kv *k);
  bool (*kv_stage)(device *d,
                   device_kv *k); /* takes the staging pool, unless it is there; false: no memory */
  /* The sequence's rows [16 i, 16 i + 16) are in blocks[i] from now on. */
  void (*kv_map)(device *d, device_kv *k, int32_t sequence, const int32_t *blocks, int32_t count);
  /* Staged rows path[0..count) become the sequence's committed rows length.., in all layers. */
  void (*kv_commit)(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                    int32_t length);

  /* --- a forward --- */
  /* k may be NULL for a forward without rope_store and attention. False: no memory for its logits, or the
   * device is lost: nothing has changed, and `wait` says which. */
  bool (*begin)(device *d, device_kv *k, const ops_batch *b);
  /* y row i = values [i][columns of y], in f32, for all rows of the batch. */
  void (*supply)(device *d, const float *values, device_act *y);
  /* x row i = row rows[i].token of w, in f32. */
  void (*embed)(device *d, const device_weight *w, device_act *x);
  /* Keeps rows capture_rows of x, in f32, as they are here. Call i of a forward is its capture i <
   * OPS_CAPTURES_MAX. Only where capture_count is not 0. */
  void (*capture)(device *d, const device_act *x);
  /* y row i = x row i / sqrt(mean of squares + eps) * w. head: of the batch's head_rows, in their order. */
  void (*norm)(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y);
  /* Several matrices over the same rows of x. */
  void (*linear)(device *d, const device_linear *jobs, int32_t count, const device_act *x);
  /* y = silu(gate * x) * (up * x), elementwise. */
  void (*linear_swiglu)(device *d, const device_weight *gate, const device_weight *up, const device_act *x,
                        device_act *y);
  /* The angles of the batch's rows, for the rope_stores that follow. */
  void (*rope)(device *d, const device_rope *r);
  /* Norms and rotates q [rows][heads * head_dim] in place and k [rows][kv_heads * head_dim] on its way, and
   * writes k and v where the row says. The contents of k and v are undefined afterwards. */
  void (*rope_store)(device *d, int32_t layer, const device_rotary *r, device_act *q, const device_act *k,
                     const device_act *v);
  /* y [rows][heads * head_dim] from the keys that views[view] shows each row. */
  void (*attention)(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y);
  /* y [rows][context / OPS_TILE], row i of the first weigh_count of the batch's capture_rows: what the tiles
   * of its committed keys weigh for all its heads, in this layer, is put there, or added where `add`. Its
   * last tile ends with committed row length - 1; what y has beyond stays. */
  void (*mass)(device *d, int32_t layer, const device_act *q, bool add, device_act *y);
  /* The same, by the op `bound` of ops.h: how is OPS_WEIGH_BOUND_MAX or OPS_WEIGH_BOUND_MEAN. */
  void (*bound)(device *d, int32_t layer, ops_weighing how, const device_act *q, bool add, device_act *y);
  /* x: the normed head_rows. Keeps the logits of the first logit_count, makes those of the next rank_count,
   * and chooses the others' tokens. */
  void (*head)(device *d, const device_weight *w, const device_act *x);
  /* Ranks the tokens of the rank_count rows, after `head`, whose outputs reach as far as `ids` and rankings
   * do. */
  void (*rank)(device *d, device_ids ids);
  void (*end)(device *d);
  /* Until the forward is done. a may be NULL. */
  ops_code (*wait)(device *d, ops_answer *a);
  /* f32 [columns of the head's weight's rows] of head row `line` < logit_count of the forward that was waited
   * for last; valid until the next begin. NULL: the device is lost, which the next forward says too, or they
   * cannot be read this once. */
  const float *(*logits)(device *d, int32_t line);
  /* [count] The lists of rankings [first, first + count) of the forward that was waited for last; valid until
   * the next begin. A device may make them only now: ask for many at once where they are wanted, and for none
   * that is not. NULL: the device is lost. */
  const ops_ranked *(*ranked)(device *d, int32_t first, int32_t count);
  /* f32 [columns] of row capture_rows[line] in that capture of the forward that was waited for last; valid
   * until the next begin. NULL: the device is lost. */
  const float *(*captured)(device *d, int32_t capture, int32_t line);

  /* --- what it costs --- */
  /* The widest forward that costs what one of `rows` rows costs: its kernels' step. */
  int32_t (*width)(const device *d, int32_t rows);
  const char *(*variant)(const device *d, int32_t rows); /* the kernels of such a linear; for doctor */
  /* Bytes a second at which the device reads its memory, measured now, between forwards; 0: it cannot be
   * measured. NULL: it is the host's memory, and ops compute at once instead of being queued. */
  double (*read_rate)(device *d);
  void (*close)(device *d);
} device_table;

struct device {
  const device_table *table;
  ops_counters counters;
  ops_math math;
  int32_t threads;     /* of the host, >= 1, the caller's included */
  bool prepares;       /* the first forward of a kind takes longer: ops_answer.prepared */
  int32_t prompt_rows; /* of a forward that reads a prompt, for the best speed; 0: any number will do */
  /* Committed rows of its caches are in the host's memory, where the device reads and writes them, and not in
   * its own: `left` and device_options.memory do not know them. */
  bool kv_in_host;
};

/* Opens a device by name: "cpu" (its best instruction set), "cpu:c", "cpu:avx2", "cpu:avx-vnni",
 * "cpu:avx512", "cuda:0". Memory of the host is counted in m. ERR_ARG (unknown name; the message lists the
 * known ones), ERR_UNSUPPORTED (this machine cannot; says what it lacks), ERR_NOMEM. */
int device_open(device **out, const char *name, const device_options *o, mem *m, err *e);

/* "f32", "int8", "bf16-t25": the class of the bits. */
const char *device_numerics(const device *d);
