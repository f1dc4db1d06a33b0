/* device_code.cuh - instructions that CUDA C++ has no portable name for, and what they do without a GPU. */
#pragma once

#include "kernels/cpu/cpu_math.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/cuda/shim.h"

#define DEVICE_CODE __device__ __forceinline__

constexpr unsigned DEVICE_WARP = ~0u;
constexpr int DEVICE_LANES = 32;

/* Before a loop. A kernel of one row goes through most of its code once, and waits for each piece of it: a
 * loop is unrolled where its turns overlap, and nowhere else. */
#ifdef __CUDACC__
#define DEVICE_PRAGMA(text)     _Pragma(#text)
#define DEVICE_UNROLL_BY(turns) DEVICE_PRAGMA(unroll turns)
#define DEVICE_UNROLL           _Pragma("unroll")
#define DEVICE_NO_UNROLL        _Pragma("unroll 1")
#define DEVICE_NO_INLINE        __device__ __noinline__
#else
#define DEVICE_UNROLL_BY(turns)
#define DEVICE_UNROLL
#define DEVICE_NO_UNROLL
#define DEVICE_NO_INLINE __attribute__((noinline))
#endif

/* Memory as a value of another type, in one access. at is aligned for it. */
template <class T> DEVICE_CODE T device_load(const void *at) {
#ifdef __CUDACC__
  return *(const T *)at;
#else
  T value;
  memcpy(&value, at, sizeof value);
  return value;
#endif
}

/* Not from the first-level cache: what another block of the same kernel has written. */
template <class T> DEVICE_CODE T device_load_fresh(const void *at) {
#ifdef __CUDACC__
  if constexpr (sizeof(T) == sizeof(uint4)) {
    const uint4 bits = __ldcg((const uint4 *)at);
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
  } else {
    return __ldcg((const T *)at);
  }
#else
  return device_load<T>(at);
#endif
}

template <class T> DEVICE_CODE void device_store(void *at, T value) {
#ifdef __CUDACC__
  *(T *)at = value;
#else
  memcpy(at, &value, sizeof value);
#endif
}

/* The number that stands in an IEEE binary16, exact. */
DEVICE_CODE float device_half(uint32_t bits) {
#ifdef __CUDACC__
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)bits));
  return f;
#else
  return cpu_f16((uint16_t)bits);
#endif
}

/* Both numbers of a pair. The compiler reads each half in place, which it does not where it loads them apart.
 */
DEVICE_CODE void device_halves(uint32_t pair, float *low, float *high) {
#ifdef __CUDACC__
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(*low), "=f"(*high)
      : "r"(pair));
#else
  *low = device_half(pair & 0xffff);
  *high = device_half(pair >> 16);
#endif
}

/* Selects four of the eight bytes of (low, high), by the low three bits of the nibbles of `which`. */
DEVICE_CODE uint32_t device_bytes(uint32_t low, uint32_t high, uint32_t which) {
#ifdef __CUDACC__
  return __byte_perm(low, high, which);
#else
  uint64_t all = (uint64_t)high << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; i++) out |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  return out;
#endif
}

/* An integer of less than 22 bits that is added to its bits is added to the number. And where a number that
 * small is added to it, the low bits are the nearest integer's. */
constexpr float DEVICE_WHOLE = 0x1.8p23f;

/* (float)i, of less than 22 bits. */
DEVICE_CODE float device_float(int32_t i) {
  return cpu_float_of(cpu_bits_of(DEVICE_WHOLE) + (uint32_t)i) - DEVICE_WHOLE;
}

/* c + the products of four bytes of a, which are signed or not, and four signed ones of b. */
template <bool SIGNED> DEVICE_CODE int32_t device_dot_4(uint32_t a, uint32_t b, int32_t c) {
#ifdef __CUDACC__
  int32_t d;
  if constexpr (SIGNED)
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  for (int i = 0; i < 32; i += 8) c += (SIGNED ? (int8_t)(a >> i) : (uint8_t)(a >> i)) * (int8_t)(b >> i);
  return c;
#endif
}

/* --- copies to shared memory that go on while the thread does --- */

/* An address of shared memory, which needs half as many registers and instructions as a pointer. */
#ifdef __CUDACC__
typedef unsigned device_shared;
DEVICE_CODE device_shared device_shared_at(const void *shared) {
  return (unsigned)__cvta_generic_to_shared(shared);
}
#else
typedef unsigned char *device_shared;
DEVICE_CODE device_shared device_shared_at(void *shared) {
  return (unsigned char *)shared;
}
#endif

DEVICE_CODE void device_copy_16_to(device_shared shared, const void *global) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
#else
  shim::copy_later(shared, global, 16);
#endif
}

DEVICE_CODE void device_copy_16(void *shared, const void *global) {
  device_copy_16_to(device_shared_at(shared), global);
}

/* What was copied since the last call is one batch. */
DEVICE_CODE void device_copies_end() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  shim::copies_end();
#endif
}

/* Waits until at most LEFT of the thread's batches are under way. */
template <int LEFT> DEVICE_CODE void device_copies_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#else
  shim::copies_wait(LEFT);
