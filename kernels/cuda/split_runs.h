/* split_runs.h - how rows are listed of which several sequences begin with the same rows of the cache: split
 * by split, so that each is read once for up to CUDA_RUN_ROWS rows that have it in common. */
#pragma once

#include "kernels/cuda/cuda_kernels.h"

PORTABLE_C_BEGIN

/* As many split runs as cuda_split_runs_of writes at most. 0: it gives none. */
int32_t cuda_split_runs_most(const ops_row *rows, int32_t row_count);

/* Lists all splits of all rows, the last one first, where that is much less to read than each sequence by
 * itself. Returns their numbers, rounded up; shared 0, and *count 0: it is not much less. */
cuda_runs cuda_split_runs_of(const ops_row *rows, int32_t row_count, cuda_split_run *to, int32_t *count);

PORTABLE_C_END
