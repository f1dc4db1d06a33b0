#include "kernels/cpu/device_cpu.h"

#include "common/base/cpus.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_AT_OPEN 512
#define ALIGNMENT    64

/* --- memory --- */

bool cpu_buffer_take(cpu_device *c, cpu_buffer *b, mem_tag tag, size_t bytes) {
  if (bytes > c->left) return false;
  void *data = mem_alloc(c->mem, tag, bytes);
  if (!data) return false;
  c->left -= bytes;
  *b = (cpu_buffer){data, bytes};
  return true;
}

bool cpu_buffer_grow(cpu_device *c, cpu_buffer *b, mem_tag tag, size_t bytes) {
  cpu_buffer larger;
  if (bytes <= b->bytes) return true;
  if (!cpu_buffer_take(c, &larger, tag, bytes)) return false;
  cpu_buffer_drop(c, b);
  *b = larger;
  return true;
}

void cpu_buffer_drop(cpu_device *c, cpu_buffer *b) {
  mem_free(b->data);
  c->left += b->bytes;
  *b = (cpu_buffer){0};
}

bool cpu_op_grow(cpu_device *c, cpu_buffer *b, size_t bytes) {
  mem_tag tag = c->batch.staged ? MEM_SPECULATION : MEM_ACTIVATIONS;
  if (!cpu_buffer_grow(c, b, tag, bytes)) c->failed = true;
  return !c->failed;
}

static device_memory *wrap(cpu_device *c, device_memory m) {
  device_memory *out = mem_alloc(c->mem, MEM_GENERAL, sizeof *out);
  if (out) *out = m;
  return out;
}

static device_memory *memory_take(device *d, mem_tag tag, size_t bytes) {
  cpu_device *c = cpu_of(d);
  cpu_buffer own;
  assert(!c->running);
  if (!cpu_buffer_take(c, &own, tag, bytes)) return NULL;
  device_memory *m = wrap(c, (device_memory){.own = own, .data = own.data, .bytes = bytes});
  if (!m) cpu_buffer_drop(c, &own);
  return m;
}

static size_t memory_left(const device *d) {
  size_t allowed = ((const cpu_device *)d)->left, system = mem_left("");
  return allowed < system ? allowed : system;
}

/* Nothing is ever written to it: `fill` refuses. */
static device_memory *memory_adopt(device *d, const void *host, size_t bytes) {
  assert(!cpu_of(d)->running);
  return wrap(cpu_of(d),
              (device_memory){.data = (uint8_t *)(uintptr_t)host, .bytes = bytes, .adopted = true});
}

static void memory_drop(device *d, device_memory *m) {
  if (!m) return;
  cpu_buffer_drop(cpu_of(d), &m->own);
  mem_free(m);
}

static void *memory_fill(device *d, device_memory *m, size_t at, size_t bytes) {
  cpu_device *c = cpu_of(d);
  assert(!c->running && !c->window && !m->adopted && at <= m->bytes && bytes <= m->bytes - at);
  c->window = true;
  return m->data + at;
}

static int memory_filled(device *d) {
  assert(cpu_of(d)->window);
  cpu_of(d)->window = false;
  return OPS_OK;
}

static size_t memory_window_max(const device *d) {
  (void)d;
  return SIZE_MAX;
}

static int memory_read(device *d, const device_memory *m, size_t at, size_t bytes, void *out) {
  assert(!cpu_of(d)->running && at <= m->bytes && bytes <= m->bytes - at);
  memcpy(out, m->data + at, bytes);
  return OPS_OK;
}

/* --- activations --- */

typedef struct act_box {
  cpu_act act; /* first: what the model holds */
  cpu_buffer memory;
} act_box;

static size_t aligned(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Parts one after the other; with base NULL it only counts bytes. */
static size_t lay_out(cpu_act *a, uint8_t *base, bool int8, bool bf16) {
  size_t n = (size_t)a->rows * (size_t)a->columns, blocks = n / OPS_BLOCK, at = aligned(n * sizeof(float));
  a->f32 = (float *)(void *)base;
  if (!int8) return at;
  struct {
    void **part;
    size_t bytes;
  } parts[] = {{(void **)&a->q8, n},
               {(void **)&a->scale, blocks * sizeof(float)},
               {(void **)&a->sum, blocks * sizeof(float)},
               {(void **)&a->total, blocks * sizeof(cpu_total)},
               {(void **)&a->bf16, bf16 ? n * sizeof(uint16_t) : 0}};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (base && parts[i].bytes > 0) *parts[i].part = base + at;
    at += aligned(parts[i].bytes);
  }
  return at;
}

