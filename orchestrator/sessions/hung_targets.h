/* hung_targets.h - the targets that sessions had to leave because they gave no sign of life. For some time,
 * new sessions choose them last. The memory is fixed, so the oldest entry makes room for a new one. */
#pragma once

#include "common/base/limit.h"
#include "wire/actions.h"

#define HUNG_TARGETS_MAX LIMIT(16, 1)
#define HUNG_TARGETS_US  300000000 /* how long a target that hung is asked last */

typedef struct hung_targets { /* all zero when it is empty */
  struct {
    peer_id peer; /* 0: none */
    uint64_t until_us;
  } list[HUNG_TARGETS_MAX];
} hung_targets;

void hung_targets_add(hung_targets *h, peer_id target, uint64_t now_us);
bool hung_targets_has(const hung_targets *h, peer_id target, uint64_t now_us);
void hung_targets_remove(hung_targets *h, peer_id target);
