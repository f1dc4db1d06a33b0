#include "kernels/far/far_device.h"

void far_device_run(far_device *f) {
  far_queue_run(&f->queue, f);
  f->base.counters = f->inner->counters;
}

far_block far_device_block(size_t bytes) {
  return (far_block){far_pages_take(bytes), bytes};
}

void far_device_withdraw(far_device *f, far_block *b) {
  far_pages_withdraw(&f->pages, b->at, b->bytes);
  *b = (far_block){0};
}
