/* report.h - the figures of a run. */
#pragma once

#include "tests/sim/world.h"

void report_add(totals *sum, const totals *t);
/* Whether what has to happen often enough did so: each figure is above `floor`. */
bool report_print(const totals *t, uint64_t floor, bool violated);
