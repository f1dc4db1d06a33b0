/* device_cuda.c - opening a GPU, what it is, and when it is lost. */
#include "kernels/cuda/device_cuda.h"
#include "common/base/cpus.h"
#include "kernels/cpu/pack_weights.h"
#include "kernels/cuda/device_parts.h"
#include "kernels/cuda/host_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_MAX      16
#define CAPABILITY_MAJOR 8                    /* of the oldest devices that the kernels are compiled for */
#define PROMPT_ROWS      512                  /* of a forward: with fewer the processors do not all work */
#define LOSE_VARIABLE    "TANDEM_CUDA_LOSE"   /* tests: the forward, counted from 1, at which it is lost */
#define GRAPHS_VARIABLE  "TANDEM_CUDA_GRAPHS" /* 0: ops are launched one by one, for debugging */

/* --- errors --- */

/* An error that passes is gone after it was read; a lost device tells it again and again. */
static bool tells_again(const cuda_device *d) {
  cudaError_t code = cudaStreamQuery(d->stream);
  return code != cudaSuccess && code != cudaErrorNotReady;
}

bool cuda_device_ok(cuda_device *d, cudaError_t code) {
  if (code == cudaSuccess) return true;
  cudaGetLastError();
  if (code != cudaErrorMemoryAllocation && tells_again(d)) d->lost = true;
  return false;
}

cuda_device *cuda_device_enter(const device *base) {
  cuda_device *d = (cuda_device *)(uintptr_t)base;
  if (!d->lost) cuda_device_ok(d, cudaSetDevice(d->number)); /* it belongs to the calling thread */
  return d;
}

void cuda_device_break(device *base) {
  cuda_put_fault(cuda_device_enter(base)->stream);
}

/* --- which devices there are --- */

typedef enum { NO_DRIVER, OLD_DRIVER, NO_GPU, ANY_GPU } machine;

static machine look(int *count, int *driver, int *runtime) {
  *count = *driver = *runtime = 0;
  cudaDriverGetVersion(driver);
  cudaRuntimeGetVersion(runtime);
  cudaError_t code = cudaGetDeviceCount(count);
  cudaGetLastError();
  if (*driver == 0) return NO_DRIVER;
  if (*driver / 1000 < *runtime / 1000) return OLD_DRIVER;
  return code == cudaSuccess && *count > 0 ? ANY_GPU : NO_GPU;
}

/* ERR_OK: there are devices, *count of them. */
static int look_for_any(int *count, err *e) {
  int driver, runtime;
  switch (look(count, &driver, &runtime)) {
  case NO_DRIVER:
    return err_set(e, ERR_UNSUPPORTED,
                   "this machine has no CUDA driver: install NVIDIA's, or use --device cpu");
  case OLD_DRIVER:
    return err_set(
        e, ERR_UNSUPPORTED,
        "the CUDA driver is of version %d.%d, and this program needs %d.%d: install a newer driver, "
        "or use --device cpu",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  case NO_GPU:
    return err_set(e, ERR_UNSUPPORTED,
                   "the CUDA driver shows no GPU (does CUDA_VISIBLE_DEVICES hide it?): use --device cpu");
  default:
    return ERR_OK;
  }
}

bool cuda_device_at(int32_t i, const char **name, const char **what, const char **lacks) {
  static const char *const lacking[] = {[NO_DRIVER] = "a CUDA driver",
                                        [OLD_DRIVER] = "a newer CUDA driver",
                                        [NO_GPU] = "a GPU",
                                        [ANY_GPU] = ""};
  static char names[DEVICES_MAX][CUDA_NAME_MAX];
  static struct cudaDeviceProp properties[DEVICES_MAX];
  int count, driver, runtime;
  machine m = look(&count, &driver, &runtime);
  if (i < 0 || i >= DEVICES_MAX || i >= (m == ANY_GPU ? count : 1)) return false;
  snprintf(names[i], sizeof names[i], CUDA_DEVICE_PREFIX ":%d", i);
  bool known = m == ANY_GPU && cudaGetDeviceProperties(&properties[i], i) == cudaSuccess;
  *name = names[i];
  *what = known ? properties[i].name : "an NVIDIA GPU";
  *lacks = lacking[m];
  return true;
}

/* The number in a name, "" being the first device's, or -1. */
static int number_of(const char *name) {
  char *end;
  if (!*name) return 0;
  if (*name < '0' || *name > '9') return -1;
  long number = strtol(name, &end, 10);
  return *end || number >= DEVICES_MAX ? -1 : (int)number;
}

static int check_number(int number, err *e) {
  int count, rc = look_for_any(&count, e);
  if (rc != ERR_OK || number < count) return rc;
  return err_set(e, ERR_UNSUPPORTED,
                 "there is no " CUDA_DEVICE_PREFIX ":%d: this machine has %d of them, from 0", number, count);
}

static int check_capability(cuda_device *d, err *e) {
  if (cudaDeviceGetAttribute(&d->major, cudaDevAttrComputeCapabilityMajor, d->number) != cudaSuccess ||
      cudaDeviceGetAttribute(&d->minor, cudaDevAttrComputeCapabilityMinor, d->number) != cudaSuccess)
    return err_set(e, ERR_UNSUPPORTED, CUDA_DEVICE_PREFIX ":%d does not answer: look at nvidia-smi",
                   d->number);
  if (d->major >= CAPABILITY_MAJOR) return ERR_OK;
  return err_set(e, ERR_UNSUPPORTED,
                 CUDA_DEVICE_PREFIX
                 ":%d has compute capability %d.%d, and %d.0 is needed: use another device, "
                 "or --device cpu",
                 d->number, d->major, d->minor, CAPABILITY_MAJOR);
}

/* --- host services --- */

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
  thread_pool_run(cuda_device_of(d)->pool, count, parallel_chunk, &j);
}

