/* split_runs.c - rows listed split by split (split_runs.h). Sequences that share more than others share stand
 * together in more splits: nothing else is needed for a tree of prefixes. */
#include "kernels/cuda/split_runs.h"
#include "kernels/cuda/device_parts.h"

#define ROWS_MAX 128 /* of a batch: where there are more, most are a prompt's */

/* How many split runs there are, and how many rows the longest of them has. */
typedef struct run_sizes {
  int32_t count, rows;
} run_sizes;

/* Two of them between a number and twice as much: each is a graph. */
static int32_t bucket_of(int32_t count) {
  const int32_t step = cuda_batch_bucket(count) >= 4 ? cuda_batch_bucket(count) / 4 : 1;
  return (count + step - 1) / step * step;
}

/* Has row i the split in common with the row before it? */
static bool joins(const ops_row *rows, int32_t i, int32_t split) {
  return rows[i].sequence == rows[i - 1].sequence || split < rows[i].shared / OPS_SPLIT;
}

static cuda_split_run run_from(const ops_row *rows, int32_t row_count, int32_t first, int32_t split) {
  int32_t count = 1;
  while (count < CUDA_RUN_ROWS && first + count < row_count && joins(rows, first + count, split)) count++;
  return (cuda_split_run){{first, count}, split};
}

static int32_t splits_of(const ops_row *rows, cuda_run run) {
  int32_t last = 0;
  for (int32_t i = run.first; i < run.first + run.count; i++)
    if (rows[i].position > last) last = rows[i].position;
  return last / OPS_SPLIT + 1;
}

static bool is_shared(const ops_row *rows, cuda_run run) {
  int32_t i = run.first + 1;
  while (i < run.first + run.count && rows[i].sequence == rows[i - 1].sequence) i++;
  return i < run.first + run.count;
}

/* Rows of a sequence by themselves: nothing is shared from INT32_MAX on. */
int32_t cuda_split_runs_most(const ops_row *rows, int32_t row_count) {
  int32_t splits = 0;
  bool any = false;
  for (int32_t i = 1; i < row_count; i++) any = any || (!joins(rows, i, INT32_MAX) && joins(rows, i, 0));
  if (!any || row_count > ROWS_MAX) return 0;
  for (int32_t first = 0; first < row_count;) {
    const cuda_run run = run_from(rows, row_count, first, INT32_MAX).run;
    splits += splits_of(rows, run);
    first += run.count;
  }
  return splits;
}

static void note(run_sizes *sizes, cuda_run run) {
  sizes->count++;
  if (run.count > sizes->rows) sizes->rows = run.count;
}

cuda_runs cuda_split_runs_of(const ops_row *rows, int32_t row_count, cuda_split_run *to, int32_t *count) {
  const int32_t most = cuda_split_runs_most(rows, row_count);
  run_sizes sizes[2] = {{0}}; /* of one sequence; of several */
  *count = 0;
  if (most == 0) return (cuda_runs){0};
  for (int32_t split = splits_of(rows, (cuda_run){0, row_count}) - 1; split >= 0; split--) {
    for (int32_t first = 0; first < row_count;) {
      const cuda_split_run here = run_from(rows, row_count, first, split);
      first += here.run.count;
      if (split >= splits_of(rows, here.run)) continue;
      note(&sizes[is_shared(rows, here.run)], here.run);
      to[(*count)++] = here;
    }
  }
  if (4 * *count > 3 * most) *count = 0;
  if (*count == 0) return (cuda_runs){0};
  return (cuda_runs){bucket_of(sizes[0].count), cuda_batch_bucket(sizes[0].rows), bucket_of(sizes[1].count),
                     cuda_batch_bucket(sizes[1].rows)};
}
