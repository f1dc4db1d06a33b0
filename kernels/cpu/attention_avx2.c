#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/math_avx2.h"
#include "kernels/cpu/row_ops_c.h"

#define LANES         8
#define ACCUMULATORS  12 /* of 16 registers */
#define VALUE_VECTORS 8
#define BATCH         6
#define attention_each(type, DO)                                                                             \
  DO(type, 1)                                                                                                \
  DO(type, 2)                                                                                                \
  DO(type, 3)                                                                                                \
  DO(type, 4)                                                                                                \
  DO(type, 5)                                                                                                \
  DO(type, 6)

typedef __m256 vector;

#define vector_zero      _mm256_setzero_ps
#define vector_all       _mm256_set1_ps
#define vector_load      _mm256_loadu_ps
#define vector_store     _mm256_storeu_ps
#define vector_add       _mm256_add_ps
#define vector_multiply  _mm256_mul_ps
#define vector_fma       _mm256_fmadd_ps
#define vector_max       _mm256_max_ps
#define vector_of_f16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))

static inline float vector_largest(vector x) {
  x = vector_max(x, _mm256_permute2f128_ps(x, x, 1));
  x = vector_max(x, _mm256_permute_ps(x, 0x4e));
  return _mm256_cvtss_f32(vector_max(x, _mm256_permute_ps(x, 0xb1)));
}

/* The four vectors of a chunk's scores become exp(score - largest). Returns their sum by CPU_LANES. */
static inline __m256 weigh_chunk(float *scores, vector largest) {
  vector e[OPS_CHUNK / LANES];
  _Pragma("GCC unroll 4") for (int i = 0; i < OPS_CHUNK / LANES; i++) {
    e[i] = cpu_exp_avx2(_mm256_sub_ps(vector_load(scores + i * LANES), largest));
    vector_store(scores + i * LANES, e[i]);
  }
  return vector_add(vector_add(e[0], e[2]), vector_add(e[1], e[3]));
}

#include "kernels/cpu/attention_vectors.h"

void cpu_attention_avx2(const cpu_attention *a) {
  if (a->head_dim % LANES == 0)
    attention_attend(a);
  else
    cpu_attention_c(a);
}

void cpu_mass_avx2(const cpu_attention *a, const cpu_mass *m) {
  if (a->head_dim % LANES == 0)
    attention_mass(a, m);
  else
    cpu_mass_c(a, m);
}

void cpu_attention_join_avx2(const cpu_attention *a) {
  if (a->head_dim % LANES == 0)
    attention_join_splits(a);
  else
    cpu_attention_join_c(a);
}
#endif
