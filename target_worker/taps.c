#include "target_worker/taps.h"

#include <string.h>

static bool same_list(const int32_t *a, int32_t a_count, const int32_t *b, int32_t b_count) {
  return a_count == b_count && memcmp(a, b, (size_t)a_count * sizeof *a) == 0;
}

static bool has_fc(const taps_offer *o, const msg_feature_request *r) {
  return !hash_is_zero(r->fc) && hash_equal(r->fc, o->fc) &&
         same_list(r->taps, r->tap_count, o->fc_taps, o->fc_tap_count);
}

int taps_grant(const taps_offer *o, const msg_feature_request *r, taps_set *out, err *e) {
  *out = (taps_set){0};
  if (o->embed == 0) return ERR_OK;
  for (int32_t i = 0; i < r->tap_count; i++)
    if (r->taps[i] > o->layers)
      return err_set(e, ERR_ARG,
                     "R-TAPS: the draft's head reads the state that enters layer %d, and this model has %d "
                     "layers: the head is for another model",
                     r->taps[i], o->layers);
  bool fused = has_fc(o, r);
  int64_t width = fused ? o->fc_width : (int64_t)r->tap_count * o->embed;
  if (width > WIRE_FEATURE_WIDTH_MAX)
    return err_set(e, ERR_LIMIT, "R-TAPS: %d states of %d values are %lld, and a row has at most %d",
                   r->tap_count, o->embed, (long long)width, WIRE_FEATURE_WIDTH_MAX);
  *out = (taps_set){.count = r->tap_count, .type = r->type, .fused = fused, .width = (int32_t)width};
  memcpy(out->list, r->taps, (size_t)r->tap_count * sizeof *out->list);
  return ERR_OK;
}

bool taps_equal(const taps_set *a, const taps_set *b) {
  return a->type == b->type && a->fused == b->fused && same_list(a->list, a->count, b->list, b->count);
}

size_t taps_row_bytes(const taps_set *t) {
  return (size_t)t->width * wire_type_size(t->type);
}

/* A NaN keeps its upper half, with a bit set so that it stays one. */
static uint16_t bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

void taps_pack(wire_type type, const float *values, int32_t count, uint8_t *out) {
  if (type == WIRE_F32) {
    memcpy(out, values, (size_t)count * sizeof *values);
    return;
  }
  for (int32_t i = 0; i < count; i++) {
    uint16_t half = bf16_of(values[i]);
    memcpy(out + 2 * (size_t)i, &half, sizeof half);
  }
}
