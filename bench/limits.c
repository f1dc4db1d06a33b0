#include "bench/limits.h"

#include "bench/timed_threads.h"
#include "kernels/cpu/cpu_isa.h"
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE_BYTES    64
#define LINES_AT_ONCE 8 /* sums that do not wait for each other */
#define PAGE_BYTES    4096
#define CHAINS        12      /* of multiply-adds that do not wait for each other: latency times rate */
#define CHAIN_LENGTH  1000000 /* some milliseconds */

/* --- reading --- */

typedef uint64_t line __attribute__((vector_size(LINE_BYTES)));

/* One load of 64 bytes a line; where the processor has no such vector the compiler cuts it. */
#define READ_BODY                                                                                            \
  line sums[LINES_AT_ONCE] = {{0}};                                                                          \
  for (size_t i = 0; i < count; i += LINES_AT_ONCE)                                                          \
    for (size_t k = 0; k < LINES_AT_ONCE; k++) sums[k] += lines[i + k];                                      \
  uint64_t all = 0;                                                                                          \
  for (size_t k = 0; k < LINES_AT_ONCE; k++)                                                                 \
    for (size_t j = 0; j < LINE_BYTES / sizeof all; j++) all += sums[k][j];                                  \
  return all;

typedef uint64_t reader(const line *lines, size_t count); /* count: a multiple of LINES_AT_ONCE */

static uint64_t read_plain(const line *lines, size_t count) {
  READ_BODY
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const line *lines, size_t count) {
  READ_BODY
}
__attribute__((target("avx512f"))) static uint64_t read_avx512(const line *lines, size_t count) {
  READ_BODY
}
#endif

static reader *choose_reader(const char **name) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return *name = "avx512", read_avx512;
  if (__builtin_cpu_supports("avx2")) return *name = "avx2", read_avx2;
#endif
  return *name = "baseline", read_plain;
}

typedef struct reading {
  reader *read;
  const line *lines;
  size_t lines_each; /* of a thread */
} reading;

static uint64_t read_share(const void *context, int thread) {
  const reading *r = context;
  return r->read(r->lines + (size_t)thread * r->lines_each, r->lines_each);
}

/* Huge pages where the system gives them: page walks are not what is measured. Every page is written. */
static void *take_memory(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, bytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < bytes; i += PAGE_BYTES) ((uint8_t *)p)[i] = (uint8_t)(i / PAGE_BYTES);
  return p;
}

bool limits_read(int threads, int passes, long mib, double *seconds, size_t *bytes, const char **lanes) {
  reading r = {.read = choose_reader(lanes)};
  size_t taken = (size_t)mib << 20;
  void *memory = take_memory(taken);
  if (!memory) return false;
  r.lines = memory;
  r.lines_each = taken / LINE_BYTES / (size_t)threads / LINES_AT_ONCE * LINES_AT_ONCE;
  *bytes = r.lines_each * (size_t)threads * LINE_BYTES;
  uint64_t sum;
  bool good = timed_threads_run(threads, passes, read_share, &r, seconds, &sum);
  munmap(memory, taken);
  return good;
}

/* --- multiplying: each chain's sum feeds its next step --- */

typedef uint64_t multiplier(const int8_t *a); /* a [64]: values unknown to the compiler */

static uint64_t multiply_plain(const int8_t *a) {
  int32_t sums[CHAINS] = {0};
  for (int i = 0; i < CHAIN_LENGTH; i++)
    for (int k = 0; k < CHAINS; k++) sums[k] += a[(i + k) % 64] * a[k];
  uint64_t all = 0;
  for (int k = 0; k < CHAINS; k++) all += (uint32_t)sums[k];
  return all;
}

#if defined(__x86_64__)
#define MULTIPLY_LOOP(step)                                                                                  \
  for (int i = 0; i < CHAIN_LENGTH; i++)                                                                     \
    for (int k = 0; k < CHAINS; k++) step;

__attribute__((target("avx512f,avx512vnni"))) static uint64_t multiply_avx512(const int8_t *a) {
  __m512i x = _mm512_loadu_si512(a), sums[CHAINS];
  for (int k = 0; k < CHAINS; k++) sums[k] = _mm512_setzero_si512();
  MULTIPLY_LOOP(sums[k] = _mm512_dpbusd_epi32(sums[k], x, x))
  for (int k = 1; k < CHAINS; k++) sums[0] = _mm512_add_epi32(sums[0], sums[k]);
  uint64_t lanes[8], all = 0; /* unsigned: it may overflow */
  _mm512_storeu_si512(lanes, sums[0]);
  for (int k = 0; k < 8; k++) all += lanes[k];
  return all;
}

__attribute__((target("avx512f"))) static uint64_t multiply_floats_avx512(const int8_t *a) {
  __m512 x = _mm512_set1_ps((float)a[1] / 64), sums[CHAINS];
  for (int k = 0; k < CHAINS; k++) sums[k] = _mm512_set1_ps((float)(a[k] + k));
  MULTIPLY_LOOP(sums[k] = _mm512_fmadd_ps(sums[k], x, x))
  for (int k = 1; k < CHAINS; k++) sums[0] = _mm512_add_ps(sums[0], sums[k]);
  return (uint64_t)_mm512_cvtss_f32(sums[0]);
}

