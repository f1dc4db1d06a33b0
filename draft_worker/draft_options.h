/* draft_options.h - how a draft worker is started. */
#pragma once

#include "draft_worker/drafters/drafter.h"

#define DRAFT_SESSIONS_MAX DRAFTER_SLOTS_MAX

typedef struct draft_options {
  wire_id incarnation;
  drafter drafters[DRAFTERS_MAX]; /* borrowed */
  int32_t drafter_count;
  int32_t candidates;     /* of a reply that may enter the tree; 0: all */
  int32_t context;        /* tokens of the longest C */
  bool shorter;           /* sessions longer than `context` are taken too: this draft helps while C fits */
  int32_t session_max;    /* <= DRAFT_SESSIONS_MAX; 0 means DRAFT_SESSIONS_MAX */
  bool beside;            /* it computes while a target on the same device does */
  bool colocated;         /* in free pace it computes only while the target waits for it (pacing.h) */
  hash16 host;            /* as HELLO tells it */
  hash16 vocabulary_hash; /* of the vocabulary whose ids are on the wire */
  int32_t vocabulary_size;
  const char *numerics_id; /* borrowed */
  const char *device;      /* that it computes on; borrowed */
} draft_options;