static int32_t width(const device *d, int32_t rows) {
  (void)d;
  return cuda_batch_bucket(rows);
}

static const char *variant(const device *d, int32_t rows) {
  int32_t i = 0;
  while (i < CUDA_BUCKETS - 1 && 1 << i < rows) i++;
  return ((const cuda_device *)d)->variants[i];
}

/* --- life --- */

static void device_close(device *base) {
  if (!base) return;
  cuda_device *d = cuda_device_enter(base);
  if (d->stream) cudaStreamSynchronize(d->stream);
  cuda_graph_close(d);
  cuda_batch_close(d);
  cuda_memory_close(d);
  if (d->stream) cudaStreamDestroy(d->stream);
  cudaGetLastError();
  thread_pool_close(d->pool);
  mem_free(d);
}

static const device_table table = {
    .layout = CPU_LAYOUT,
    .take = cuda_memory_take,
    .drop = cuda_memory_drop,
    .left = cuda_memory_left,
    .fill = cuda_memory_fill,
    .filled = cuda_memory_filled,
    .window_max = cuda_memory_window_max,
    .adopt = cuda_memory_adopt,
    .read = cuda_memory_read,
    .packed_bytes = cpu_packed_bytes,
    .pack = cpu_pack,
    .parallel = parallel,
    .act = cuda_memory_act,
    .act_drop = cuda_memory_act_drop,
    .act_write = cuda_memory_act_write,
    .act_read = cuda_memory_act_read,
    .kv_open = cuda_cache_open,
    .kv_close = cuda_cache_close,
    .kv_stage = cuda_cache_stage,
    .kv_map = cuda_cache_map,
    .kv_commit = cuda_cache_commit,
    .begin = cuda_batch_begin,
    .supply = cuda_ops_supply,
    .embed = cuda_ops_embed,
    .capture = cuda_ops_capture,
    .norm = cuda_ops_norm,
    .linear = cuda_ops_linear,
    .linear_swiglu = cuda_ops_linear_swiglu,
    .rope = cuda_ops_rope,
    .rope_store = cuda_ops_rope_store,
    .attention = cuda_ops_attention,
    .mass = cuda_ops_mass,
    .bound = cuda_ops_bound,
    .head = cuda_ops_head,
    .rank = cuda_ops_rank,
    .end = cuda_wait_end,
    .wait = cuda_wait_answer,
    .logits = cuda_wait_logits,
    .ranked = cuda_wait_ranked,
    .captured = cuda_wait_captured,
    .width = width,
    .variant = variant,
    .read_rate = cuda_read_rate,
    .close = device_close,
};

static int start(cuda_device *d, const device_options *o, err *e) {
  const char *lose = getenv(LOSE_VARIABLE), *graphs = getenv(GRAPHS_VARIABLE);
  d->limit = o->memory;
  d->lose_at = lose && d->mem ? strtoull(lose, NULL, 10) : 0; /* not that of a self-test */
  d->use_graphs = !graphs || strcmp(graphs, "0") != 0;
  d->base.prompt_rows = PROMPT_ROWS;
  d->base.prepares = d->use_graphs && d->lose_at == 0; /* a loss is counted from the first real forward */
  for (int32_t i = 0; o->cpus && i < o->cpu_count && i < OPS_THREADS_MAX; i++)
    d->pin[d->pin_count++] = o->cpus[i];
  d->pool = thread_pool_open(o->threads, CPUS_SPIN_US);
  if (!d->pool)
    return err_set(e, ERR_NOMEM, "could not start %d threads: give fewer (--threads)", o->threads);
  cudaError_t code = cudaSetDevice(d->number);
  if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return err_set(e, code == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_UNSUPPORTED,
                   "%s does not start: %s; look at nvidia-smi", d->name, cudaGetErrorString(code));
  }
  return cuda_memory_open(d) && cuda_batch_open(d)
             ? ERR_OK
             : err_set(e, ERR_NOMEM, "%s has no memory left to start with: end what else uses it", d->name);
}

static void describe(cuda_device *d, const device_options *o) {
  snprintf(d->name, sizeof d->name, CUDA_DEVICE_PREFIX ":%d", d->number);
  for (int32_t i = 0; i < CUDA_BUCKETS; i++)
    snprintf(d->variants[i], CUDA_NAME_MAX, "sm_%d%d x%d", d->major % 100, d->minor % 10, 1 << i);
  d->table = table;
  d->table.name = d->name;
  d->base = (device){.table = &d->table, .math = o->math, .threads = o->threads, .kv_in_host = o->kv_in_host};
}

int cuda_device_open(device **out, const char *name, const device_options *o, mem *m, err *e) {
  int number = number_of(name);
  *out = NULL;
  if (number < 0) return ERR_ARG;
  int rc = check_number(number, e);
  if (rc != ERR_OK) return rc;
  if (o->threads < 1 || o->threads > OPS_THREADS_MAX)
    return err_set(e, ERR_ARG, "%d threads are not possible: give 1 to %d (--threads)", o->threads,
                   OPS_THREADS_MAX);
  cuda_device *d = mem_alloc(m, MEM_GENERAL, sizeof *d);
  if (!d) return err_set(e, ERR_NOMEM, "no memory for a device");
  d->number = number;
  d->mem = m;
  rc = check_capability(d, e);
  describe(d, o);
  if (rc == ERR_OK) rc = start(d, o, e);
  if (rc != ERR_OK)
    device_close(&d->base);
  else
    *out = &d->base;
  return rc;
}
