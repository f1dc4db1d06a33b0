/* linear_stream.cuh - the weights of a warp as one stream, through a ring in shared memory. It begins to fill
 * before the previous kernel has ended, and goes on from one slot to the next. A block of the grid has all
 * the slots that its processor gets; each of its warps sums one a turn. */
#pragma once

#include "kernels/cuda/linear_steps.cuh"

/* How the weights lie in memory, and in a stage, which is STAGE blocks. */
template <ops_type TYPE> struct linear_format {
  static constexpr cpu_format F = weight_format_of(TYPE);
  static constexpr bool SIGNED = (F.bits & 8) != 0;
  static constexpr int32_t HEAD = F.sub ? 2 * CPU_HALVES : 0; /* bytes before the blocks of a unit */
  static constexpr int32_t UNIT_BLOCKS = F.sub ? CPU_UNIT_BLOCKS : 1;
  static constexpr int32_t BLOCK = (weights<TYPE>::UNIT_BYTES - HEAD) / UNIT_BLOCKS;
  static constexpr int32_t STAGE = F.sub ? CPU_UNIT_BLOCKS : LINEAR_STREAM_STAGE; /* blocks */
  static constexpr int32_t STAGE_BYTES = HEAD + STAGE * BLOCK;
};

struct linear_warp {
  uint8_t *ring;
  int32_t index, lane;
};

/* Where in the stream: the next stage begins with block `block`. */
struct linear_cursor {
  linear_slot slot;
  int32_t turn, block;
  int32_t at; /* in the ring, bytes */
};

/* To the turn's slot. With sub-scales a stage is a whole unit, and the first one may begin before the slot.
 */
template <ops_type TYPE>
DEVICE_CODE void linear_enter(const linear_args &a, const linear_warp &t, linear_cursor &p) {
  p.slot =
      p.turn < a.stream.turns ? linear_slot_at<TYPE>(a, p.turn * a.stream.warps + t.index) : linear_slot{};
  p.block = p.slot.first / linear_format<TYPE>::UNIT_BLOCKS * linear_format<TYPE>::UNIT_BLOCKS;
}

/* Goes on by a stage. */
template <ops_type TYPE> DEVICE_CODE void linear_go_on(const linear_args &a, linear_cursor &p) {
  p.at += linear_format<TYPE>::STAGE_BYTES;
  if (p.at == a.stream.depth * linear_format<TYPE>::STAGE_BYTES) p.at = 0;
  p.block += linear_format<TYPE>::STAGE;
}

/* Begins to copy a stage; a batch of copies even where there is none, so that they can be counted. */
template <ops_type TYPE>
DEVICE_CODE void linear_copy_stage(const linear_args &a, const linear_warp &t, linear_cursor &p) {
  using format = linear_format<TYPE>;
  constexpr int32_t warp_bytes = DEVICE_LANES * 16;
  if (p.block >= p.slot.end && p.turn < a.stream.turns) {
    p.turn++;
    linear_enter<TYPE>(a, t, p);
  }
  if (p.block < p.slot.end) {
    const uint8_t *from =
        p.slot.group + (size_t)(p.block / format::UNIT_BLOCKS) * weights<TYPE>::UNIT_BYTES + t.lane * 16;
    uint8_t *to = t.ring + p.at + linear_chunk_at<TYPE>(t.lane) * 16;
    const int32_t left = (p.slot.end - p.block) * format::BLOCK;
    const int32_t bytes =
        (format::HEAD || left > format::STAGE_BYTES ? format::STAGE_BYTES : left) - t.lane * 16;
    DEVICE_UNROLL
    for (int32_t i = 0; i < format::STAGE_BYTES; i += warp_bytes)
      if (i < bytes) device_copy_16(to + i, from + i);
  }
  device_copies_end();
  linear_go_on<TYPE>(a, p);
}

/* Until the stage that was asked for first has come: at most depth - 1 more are under way. */
DEVICE_CODE void linear_wait(int32_t depth) {
  if (depth >= 8)
    device_copies_wait<7>();
  else if (depth >= 6)
    device_copies_wait<5>();
  else if (depth >= 4)
    device_copies_wait<3>();
  else if (depth == 3)
    device_copies_wait<2>();
  else
    device_copies_wait<1>();
  __syncwarp();
}

/* Fills the ring; next: what follows. */
template <ops_type TYPE>
DEVICE_CODE void linear_begin(const linear_args &a, const linear_warp &t, linear_cursor &next) {
  linear_enter<TYPE>(a, t, next);
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < a.stream.depth; i++) linear_copy_stage<TYPE>(a, t, next);
}

/* Calls take(stage) for each stage of the turn's slot, and goes on to the next turn. */
template <ops_type TYPE, class Take>
DEVICE_CODE void linear_read_slot(const linear_args &a, const linear_warp &t, linear_cursor &next,
                                  linear_cursor &reading, Take take) {
  linear_enter<TYPE>(a, t, reading);
  DEVICE_NO_UNROLL
  while (reading.block < reading.slot.end) {
    linear_wait(a.stream.depth);
    take(t.ring + reading.at);
    __syncwarp();
    linear_copy_stage<TYPE>(a, t, next);
    linear_go_on<TYPE>(a, reading);
  }
  reading.turn++;
}

/* What the slot has in the stage that is read: blocks [first, end) of the stage's. */
struct linear_part {
  int32_t first, end;
};

template <ops_type TYPE> DEVICE_CODE linear_part linear_part_of(const linear_cursor &p) {
  const int32_t left = p.slot.end - p.block;
  return {p.slot.first > p.block ? p.slot.first - p.block : 0,
          left < linear_format<TYPE>::STAGE ? left : linear_format<TYPE>::STAGE};
}

constexpr int32_t LINEAR_AT_ONCE = 4; /* blocks whose instructions overlap */
