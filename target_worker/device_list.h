/* device_list.h - what tandem-target says of the devices of this machine. */
#pragma once

#include "target_worker/target_arguments.h"

/* --list-devices and --self-test, for people and for `tandem doctor`: a line each, "NAME STATE: WHAT", the
 * better ones first, where STATE is chosen (by --device), available, missing, or refused by its self-test.
 * The program's exit status: STATUS_FAILED if none is chosen, or one is refused. */
int device_list_print(const target_arguments *a);
