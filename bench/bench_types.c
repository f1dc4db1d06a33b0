/* bench_types: the linear of every weight type on one matrix of random weights that is larger than any cache,
 * for 1 to 16 rows, on one device. Prints one JSON line a type: {"type", "device", "threads", "bits": packed
 * bits a weight, "rows": [...], "us": [medians], "gb_s": [weights read a second], "gmac_s": [...]}. */
#include "bench/probe.h"
#include "kernels/device.h"

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
  const device *d;
  ops_type type;
  const uint8_t *file;
  uint8_t *out;
} job;

static void pack_piece(void *context, int32_t i) {
  const job *j = context;
  j->d->table->pack(j->type, MATRIX_ROWS, COLUMNS, j->file, j->out, i, i + 1);
}

static void stop(const char *why) {
  fprintf(stderr, "bench_types: %s\n", why);
  exit(1);
}

static void put(device *d, device_memory *m, const uint8_t *from, size_t bytes) {
  size_t most = d->table->window_max(d);
  for (size_t at = 0, part; at < bytes; at += part) {
    part = bytes - at < most ? bytes - at : most;
    memcpy(d->table->fill(d, m, at, part), from + at, part);
    if (d->table->filled(d) != OPS_OK) stop("the device does not take the weights");
  }
}

static device_weight make_weight(device *d, size_t type, size_t bytes) {
  size_t file_bytes = (size_t)MATRIX_ROWS * COLUMNS / TYPES[type].unit_inputs * TYPES[type].unit_bytes;
  uint8_t *file = malloc(file_bytes), *packed = aligned_alloc(64, bytes);
  device_memory *m = d->table->take(d, MEM_WEIGHTS, bytes);
  if (!file || !packed || !m) stop("no memory");
  for (size_t i = 0; i < file_bytes; i++) file[i] = (uint8_t)(i * 2654435761u >> 13) & 0x3f;
  d->table->parallel(d, MATRIX_ROWS / OPS_GROUP, pack_piece, &(job){d, TYPES[type].type, file, packed});
  put(d, m, packed, bytes);
  free(file);
  free(packed);
  return (device_weight){TYPES[type].type, MATRIX_ROWS, COLUMNS, m, 0};
}

/* From begin to the answer. */
static double forward_us(device *d, const device_linear *l, const device_act *x, int32_t rows) {
  ops_row r[ROWS_MAX];
  for (int32_t i = 0; i < rows; i++) r[i] = (ops_row){.position = i, .length = i + 1};
  uint64_t begin = probe_clock_ns();
  if (!d->table->begin(d, NULL, &(ops_batch){.rows = r, .row_count = rows})) stop("a forward does not begin");
  d->table->linear(d, l, 1, x);
  d->table->end(d);
  if (d->table->wait(d, NULL) != OPS_OK) stop("a forward failed");
  return (double)(probe_clock_ns() - begin) / 1e3;
}

static double median_us(device *d, const device_linear *l, const device_act *x, int32_t rows,
                        int repetitions) {
  double us[REPETITIONS_MAX];
  forward_us(d, l, x, rows);
  for (int i = 0; i < repetitions; i++) us[i] = forward_us(d, l, x, rows);
  qsort(us, (size_t)repetitions, sizeof us[0], compare);
  return us[repetitions / 2];
}

static void print_rates(const double us[ROW_COUNTS], size_t bytes) {
  printf("], \"us\": [");
  for (size_t r = 0; r < ROW_COUNTS; r++) printf("%s%.0f", r ? ", " : "", us[r]);
  printf("], \"gb_s\": [");
  for (size_t r = 0; r < ROW_COUNTS; r++) printf("%s%.1f", r ? ", " : "", (double)bytes / us[r] / 1e3);
  printf("], \"gmac_s\": [");
  for (size_t r = 0; r < ROW_COUNTS; r++)
    printf("%s%.1f", r ? ", " : "", (double)ROWS[r] * MATRIX_ROWS * COLUMNS / us[r] / 1e3);
  printf("]}\n");
  fflush(stdout);
}

static void measure(device *d, size_t type, const device_act *x, device_act *y, int repetitions) {
  size_t bytes = d->table->packed_bytes(TYPES[type].type, MATRIX_ROWS, COLUMNS);
  device_weight w = make_weight(d, type, bytes);
  double us[ROW_COUNTS];
  for (size_t r = 0; r < ROW_COUNTS; r++)
    us[r] = median_us(d, &(device_linear){.w = w, .y = y}, x, ROWS[r], repetitions);
  printf("{\"type\": \"%s\", \"device\": \"%s\", \"threads\": %d, \"bits\": %.4f, \"rows\": [",
         TYPES[type].name, d->table->name, d->threads, (double)bytes * 8 / ((double)MATRIX_ROWS * COLUMNS));
  for (size_t r = 0; r < ROW_COUNTS; r++) printf("%s%d", r ? ", " : "", ROWS[r]);
  print_rates(us, bytes);
  d->table->drop(d, (device_memory *)(uintptr_t)w.memory);
}

static device_act *make_input(device *d) {
  size_t n = (size_t)ROWS_MAX * COLUMNS;
  device_act *x = d->table->act(d, ROWS_MAX, COLUMNS, true);
  float *values = malloc(n * sizeof *values);
  if (!x || !values) stop("no memory");
  for (size_t i = 0; i < n; i++) values[i] = (float)(i * 2654435761u % 1000) / 500 - 1;
  d->table->act_write(d, x, ROWS_MAX, values);
  free(values);
  return x;
}

int main(int argc, char **argv) {
  err e = {0};
  device *d;
  int repetitions = argc >= 4 ? atoi(argv[3]) : 0;
  if (repetitions < 1 || repetitions > REPETITIONS_MAX)
    stop("usage: bench_types DEVICE THREADS REPETITIONS [TYPE...], where DEVICE is cpu, cpu:avx2, ...");
  const device_options o = {.math = OPS_MATH_INT8, .threads = atoi(argv[2])};
  if (device_open(&d, argv[1], &o, NULL, &e) != ERR_OK) stop(e.text);
  device_act *x = make_input(d), *y = d->table->act(d, ROWS_MAX, MATRIX_ROWS, false);
  if (!y) stop("no memory");
  for (size_t t = 0; t < sizeof TYPES / sizeof TYPES[0]; t++) {
    bool wanted = argc == 4;
    for (int i = 4; i < argc; i++) wanted = wanted || strcmp(argv[i], TYPES[t].name) == 0;
    if (wanted) measure(d, t, x, y, repetitions);
  }
  d->table->act_drop(d, x);
  d->table->act_drop(d, y);
  d->table->close(d);
  return 0;
}
