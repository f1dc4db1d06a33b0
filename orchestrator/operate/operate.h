/* operate.h - the commands that look at a running `tandem serve' and steer it: the program tandem-operate,
 * which is apart from tandem because it alone needs libcurl and ncurses. Each returns a status of
 * exit_status.h. */
#pragma once

#include "orchestrator/cli/flags.h"

int operate_workers(const flags *f);
int operate_top(const flags *f);
