/* libs: kernels_cuda_emulated */
/* The order in which the shim runs the threads of a block: a barrier that is missing shows in the result,
 * both one after a write that others read and one before a write to what others still read. */
#include "kernels/cuda/shim.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdlib>
#include <vector>

extern "C" {
#include <cmocka.h>
}

constexpr int WARP = 32;
constexpr int LAUNCHES = 2; /* one of them runs its block backwards */

enum { AFTER_WRITE = 1, BEFORE_REUSE = 2, ALL_BARRIERS = AFTER_WRITE | BEFORE_REUSE };

/* Two rounds in which each thread gives a number to another one, through the same memory. */
static __global__ void exchange(int *out, int distance, int barriers) {
  CUDA_SHARED(memory);
  int *shared = (int *)memory;
  const int self = (int)threadIdx.x, n = (int)blockDim.x;
  int sum = 0;
  for (int round = 1; round <= 2; round++) {
    shared[self] = round * self;
    if (barriers & AFTER_WRITE) __syncthreads();
    sum += shared[(self + distance) % n];
    sum += __shfl_xor_sync(~0u, round, 1);
    if (barriers & BEFORE_REUSE) __syncthreads();
  }
  out[self] = sum;
}

/* How many threads get what they should not. */
static int wrong_sums(int threads, int distance, int barriers) {
  std::vector<int> out((size_t)threads);
  int *device, wrong = 0;
  for (int i = 0; i < LAUNCHES; i++) {
    assert_int_equal(cudaMalloc((void **)&device, out.size() * sizeof(int)), cudaSuccess);
    cuda_launch(exchange, dim3(1), dim3((unsigned)threads), out.size() * sizeof(int), NULL, device, distance,
                barriers);
    assert_int_equal(cudaMemcpy(out.data(), device, out.size() * sizeof(int), cudaMemcpyDeviceToHost),
                     cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
    for (int k = 0; k < threads; k++) wrong += out[(size_t)k] != 3 * ((k + distance) % threads) + 3;
  }
  return wrong;
}

static void with_all_barriers_the_threads_agree(void **state) {
  (void)state;
  for (int threads : {WARP, 4 * WARP, 1024})
    for (int distance : {1, WARP / 2, WARP, threads - 1})
      assert_int_equal(wrong_sums(threads, distance, ALL_BARRIERS), 0);
}

#ifndef __CUDACC__ /* on a GPU this is left to chance */
static void a_missing_barrier_shows(void **state) {
  (void)state;
  for (int threads : {2 * WARP, 4 * WARP, 1024}) {
    for (int distance : {1, WARP, threads - WARP, threads - 1}) {
      assert_int_not_equal(wrong_sums(threads, distance, BEFORE_REUSE), 0);
      assert_int_not_equal(wrong_sums(threads, distance, AFTER_WRITE), 0);
    }
  }
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(with_all_barriers_the_threads_agree),
#ifndef __CUDACC__
      cmocka_unit_test(a_missing_barrier_shows),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
