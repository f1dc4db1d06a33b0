/* far_handles.h - what stands for the inner device's memory, activations and caches: addresses in pages that
 * nobody can read. An address is never given out twice, so a use after the drop is noticed. */
#pragma once

#include "kernels/device.h"

typedef enum { FAR_MEMORY, FAR_ACT, FAR_KV } far_kind;

typedef struct far_thing {
  far_kind kind;
  void *inner; /* the inner device's; NULL once it was dropped */
  /* FAR_MEMORY */
  size_t bytes;
  /* FAR_ACT */
  int32_t rows, columns;
  bool input;
  /* FAR_KV */
  ops_kv_shape shape;
  int32_t *mapped; /* [shape.sequences] blocks in each table */
  bool *seen;      /* [shape.sequences], and */
  int32_t *writer; /* [shape.stage + 1]: for whoever checks a batch */
  bool staged;
} far_thing;

typedef struct far_handles {
  char *region;
  far_thing **things;
  size_t count;
} far_handles;

void far_handles_free_arrays(far_thing *thing);
bool far_handles_open(far_handles *h);
void far_handles_close(far_handles *h);
/* Copies *thing, whose inner must be there, and frees its arrays in the end. NULL: no memory. */
void *far_handles_add(far_handles *h, const far_thing *thing);
/* The thing behind an address that far_handles_add gave; ends the program for any other, and for a dropped
 * thing or one of another kind. */
far_thing *far_handles_find(const far_handles *h, const void *handle, far_kind kind);
void far_handles_drop(far_handles *h, const void *handle, far_kind kind);
