#include "kernels/devices/devices.h"
#include "kernels/cpu/device_cpu.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/devices/self_test.h"
#include "kernels/far/far.h"

#include <string.h>

/* A kind of device: what stands before the colon of a name, and who knows the rest. */
typedef struct device_kind {
  const char *prefix;
  const char *names; /* for people; NULL: they need not know */
  /* rest: what stands behind the colon, or "". ERR_ARG without a text: no such name. */
  int (*open)(device **out, const char *rest, const device_options *o, mem *m, err *e);
  /* The i-th that there may be, as a devices_entry tells it; false: there are no more. */
  bool (*at)(int32_t i, const char **name, const char **what, const char **lacks);
} device_kind;

/* Around the device whose name follows. */
static int open_far(device **out, const char *rest, const device_options *o, mem *m, err *e) {
  device *inner;
  device_options once = *o;
  once.tested = false; /* with what is around it */
  int rc = device_open(&inner, *rest ? rest : "cpu", &once, m, e);
  if (rc == ERR_OK) rc = far_open(out, inner, e);
  if (rc == ERR_OK && !m) far_try(*out);
  return rc;
}

static bool none_at(int32_t i, const char **name, const char **what, const char **lacks) {
  (void)i, (void)name, (void)what, (void)lacks;
  return false;
}

/* A device is a line here. */
static const device_kind kinds[] = {
    {"cpu", "cpu, cpu:c, cpu:avx2, cpu:avx-vnni, cpu:avx512", cpu_device_open, cpu_device_at},
    {"far", NULL, open_far, none_at},
#if defined(TANDEM_CUDA_EMULATED)
    {"emulated", NULL, cuda_device_open, none_at},
#elif defined(TANDEM_CUDA)
    {"cuda", "cuda:0, cuda:1, ...", cuda_device_open, cuda_device_at},
#endif
};
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

/* What stands behind "PREFIX:", "" where the name is the prefix alone, or NULL. */
static const char *rest_of(const char *name, const char *prefix) {
  size_t n = strlen(prefix);
  if (strncmp(name, prefix, n) != 0 || (name[n] && name[n] != ':')) return NULL;
  return name[n] ? name + n + 1 : name + n;
}

static int refuse(const char *name, err *e) {
  char known[ERR_TEXT_MAX / 2] = "";
  for (size_t i = 0; i < KIND_COUNT; i++) {
    if (!kinds[i].names) continue;
    if (i > 0) strncat(known, ", ", sizeof known - strlen(known) - 1);
    strncat(known, kinds[i].names, sizeof known - strlen(known) - 1);
  }
  return err_set(e, ERR_ARG, "no device is called '%.40s': give one of %s", name, known);
}

/* On a device of its own, which nobody counts. */
static int test_first(const device_kind *k, const char *rest, const device_options *o, err *e) {
  device *d;
  int rc = k->open(&d, rest, o, NULL, e);
  if (rc != ERR_OK) return rc;
  rc = self_test_run(d, e);
  d->table->close(d);
  return rc;
}

static int open_kind(const device_kind *k, device **out, const char *rest, const device_options *o, mem *m,
                     err *e) {
  int rc = o->tested ? test_first(k, rest, o, e) : ERR_OK;
  return rc == ERR_OK ? k->open(out, rest, o, m, e) : rc;
}

int device_open(device **out, const char *name, const device_options *o, mem *m, err *e) {
  *out = NULL;
  for (size_t i = 0; i < KIND_COUNT; i++) {
    const char *rest = rest_of(name, kinds[i].prefix);
    err why = {0};
    if (!rest) continue;
    int rc = name[strlen(name) - 1] == ':' ? ERR_ARG : open_kind(&kinds[i], out, rest, o, m, &why);
    if (rc == ERR_ARG && !why.code) break;
    if (rc != ERR_OK && e) *e = why;
    return rc;
  }
  return refuse(name, e);
}

bool devices_at(int32_t i, devices_entry *out) {
  for (size_t k = 0; k < KIND_COUNT; k++) {
    int32_t n = 0;
    for (; kinds[k].at(n, &out->name, &out->what, &out->lacks); n++)
      if (n == i) return true;
    i -= n;
  }
  return false;
}

const char *devices_name(int32_t i) {
  devices_entry d;
  for (int32_t k = 0; devices_at(k, &d); k++)
    if (!d.lacks[0] && i-- == 0) return d.name;
  return NULL;
}

const char *device_numerics(const device *d) {
  static const char *const names[OPS_MATH_COUNT] = {
      [OPS_MATH_F32] = "f32", [OPS_MATH_INT8] = "int8", [OPS_MATH_BF16] = "bf16-t25"};
  return names[d->math];
}
