#include "kernels/cpu/cpu_isa.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[CPU_ISA_COUNT] = {
    [CPU_C] = "c", [CPU_AVX2] = "avx2", [CPU_AVX_VNNI] = "avx-vnni", [CPU_AVX512] = "avx512"};

#if defined(__x86_64__)
static const cpu_kernels *const kernels[CPU_ISA_COUNT] = {[CPU_C] = &cpu_kernels_c,
                                                          [CPU_AVX2] = &cpu_kernels_avx2,
                                                          [CPU_AVX_VNNI] = &cpu_kernels_avx_vnni,
                                                          [CPU_AVX512] = &cpu_kernels_avx512};

/* Not every compiler's __builtin_cpu_supports knows F16C. */
static bool has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* Nor AVX-VNNI: leaf 7, subleaf 1. */
static bool has_avx_vnni(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

const char *cpu_isa_lacks(cpu_isa isa) {
  const struct {
    cpu_isa first, last; /* sets that need it */
    const char *name;
    bool has;
  } needs[] = {{CPU_AVX2, CPU_AVX512, "avx2", __builtin_cpu_supports("avx2")},
               {CPU_AVX2, CPU_AVX512, "fma", __builtin_cpu_supports("fma")},
               {CPU_AVX2, CPU_AVX512, "f16c", has_f16c()},
               {CPU_AVX_VNNI, CPU_AVX_VNNI, "avx_vnni", has_avx_vnni()},
               {CPU_AVX512, CPU_AVX512, "avx512f", __builtin_cpu_supports("avx512f")},
               {CPU_AVX512, CPU_AVX512, "avx512bw", __builtin_cpu_supports("avx512bw")},
               {CPU_AVX512, CPU_AVX512, "avx512dq", __builtin_cpu_supports("avx512dq")},
               {CPU_AVX512, CPU_AVX512, "avx512vl", __builtin_cpu_supports("avx512vl")},
               {CPU_AVX512, CPU_AVX512, "avx512_vnni", __builtin_cpu_supports("avx512vnni")}};
  for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
    if (needs[i].first <= isa && isa <= needs[i].last && !needs[i].has) return needs[i].name;
  return NULL;
}
#else
static const cpu_kernels *const kernels[CPU_ISA_COUNT] = {[CPU_C] = &cpu_kernels_c};

const char *cpu_isa_lacks(cpu_isa isa) {
  return isa == CPU_C ? NULL : "x86-64";
}
#endif

bool cpu_isa_has(cpu_isa isa) {
  return !cpu_isa_lacks(isa);
}

cpu_isa cpu_isa_best(void) {
  cpu_isa isa = CPU_ISA_COUNT - 1;
  while (!cpu_isa_has(isa)) isa--; /* plain C lacks nothing */
  return isa;
}

const char *cpu_isa_name(cpu_isa isa) {
  return names[isa];
}

bool cpu_isa_parse(const char *name, cpu_isa *o) {
  for (cpu_isa isa = CPU_C; isa < CPU_ISA_COUNT; isa++) {
    if (strcmp(name, names[isa]) != 0) continue;
    *o = isa;
    return true;
  }
  return false;
}

const cpu_kernels *cpu_isa_kernels(cpu_isa isa) {
  return kernels[isa];
}
