#include "kernels/far/far_handles.h"
#include "kernels/far/far_require.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE        ((size_t)4096)
#define HANDLES_MAX ((size_t)65536)

void far_handles_free_arrays(far_thing *thing) {
  free(thing->mapped);
  free(thing->seen);
  free(thing->writer);
}

bool far_handles_open(far_handles *h) {
  *h = (far_handles){0};
  void *region =
      mmap(NULL, HANDLES_MAX * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) return false;
  h->region = region;
  h->things = calloc(HANDLES_MAX, sizeof(far_thing *));
  return h->things != NULL;
}

void far_handles_close(far_handles *h) {
  for (size_t i = 0; i < h->count; i++) {
    far_handles_free_arrays(h->things[i]);
    free(h->things[i]);
  }
  free(h->things);
  if (h->region) munmap(h->region, HANDLES_MAX * PAGE);
  *h = (far_handles){0};
}

void *far_handles_add(far_handles *h, const far_thing *thing) {
  far_thing *copy = h->count < HANDLES_MAX ? malloc(sizeof *copy) : NULL;
  if (!copy) return NULL;
  *copy = *thing;
  h->things[h->count] = copy;
  return h->region + h->count++ * PAGE;
}

static const char *const NAMES[] = {[FAR_MEMORY] = "this is no device_memory of this device",
                                    [FAR_ACT] = "this is no device_act of this device",
                                    [FAR_KV] = "this is no device_kv of this device"};

far_thing *far_handles_find(const far_handles *h, const void *handle, far_kind kind) {
  size_t at = (size_t)((uintptr_t)handle - (uintptr_t)h->region), i = at / PAGE;
  far_require(at % PAGE == 0 && i < h->count && h->things[i]->kind == kind, NAMES[kind]);
  far_require(h->things[i]->inner != NULL, "a thing is used after it was dropped");
  return h->things[i];
}

void far_handles_drop(far_handles *h, const void *handle, far_kind kind) {
  far_handles_find(h, handle, kind)->inner = NULL;
}
