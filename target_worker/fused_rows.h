/* fused_rows.h - the states of committed rows, to which fc is applied, in the form in which they travel. The
 * engine's. */
#pragma once

#include "common/model/fusion.h"
#include "target_worker/engine_job.h"

typedef struct fused_rows {
  uint8_t *rows; /* of the jobs in hand, one behind the other; NULL until there is a job */
  size_t capacity;
  float *states; /* [FUSION_ROWS_MAX][fusion_columns], of one forward */
  uint64_t done; /* rows, ever */
  uint64_t us;   /* that they took */
} fused_rows;

void fused_rows_fini(fused_rows *t);
/* Does jobs of ENGINE_FUSE, list[count], with as few forwards as it can, and gives their results the rows,
 * which are valid until the next call; or their code: ERR_INTERNAL, ERR_DEVICE. */
void fused_rows_run(fused_rows *t, fusion *f, const engine_job *list, int32_t count, engine_result *out);
