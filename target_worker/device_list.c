#include "target_worker/device_list.h"

#include "common/base/clock.h"
#include "common/base/program.h"
#include "kernels/devices/devices.h"
#include "kernels/devices/self_test.h"
#include <stdio.h>
#include <string.h>

/* Does this name, which may leave its end open ("cpu"), stand for the device? */
static bool names(const char *wanted, const char *name) {
  size_t size = strlen(wanted);
  return strncmp(wanted, name, size) == 0 && (!name[size] || name[size] == ':');
}

/* Opens the device for a math, and tries it if that was asked for. */
static int try_device(const target_arguments *a, const char *name, ops_math math, uint64_t *took_us, err *e) {
  const device_options o = {.math = math, .threads = a->given.threads};
  device *d;
  int rc = device_open(&d, name, &o, NULL, e);
  if (rc != ERR_OK) return rc;
  uint64_t began = clock_us();
  if (a->given.self_test) rc = self_test_run(d, e);
  *took_us = clock_us() - began;
  d->table->close(d);
  return rc;
}

/* Is it a GPU on which BF16 models do not get the class that --math auto would give them? */
static bool lacks_bf16(const target_arguments *a, const char *name) {
  uint64_t took_us;
  return strncmp(name, "cuda", 4) == 0 && try_device(a, name, OPS_MATH_BF16, &took_us, NULL) != ERR_OK;
}

/* False: it is refused. */
static bool print_device(const target_arguments *a, const devices_entry *d, bool chosen) {
  uint64_t took_us;
  err e = {0};
  if (d->lacks[0]) {
    printf("%s missing: %s; it needs %s\n", d->name, d->what, d->lacks);
  } else if (!a->given.self_test) {
    printf("%s %s: %s\n", d->name, chosen ? "chosen" : "available", d->what);
  } else if (try_device(a, d->name, model_math(a->given.math, NULL, d->name), &took_us, &e) == ERR_OK) {
    printf("%s %s: %s, self-test passed in %.0f ms%s\n", d->name, chosen ? "chosen" : "available", d->what,
           (double)took_us / 1000, lacks_bf16(a, d->name) ? ", but not that of bf16-t25 (--math)" : "");
  } else {
    printf("%s refused: %s\n", d->name, e.text);
  }
  fflush(stdout); /* whoever waits for a slow device sees that it goes on */
  return e.code == ERR_OK;
}

/* One that is there, but not listed: a device for tests. False: there is no such device. */
static bool print_unlisted(const target_arguments *a, bool *fine) {
  const devices_entry d = {a->given.device, "for tests", ""};
  uint64_t took_us;
  target_arguments plain = *a;
  plain.given.self_test = false;
  if (!a->given.self_test && try_device(&plain, d.name, OPS_MATH_INT8, &took_us, NULL) != ERR_OK)
    return false;
  *fine &= print_device(a, &d, true);
  return true;
}

int device_list_print(const target_arguments *a) {
  bool chosen = false, fine = true;
  devices_entry d;
  for (int32_t i = 0; devices_at(i, &d); i++) {
    bool this_one = !chosen && !d.lacks[0] && names(a->given.device, d.name);
    chosen |= this_one;
    fine &= print_device(a, &d, this_one);
  }
  if (!chosen) chosen = print_unlisted(a, &fine);
  return chosen && fine ? STATUS_OK : STATUS_FAILED;
}