#endif
}

/* --- barriers in shared memory, which threads come to without waiting, and which copies come to --- */

/* Phases follow each other: a phase ends when so many arrivals have come, and all copies that came with
 * them. */
struct device_barrier {
  alignas(8) uint32_t words[2];
};

/* By one thread; all threads of the block meet before anyone uses it. */
DEVICE_CODE void device_barrier_init(device_barrier *b, int32_t arrivals) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(device_shared_at(b)), "r"(arrivals) : "memory");
#else
  shim::signal_init(b->words, arrivals);
#endif
}

/* What the thread wrote before is there for those who have waited for the phase. */
DEVICE_CODE void device_barrier_arrive(device_barrier *b) {
#ifdef __CUDACC__
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(device_shared_at(b))
               : "memory");
#else
  shim::signal_arrive(b->words);
#endif
}

/* Until phase `phase`, counted from 0, has ended; the next one has not. */
DEVICE_CODE void device_barrier_wait(device_barrier *b, uint32_t phase) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define DEVICE_BARRIER_ASK "mbarrier.try_wait" /* sleeps meanwhile */
#else
#define DEVICE_BARRIER_ASK "mbarrier.test_wait"
#endif
#ifdef __CUDACC__
  asm volatile("{.reg .pred ended;\n"
               "again: " DEVICE_BARRIER_ASK ".parity.shared.b64 ended, [%0], %1;\n"
               "@!ended bra again;}" ::"r"(device_shared_at(b)),
               "r"(phase & 1)
               : "memory");
#else
  shim::signal_wait(b->words, phase);
#endif
#undef DEVICE_BARRIER_ASK
}

/* Arrives when all copies that the thread has begun are there. */
DEVICE_CODE void device_barrier_arrive_after_copies(device_barrier *b) {
#ifdef __CUDACC__
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(device_shared_at(b)) : "memory");
#else
  shim::signal_arrive_after_copies(b->words);
#endif
}

/* Asks for a line of memory, so that a load finds it near. What another kernel still writes is not taken. */
DEVICE_CODE void device_prefetch(const void *at) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
  (void)at;
#endif
}

constexpr int32_t DEVICE_LINE = 128; /* bytes that a prefetch brings */

/* --- kernels that begin before the previous one in their stream has ended (launch_early) --- */

/* Until the previous kernel has ended, and what it wrote is there. */
DEVICE_CODE void device_wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#elif !defined(__CUDACC__)
  shim::wait_for_previous();
#endif
}

/* The next kernel may begin, as far as there is room. */
DEVICE_CODE void device_let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* --- tensor cores on bytes: exact integers, so that any order is the same --- */

/* Of a warp's 16 x 8 product, what lane 4 g + j has: c[0], c[1] of row g and columns 2 j, 2 j + 1, then the
 * same of row g + 8. a: rows of 32 (16) inputs, word j of row g, of row g + 8, then with 32 inputs word j + 4
 * of both. b: of column g, word j, then with 32 inputs word j + 4. c is added. */
template <bool SIGNED>
DEVICE_CODE void device_multiply_32(int32_t c[4], const uint32_t a[4], const uint32_t b[2]) {
#ifdef __CUDACC__
  if constexpr (SIGNED)
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  shim::multiply_bytes(c, a, b, 2, SIGNED);
#endif
}

/* The same of pairs of bf16, a word each: rows of 16 inputs, of which word j has 2 j and 2 j + 1. c is an
 * f32, to which the products are added as tensor_step does it (on compute capability 9.0). */
DEVICE_CODE void device_multiply_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const uint32_t b[2] = {b0, b1};
  shim::multiply_bf16(c, a, b);
#endif
}

/* Four matrices of 8 x 8 words of 16 bits in shared memory, turned: lane 8 i + k gives where the eight
 * columns of row k of matrix i lie, side by side and aligned to 16 bytes. Lane 4 g + j gets column g of rows
 * 2 j and 2 j + 1 of each. */
DEVICE_CODE void device_load_turned(uint32_t to[4], const void *row) {
#ifdef __CUDACC__
  const unsigned at = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
#else
  shim::load_turned(to, row);
#endif
}

/* The same, not turned: lane 4 g + j gets columns 2 j and 2 j + 1 of row g of each. */
DEVICE_CODE void device_load_rows(uint32_t to[4], const void *row) {
#ifdef __CUDACC__
  const unsigned at = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
#else
  shim::load_rows(to, row);
#endif
}

/* Two numbers rounded to bf16, the first one in the low half. */
DEVICE_CODE uint32_t device_bf16_pair(float low, float high) {
#ifdef __CUDACC__
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return tensor_bf16(low) | (uint32_t)tensor_bf16(high) << 16;
#endif
}

/* a: word j of row g, of row g + 8; b: of column g, word j. Bytes of a are unsigned. */
DEVICE_CODE void device_multiply_16(int32_t c[4], const uint32_t a[2], const uint32_t b[1]) {
#ifdef __CUDACC__
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#else
  shim::multiply_bytes(c, a, b, 1, false);
#endif
}
