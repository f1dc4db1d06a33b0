#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_256.h"

/* Four products of unsigned weights and signed activations, added to an int32 lane, in one instruction. */
INLINE __m256i dot_nibbles(__m256i sum, __m256i w, __m256i four) {
  return _mm256_dpbusd_avx_epi32(sum, w, four);
}

INLINE __m256i dot_nibbles_first(__m256i w, __m256i four) {
  return dot_nibbles(_mm256_setzero_si256(), w, four);
}

INLINE __m256i nibbles_sum(__m256i sum) {
  return sum;
}

/* Unsigned: weight + 128. */
INLINE bytes bytes_of(__m256i w) {
  return (bytes){_mm256_xor_si256(w, _mm256_set1_epi8(-128)), w};
}

INLINE __m256i dot_bytes(__m256i sum, bytes w, __m256i four) {
  return dot_nibbles(sum, w.magnitude, four);
}

INLINE __m256i bytes_sum(__m256i sum, int32_t total) {
  return unbias(sum, total, 7);
}

/* Always: these processors gain with one row too. */
INLINE bool asks_ahead(const int T) {
  (void)T;
  return true;
}

LINEAR_256_INT8(avx_vnni)
#endif
