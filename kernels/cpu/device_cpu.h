/* device_cpu.h - the CPU as a device (kernels/device.h): the state that the files of its ops share, and what
 * each of them puts into the table.
 *
 * An op runs when it is called. It is cut into chunks for the threads of the pool, and calls the kernels of
 * one instruction set. */
#pragma once

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"

#define CPU_SAMPLE_ROWS  128 /* rows whose winners a thread has room for */
#define CPU_VARIANT_MAX  48
#define CPU_SMALL_WORK   8000 /* elements: below, waking a thread costs more than it saves */
#define CPU_CHUNKS       4    /* of a linear, a thread: a late thread costs a quarter of its share */
#define CPU_PANEL_FLOATS (8 * CPU_ROWS_MAX * OPS_GROUP)

typedef struct cpu_buffer { /* memory that counts against the device's limit; {0}: none */
  void *data;
  size_t bytes;
} cpu_buffer;

typedef struct cpu_view { /* as ops_view */
  int32_t *first;
  ops_span *spans;
} cpu_view;

/* A batch as the kernels want it, copied by `begin`. */
typedef struct cpu_batch {
  cpu_buffer memory, path_memory, span_memory, token_memory,
      bias_memory; /* memory: what has room for `room` rows */
  int32_t room, path_room, span_room, token_room, bias_room;
  cpu_row *rows; /* [row_count] */
  int32_t *paths;
  int32_t *firsts; /* [OPS_VIEWS_MAX][room + 1] */
  ops_span *spans; /* of all views */
  int32_t *head_rows;
  ops_sampling *choices;
  int32_t *ids; /* the answer */
  ops_ranking *rankings;
  ops_ranked *ranked; /* the lists; count -1: it has not been asked for */
  int32_t *tokens;    /* of the rankings' histories */
  int32_t *bias_tokens;
  float *bias_values; /* of the rankings */
  int32_t *capture_rows;
  cpu_view views[OPS_VIEWS_MAX];
  int32_t row_count, view_count, head_count, logit_count, rank_count, capture_count, weigh_count;
  bool staged; /* some row has a path */
} cpu_batch;

typedef struct cpu_capture {
  cpu_buffer memory; /* float [capture_count][columns] */
  int32_t columns;
} cpu_capture;

/* What ranks tokens, a thread each. */
typedef struct cpu_rankers {
  cpu_buffer memory;
  int32_t count, vocabulary, common; /* as device_ids */
  const int32_t *tokens;             /* of each output, or NULL */
} cpu_rankers;

typedef struct cpu_device {
  device base;
  const cpu_kernels *kernels;
  thread_pool *pool;     /* of this forward: one of these; pools[1]: while another program computes */
  thread_pool *pools[2]; /* [another] pools[1] may be NULL: then there is one for both */
  int32_t threads[2];    /* of them; base.threads: of `pool` */
  mem *mem;
  size_t left; /* bytes that may still be taken */
  int32_t pin[OPS_THREADS_MAX], pin_count;
  cpu_buffer winners;                                  /* cpu_winner [threads][CPU_SAMPLE_ROWS] */
  char variants[CPU_ROWS_MAX + 1][2][CPU_VARIANT_MAX]; /* [rows of the last tile][the others have one more] */

  /* The forward. */
  cpu_batch batch;
  device_kv *kv;
  bool running, failed, window; /* window: `fill` has not ended */
  uint64_t began_us, took_us;
  cpu_buffer angles; /* float [rows][2][rope_dim]: cosines, each twice; then sines as (-s, s) */
  int32_t rope_dim;
  cpu_buffer scores; /* of attention: the threads' scratch */
  cpu_buffer splits; /* of attention: what each piece of the splits came to */
  cpu_buffer mass;   /* of mass: what each split came to */
  cpu_buffer logits; /* float [logit_count + rank_count][vocab] */
  cpu_rankers rankers;
  cpu_capture captures[OPS_CAPTURES_MAX];
  int32_t captures_made;
  int32_t vocab;
} cpu_device;

/* Late commits: the next forward over the cache carries them out, layer by layer, because attention needs the
 * same cache lines anyhow. */
typedef struct cpu_late {
  int32_t *from, *to; /* [stage]: staged rows, and the rows of all blocks which they become */
  int32_t *sequence;  /* [commit_room]: whose, of each commit */
  int32_t *first;     /* [commit_room + 1]: where its rows begin in from and to */
  int32_t commits;
  bool *settled; /* [layers]: those that have been carried out */
  int32_t settled_count;
} cpu_late;

/* Keys and values of all sequences. Elements are of the shape's type.
 * - keys [layers][kv_heads][blocks][head_dim][OPS_TILE]
 * - values [layers][kv_heads][blocks][OPS_TILE][head_dim]
 * - stage_keys [layers][kv_heads][stage / OPS_TILE][head_dim][OPS_TILE], NULL before kv_stage
 * - stage_values [layers][kv_heads][stage][head_dim], NULL before kv_stage */
struct device_kv {
  ops_kv_shape shape;
  cpu_buffer rows, tables, stage, late_memory;
  void *keys, *values, *stage_keys, *stage_values;
  cpu_kv *sequences; /* [shape.sequences] */
  cpu_late late;
};

struct device_memory {
  cpu_buffer own;
  uint8_t *data; /* own.data, or adopted */
  size_t bytes;
  bool adopted;
};

