/* model.h - a Llama-family model on one device, and its forward pass over a batch of rows. The logits of a
 * row depend on its token path alone: not on the other rows, the batch, the thread count, or whether its
 * ancestors are committed or staged; compared by memcmp in tests/. */
#pragma once

#include "common/base/log.h"
#include "common/file/model_file.h"
#include "common/model/fusion.h"
#include "common/model/kv_cache.h"
#include "common/model/model_segment.h"
#include "kernels/device.h"

typedef struct model_options {
  void (*progress)(void *context, double done); /* of loading, [0, 1]; may be NULL */
  void *progress_context;
  const char *repack_cache; /* folder that keeps packed weights (weights_cache.h), or NULL */
  const logger *log;        /* may be NULL */
  memory_needs cache;       /* what will be taken for it next: both must fit */
} model_options;

typedef struct model model;

/* Packs the weights from the mapping into the device's memory; `f` may be closed afterwards. The device stays
 * the caller's, who closes it after the model and its caches. ERR_UNSUPPORTED, ERR_NOMEM, ERR_IO
 * (repack_cache), ERR_DEVICE. */
int model_open(model **out, const model_file *f, device *d, const model_options *o, mem *m, err *e);
void model_close(model *m);
const model_config *model_shape(const model *m);
/* The numerics id, which names everything that may change bits, e.g. "int8/kv-f16/4": the arithmetic, which
 * several devices may share. Static. */
const char *model_numerics(const model *m, kv_type type);
/* The same without a model: it depends on the program alone. Static. */
const char *model_numerics_id(ops_math math, kv_type type);
/* What --math wants: an ops_math, or MODEL_MATH_AUTO, which is bf16 for a model that has BF16 weights in its
 * first layer, on a GPU, as the device's name tells, and else int8. f NULL: no model. */
#define MODEL_MATH_AUTO ((int32_t)OPS_MATH_COUNT)
ops_math model_math(int32_t wanted, const model_file *f, const char *device_name);
/* Opens a device for the model, with that math, as device_open does. A GPU whose tensor cores add in another
 * way is refused for bf16: where nobody but `auto` wants it, it is opened for int8, which a warning tells. */
int model_open_device(device **out, const model_file *f, const char *name, int32_t wanted, device_options o,
                      const logger *log, mem *m, err *e);
/* What the model computes on, as HELLO names it: "cpu:avx2". Static. */
const char *model_device_name(const model *m);
/* The widest forward that costs what one of so many rows costs. */
int32_t model_width(const model *m, int32_t rows);
/* The kernel variant that a forward of that many rows uses, e.g. "avx2 x4": for tests and doctor. */
const char *model_variant(const model *m, int32_t rows);

/* Runs all segments in one batch (sum of counts <= MODEL_ROWS_MAX). Row positions follow from kv_length and
 * the parents. ERR_LIMIT when a sequence would pass its context, or with too many taps, ERR_ARG for a token
 * outside the vocabulary, ERR_NOMEM, ERR_INTERNAL (the device failed this once), ERR_DEVICE (it is lost, and
 * will never succeed again): nothing changes. The cache must be of the model's device. */
int model_forward(model *m, kv_cache *k, const model_segment *segments, int32_t count);

/* Layers computed so far, which grows while a forward runs. May be called from any thread. */
uint64_t model_progress(const model *m);

/* What the last forward took on the device, without the wait in its queue. */
uint64_t model_device_us(const model *m);
/* Did the device do something for it that later forwards of its kind find done (ops_answer.prepared)? */
bool model_prepared(const model *m);
/* Logits of a row of the last forward: f32 [vocab], valid until the next forward. NULL: the row has none, or
 * the device is lost. */
const float *model_logits(const model *m, int32_t segment, int32_t row);
/* The token that a row of a segment with sampling chose for the position after its own; -1: the row chose
 * none. */
int32_t model_sampled(const model *m, int32_t segment, int32_t row);
/* The best tokens of a row of a segment with a ranking, valid until the next forward. NULL: the row has none,
 * or the device is lost. */
const ops_ranked *model_ranked(const model *m, int32_t segment, int32_t row);
/* All of them at once, which takes less time than one by one. */
void model_rank_all(const model *m);
/* The state that entered layer `tap`, of a row whose segment asked for it: f32 [embed], valid until the next
 * forward. NULL: nobody asked, or the device is lost. */
const float *model_tapped(const model *m, int32_t segment, int32_t row, int32_t tap);
/* From now on, segments may ask for fused rows: fc's taps in fc's order. f stays the caller's, and open as
 * long as forwards run. ERR_UNSUPPORTED: it has no parts (fusion_parts), or is of another device or width;
 * ERR_NOMEM. */
int model_fuse(model *m, const fusion *f);
/* Of a row whose segment asked for it: f32 [fusion_width], as model_tapped. */
const float *model_fused(const model *m, int32_t segment, int32_t row);
/* From now on, segments of forwards over this cache may ask what its blocks weigh. ERR_NOMEM. */
int model_weigh(model *m, const kv_cache *k, ops_weighing how);
/* Of a segment that asked for it: f32 [blocks of its committed rows] what each block of KV_BLOCK rows weighs
 * in the attention of its first row, all heads together (ops.h: mass, bound), summed over some layers, valid
 * until the next forward. NULL: nobody asked, or the device is lost. */
const float *model_mass(const model *m, int32_t segment);
/* The tokens of rankings, from now on, which are [0, count): the model's own token i is token tokens[i], each
 * another one, and is never listed where that is < 0; tokens NULL: they are the model's own, as all of them
 * are at first. ERR_NOMEM, ERR_DEVICE: nothing changes. */
int model_set_ids(model *m, const int32_t *tokens, int32_t count);

typedef struct model_counters { /* counted by the device, so they show what really ran */
  uint64_t forwards, rows;
  uint64_t logit_rows;    /* rows of the output head, with their logits kept or not */
  uint64_t logit_lines;   /* rows whose logits came to the host */
  uint64_t staged_rows;   /* rows whose keys went to staging */
  uint64_t commit_copies; /* rows moved from staging to the committed cache, once a layer */
} model_counters;
model_counters model_count(const model *m);

device *model_device(const model *m); /* which it was opened on */
