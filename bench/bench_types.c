/* bench_types: the linear of every weight type on one matrix of random weights that is larger than any cache,
 * for 1 to 16 rows. Prints one JSON line a type: {"type", "isa", "threads", "bits": packed bits a weight,
 * "rows": [...], "us": [medians], "gb_s": [weights read a second], "gmac_s": [...]}. */
#include "bench/probe.h"
#include "kernels/cpu/cpu_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS         4096
#define MATRIX_ROWS     40000 /* 164 M weights */
#define ROWS_MAX        16
#define REPETITIONS_MAX 100

static const struct {
  ops_type type;
  const char *name;
  size_t unit_bytes, unit_inputs; /* of the file's form */
} TYPES[] = {
    {OPS_Q4_0, "Q4_0", 18, 32},   {OPS_Q4_1, "Q4_1", 20, 32},   {OPS_Q5_0, "Q5_0", 22, 32},
    {OPS_Q5_1, "Q5_1", 24, 32},   {OPS_Q8_0, "Q8_0", 34, 32},   {OPS_IQ4_NL, "IQ4_NL", 18, 32},
    {OPS_Q2_K, "Q2_K", 84, 256},  {OPS_Q3_K, "Q3_K", 110, 256}, {OPS_Q4_K, "Q4_K", 144, 256},
    {OPS_Q5_K, "Q5_K", 176, 256}, {OPS_Q6_K, "Q6_K", 210, 256},
};
static const int32_t ROWS[] = {1, 2, 4, 6, 8, 12, 16};
#define ROW_COUNTS (sizeof ROWS / sizeof ROWS[0])

static int compare(const void *a, const void *b) {
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

typedef struct job {
  const ops *device;
  ops_weight *w;
  const uint8_t *file;
} job;

static void pack_piece(void *context, int32_t i) {
  const job *j = context;
  j->device->table->pack(j->w->type, j->w->rows, COLUMNS, j->file, (void *)(uintptr_t)j->w->data, i, i + 1);
}

static double median_us(ops *o, const ops_linear *l, ops_act *x, int32_t rows, int repetitions) {
  double us[REPETITIONS_MAX];
  for (int i = -1; i < repetitions; i++) {
    uint64_t begin = probe_clock_ns();
    o->table->linear(o, l, 1, x, rows);
    if (i >= 0) us[i] = (double)(probe_clock_ns() - begin) / 1e3;
  }
  qsort(us, (size_t)repetitions, sizeof us[0], compare);
  return us[repetitions / 2];
}

static void measure(ops *o, size_t type, ops_act *x, float *y, int repetitions) {
  size_t file_bytes = (size_t)MATRIX_ROWS * COLUMNS / TYPES[type].unit_inputs * TYPES[type].unit_bytes;
  size_t bytes = o->table->packed_bytes(TYPES[type].type, MATRIX_ROWS, COLUMNS);
  uint8_t *file = malloc(file_bytes);
  void *data = aligned_alloc(64, bytes);
  if (!file || !data) abort();
  for (size_t i = 0; i < file_bytes; i++) file[i] = (uint8_t)(i * 2654435761u >> 13) & 0x3f;
  ops_weight w = {TYPES[type].type, MATRIX_ROWS, COLUMNS, data};
  o->table->parallel(o, MATRIX_ROWS / OPS_GROUP, pack_piece, &(job){o, &w, file});
  double us[ROW_COUNTS];
  for (size_t r = 0; r < ROW_COUNTS; r++)
    us[r] = median_us(o, &(ops_linear){.w = &w, .y = y}, x, ROWS[r], repetitions);
  printf("{\"type\": \"%s\", \"isa\": \"%s\", \"threads\": %d, \"bits\": %.4f, \"rows\": [", TYPES[type].name,
         o->table->name, o->threads, (double)bytes * 8 / ((double)MATRIX_ROWS * COLUMNS));
  for (size_t r = 0; r < ROW_COUNTS; r++) printf("%s%d", r ? ", " : "", ROWS[r]);
  printf("], \"us\": [");
  for (size_t r = 0; r < ROW_COUNTS; r++) printf("%s%.0f", r ? ", " : "", us[r]);
  printf("], \"gb_s\": [");
  for (size_t r = 0; r < ROW_COUNTS; r++) printf("%s%.1f", r ? ", " : "", (double)bytes / us[r] / 1e3);
  printf("], \"gmac_s\": [");
  for (size_t r = 0; r < ROW_COUNTS; r++)
    printf("%s%.1f", r ? ", " : "", (double)ROWS[r] * MATRIX_ROWS * COLUMNS / us[r] / 1e3);
  printf("]}\n");
  fflush(stdout);
  free(file);
  free(data);
}

int main(int argc, char **argv) {
  int threads = argc >= 4 ? atoi(argv[2]) : 0, repetitions = argc >= 4 ? atoi(argv[3]) : 0;
  ops *o = NULL;
  for (int isa = 0; isa < OPS_CPU_ISA_COUNT && argc >= 4; isa++) {
    ops *device = ops_cpu_has((ops_cpu_isa)isa) ? ops_cpu_open((ops_cpu_isa)isa, threads) : NULL;
    if (device && !o && strcmp(device->table->name, argv[1]) == 0)
      o = device;
    else if (device)
      device->table->close(device);
  }
  if (!o || repetitions < 1 || repetitions > REPETITIONS_MAX) {
    fprintf(stderr, "usage: bench_types avx512|avx-vnni|avx2|c THREADS REPETITIONS [TYPE...]\n");
    return 1;
  }
  size_t n = (size_t)ROWS_MAX * COLUMNS;
  ops_act x = {COLUMNS, malloc(n * 4), malloc(n), malloc(n / 8), malloc(n / 8), malloc(n / 4)};
  float *y = malloc((size_t)ROWS_MAX * MATRIX_ROWS * sizeof *y);
  if (!x.f32 || !x.q8 || !x.scale || !x.sum || !x.total || !y) abort();
  for (size_t i = 0; i < n; i++) x.f32[i] = (float)(i * 2654435761u % 1000) / 500 - 1;
  cpu_kernels_c.quantize(x.q8, x.scale, x.sum, x.total, x.f32, (int32_t)n);
  for (size_t t = 0; t < sizeof TYPES / sizeof TYPES[0]; t++) {
    bool wanted = argc == 4;
    for (int i = 4; i < argc; i++) wanted = wanted || strcmp(argv[i], TYPES[t].name) == 0;
    if (wanted) measure(o, t, &x, y, repetitions);
  }
  free(y);
  free(x.f32), free(x.q8), free(x.scale), free(x.sum), free(x.total);
  o->table->close(o);
  return 0;
}
