#include "tests/support/ops_devices.h"
#include "tests/support/random.h"

device *devices[OPS_MATH_COUNT][SUPPORT_DEVICES];
int32_t device_count;

uint32_t random_bits(void) {
  static uint64_t state = 1;
  return (uint32_t)(random_next(&state) >> 40);
}

float random_float(void) {
  return ((float)random_bits() / 0x1p23f - 1.0f) * 2.0f;
}

float *random_floats(size_t n) {
  float *x = malloc(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = random_float();
  return x;
}

void assert_near(double got, double expected, double bound, const char *what) {
  if (!(fabs(got - expected) <= bound))
    fail_msg("%s: %.9g instead of %.9g, bound %.3g", what, got, expected, bound);
}

/* --- the devices under test, of each class of bits; [0] is the reference, in one thread --- */

void open_device(const char *name, int32_t threads) {
  assert_in_range(device_count, 0, SUPPORT_DEVICES - 1);
  for (int math = 0; math < OPS_MATH_COUNT; math++) {
    device_options o = {.math = (ops_math)math, .threads = threads};
    err e = {0};
    if (device_open(&devices[math][device_count], name, &o, NULL, &e) != ERR_OK)
      fail_msg("%s: %s", name, e.text);
  }
  device_count++;
}

int open_devices(void **state) {
  (void)state;
  const char *name, *more = getenv("TANDEM_TEST_DEVICE");
  device_count = 0;
  open_device("cpu:c", 1);
  for (int32_t i = 0; (name = devices_name(i)); i++) open_device(name, SUPPORT_THREADS);
  if (more) open_device(more, SUPPORT_THREADS);
  for (int32_t i = 0; i < device_count; i++) print_message("device: %s\n", devices[0][i]->table->name);
  return 0;
}

int close_devices(void **state) {
  (void)state;
  for (int math = 0; math < OPS_MATH_COUNT; math++)
    for (int32_t i = 0; i < device_count; i++) devices[math][i]->table->close(devices[math][i]);
  return 0;
}

void assert_same(const device *d, const void *got, const void *reference, size_t bytes, const char *what) {
  if (memcmp(got, reference, bytes) != 0)
    fail_msg("%s: %s differs from the C reference", what, d->table->name);
}

/* --- memory --- */

device_memory *upload(device *d, const void *from, size_t bytes) {
  device_memory *m = d->table->take(d, MEM_GENERAL, bytes);
  size_t most = d->table->window_max(d);
  assert_non_null(m);
  for (size_t at = 0, part; at < bytes; at += part) {
    part = bytes - at < most ? bytes - at : most;
    void *to = d->table->fill(d, m, at, part);
    assert_non_null(to);
    memcpy(to, (const uint8_t *)from + at, part);
    assert_int_equal(d->table->filled(d), OPS_OK);
  }
  return m;
}

device_vector upload_floats(device *d, const float *x, size_t n) {
  return (device_vector){upload(d, x, n * sizeof *x), 0};
}

void drop_vector(device *d, device_vector v) {
  d->table->drop(d, (device_memory *)(uintptr_t)v.memory);
}

device_act *act_of(device *d, int32_t rows, int32_t columns, bool input, const float *from) {
  device_act *a = d->table->act(d, rows, columns, input);
  assert_non_null(a);
  if (from) d->table->act_write(d, a, rows, from);
  return a;
}

float *read_act(device *d, const device_act *a, int32_t rows, int32_t columns) {
  float *x = malloc((size_t)rows * (size_t)columns * sizeof *x);
  assert_int_equal(d->table->act_read(d, a, rows, x), OPS_OK);
  return x;
}

void set_values(matrix *m) {
  const quant_type *t = quant_type_of(m->type);
  size_t n = (size_t)m->rows * (size_t)m->columns;
  for (size_t i = 0; i < n; i++)
    m->values[i] =
        quant_value(t, m->file + i / (size_t)t->inputs * (size_t)t->bytes, (int)(i % (size_t)t->inputs));
}

/* --- a weight in its file form, with the values that the form stands for --- */

/* Small positive or negative scales, subnormal ones among them. */
static uint16_t random_half(void) {
  return (uint16_t)((random_bits() & 0x83ff) | (random_bits() % 13) << 10);
}

static size_t fill_plain(ops_type type, uint8_t *at, double *value) {
  uint32_t bits;
  float f = random_float();
  memcpy(&bits, &f, 4);
  if (type == OPS_F32) {
    memcpy(at, &f, 4);
    *value = (double)f;
    return 4;
  }
  uint16_t h = type == OPS_BF16 ? (uint16_t)(bits >> 16) : random_half();
  memcpy(at, &h, 2);
  bits = (uint32_t)h << 16;
  memcpy(&f, &bits, 4);
  *value = type == OPS_BF16 ? (double)f : quant_half(at);
  return 2;
}

matrix make_matrix(ops_type type, int32_t rows, int32_t columns) {
  size_t n = (size_t)rows * (size_t)columns;
  matrix m = {type, rows, columns, malloc(n * 4), malloc(n * sizeof(double))};
  uint8_t *at = m.file;
  const quant_type *t = quant_type_of(type);
  for (size_t i = 0; i < n && !t; i++) at += fill_plain(type, at, m.values + i);
  for (size_t i = 0; i < n && t; i += (size_t)t->inputs, at += t->bytes) quant_fill(t, at, random_bits, 0);
  if (t) set_values(&m);
  return m;
}

void free_matrix(matrix *m) {
  free(m->file);
  free(m->values);
}

device_weight pack_matrix(device *d, const matrix *m) {
  size_t bytes = d->table->packed_bytes(m->type, m->rows, m->columns);
  int32_t groups = (m->rows + OPS_GROUP - 1) / OPS_GROUP;
  assert_int_equal(bytes % 64, 0);
  void *packed = aligned_alloc(64, bytes);
  d->table->pack(m->type, m->rows, m->columns, m->file, packed, 0, groups / 2);
  d->table->pack(m->type, m->rows, m->columns, m->file, packed, groups / 2, groups);
  device_weight w = {m->type, m->rows, m->columns, upload(d, packed, bytes), 0};
  free(packed);
  return w;
}

void drop_weight(device *d, device_weight w) {
  d->table->drop(d, (device_memory *)(uintptr_t)w.memory);
}

/* --- forwards --- */

void begin_rows(device *d, int32_t rows) {
  ops_row r[SUPPORT_ROWS];
  assert_in_range(rows, 1, SUPPORT_ROWS);
  for (int32_t i = 0; i < rows; i++) r[i] = (ops_row){.position = i, .length = i + 1};
  assert_true(d->table->begin(d, NULL, &(ops_batch){.rows = r, .row_count = rows}));
}

void end_rows(device *d) {
  d->table->end(d);
  assert_int_equal(d->table->wait(d, NULL), OPS_OK);
}

float *linear_of(device *d, const matrix *m, const device_act *x, int32_t rows) {
  device_weight w = pack_matrix(d, m);
  device_act *y = act_of(d, rows, m->rows, false, NULL);
  begin_rows(d, rows);
  d->table->linear(d, &(device_linear){.w = w, .y = y}, 1, x);
  end_rows(d);
  float *out = read_act(d, y, rows, m->rows);
  d->table->act_drop(d, y);
  drop_weight(d, w);
  return out;
}

float *quantised_of(device *d, const device_act *x, int32_t rows, int32_t columns) {
  const quant_type *t = quant_type_of(OPS_Q8_0);
  matrix m = {OPS_Q8_0, columns, columns, calloc((size_t)columns * (size_t)columns, 2), NULL};
  for (int32_t i = 0; i < columns * columns / t->inputs; i++) m.file[i * t->bytes + 1] = 0x3c; /* 1.0 */
  for (int32_t i = 0; i < columns; i++) {
    int32_t at = i * columns + i;
    m.file[at / t->inputs * t->bytes + 2 + at % t->inputs] = 1;
  }
  float *out = linear_of(d, &m, x, rows);
  free(m.file);
  return out;
}
