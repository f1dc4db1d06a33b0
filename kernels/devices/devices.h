/* devices.h - the devices that this program was built with. device_open (kernels/device.h) is here too: what
 * knows all devices stands above them. */
#pragma once

#include "kernels/device.h"

/* A device that this program knows, whether or not this machine has it. */
typedef struct devices_entry {
  const char *name;  /* for device_open; static */
  const char *what;  /* "this processor by AVX2": for people; static */
  const char *lacks; /* what the machine lacks for it: a word or two; "": nothing */
} devices_entry;

/* The i-th device, the better ones of a kind first; false: there are no more. */
bool devices_at(int32_t i, devices_entry *out);
/* The name of the i-th device that this machine has, in that order, or NULL. */
const char *devices_name(int32_t i);
