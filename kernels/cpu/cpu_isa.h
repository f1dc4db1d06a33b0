/* cpu_isa.h - instruction sets: which of them this processor can run, and their kernels. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

/* The better ones last. AVX_VNNI: AVX2 with its dot products of bytes; AVX512: F, BW, DQ, VL and VNNI. */
typedef enum { CPU_C, CPU_AVX2, CPU_AVX_VNNI, CPU_AVX512, CPU_ISA_COUNT } cpu_isa;

bool cpu_isa_has(cpu_isa isa); /* can this processor run it */
/* The first feature that this processor lacks for it, as /proc/cpuinfo spells it, or NULL. */
const char *cpu_isa_lacks(cpu_isa isa);
cpu_isa cpu_isa_best(void);

const char *cpu_isa_name(cpu_isa isa);            /* "c", "avx2", "avx-vnni", "avx512" */
bool cpu_isa_parse(const char *name, cpu_isa *o); /* false: no such name */
const cpu_kernels *cpu_isa_kernels(cpu_isa isa);  /* NULL: not built for this architecture */
