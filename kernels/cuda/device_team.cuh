/* device_team.cuh - products that four warps make together, a team, with both factors in shared memory: on
 * compute capability 9.0 alone; elsewhere DEVICE_TEAMS is 0, and these functions do nothing. They add as
 * tensor_step does it (kernels/cpu/tensor_step.h), as device_multiply_bf16 does.
 *
 * PTX ISA, "Asynchronous warpgroup-level matrix instructions", has the descriptors. */
#pragma once

#include "kernels/cuda/device_code.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DEVICE_TEAMS   1
#define TEAM_ASM(text) asm volatile(text ::: "memory")
#else
#define DEVICE_TEAMS 0
#define TEAM_ASM(text)
#endif

enum device_team_swizzle : uint64_t { TEAM_PLAIN = 0, TEAM_SWIZZLE_32 = 3 };

/* A factor in shared memory. leading, stride: bytes between its pieces, as the PTX ISA names them. */
DEVICE_CODE uint64_t device_team_factor(const void *at, uint64_t leading, uint64_t stride,
                                        device_team_swizzle swizzle) {
#if DEVICE_TEAMS
  const uint64_t address = (uint64_t)__cvta_generic_to_shared(at) & 0x3ffff;
#else
  const uint64_t address = (uint64_t)(uintptr_t)at & 0x3ffff;
#endif
  return address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | (uint64_t)swizzle << 62;
}

/* After the copies to shared memory are there, and before the threads meet: products may read them. */
DEVICE_CODE void device_team_publish() {
  TEAM_ASM("fence.proxy.async.shared::cta;");
}

DEVICE_CODE void device_team_begin() {
  TEAM_ASM("wgmma.fence.sync.aligned;");
}

DEVICE_CODE void device_team_end() {
  TEAM_ASM("wgmma.commit_group.sync.aligned;");
}

/* Until the products of all but the last PENDING times that they were ended are there, and their factors may
 * be overwritten. The compiler shall not move the sums meanwhile. */
template <int TILES, int PENDING> DEVICE_CODE void device_team_wait(float acc[TILES][4]) {
#if DEVICE_TEAMS
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
  DEVICE_UNROLL
  for (int i = 0; i < TILES; i++)
    asm volatile("" : "+f"(acc[i][0]), "+f"(acc[i][1]), "+f"(acc[i][2]), "+f"(acc[i][3])::"memory");
#else
  (void)acc;
#endif
}

#define TEAM_FOUR(i) "+f"(acc[i][0]), "+f"(acc[i][1]), "+f"(acc[i][2]), "+f"(acc[i][3])
#define TEAM_EIGHT(i)                                                                                        \
  TEAM_FOUR(i), TEAM_FOUR(i + 1), TEAM_FOUR(i + 2), TEAM_FOUR(i + 3), TEAM_FOUR(i + 4), TEAM_FOUR(i + 5),    \
      TEAM_FOUR(i + 6), TEAM_FOUR(i + 7)
/* The predicate that a product is added to what is there. */
#define TEAM_ADDS(one) "{.reg .pred add; setp.ne.b32 add, " one ", 0;\n"

/* Begins to add the product of a, 16 inputs of 64 outputs with outputs side by side, and b, the same inputs
 * of TILES * 8 rows with inputs side by side. Lane 4 g + j of warp i gets outputs 16 i + g and 8 further on,
 * of rows 2 j and 2 j + 1 of each eight. */
template <int TILES> DEVICE_CODE void device_team_multiply(float acc[TILES][4], uint64_t a, uint64_t b) {
#if DEVICE_TEAMS
  if constexpr (TILES == 1)
    asm volatile(TEAM_ADDS("%6") "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
                                 "%0,%1,%2,%3"
                                 "}, %4, %5, add, 1, 1, 1, 0;}"
                 : TEAM_FOUR(0)
                 : "l"(a), "l"(b), "r"(1));
  else if constexpr (TILES == 2)
    asm volatile(TEAM_ADDS("%10") "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                                  "%0,%1,%2,%3,%4,%5,%6,%7"
                                  "}, %8, %9, add, 1, 1, 1, 0;}"
                 : TEAM_FOUR(0), TEAM_FOUR(1)
                 : "l"(a), "l"(b), "r"(1));
  else if constexpr (TILES == 4)
    asm volatile(TEAM_ADDS("%18") "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                                  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                                  "}, %16, %17, add, 1, 1, 1, 0;}"
                 : TEAM_FOUR(0), TEAM_FOUR(1), TEAM_FOUR(2), TEAM_FOUR(3)
                 : "l"(a), "l"(b), "r"(1));
  else if constexpr (TILES == 8)
    asm volatile(
        TEAM_ADDS(
            "%34") "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                   "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                   "%24,%25,%26,%27,%28,%29,%30,%31"
                   "}, %32, %33, add, 1, 1, 1, 0;}"
        : TEAM_EIGHT(0)
        : "l"(a), "l"(b), "r"(1));
  else if constexpr (TILES == 16)
    asm volatile(
        TEAM_ADDS(
            "%66") "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                   "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                   "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
                   "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                   "}, %64, %65, add, 1, 1, 1, 0;}"
        : TEAM_EIGHT(0), TEAM_EIGHT(8)
        : "l"(a), "l"(b), "r"(1));
#else
  (void)acc, (void)a, (void)b;
#endif
}

#undef TEAM_FOUR
#undef TEAM_EIGHT
#undef TEAM_ADDS
