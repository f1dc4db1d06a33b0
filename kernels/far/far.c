#include "kernels/far/far.h"
#include "kernels/far/far_device.h"

#include <stdio.h>
#include <stdlib.h>

void far_set_faults(device *d, const far_faults *faults) {
  far_device_of(d)->faults = *faults;
}

void far_try(device *d) {
  far_device *f = far_device_of(d);
  f->faults = (far_faults){.wrong = f->faults.wrong};
}

static void far_close(device *d) {
  far_device *f = far_device_of(d);
  far_queue_close(&f->queue);
  far_device_withdraw(f, &f->window);
  far_device_withdraw(f, &f->ids);
  far_device_withdraw(f, &f->logits);
  far_device_withdraw(f, &f->ranked);
  for (int32_t i = 0; i < OPS_CAPTURES_MAX; i++) far_device_withdraw(f, &f->captured[i]);
  far_pages_close(&f->pages);
  far_handles_close(&f->handles);
  f->inner->table->close(f->inner);
  free(f);
}

static void far_parallel(device *d, int32_t count, void (*body)(void *context, int32_t i), void *context) {
  device *inner = far_device_of(d)->inner;
  inner->table->parallel(inner, count, body, context);
}

static void far_beside(device *d, bool another) {
  device *inner = far_device_of(d)->inner;
  if (inner->table->beside) inner->table->beside(inner, another);
}

static int32_t far_width(const device *d, int32_t rows) {
  const device *inner = far_device_of(d)->inner;
  return inner->table->width(inner, rows);
}

static const char *far_variant(const device *d, int32_t rows) {
  const device *inner = far_device_of(d)->inner;
  return inner->table->variant(inner, rows);
}

/* A table of its own: layout, packed_bytes and pack, which know no instance, are the inner device's. */
static void make_table(far_device *f) {
  const device_table *inner = f->inner->table;
  snprintf(f->name, sizeof f->name, "far:%s", inner->name);
  f->table = (device_table){.name = f->name,
                            .layout = inner->layout,
                            .packed_bytes = inner->packed_bytes,
                            .pack = inner->pack,
                            .parallel = far_parallel,
                            .beside = far_beside,
                            .width = far_width,
                            .variant = far_variant,
                            .close = far_close};
  far_device_memory_functions(&f->table);
  far_device_cache_functions(&f->table);
  far_device_forward_functions(&f->table);
}

int far_open(device **out, device *inner, err *e) {
  *out = NULL;
  const char *text = getenv("TANDEM_FAR");
  far_faults faults = {0};
  if (text && !far_faults_parse(&faults, text)) {
    inner->table->close(inner);
    return err_set(e, ERR_ARG, "TANDEM_FAR is '%s': give numbers from 1, as in lose=120,fail=7", text);
  }
  far_device *f = calloc(1, sizeof *f);
  if (!f || !far_handles_open(&f->handles)) {
    if (f) far_handles_close(&f->handles);
    free(f);
    inner->table->close(inner);
    return err_set(e, ERR_NOMEM, "no memory for a far device");
  }
  far_queue_open(&f->queue);
  f->inner = inner;
  f->faults = faults;
  make_table(f);
  f->base = (device){
      &f->table,          inner->counters,          inner->math,
      inner->threads,     inner->prepares && !text, /* faults are counted from the first real forward */
      inner->prompt_rows, inner->kv_in_host};
  *out = &f->base;
  return ERR_OK;
}
