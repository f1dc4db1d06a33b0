/* far_memory.c - memory, windows and activations of a far device. All of it is immediate: it is called
 * between forwards alone. */
#include "kernels/far/far_device.h"
#include "kernels/far/far_require.h"

#include <string.h>
#include <unistd.h>

/* Small, so that whoever loads weights through windows is seen to do it in several. */
#define WINDOW_MAX ((size_t)1 << 20)

static far_device *idle(const device *d) {
  far_device *f = far_device_of(d);
  far_require(f->state == FAR_IDLE, "memory is taken, filled, read and dropped between forwards");
  return f;
}

static far_thing *memory_at(const far_device *f, const device_memory *m, size_t at, size_t bytes) {
  far_thing *t = far_handles_find(&f->handles, m, FAR_MEMORY);
  far_require(at <= t->bytes && bytes <= t->bytes - at, "the bytes lie in the memory");
  return t;
}

static device_memory *far_take(device *d, mem_tag tag, size_t bytes) {
  far_device *f = idle(d);
  if (f->lost || far_faults_due(&f->faults.refuse)) return NULL;
  device_memory *m = f->inner->table->take(f->inner, tag, bytes);
  if (!m) return NULL;
  device_memory *handle =
      far_handles_add(&f->handles, &(far_thing){.kind = FAR_MEMORY, .inner = m, .bytes = bytes});
  if (!handle) f->inner->table->drop(f->inner, m);
  return handle;
}

static void far_drop(device *d, device_memory *m) {
  far_device *f = idle(d);
  if (!m) return;
  f->inner->table->drop(f->inner, far_handles_find(&f->handles, m, FAR_MEMORY)->inner);
  far_handles_drop(&f->handles, m, FAR_MEMORY);
}

static size_t far_left(const device *d) {
  const far_device *f = idle(d);
  return f->lost ? 0 : f->inner->table->left(f->inner);
}

static void *far_fill(device *d, device_memory *m, size_t at, size_t bytes) {
  far_device *f = idle(d);
  far_require(!f->window.at, "one window is open at a time");
  far_thing *t = memory_at(f, m, at, bytes);
  if (f->lost || bytes > WINDOW_MAX) return NULL;
  far_block window = far_device_block(bytes);
  if (!window.at) return NULL;
  f->inner_window = f->inner->table->fill(f->inner, t->inner, at, bytes);
  if (f->inner_window)
    f->window = window;
  else
    far_device_withdraw(f, &window);
  return f->window.at;
}

static int far_filled(device *d) {
  far_device *f = idle(d);
  far_require(f->window.at != NULL, "`filled` ends a window");
  if (f->faults.slow > 0) usleep((useconds_t)f->faults.slow * 1000);
  memcpy(f->inner_window, f->window.at, f->window.bytes);
  far_device_withdraw(f, &f->window);
  int code = f->inner->table->filled(f->inner);
  return f->lost ? OPS_LOST : code;
}

static size_t far_window_max(const device *d) {
  const device *inner = far_device_of(d)->inner;
  size_t most = inner->table->window_max(inner);
  return most < WINDOW_MAX ? most : WINDOW_MAX;
}

static device_memory *far_adopt(device *d, const void *host, size_t bytes) {
  (void)d, (void)host, (void)bytes;
  return NULL; /* the host's memory is out of its reach */
}

static int far_read(device *d, const device_memory *m, size_t at, size_t bytes, void *out) {
  far_device *f = idle(d);
  far_thing *t = memory_at(f, m, at, bytes);
  if (f->lost) return OPS_LOST;
  far_device_run(f);
  return f->inner->table->read(f->inner, t->inner, at, bytes, out);
}

/* --- activations --- */

static device_act *far_act(device *d, int32_t rows, int32_t columns, bool input) {
  far_device *f = idle(d);
  if (f->lost || far_faults_due(&f->faults.refuse)) return NULL;
  device_act *a = f->inner->table->act(f->inner, rows, columns, input);
  if (!a) return NULL;
  far_thing thing = {.kind = FAR_ACT, .inner = a, .rows = rows, .columns = columns, .input = input};
  device_act *handle = far_handles_add(&f->handles, &thing);
  if (!handle) f->inner->table->act_drop(f->inner, a);
  return handle;
}

static void far_act_drop(device *d, device_act *a) {
  far_device *f = idle(d);
  if (!a) return;
  f->inner->table->act_drop(f->inner, far_handles_find(&f->handles, a, FAR_ACT)->inner);
  far_handles_drop(&f->handles, a, FAR_ACT);
}

static far_thing *act_rows(const far_device *f, const device_act *a, int32_t rows) {
  far_thing *t = far_handles_find(&f->handles, a, FAR_ACT);
  far_require(rows >= 0 && rows <= t->rows, "the rows lie in the activations");
  return t;
}

static void far_act_write(device *d, device_act *a, int32_t rows, const float *from) {
  far_device *f = idle(d);
  far_thing *t = act_rows(f, a, rows);
  if (f->lost) return;
  far_device_run(f);
  f->inner->table->act_write(f->inner, t->inner, rows, from);
}

static int far_act_read(device *d, const device_act *a, int32_t rows, float *to) {
  far_device *f = idle(d);
  far_thing *t = act_rows(f, a, rows);
  if (f->lost) return OPS_LOST;
  far_device_run(f);
  return f->inner->table->act_read(f->inner, t->inner, rows, to);
}

void far_device_memory_functions(device_table *t) {
  t->take = far_take;
  t->drop = far_drop;
  t->left = far_left;
  t->fill = far_fill;
  t->filled = far_filled;
  t->window_max = far_window_max;
  t->adopt = far_adopt;
  t->read = far_read;
  t->act = far_act;
  t->act_drop = far_act_drop;
  t->act_write = far_act_write;
  t->act_read = far_act_read;
}
