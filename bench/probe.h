/* probe.h - stands between a model and its device: a table of ops that passes every call on and keeps its
 * time (of a device that computes at once, as the CPU does), or its arguments, or leaves out the linears, or
 * all ops but one (of a device that queues: the time of such a forward is the op's). So the programs that
 * people run carry no instruments. */
#pragma once

#include "kernels/device.h"

/* X(name, what people read). A linear is told by its place in the layer: several jobs are q, k, v; one job is
 * the layer's output or down, or the head. */
#define PROBE_LIST(X)                                                                                        \
  X(EMBED, "embed")                                                                                          \
  X(NORM, "norm")                                                                                            \
  X(QKV, "linear q, k, v")                                                                                   \
  X(ROPE, "rope, store")                                                                                     \
  X(ATTENTION, "attention")                                                                                  \
  X(OUTPUT, "linear output")                                                                                 \
  X(GATE_UP, "gate, up, swiglu")                                                                             \
  X(DOWN, "linear down")                                                                                     \
  X(HEAD, "head")                                                                                            \
  X(COMMIT, "commit")

#define PROBE_ENUM(name, text) PROBE_##name,
typedef enum { PROBE_LIST(PROBE_ENUM) PROBE_COUNT } probe_op;
#undef PROBE_ENUM

#define PROBE_JOBS_MAX  4
#define PROBE_CALLS_MAX 2048 /* linears of a forward */
#define PROBE_ROWS_MAX  512

typedef enum {
  PROBE_TIME, /* every op's */
  PROBE_KEEP, /* the arguments of the linears, for probe_replay */
  PROBE_SKIP, /* the linears do nothing */
  PROBE_ONLY  /* nothing runs but one op, with what a device can make part of it: of a linear the norm of its
                 input, of q, k, v the rope and the store. The angles of the rope are always made. */
} probe_mode;

typedef struct probe_call {
  device_linear jobs[PROBE_JOBS_MAX]; /* of swiglu its two matrices, of the head its one */
  int32_t job_count;
  const device_act *x;
  device_act *swiglu; /* what linear_swiglu writes, else NULL */
  bool head;
} probe_call;

typedef struct probe_norm {
  const device_act *x;
  bool head, waits;
  device_vector w;
  float eps;
  device_act *y;
} probe_norm;

typedef struct probe {
  device_table table; /* first: the device points here */
  const device_table *real;
  device *device;
  probe_mode mode;
  probe_op only;   /* with PROBE_ONLY */
  probe_op last;   /* of the linears */
  probe_norm norm; /* with PROBE_ONLY: the last one, which runs if the linear does that follows */
  uint64_t ns[PROBE_COUNT];
  uint64_t bytes[PROBE_COUNT], macs[PROBE_COUNT]; /* of linears: packed weights read, multiply-adds */
  probe_call calls[PROBE_CALLS_MAX];
  int32_t call_count;
  ops_batch batch; /* of the last forward: its numbers, and its choices */
  ops_sampling choices[PROBE_ROWS_MAX];
} probe;

void probe_attach(probe *p, device *d);
void probe_detach(probe *p);
/* From here on, in this mode: figures and kept calls begin anew. */
void probe_reset(probe *p, probe_mode mode);
/* With PROBE_ONLY: nothing but this op. PROBE_COUNT: none. */
void probe_only(probe *p, probe_op op);
/* The kept linears once more, nothing else, as a forward of as many rows. The model must not have run since.
 */
void probe_replay(probe *p);
const char *probe_name(probe_op op);
uint64_t probe_clock_ns(void);
