/* far_device.h - an opened far device, for its own sources. */
#pragma once

#include "kernels/far/far_faults.h"
#include "kernels/far/far_handles.h"
#include "kernels/far/far_pages.h"
#include "kernels/far/far_queue.h"

#define FAR_DEVICE_NAME_MAX 64

typedef enum { FAR_IDLE, FAR_RECORDING, FAR_ENDED } far_state;

/* Host memory that dies. */
typedef struct far_block {
  void *at;
  size_t bytes;
} far_block;

typedef struct far_forward { /* the one that is being queued, or was queued last */
  const far_thing *kv;       /* or NULL */
  int32_t rows, views, head_rows, logit_rows, ranked_rows, vocabulary;
  int32_t own_first, own_end; /* the outputs of all rankings' `own`: INT32_MAX and 0 where there are none */
  int32_t captured_rows, weighed_rows, captures, capture_columns[OPS_CAPTURES_MAX];
  bool roped, ranked;
} far_forward;

typedef struct far_device {
  device base;
  device_table table;
  char name[FAR_DEVICE_NAME_MAX];
  device *inner;
  far_handles handles;
  far_queue queue;
  far_pages pages;
  far_faults faults;
  far_state state;
  bool lost, refused; /* refused: the last begin, and nobody has waited since */
  void *inner_window; /* while one is open */
  far_block window;
  far_forward forward;
  ops_code code; /* of the last forward */
  ops_answer answer;
  far_block ids, logits, ranked, captured[OPS_CAPTURES_MAX];
} far_device;

static inline far_device *far_device_of(const device *d) {
  return (far_device *)(uintptr_t)d;
}

/* Makes all calls that wait. */
void far_device_run(far_device *f);
far_block far_device_block(size_t bytes);
void far_device_withdraw(far_device *f, far_block *b);
/* Each writes its functions into the table. */
void far_device_memory_functions(device_table *t);
void far_device_cache_functions(device_table *t);
void far_device_forward_functions(device_table *t);