/* Other forms are taken only where a weight can read them. */
static device_act *act_take(device *d, int32_t rows, int32_t columns, bool input) {
  cpu_device *c = cpu_of(d);
  assert(!c->running && rows > 0 && columns > 0);
  bool int8 = input && d->math != OPS_MATH_F32 && columns % OPS_BLOCK == 0, bf16 = d->math == OPS_MATH_BF16;
  act_box *box = mem_alloc(c->mem, MEM_GENERAL, sizeof *box);
  if (!box) return NULL;
  box->act = (cpu_act){.rows = rows, .columns = columns};
  if (!cpu_buffer_take(c, &box->memory, MEM_ACTIVATIONS, lay_out(&box->act, NULL, int8, bf16))) {
    mem_free(box);
    return NULL;
  }
  lay_out(&box->act, box->memory.data, int8, bf16);
  return &box->act;
}

static void act_drop(device *d, device_act *a) {
  if (!a) return;
  cpu_buffer_drop(cpu_of(d), &((act_box *)a)->memory);
  mem_free(a);
}

static void act_write(device *d, device_act *a, int32_t rows, const float *from) {
  assert(!cpu_of(d)->running && rows <= a->rows);
  memcpy(a->f32, from, (size_t)rows * (size_t)a->columns * sizeof *from);
  cpu_quantize_rows(cpu_of(d), a, rows);
}

static int act_read(device *d, const device_act *a, int32_t rows, float *to) {
  assert(!cpu_of(d)->running && rows <= a->rows);
  memcpy(to, a->f32, (size_t)rows * (size_t)a->columns * sizeof *to);
  return OPS_OK;
}

/* --- threads --- */

void cpu_run(cpu_device *c, int32_t chunks, int64_t elements, thread_pool_body *body, void *context) {
  if (elements < CPU_SMALL_WORK) {
    for (int32_t i = 0; i < chunks; i++) body(context, i, 0);
  } else {
    thread_pool_run(c->pool, chunks, body, context);
  }
}

typedef struct parallel_job {
  void (*body)(void *context, int32_t i);
  void *context;
} parallel_job;

static void parallel_chunk(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const parallel_job *j = context;
  j->body(j->context, i);
}

static void parallel(device *d, int32_t count, void (*body)(void *context, int32_t i), void *context) {
  parallel_job j = {body, context};
  thread_pool_run(cpu_of(d)->pool, count, parallel_chunk, &j);
}

static void beside(device *d, bool another) {
  cpu_device *c = cpu_of(d);
  assert(!c->running);
  if (!c->pools[1] || c->pool == c->pools[another]) return;
  thread_pool_rest(c->pool);
  c->pool = c->pools[another];
  d->threads = c->threads[another];
}

/* --- what it costs --- */

static int32_t width(const device *d, int32_t rows) {
  (void)d;
  return rows; /* every row more costs something */
}

static const char *variant(const device *d, int32_t rows) {
  const cpu_device *c = (const cpu_device *)d;
  int32_t tiles = cpu_tile_count(c->kernels, rows);
  return c->variants[rows / tiles][rows % tiles != 0];
}

/* "avx2 x4", or "avx2 x4 + avx2 x3" where tiles of both sizes are used. */
static void name_variants(cpu_device *c) {
  const char *name = c->kernels->name;
  for (int32_t rows = 1; rows <= c->kernels->rows_max; rows++) {
    snprintf(c->variants[rows][0], CPU_VARIANT_MAX, "%s x%d", name, rows);
    snprintf(c->variants[rows][1], CPU_VARIANT_MAX, "%s x%d + %s x%d", name, rows + 1, name, rows);
  }
}

/* --- life --- */

static void device_close(device *d) {
  cpu_device *c = cpu_of(d);
  if (!c) return;
  cpu_buffer *buffers[] = {&c->winners, &c->angles, &c->scores,        &c->splits,
                           &c->mass,    &c->logits, &c->rankers.memory};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) cpu_buffer_drop(c, buffers[i]);
  for (int32_t i = 0; i < OPS_CAPTURES_MAX; i++) cpu_buffer_drop(c, &c->captures[i].memory);
  cpu_batch_drop(c);
  for (int i = 0; i < 2; i++) thread_pool_close(c->pools[i]);
  mem_free(c);
}

#define CPU_TABLE(isa)                                                                                       \
  {                                                                                                          \
    .name = "cpu:" isa, .layout = CPU_LAYOUT, .take = memory_take, .drop = memory_drop, .left = memory_left, \
    .fill = memory_fill, .filled = memory_filled, .window_max = memory_window_max, .adopt = memory_adopt,    \
    .read = memory_read, .packed_bytes = cpu_packed_bytes, .pack = cpu_pack, .parallel = parallel,           \
    .beside = beside, .act = act_take, .act_drop = act_drop, .act_write = act_write, .act_read = act_read,   \
    .kv_open = cpu_kv_open, .kv_close = cpu_kv_close, .kv_stage = cpu_kv_stage, .kv_map = cpu_kv_map,        \
    .kv_commit = cpu_kv_commit, .begin = cpu_begin, .supply = cpu_supply, .capture = cpu_capture_rows,       \
    .captured = cpu_captured, .embed = cpu_embed, .norm = cpu_norm, .linear = cpu_linear_op,                 \
    .linear_swiglu = cpu_linear_swiglu, .rope = cpu_rope, .rope_store = cpu_rope_store,                      \
    .attention = cpu_attention_op, .mass = cpu_mass_op, .bound = cpu_bound_op, .head = cpu_head,             \
    .rank = cpu_rank, .end = cpu_end, .wait = cpu_wait, .logits = cpu_logits, .ranked = cpu_ranked,          \
    .width = width, .variant = variant, .close = device_close                                                \
  }

