/* A draft head with fewer rows, a narrower window, or in another type: what costs the least time a token. */
#include "common/file/head_file.h"
#include "common/file/head_file_parts.h"
#include "common/file/quantise.h"
#include "common/file/tensor_values.h"

#include <stdlib.h>

/* A full vocabulary gets a map, because its rows are no longer all tokens. */
static int number_rows(head_file *f, int32_t rows, err *e) {
  if (f->ids) return ERR_OK;
  f->ids = malloc((size_t)rows * sizeof *f->ids);
  if (!f->ids) return err_set(e, ERR_NOMEM, "out of memory for the draft head's vocabulary");
  for (int32_t i = 0; i < rows; i++) f->ids[i] = i;
  return ERR_OK;
}

int head_file_keep_rows(head_file *f, int32_t rows, err *e) {
  gguf_tensor *t = &f->tensors[HEAD_OUTPUT];
  if (rows < 1 || rows > f->config.draft_vocab)
    return err_set(e, ERR_ARG, "the draft head's vocabulary has %d tokens: %d of them cannot be kept",
                   f->config.draft_vocab, rows);
  if (rows == f->config.draft_vocab) return ERR_OK;
  if (!t->data)
    return err_set(e, ERR_UNSUPPORTED,
                   "the draft head has no output matrix of its own, so that its vocabulary cannot be cut");
  int rc = number_rows(f, rows, e);
  if (rc) return rc;
  t->bytes = t->bytes / (size_t)t->shape[1] * (size_t)rows;
  t->shape[1] = rows;
  f->config.draft_vocab = rows;
  return ERR_OK;
}

int head_file_narrow(head_file *f, int32_t window, err *e) {
  int32_t seen = head_config_window(&f->config);
  if (window < 1 || window > seen)
    return err_set(e, ERR_ARG, "the draft head sees %d positions: it cannot see %d", seen, window);
  f->config.layer.window[0] = window;
  return ERR_OK;
}

static int check_turn(const gguf_tensor *t, gguf_type type, err *e) {
  if (!tensor_is_plain(t->type))
    return err_set(e, ERR_UNSUPPORTED,
                   "the draft head's tensor %s is %s already and cannot become %s: give the head as it was "
                   "trained (F32, F16 or BF16)",
                   t->name, gguf_type_name(t->type), gguf_type_name(type));
  if (t->shape[0] % quantise_block(type))
    return err_set(e, ERR_UNSUPPORTED,
                   "the draft head's tensor %s has rows of %lld values, which are no whole blocks of %d: use "
                   "bf16 or f16",
                   t->name, (long long)t->shape[0], quantise_block(type));
  return ERR_OK;
}

/* Row by row, so that little more memory is taken than the result needs. */
static bool turn_rows(const gguf_tensor *t, gguf_type type, float *row, uint8_t *out) {
  size_t columns = (size_t)t->shape[0], row_bytes = quantise_bytes(type, columns);
  bool fits = true;
  for (size_t r = 0; r < (size_t)t->shape[1]; r++) {
    tensor_values(t->type, t->data, r * columns, columns, row);
    fits &= quantise(type, row, columns, out + r * row_bytes);
  }
  return fits;
}

static int turn(head_file *f, head_role role, gguf_type type, err *e) {
  gguf_tensor *t = &f->tensors[role];
  if (!t->data || t->shape[1] == 1 || t->type == type) return ERR_OK;
  int rc = check_turn(t, type, e);
  if (rc) return rc;
  size_t bytes = quantise_bytes(type, (size_t)t->shape[0]) * (size_t)t->shape[1];
  void *out = malloc(bytes);
  float *row = malloc((size_t)t->shape[0] * sizeof *row);
  bool fits = out && row && turn_rows(t, type, row, out);
  if (!out || !row)
    rc = err_set(e, ERR_NOMEM, "out of memory for the draft head's tensor %s", t->name);
  else if (!fits)
    rc = err_set(e, ERR_FORMAT, "the draft head's tensor %s has values too large for %s: use bf16", t->name,
                 gguf_type_name(type));
  free(row);
  if (rc) {
    free(out);
    return rc;
  }
  free(f->copies[role]);
  f->copies[role] = out;
  t->data = out;
  t->type = type;
  t->bytes = bytes;
  return ERR_OK;
}

int head_file_quantise(head_file *f, gguf_type type, gguf_type output, err *e) {
  int rc = ERR_OK;
  for (head_role role = 0; !rc && role < HEAD_ROLE_COUNT; role++)
    rc = turn(f, role, role == HEAD_OUTPUT ? output : type, e);
  return rc;
}

int head_file_settle(head_file *f, gguf_type wanted, err *e) {
  gguf_type own = f->tensors[HEAD_FC].type;
  if (wanted == GGUF_F32) wanted = tensor_is_plain(own) ? GGUF_Q8_0 : own;
  return wanted == own ? ERR_OK : head_file_quantise(f, wanted, wanted, e);
}