static uint64_t add_lanes(const void *sum256) {
  uint64_t lanes[4], all = 0;
  memcpy(lanes, sum256, sizeof lanes);
  for (int i = 0; i < 4; i++) all += lanes[i];
  return all;
}

__attribute__((target("avx2,avxvnni"))) static uint64_t multiply_avx_vnni(const int8_t *a) {
  __m256i x, sums[CHAINS];
  memcpy(&x, a, sizeof x);
  for (int k = 0; k < CHAINS; k++) sums[k] = _mm256_setzero_si256();
  MULTIPLY_LOOP(sums[k] = _mm256_dpbusd_avx_epi32(sums[k], x, x))
  for (int k = 1; k < CHAINS; k++) sums[0] = _mm256_add_epi32(sums[0], sums[k]);
  return add_lanes(&sums[0]);
}

/* The product takes part in the sum, so it is computed anew in every step. */
__attribute__((target("avx2"))) static uint64_t multiply_avx2(const int8_t *a) {
  __m256i x, sums[CHAINS];
  memcpy(&x, a, sizeof x);
  for (int k = 0; k < CHAINS; k++) sums[k] = x;
  MULTIPLY_LOOP(sums[k] = _mm256_add_epi16(sums[k], _mm256_maddubs_epi16(sums[k], x)))
  for (int k = 1; k < CHAINS; k++) sums[0] = _mm256_add_epi16(sums[0], sums[k]);
  return add_lanes(&sums[0]);
}

__attribute__((target("avx2,fma"))) static uint64_t multiply_floats_avx2(const int8_t *a) {
  __m256 x = _mm256_set1_ps((float)a[1] / 64), sums[CHAINS];
  for (int k = 0; k < CHAINS; k++) sums[k] = _mm256_set1_ps((float)(a[k] + k));
  MULTIPLY_LOOP(sums[k] = _mm256_fmadd_ps(sums[k], x, x))
  for (int k = 1; k < CHAINS; k++) sums[0] = _mm256_add_ps(sums[0], sums[k]);
  return (uint64_t)_mm256_cvtss_f32(sums[0]);
}
#endif

static uint64_t multiply_floats_plain(const int8_t *a) {
  float sums[CHAINS], x = (float)a[1] / 64, all = 0;
  for (int k = 0; k < CHAINS; k++) sums[k] = (float)(a[k] + k);
  for (int i = 0; i < CHAIN_LENGTH; i++)
    for (int k = 0; k < CHAINS; k++) sums[k] = sums[k] * x + x;
  for (int k = 0; k < CHAINS; k++) all += sums[k];
  return (uint64_t)all;
}

typedef struct multiplying {
  multiplier *multiply;
  const char *instruction;
  uint64_t macs; /* of one instruction */
} multiplying;

static multiplying choose_multiplier(void) {
#if defined(__x86_64__)
  if (cpu_isa_has(CPU_AVX512)) return (multiplying){multiply_avx512, "vpdpbusd zmm", 64};
  if (cpu_isa_has(CPU_AVX_VNNI)) return (multiplying){multiply_avx_vnni, "vpdpbusd ymm", 32};
  if (cpu_isa_has(CPU_AVX2)) return (multiplying){multiply_avx2, "vpmaddubsw ymm", 32};
#endif
  return (multiplying){multiply_plain, "plain C", 1};
}

static multiplying choose_float_multiplier(void) {
#if defined(__x86_64__)
  if (cpu_isa_has(CPU_AVX512)) return (multiplying){multiply_floats_avx512, "vfmadd zmm", 16};
  if (cpu_isa_has(CPU_AVX2)) return (multiplying){multiply_floats_avx2, "vfmadd ymm", 8};
#endif
  return (multiplying){multiply_floats_plain, "plain C", 1};
}

static uint64_t multiply_share(const void *context, int thread) {
  int8_t values[LINE_BYTES];
  for (int i = 0; i < LINE_BYTES; i++) values[i] = (int8_t)((i + thread) % 7);
  return ((const multiplying *)context)->multiply(values);
}

bool limits_multiply(limits_numbers numbers, int threads, int passes, double *seconds, uint64_t *macs,
                     const char **instruction) {
  multiplying m = numbers == LIMITS_FLOATS ? choose_float_multiplier() : choose_multiplier();
  *instruction = m.instruction;
  *macs = m.macs * CHAINS * CHAIN_LENGTH * (uint64_t)threads;
  uint64_t sum;
  return timed_threads_run(threads, passes, multiply_share, &m, seconds, &sum);
}

/* --- the best --- */

double limits_read_rate(int threads, int passes) {
  double seconds[TIMED_THREADS_PASSES_MAX];
  size_t bytes;
  const char *lanes;
  if (!limits_read(threads, passes, LIMITS_MIB, seconds, &bytes, &lanes)) return 0;
  return (double)bytes / timed_threads_best(seconds, passes);
}

double limits_multiply_rate(limits_numbers numbers, int threads, int passes, const char **instruction) {
  double seconds[TIMED_THREADS_PASSES_MAX];
  uint64_t macs;
  if (!limits_multiply(numbers, threads, passes, seconds, &macs, instruction)) return 0;
  return (double)macs / timed_threads_best(seconds, passes);
}
