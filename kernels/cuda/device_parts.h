/* device_parts.h - the parts of a CUDA device's host side, for its own sources alone (device_*.c).
 *
 * A forward is recorded: each op appends a cuda_op, with the addresses that it works on. `end` looks for a
 * graph of exactly these ops, or captures one, and launches it. Everything that differs between forwards of
 * one graph is in the batch, which `begin` copies to an address that stays. */
#pragma once

#include "common/base/hash.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/rank.h"
#include "kernels/device.h"

#define CUDA_NAME_MAX   24
#define CUDA_WINDOW     ((size_t)8 << 20) /* bytes of a window to fill */
#define CUDA_WINDOWS    2                 /* one is filled while the other one is copied */
#define CUDA_BUCKETS    10                /* 1, 2, 4, ... 512 rows have names */
#define CUDA_GRAPHS_MAX 256               /* 32 sessions with drafts and short contexts use 190 */

struct device_memory {
  uint8_t *at; /* for the device */
  size_t bytes;
  void *host; /* where the host has it, pinned; NULL: it is the device's own */
};

struct device_act {
  device_memory *f32, *tiles; /* tiles NULL: linears read f32 */
  int32_t rows, columns;
  bool bf16; /* cuda_act's */
};

struct device_kv {
  cuda_kv kernels; /* what they get */
  device_memory *keys, *values, *stage_keys, *stage_values, *tables;
};

/* --- ops as they are recorded --- */

typedef enum {
  CUDA_OP_EMBED,
  CUDA_OP_SUPPLY,
  CUDA_OP_CAPTURE,
  CUDA_OP_NORM,
  CUDA_OP_LINEAR,
  CUDA_OP_SWIGLU,
  CUDA_OP_GATED,
  CUDA_OP_ROPE,
  CUDA_OP_ROPE_STORE,
  CUDA_OP_ATTENTION,
  CUDA_OP_MASS,
  CUDA_OP_BOUND,
  CUDA_OP_SAMPLE,
  CUDA_OP_RANK,
  CUDA_OP_KINDS
} cuda_op_kind;

/* Zeroed before it is filled, member by member, because its bytes are compared. */
typedef struct cuda_op {
  cuda_op_kind kind;
  /* count: of jobs; columns of a norm, of what is supplied or captured; the vocabulary */
  int32_t count, layer, view, heads, positions;
  int32_t bucket; /* of captured rows */
  cuda_rows rows;
  cuda_runs runs;
  cuda_act x;
  float *y; /* what it writes, if that is one thing */
  const float *k, *v;
  void *scratch;
  cuda_kv kv;
  bool normed; /* a linear's: its input is `norm`, which nobody else reads */
  bool add;    /* a mass's or bound's: it is added to what is there */
  bool mean;   /* a bound's: of the heads */
  bool stores; /* a linear's: it makes q, k and v, and does the work of a rope_store too */
  cuda_norm_source norm;
  cuda_linear_job jobs[CUDA_JOBS_MAX]; /* swiglu: gate and up */
  cuda_rotary rotary;
  const float *frequency;
  float times;
  const cuda_rank_batch *rankings; /* count: their bucket */
  cuda_rank_logits logits;
  ops_ranked *ranked;
} cuda_op;

/* --- the parts --- */

/* A pinned block of the host and its twin on the device; it grows between forwards. */
typedef struct cuda_upload {
  uint8_t *host;
  device_memory *device;
  size_t capacity, used;
} cuda_upload;

typedef struct cuda_window {
  void *host; /* pinned */
  cudaEvent_t copied;
} cuda_window;

typedef struct cuda_fill { /* the window that is being filled; to NULL: none */
  cuda_window windows[CUDA_WINDOWS];
  int32_t turn;
  uint8_t *to;
  size_t bytes;
} cuda_fill;

/* Rows that the device has written into the host's memory. */
typedef struct cuda_captured {
  float *rows; /* pinned: [capture_count][columns] */
  size_t bytes;
  int32_t columns;
} cuda_captured;

