/* rank.h - the kernels of the op `rank` (cpu_kernels.h: cpu_rank_outputs).
 *
 * An output is compared with the last one of the list in the three steps of sample.h. Their noise is not that
 * of neighbours: a list of outputs may have any tokens. So the SIMD kernels gather those that pass the first
 * step, and make the random bits of a register of them at once. */
#pragma once

#include "common/base/noise.h"
#include "kernels/cpu/cpu_kernels.h"

cpu_rank_outputs cpu_rank_outputs_c;
#if defined(__x86_64__)
cpu_rank_outputs cpu_rank_outputs_avx2, cpu_rank_outputs_avx512;
#endif
