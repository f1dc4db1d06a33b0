/* draft_step.h - what one step of the draft's machine acts with, and the times that its parts share. */
#pragma once

#include "draft_worker/draft_session.h"
#include "wire/machine.h"
#include "wire/roster.h"

#define DRAFT_REPEAT_US 300000 /* what has no reply is sent again: ATTACH, DESYNC, a wish to connect */
#define DRAFT_IDLE_US   200000 /* an empty NODES names the base again */

typedef struct draft_step {
  roster *peers;
  draft_setup *setup;
  uint64_t now;
  actions *out;
} draft_step;
