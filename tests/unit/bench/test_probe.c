/* libs: bench */
/* The probe that leaves out all ops but one, before a device that writes down what reaches it. */
#include "bench/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char calls[512]; /* what has reached the device, a letter or two a call */

static void note(const char *call) {
  strcat(calls, *calls ? " " : "");
  strcat(calls, call);
}

static bool on_begin(device *d, device_kv *k, const ops_batch *b) {
  (void)d, (void)k, (void)b;
  note("begin");
  return true;
}

static void on_embed(device *d, const device_weight *w, device_act *x) {
  (void)d, (void)w, (void)x;
  note("embed");
}

static void on_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  (void)d, (void)x, (void)w, (void)eps, (void)y;
  note(head ? "norm-head" : "norm");
}

static void on_linear(device *d, const device_linear *jobs, int32_t count, const device_act *x) {
  (void)d, (void)jobs, (void)x;
  note(count == 3 ? "qkv" : "linear");
}

static void on_swiglu(device *d, const device_weight *gate, const device_weight *up, const device_act *x,
                      device_act *y) {
  (void)d, (void)gate, (void)up, (void)x, (void)y;
  note("swiglu");
}

static void on_rope(device *d, const device_rope *r) {
  (void)d, (void)r;
  note("rope");
}

static void on_store(device *d, int32_t layer, const device_rotary *r, device_act *q, const device_act *k,
                     const device_act *v) {
  (void)d, (void)layer, (void)r, (void)q, (void)k, (void)v;
  note("store");
}

static void on_attention(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  (void)d, (void)layer, (void)view, (void)q, (void)y;
  note("attention");
}

static void on_head(device *d, const device_weight *w, const device_act *x) {
  (void)d, (void)w, (void)x;
  note("head");
}

static void on_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                      int32_t length) {
  (void)d, (void)k, (void)sequence, (void)path, (void)count, (void)length;
  note("commit");
}

static size_t no_bytes(ops_type type, int32_t rows, int32_t columns) {
  (void)type, (void)rows, (void)columns;
  return 0;
}

static const device_table table = {.begin = on_begin,
                                   .embed = on_embed,
                                   .norm = on_norm,
                                   .linear = on_linear,
                                   .linear_swiglu = on_swiglu,
                                   .rope = on_rope,
                                   .rope_store = on_store,
                                   .attention = on_attention,
                                   .head = on_head,
                                   .kv_commit = on_commit,
                                   .packed_bytes = no_bytes};

/* A forward of two layers, as a model asks for it. */
static void forward(device *d) {
  const device_table *t = d->table;
  const device_linear jobs[3] = {0};
  const device_weight w = {0};
  t->begin(d, NULL, &(ops_batch){.row_count = 1});
  t->embed(d, &w, NULL);
  t->rope(d, NULL);
  for (int32_t layer = 0; layer < 2; layer++) {
    t->norm(d, NULL, false, (device_vector){0}, 1, NULL);
    t->linear(d, jobs, 3, NULL);
    t->rope_store(d, layer, NULL, NULL, NULL, NULL);
    t->attention(d, layer, 0, NULL, NULL);
    t->linear(d, jobs, 1, NULL);
    t->norm(d, NULL, false, (device_vector){0}, 1, NULL);
    t->linear_swiglu(d, &w, &w, NULL, (device_act *)calls); /* it is not looked at */
    t->linear(d, jobs, 1, NULL);
  }
  t->norm(d, NULL, true, (device_vector){0}, 1, NULL);
  t->head(d, &w, NULL);
  t->kv_commit(d, NULL, 0, NULL, 0, 0);
}

static void one_op_alone_reaches_the_device(void **state) {
  (void)state;
  static const struct {
    probe_op op;
    const char *calls;
  } cases[] = {
      {PROBE_COUNT, "begin rope commit"},
      {PROBE_EMBED, "begin embed rope commit"},
      {PROBE_QKV, "begin rope norm qkv store norm qkv store commit"},
      {PROBE_ATTENTION, "begin rope attention attention commit"},
      {PROBE_OUTPUT, "begin rope linear linear commit"},
      {PROBE_GATE_UP, "begin rope norm swiglu norm swiglu commit"},
      {PROBE_DOWN, "begin rope linear linear commit"},
      {PROBE_HEAD, "begin rope norm-head head commit"},
  };
  static probe p;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    device d = {.table = &table};
    probe_attach(&p, &d);
    probe_only(&p, cases[i].op);
    *calls = 0;
    forward(&d);
    probe_detach(&p);
    assert_string_equal(calls, cases[i].calls);
    assert_ptr_equal(d.table, &table);
  }
}

static void every_op_reaches_the_device_while_it_is_timed(void **state) {
  (void)state;
  static probe p;
  device d = {.table = &table};
  probe_attach(&p, &d);
  *calls = 0;
  forward(&d);
  assert_string_equal(calls, "begin embed rope norm qkv store attention linear norm swiglu linear norm qkv "
                             "store attention linear norm swiglu linear norm-head head commit");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_op_alone_reaches_the_device),
      cmocka_unit_test(every_op_reaches_the_device_while_it_is_timed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
