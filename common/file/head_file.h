/* head_file.h - a draft head on disk: a folder with config.json and safetensors in the EAGLE layout
 * (midlayer.*) or the speculators layout (layers.0.*, transformer_layer_config), or a GGUF of architecture
 * eagle3 as llama.cpp writes it. Tensors are found by their role; names, shapes, types and values have been
 * checked at open, against the file's own configuration and against the target. */
#pragma once

#include "common/file/head_config.h"
#include "common/file/head_roles.h"

typedef struct head_file head_file;

/* Opens, maps and checks everything. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM; ERR_MISMATCH:
 * a head for another target. *out NULL then. */
int head_file_open(head_file **out, const char *path, const model_config *target, err *e);
/* A GGUF's bytes in memory that outlive it (tests, fuzzing). */
int head_file_open_memory(head_file **out, const void *data, size_t size, const model_config *target, err *e);
void head_file_close(head_file *f); /* NULL is allowed */

const head_config *head_file_config(const head_file *f);
/* How many tokens ahead it was trained to guess. Few files say it, so otherwise it is what EAGLE-3 heads are
 * usually trained with, the default model's head too: SpecForge and scripts/train_eagle3.py unroll a head
 * seven steps unless they are told another number. */
#define HEAD_FILE_HORIZON 7
int32_t head_file_horizon(const head_file *f);
/* NULL where the head has none: FC_NORM, ROPE_FACTORS; EMBED and OUTPUT where the target's own serve, whose
 * rows are as wide as the head's then. Vectors are F32, F16 or BF16. Data may have any alignment, and the
 * rows of Q and K stand in the order that layer.half_split tells. */
const gguf_tensor *head_file_tensor(const head_file *f, head_role role);
/* int32 [draft_vocab], all different: which token of the target each row of OUTPUT is. NULL: row i is token
 * i, and draft_vocab is the target's vocabulary. */
const int32_t *head_file_ids(const head_file *f);
/* BF16 [embed][target_embed + 1]: times the target's row of a token, and a 1 after it, it is about the row
 * that OUTPUT would have for that token. NULL: the file has none. */
const gguf_tensor *head_file_map(const head_file *f);
const char *head_role_name(head_role role); /* in a GGUF */

/* Keeps the first rows of the output matrix and of its ids; a head whose draft vocabulary is ordered by
 * falling frequency loses little. ERR_ARG: not in [1, draft_vocab]; ERR_UNSUPPORTED: it has no output matrix.
 */
int head_file_keep_rows(head_file *f, int32_t rows, err *e);
/* Lets the layer see the last `window` positions alone. ERR_ARG: < 1, or more than it sees. */
int head_file_narrow(head_file *f, int32_t window, err *e);
/* Turns the matrices into `type`, the output matrix into `output` (quantise.h knows which). Those that have
 * the type already stay. ERR_UNSUPPORTED: a matrix is quantised already, or its rows are no whole blocks;
 * ERR_FORMAT: its values do not fit; ERR_NOMEM. */
int head_file_quantise(head_file *f, gguf_type type, gguf_type output, err *e);
/* Replaces the calibration. */
void head_file_calibrate(head_file *f, const head_calibration *c);
/* All of them into the type in which workers use it; GGUF_F32: nobody has said which, so that a head in a
 * plain type becomes Q8_0, which drafts as well and is read in half the time, and another one stays. */
int head_file_settle(head_file *f, gguf_type wanted, err *e);
/* Makes the map of rows, from the target's output matrix (its embedding, where that is the same) and the rows
 * that the head has, in minutes for a wide target. *cosine: the mean between rows that were held out and
 * those that the map makes of them. ERR_UNSUPPORTED: too few rows, or of a type that is not read; ERR_NOMEM.
 */
int head_file_fit_map(head_file *f, const gguf_tensor *rows, double *cosine, err *e);
/* Makes what the map gives for a token as a row of the output matrix, in its type, at `out`. rows: as above.
 * scratch: [2 * (target_embed + 1) + embed]. False: the head has no map, a type is not read or written, or
 * the row's values are too large. */
bool head_file_map_row(const head_file *f, const gguf_tensor *rows, int32_t token, float *scratch, void *out);
