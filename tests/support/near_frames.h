/* near_frames.h - frames that a machine cannot tell from right ones at a glance: real identities, tickets,
 * epochs, generations and node ids, lengths that are right or off by a little, hashes that fit or nearly do.
 * A machine's own messages say what is right at a moment (near_observe); bytes from the fuzzer choose what is
 * not. Each message goes through the codec, so a machine gets what a peer can really send. */
#pragma once

#include "tests/support/machine_rig.h"
#include "wire/codec.h"

enum { NEAR_TOKENS = 64, NEAR_PATH = 8, NEAR_TRUTH = 2048, NEAR_WIDTH = 16, NEAR_STEPS = 400 };

typedef struct near_frames {
  const uint8_t *at, *end; /* what the fuzzer has left; then `random`, which it seeds, goes on */
  uint64_t random;
  int32_t steps; /* that are left */
  wire_id self;  /* of the machine */
  uint64_t session, seed;
  uint32_t epoch, generation;
  wire_id ticket;
  int32_t length, prompt_length; /* of C, as the machine has it */
  uint64_t next_id;              /* of NODES */
  int32_t context, vocabulary;
  wire_string endpoint;
  wire_id peer; /* who speaks */
  hash16 hashes[NEAR_TRUTH + 1];
  const int32_t *truth; /* [NEAR_TRUTH] */
  uint64_t hashes_seed;
  int32_t tokens[NEAR_TOKENS];
  uint64_t parents[NEAR_TOKENS];
  float scores[NEAR_TOKENS];
  int32_t taps[WIRE_TAPS_MAX];
  uint8_t bytes[8 * NEAR_WIDTH * 4];
  codec_buffer frame;
  arena memory;
} near_frames;

/* Begins another step, if one is left. */
bool near_step(near_frames *n);

/* A number below `below` (at most 256) that the fuzzer chooses. */
int32_t near_draw(near_frames *n, int32_t below);

bool near_chance(near_frames *n, int32_t of);

/* A frame of one of these types from `peer`, which the rig's machine is given unless the codec refuses it. */
void near_say(near_frames *n, rig *r, peer_id from, wire_id peer, const msg_type *types, int32_t count);

/* What the machine has said tells what is right now; its messages are forgotten. */
void near_observe(near_frames *n, rig *r);

void near_init(near_frames *n, const uint8_t *data, size_t size, const int32_t *truth);
