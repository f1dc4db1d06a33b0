/* libs: kernels_cuda_emulated */
/* The NVTX ranges of a CUDA device, as a tool in this program gets them. */
#include "kernels/cuda/device_cuda.h"
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

#ifndef NVTX_LOAD_SEQUENCE_VERSION /* the first version of the header took tools from shared libraries alone \
                                    */

int main(void) {
  puts("skipped: no NVTX header");
  return 0;
}

#else

#define ROWS       8
#define COLUMNS    64
#define VOCABULARY 100

/* --- the tool --- */

static char seen[1000]; /* what it was told since the test began */
static nvtxRangeId_t started;

static nvtxDomainHandle_t create_domain(const char *name) {
  assert_string_equal(name, "tandem");
  return (nvtxDomainHandle_t)seen;
}

__attribute__((format(printf, 2, 3))) static void note(nvtxDomainHandle_t domain, const char *format, ...) {
  size_t used = strlen(seen);
  va_list arguments;
  assert_ptr_equal(domain, seen);
  va_start(arguments, format);
  vsnprintf(seen + used, sizeof seen - used, format, arguments);
  va_end(arguments);
}

static nvtxRangeId_t start_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *a) {
  assert_int_equal(a->payloadType, NVTX_PAYLOAD_TYPE_INT32);
  note(domain, "start %s, %d rows\n", a->message.ascii, a->payload.iValue);
  return ++started;
}

static void end_range(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  assert_int_equal(id, started);
  note(domain, "end\n");
}

static int push_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *a) {
  note(domain, "push %s\n", a->message.ascii);
  return 0;
}

static int pop_range(nvtxDomainHandle_t domain) {
  note(domain, "pop\n");
  return 0;
}

static int attach(NvtxGetExportTableFunc_t table_of) {
  const NvtxExportTableCallbacks *callbacks = table_of(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned size;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start_range;
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end_range;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_range;
  return 1;
}

/* --- a small model: embed and a linear, with weights of 0 --- */

typedef struct small_model {
  device *d;
  device_memory *memory;
  device_act *x, *y;
} small_model;

static small_model open_model(const char *graphs) {
  const device_options o = {.math = OPS_MATH_INT8, .threads = 1};
  small_model m = {0};
  err e = {0};
  setenv("TANDEM_CUDA_GRAPHS", graphs, 1);
  if (device_open(&m.d, "emulated:0", &o, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  m.memory = m.d->table->take(m.d, MEM_WEIGHTS, m.d->table->packed_bytes(OPS_F32, VOCABULARY, COLUMNS));
  m.x = m.d->table->act(m.d, ROWS, COLUMNS, true);
  m.y = m.d->table->act(m.d, ROWS, VOCABULARY, false);
  return m;
}

static void close_model(small_model *m) {
  m->d->table->act_drop(m->d, m->x);
  m->d->table->act_drop(m->d, m->y);
  m->d->table->drop(m->d, m->memory);
  m->d->table->close(m->d);
}

static ops_code forward(small_model *m, int32_t count) {
  const device_table *t = m->d->table;
  const device_weight w = {OPS_F32, VOCABULARY, COLUMNS, m->memory, 0};
  const ops_row rows[ROWS] = {{.length = 1}};
  const ops_batch b = {.rows = rows, .row_count = count};
  seen[0] = 0;
  if (t->begin(m->d, NULL, &b)) {
    t->embed(m->d, &w, m->x);
    t->linear(m->d, &(device_linear){.w = w, .y = m->y}, 1, m->x);
    t->end(m->d);
  }
  return t->wait(m->d, NULL);
}

/* --- tests --- */

static void ops_are_ranges_in_that_of_their_forward(void **state) {
  (void)state;
  small_model m = open_model("0");
  assert_int_equal(forward(&m, 5), OPS_OK);
  assert_string_equal(seen, "start forward, 5 rows\npush embed\npop\npush linear\npop\nend\n");
  close_model(&m);
}

static void a_graph_shows_its_ops_when_it_is_captured(void **state) {
  (void)state;
  small_model m = open_model("1");
  assert_int_equal(forward(&m, 3), OPS_OK);
  assert_string_equal(seen, "start forward, 3 rows\npush graph capture\n"
                            "push embed\npop\npush linear\npop\npop\nend\n");
  assert_int_equal(forward(&m, 4), OPS_OK);
  assert_string_equal(seen, "start forward, 4 rows\nend\n");
  close_model(&m);
}

static void a_forward_that_fails_ends_its_range_too(void **state) {
  (void)state;
  small_model m = open_model("1");
  assert_int_equal(forward(&m, 3), OPS_OK);
  cuda_device_break(m.d);
  assert_int_equal(forward(&m, 3), OPS_LOST);
  assert_string_equal(seen, "start forward, 3 rows\nend\n");
  assert_int_equal(forward(&m, 3), OPS_LOST); /* does not begin */
  assert_string_equal(seen, "");
  close_model(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_are_ranges_in_that_of_their_forward),
      cmocka_unit_test(a_graph_shows_its_ops_when_it_is_captured),
      cmocka_unit_test(a_forward_that_fails_ends_its_range_too),
  };
  unsetenv("NVTX_INJECTION64_PATH"); /* a profiler of this test would come first */
  InitializeInjectionNvtx2_fnptr = attach;
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
