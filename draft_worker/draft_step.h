/* draft_step.h - what every handler of one event needs, and the times that the draft's files share. */
#pragma once

#include "draft_worker/draft_session.h"
#include "wire/machine.h"
#include "wire/roster.h"

/* After so long without a reply, ATTACH, DESYNC and requests to connect are repeated. */
#define DRAFT_REPEAT_US 300000
#define DRAFT_IDLE_US   200000 /* after so long without NODES, an empty one names the base again */

typedef struct draft_step {
  roster *peers;
  draft_setup *setup;
  uint64_t now;
  actions *out;
} draft_step;