static const device_table tables[CPU_ISA_COUNT] = {[CPU_C] = CPU_TABLE("c"),
                                                   [CPU_AVX2] = CPU_TABLE("avx2"),
                                                   [CPU_AVX_VNNI] = CPU_TABLE("avx-vnni"),
                                                   [CPU_AVX512] = CPU_TABLE("avx512")};

bool cpu_device_at(int32_t i, const char **name, const char **what, const char **lacks) {
  static const char *const by[CPU_ISA_COUNT] = {[CPU_C] = "this processor by plain C",
                                                [CPU_AVX2] = "this processor by AVX2",
                                                [CPU_AVX_VNNI] = "this processor by AVX2 and AVX-VNNI",
                                                [CPU_AVX512] = "this processor by AVX-512 and its VNNI"};
  if (i < 0 || i >= CPU_ISA_COUNT) return false;
  cpu_isa isa = CPU_ISA_COUNT - 1 - i;
  *name = tables[isa].name;
  *what = by[isa];
  *lacks = cpu_isa_has(isa) ? "" : cpu_isa_lacks(isa);
  return true;
}

/* Threads are bound at the first forward, on the thread that runs it; here one learns whether they may be. */
static int keep_pin(cpu_device *c, const device_options *o, err *e) {
  cpu_set_t allowed;
  if (!o->cpus) return ERR_OK;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  c->pin_count = cpu_min(o->cpu_count, OPS_THREADS_MAX);
  for (int32_t i = 0; i < c->pin_count; i++) {
    c->pin[i] = o->cpus[i];
    if (c->pin[i] < 0 || c->pin[i] >= CPU_SETSIZE || !CPU_ISSET(c->pin[i], &allowed))
      return err_set(e, ERR_ARG, "the system does not let threads stay on processor %d: give others (--pin)",
                     c->pin[i]);
  }
  return ERR_OK;
}

static int start(cpu_device *c, const device_options *o, err *e) {
  name_variants(c);
  size_t winners = (size_t)o->threads * CPU_SAMPLE_ROWS * sizeof(cpu_winner);
  if (!cpu_buffer_take(c, &c->winners, MEM_GENERAL, winners) || !cpu_batch_reserve(c, ROWS_AT_OPEN))
    return err_set(e, ERR_NOMEM, "no memory for the device %s", c->base.table->name);
  c->threads[0] = o->threads;
  c->threads[1] = o->threads_beside < o->threads ? o->threads_beside : 0; /* all of them: one pool for both */
  const int32_t spin_us = o->spin_us ? o->spin_us : cpus_spin_us(o->threads);
  for (int i = 0; i < 2 && c->threads[i]; i++)
    if (!(c->pools[i] = thread_pool_open(c->threads[i], spin_us)))
      return err_set(e, ERR_NOMEM, "could not start %d threads: give fewer (--threads)", o->threads);
  c->pool = c->pools[0];
  return keep_pin(c, o, e);
}

static int choose(const char *name, cpu_isa *isa, err *e) {
  *isa = cpu_isa_best();
  if (*name && !cpu_isa_parse(name, isa)) return ERR_ARG; /* whose message names all devices */
  const char *lacking = cpu_isa_lacks(*isa);
  if (!lacking) return ERR_OK;
  return err_set(e, ERR_UNSUPPORTED, "this processor has no %s, which cpu:%s needs: use cpu", lacking, name);
}

int cpu_device_open(device **out, const char *name, const device_options *o, mem *m, err *e) {
  cpu_isa isa;
  int rc = choose(name, &isa, e);
  if (rc != ERR_OK) return rc;
  if (o->threads < 1 || o->threads > OPS_THREADS_MAX)
    return err_set(e, ERR_ARG, "%d threads are not possible: give 1 to %d (--threads)", o->threads,
                   OPS_THREADS_MAX);
  if (o->threads_beside > o->threads)
    return err_set(e, ERR_ARG, "%d of %d threads are not possible: give at most all (--threads-beside)",
                   o->threads_beside, o->threads);
  cpu_device *c = mem_alloc(m, MEM_GENERAL, sizeof *c);
  if (!c) return err_set(e, ERR_NOMEM, "no memory for the device cpu:%s", cpu_isa_name(isa));
  *c = (cpu_device){.base = {.table = &tables[isa], .math = o->math, .threads = o->threads},
                    .kernels = cpu_isa_kernels(isa),
                    .mem = m,
                    .left = o->memory ? o->memory : SIZE_MAX};
  rc = start(c, o, e);
  if (rc != ERR_OK) {
    device_close(&c->base);
    return rc;
  }
  *out = &c->base;
  return ERR_OK;
}