typedef struct cuda_graph {
  hash16 ops;
  cudaGraphExec_t exec; /* NULL: nothing here */
  uint64_t used;        /* when, counted in launches */
  uint64_t usual_us;    /* what it takes, rather too little; 0: not known */
} cuda_graph;

/* How rows attend that have so many heads: found once a forward. */
typedef struct cuda_attending {
  int32_t heads; /* 0: not known yet */
  cuda_runs runs;
  size_t floats; /* of scratch */
} cuda_attending;

typedef struct cuda_forward {
  cuda_upload upload;
  cuda_rows rows, head; /* of the forward that runs */
  cuda_runs runs, long_runs, split_runs;
  cuda_attending attending;
  int32_t row_count, head_count, logit_count, rank_count, staged; /* true counts; staged: rows with a path */
  int32_t end, positions; /* more than any row's position; rounded up */
  device_kv *kv;
  const float *angles; /* of the last rope */
  int32_t rope_dim;
  cuda_op *ops;
  int32_t op_count, op_capacity;
  cuda_upload supplies; /* what `supply` was given, a bucket of rows each */
  cuda_captured captures[OPS_CAPTURES_MAX];
  int32_t capture_count, captures_made, weigh_count;
  bool begun, failed;
  device_memory *rope, *gated, *scratch, *mass, *logits, *sample,
      *rank;    /* grown between forwards, never during one */
  int32_t *ids; /* pinned, the device writes it */
  int32_t ids_capacity;
  ops_ranked *ranked; /* likewise */
  int32_t ranked_capacity;
  int32_t vocabulary; /* of `logits` */
  float *kept;        /* pinned: downloaded logits */
  size_t kept_bytes;
  bool downloaded;
  cudaEvent_t first, last; /* around what the device does */
  uint64_t queued_us;
  uint64_t range;    /* from end to wait */
  cuda_graph *graph; /* what was launched, or NULL */
  bool prepared;     /* ops_answer's */
} cuda_forward;

typedef struct cuda_device {
  device base;
  device_table table; /* with this device's name */
  char name[CUDA_NAME_MAX], variants[CUDA_BUCKETS][CUDA_NAME_MAX];
  int number, major, minor; /* which it is; its compute capability */
  mem *mem;
  size_t limit, taken; /* bytes of device memory; limit 0: none */
  cudaStream_t stream;
  thread_pool *pool;
  int32_t pin[OPS_THREADS_MAX], pin_count; /* processors that the pool is bound to with the first forward */
  bool lost, use_graphs;
  uint64_t lose_at; /* tests: the forward at which the device is lost; 0: never */
  cuda_fill fill;
  cuda_forward forward;
  cuda_graph graphs[CUDA_GRAPHS_MAX];
} cuda_device;

static inline cuda_device *cuda_device_of(device *d) {
  return (cuda_device *)d;
}

/* --- device_cuda.c --- */

/* True when code is cudaSuccess. Otherwise it finds out whether the device is lost. */
bool cuda_device_ok(cuda_device *d, cudaError_t code);
/* The device, which is the calling thread's from now on. Whatever calls the runtime begins with this. */
cuda_device *cuda_device_enter(const device *d);

/* --- device_memory.c --- */

device_memory *cuda_memory_take(device *d, mem_tag tag, size_t bytes);
/* In the host's memory, for kernels alone: they load and store there. */
device_memory *cuda_memory_take_mapped(device *d, mem_tag tag, size_t bytes);
void cuda_memory_drop(device *d, device_memory *m);
size_t cuda_memory_left(const device *d);
/* At least `bytes` in *m, whose contents are lost if it has to grow. False: out of memory, and *m is as
 * before.
 */
bool cuda_memory_grow(cuda_device *d, device_memory **m, mem_tag tag, size_t bytes);
void *cuda_memory_pinned(cuda_device *d, size_t bytes); /* NULL: out of memory */
void cuda_memory_unpin(void *p);                        /* NULL is allowed */
bool cuda_memory_open(cuda_device *d);
void cuda_memory_close(cuda_device *d);