/* name: what stands behind "cpu:", or "" for the best. */
int cpu_device_open(device **out, const char *name, const device_options *o, mem *m, err *e);
/* The i-th instruction set, the better ones first, as devices_at (devices.h) tells it. */
bool cpu_device_at(int32_t i, const char **name, const char **what, const char **lacks);

static inline cpu_device *cpu_of(device *d) {
  return (cpu_device *)d;
}

static inline int32_t cpu_min(int32_t a, int32_t b) {
  return a < b ? a : b;
}

/* Zeroed. False: no memory, and nothing has changed. */
bool cpu_buffer_take(cpu_device *c, cpu_buffer *b, mem_tag tag, size_t bytes);
/* Has at least so many bytes from now on; what it held is lost when it grows. */
bool cpu_buffer_grow(cpu_device *c, cpu_buffer *b, mem_tag tag, size_t bytes);
void cpu_buffer_drop(cpu_device *c, cpu_buffer *b);

/* The same for an op, which has no other way to say so: without memory the forward fails. */
bool cpu_op_grow(cpu_device *c, cpu_buffer *b, size_t bytes);

/* body over [0, chunks), by several threads when the work is worth it. */
void cpu_run(cpu_device *c, int32_t chunks, int64_t elements, thread_pool_body *body, void *context);

static inline const float *cpu_vector(device_vector v) {
  return v.memory ? (const float *)(const void *)(v.memory->data + v.at) : NULL;
}

static inline cpu_weight cpu_weight_of(const device_weight *w) {
  return (cpu_weight){w->type, w->rows, w->columns, w->memory->data + w->at};
}

/* --- cpu_batch.c --- */
bool cpu_batch_reserve(cpu_device *c, int32_t rows); /* at open */
void cpu_batch_drop(cpu_device *c);
bool cpu_begin(device *d, device_kv *k, const ops_batch *b);
void cpu_end(device *d);
ops_code cpu_wait(device *d, ops_answer *a);

/* --- cpu_rows.c --- */
void cpu_embed(device *d, const device_weight *w, device_act *x);
void cpu_supply(device *d, const float *values, device_act *y);
void cpu_capture_rows(device *d, const device_act *x);
const float *cpu_captured(device *d, int32_t capture, int32_t line);
void cpu_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y);
/* The int8 form of inputs [first, first + count) of a row, whole blocks. */
void cpu_quantize_part(const cpu_kernels *k, cpu_act *x, int32_t row, int32_t first, int32_t count);
/* For an op whose chunks do not write whole blocks. */
void cpu_quantize_rows(cpu_device *c, cpu_act *x, int32_t rows);

/* --- cpu_linear.c --- */
void cpu_linear_op(device *d, const device_linear *jobs, int32_t count, const device_act *x);
void cpu_linear_swiglu(device *d, const device_weight *gate, const device_weight *up, const device_act *x,
                       device_act *y);
/* y [rows][w->rows] from the first `rows` rows of x. */
void cpu_linear_into(cpu_device *c, const cpu_weight *w, const cpu_act *x, int32_t rows, float *y);
int32_t cpu_group_count(const cpu_weight *w);
/* Rows are cut into as few tiles as the kernel allows, of nearly equal size, the larger ones first. */
int32_t cpu_tile_count(const cpu_kernels *k, int32_t rows);
int32_t cpu_tile_begin(int32_t rows, int32_t tiles, int32_t i);
/* Outputs of groups [g, end) for rows [row, row + rows) of x, to be used while they are in the nearest cache:
 * panel [group][row][OPS_GROUP]. */
void cpu_panel_fill(const cpu_kernels *k, const cpu_weight *w, const cpu_act *x, int32_t g, int32_t end,
                    int32_t row, int32_t rows, float *panel);

/* --- cpu_head.c --- */
void cpu_head(device *d, const device_weight *w, const device_act *x);
const float *cpu_logits(device *d, int32_t line);

/* --- cpu_rank.c --- */
void cpu_rank(device *d, device_ids ids);
const ops_ranked *cpu_ranked(device *d, int32_t first, int32_t count);

/* --- cpu_cache.c --- */
device_kv *cpu_kv_open(device *d, const ops_kv_shape *s);
void cpu_kv_close(device *d, device_kv *k);
bool cpu_kv_stage(device *d, device_kv *k);
void cpu_kv_map(device *d, device_kv *k, int32_t sequence, const int32_t *blocks, int32_t count);
void cpu_kv_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                   int32_t length);
void cpu_rope(device *d, const device_rope *r);
void cpu_rope_store(device *d, int32_t layer, const device_rotary *r, device_act *q, const device_act *k,
                    const device_act *v);
/* Carries out what was committed late, in this layer. */
void cpu_late_settle(device_kv *k, int32_t layer);
/* Where rows of (layer, kv head) begin in an area of `rows` rows a head. */
void *cpu_area_at(const ops_kv_shape *s, void *area, int32_t rows, int32_t layer, int32_t head);
/* Rows of all blocks. */
int32_t cpu_committed_rows(const ops_kv_shape *s);

/* --- cpu_attention.c --- */
void cpu_attention_op(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y);

/* --- cpu_mass.c --- */
void cpu_mass_op(device *d, int32_t layer, const device_act *q, bool add, device_act *y);

/* --- cpu_bound.c --- */
void cpu_bound_op(device *d, int32_t layer, ops_weighing how, const device_act *q, bool add, device_act *y);
