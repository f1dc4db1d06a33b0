#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/attention_avx512.h"
#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/math_avx512.h"
#include "kernels/cpu/row_ops_c.h"

#define LANES         16
#define ACCUMULATORS  24 /* of 32 registers */
#define VALUE_VECTORS 4
#define BATCH         24
#define attention_each(type, DO)                                                                             \
  DO(type, 1)                                                                                                \
  DO(type, 2)                                                                                                \
  DO(type, 3)                                                                                                \
  DO(type, 4)                                                                                                \
  DO(type, 5)                                                                                                \
  DO(type, 6)                                                                                                \
  DO(type, 7)                                                                                                \
  DO(type, 8)                                                                                                \
  DO(type, 9)                                                                                                \
  DO(type, 10)                                                                                               \
  DO(type, 11)                                                                                               \
  DO(type, 12)                                                                                               \
  DO(type, 13)                                                                                               \
  DO(type, 14)                                                                                               \
  DO(type, 15)                                                                                               \
  DO(type, 16)                                                                                               \
  DO(type, 17)                                                                                               \
  DO(type, 18)                                                                                               \
  DO(type, 19)                                                                                               \
  DO(type, 20)                                                                                               \
  DO(type, 21)                                                                                               \
  DO(type, 22)                                                                                               \
  DO(type, 23)                                                                                               \
  DO(type, 24)

typedef __m512 vector;

#define vector_zero      _mm512_setzero_ps
#define vector_all       _mm512_set1_ps
#define vector_load      _mm512_loadu_ps
#define vector_store     _mm512_storeu_ps
#define vector_add       _mm512_add_ps
#define vector_multiply  _mm512_mul_ps
#define vector_fma       _mm512_fmadd_ps
#define vector_max       _mm512_max_ps
#define vector_largest   _mm512_reduce_max_ps
#define vector_of_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))

/* The two vectors of a chunk's scores become exp(score - largest). Returns their sum by CPU_LANES. */
static inline __m256 weigh_chunk(float *scores, vector largest) {
  const vector low = cpu_exp_falling_avx512(_mm512_sub_ps(vector_load(scores), largest));
  const vector high = cpu_exp_falling_avx512(_mm512_sub_ps(vector_load(scores + LANES), largest));
  vector_store(scores, low);
  vector_store(scores + LANES, high);
  const vector both = vector_add(low, high);
  return _mm256_add_ps(_mm512_castps512_ps256(both), _mm512_extractf32x8_ps(both, 1));
}

#include "kernels/cpu/attention_vectors.h"

void cpu_attention_avx512(const cpu_attention *a) {
  if (a->head_dim % LANES == 0)
    attention_attend(a);
  else
    cpu_attention_avx2(a);
}

void cpu_mass_avx512(const cpu_attention *a, const cpu_mass *m) {
  if (a->head_dim % LANES == 0)
    attention_mass(a, m);
  else
    cpu_mass_c(a, m);
}

void cpu_attention_join_avx512(const cpu_attention *a) {
  if (a->head_dim % LANES == 0)
    attention_join_splits(a);
  else
    cpu_attention_join_avx2(a);
}
#endif