void *cuda_memory_fill(device *d, device_memory *m, size_t at, size_t bytes);
int cuda_memory_filled(device *d);
size_t cuda_memory_window_max(const device *d);
device_memory *cuda_memory_adopt(device *d, const void *host, size_t bytes);
int cuda_memory_read(device *d, const device_memory *m, size_t at, size_t bytes, void *out);
device_act *cuda_memory_act(device *d, int32_t rows, int32_t columns, bool input);
void cuda_memory_act_drop(device *d, device_act *a);
void cuda_memory_act_write(device *d, device_act *a, int32_t rows, const float *from);
int cuda_memory_act_read(device *d, const device_act *a, int32_t rows, float *to);

/* --- device_cache.c --- */

device_kv *cuda_cache_open(device *d, const ops_kv_shape *s);
void cuda_cache_close(device *d, device_kv *k);
bool cuda_cache_stage(device *d, device_kv *k);
void cuda_cache_map(device *d, device_kv *k, int32_t sequence, const int32_t *blocks, int32_t count);
void cuda_cache_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                       int32_t length);

/* --- device_batch.c: begin --- */

bool cuda_batch_open(cuda_device *d);
void cuda_batch_close(cuda_device *d);
bool cuda_batch_begin(device *d, device_kv *k, const ops_batch *b);
/* At least so many bytes; what it held is lost when it grows. False: out of memory, and nothing has changed.
 */
bool cuda_batch_upload_grow(cuda_device *d, cuda_upload *u, size_t bytes);
/* The rankings of the forward that has begun, on the device. */
const cuda_rank_batch *cuda_batch_rankings(const cuda_device *d);
/* The smallest bucket end >= count. */
int32_t cuda_batch_bucket(int32_t count);

/* --- device_ops.c: what is between begin and end --- */

void cuda_ops_embed(device *d, const device_weight *w, device_act *x);
void cuda_ops_supply(device *d, const float *values, device_act *y);
void cuda_ops_capture(device *d, const device_act *x);
void cuda_ops_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y);
void cuda_ops_linear(device *d, const device_linear *jobs, int32_t count, const device_act *x);
void cuda_ops_linear_swiglu(device *d, const device_weight *gate, const device_weight *up,
                            const device_act *x, device_act *y);
void cuda_ops_rope(device *d, const device_rope *r);
void cuda_ops_rope_store(device *d, int32_t layer, const device_rotary *r, device_act *q, const device_act *k,
                         const device_act *v);
void cuda_ops_attention(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y);
void cuda_ops_mass(device *d, int32_t layer, const device_act *q, bool add, device_act *y);
void cuda_ops_bound(device *d, int32_t layer, ops_weighing how, const device_act *q, bool add, device_act *y);
void cuda_ops_head(device *d, const device_weight *w, const device_act *x);
void cuda_ops_rank(device *d, device_ids ids);

/* --- device_fold.c --- */

void cuda_fold(cuda_device *d); /* recorded ops into others */

/* --- device_graph.c --- */

/* Puts the recorded ops into the stream: as a graph where there is one of them, or can be. */
void cuda_graph_run(cuda_device *d);
/* Puts them into the stream one by one, and forgets them. */
void cuda_graph_flush(cuda_device *d);
void cuda_graph_close(cuda_device *d);

/* --- device_wait.c: end and wait --- */

void cuda_wait_end(device *d);
ops_code cuda_wait_answer(device *d, ops_answer *a);
const float *cuda_wait_logits(device *d, int32_t line);
const ops_ranked *cuda_wait_ranked(device *d, int32_t first, int32_t count);
const float *cuda_wait_captured(device *d, int32_t capture, int32_t line);

double cuda_read_rate(device *d);

/* --- device_ranges.c: what a profiler shows by name --- */

/* A range that may end in another function. Gives what cuda_range_end takes. */
uint64_t cuda_range_start(const char *name, int32_t rows);
void cuda_range_end(uint64_t range);
/* A range of the calling thread: the one pushed last is popped first. */
void cuda_range_push(const char *name);
void cuda_range_pop(void);
