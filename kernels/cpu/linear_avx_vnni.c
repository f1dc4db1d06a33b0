#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_256.h"

INLINE int run_length(const cpu_format f) {
  return f.sub == 16 ? CPU_VECTORS / 2 : CPU_VECTORS;
}

/* Four products of unsigned weights and signed activations, added to an int32 lane, in one instruction. */
INLINE __m256i run_more(__m256i run, __m256i u, __m256i four) {
  return _mm256_dpbusd_avx_epi32(run, u, four);
}

INLINE __m256i run_first(__m256i u, __m256i four) {
  return run_more(_mm256_setzero_si256(), u, four);
}

INLINE __m256i widen(__m256i run) {
  return run;
}

INLINE __m256i widen_scaled(__m256i run, __m256i factors) {
  return _mm256_mullo_epi32(run, _mm256_srai_epi32(factors, 16));
}

/* Unsigned: weight + 128. */
INLINE bytes bytes_of(__m256i w) {
  return (bytes){_mm256_xor_si256(w, _mm256_set1_epi8(-128)), w};
}

INLINE __m256i dot_bytes(__m256i sum, bytes w, __m256i four) {
  return run_more(sum, w.magnitude, four);
}

INLINE int bytes_bias(void) {
  return 128;
}

/* Always: these processors gain with one row too. */
INLINE bool asks_ahead(const int T) {
  (void)T;
  return true;
}

#define INT8(name, ...) BY_ROWS(cpu_linear_##name##_int8_avx_vnni, name##_int8)
CPU_FORMATS(INT8)
#endif
