/* libs: kernels_cuda_emulated */
/* The order in which the shim runs the threads of a block: a barrier that is missing shows in the result,
 * both one after a write that others read and one before a write to what others still read. */
#include "kernels/cuda/device_code.cuh"

#include <csetjmp>
#include <cstdarg>
#include <cstdlib>
#include <vector>

extern "C" {
#include <cmocka.h>
}

constexpr int WARP = DEVICE_LANES;
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

/* A warp fills two rooms in turns, four times each, and another one empties them, once they are full or, by
 * mistake, before. */
static __global__ void pass_on(int *out, const int *in, bool in_time) {
  CUDA_SHARED(memory);
  device_barrier *full = (device_barrier *)memory, *empty = full + 2;
  int *rooms = (int *)(memory + 4 * sizeof(device_barrier));
  const int lane = (int)threadIdx.x % WARP;
  if (threadIdx.x < 2) {
    device_barrier_init(full + threadIdx.x, WARP);
    device_barrier_init(empty + threadIdx.x, 1);
  }
  __syncthreads();
  for (int i = 0; i < 8; i++) {
    int *room = rooms + i % 2 * 4 * WARP;
    if (threadIdx.x < WARP) {
      if (i >= 2) device_barrier_wait(empty + i % 2, (uint32_t)(i / 2 - 1));
      device_copy_16(room + 4 * lane, in + (i * WARP + lane) * 4);
      device_barrier_arrive_after_copies(full + i % 2);
    } else {
      if (in_time) device_barrier_wait(full + i % 2, (uint32_t)(i / 2));
      for (int k = 0; k < 4; k++) out[(i * WARP + lane) * 4 + k] = room[4 * (WARP - 1 - lane) + k];
      if (!in_time) device_barrier_wait(full + i % 2, (uint32_t)(i / 2));
      __syncwarp();
      if (lane == 0) device_barrier_arrive(empty + i % 2);
    }
  }
}

/* How many numbers are not there. */
static int lost_numbers(bool in_time) {
  constexpr int n = 8 * WARP * 4;
  std::vector<int> in(n), out(n);
  int *from, *to, wrong = 0;
  for (int i = 0; i < n; i++) in[(size_t)i] = 1000 + i;
  for (int launch = 0; launch < LAUNCHES; launch++) {
    assert_int_equal(cudaMalloc((void **)&from, n * sizeof(int)), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&to, n * sizeof(int)), cudaSuccess);
    assert_int_equal(cudaMemcpy(from, in.data(), n * sizeof(int), cudaMemcpyHostToDevice), cudaSuccess);
    cuda_launch(pass_on, dim3(1), dim3(2 * WARP), 2048, NULL, to, from, in_time);
    assert_int_equal(cudaMemcpy(out.data(), to, n * sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaFree(from), cudaSuccess);
    assert_int_equal(cudaFree(to), cudaSuccess);
    for (int i = 0; i < n; i++) {
      const int lane = i / 4 % WARP;
      wrong += out[(size_t)i] != 1000 + i + (WARP - 1 - 2 * lane) * 4;
    }
  }
  return wrong;
}

static void what_comes_to_a_barrier_is_there_when_its_phase_ends(void **state) {
  (void)state;
  assert_int_equal(lost_numbers(true), 0);
}

#ifndef __CUDACC__ /* on a GPU this is left to chance */
static void a_late_wait_at_a_barrier_shows(void **state) {
  (void)state;
  assert_true(lost_numbers(false) > 0);
}

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
      cmocka_unit_test(what_comes_to_a_barrier_is_there_when_its_phase_ends),
#ifndef __CUDACC__
      cmocka_unit_test(a_missing_barrier_shows),
      cmocka_unit_test(a_late_wait_at_a_barrier_shows),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
