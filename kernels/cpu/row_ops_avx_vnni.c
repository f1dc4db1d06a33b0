#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/rank.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/linear_avx2.h"
#include "kernels/cpu/linear_step.h"
#include "kernels/cpu/row_ops_avx2.h"

#define INT8_KERNEL(name, TYPE, ...) [OPS_##TYPE] = cpu_linear_##name##_int8_avx_vnni,
#define F32_KERNEL(name, TYPE, ...)  [OPS_##TYPE] = cpu_linear_##name##_f32_avx2,
const cpu_kernels cpu_kernels_avx_vnni = {
    .name = "avx-vnni",
    .rows_max = LINEAR_AVX2_ROWS,
    .linear_int8 = {CPU_FORMATS(INT8_KERNEL)},
    .linear_f32 = {[OPS_F32] = cpu_linear_f32_avx2,
                   [OPS_F16] = cpu_linear_f16_avx2,
                   [OPS_BF16] = cpu_linear_bf16_avx2,
                   CPU_FORMATS(F32_KERNEL)},
    .linear_step = cpu_linear_step_avx2,
    .norm = cpu_norm_avx2,
    .quantize = cpu_quantize_avx2,
    .rope = cpu_rope_avx2,
    .store = cpu_store_avx2,
    .attention = cpu_attention_avx2,
    .attention_join = cpu_attention_join_avx2,
    .mass = cpu_mass_avx2,
    .swiglu = cpu_swiglu_avx2,
    .sample = cpu_sample_avx2,
    .rank = cpu_rank_outputs_avx2,
};
#endif
