/* The affine map from the target's row of a token to the row that a draft head's output matrix would have for
 * it: fitted by least squares over the tokens that have both. */
#include "common/file/head_file.h"
#include "common/file/head_file_parts.h"
#include "common/file/quantise.h"
#include "common/file/tensor_values.h"

#include <math.h>
#include <stdlib.h>

enum {
  PAIRS_MAX = 16384, /* more change little and take long */
  PAIRS_LEAST = 2,   /* pairs for each number of the target's row */
  HELD_OUT = 16,     /* one in so many pairs is compared with, not fitted */
  ROWS = 8           /* added at a time: memory is the limit */
};

#define RIDGE 1e-5 /* of the mean square, so that columns of zeros have a solution */

/* x: the target's row and a 1; y: the head's. */
typedef struct fit {
  const gguf_tensor *from, *to;
  const int32_t *ids;
  int32_t pairs, inputs, outputs; /* inputs: with the 1 */
  float *x, *y;                   /* [ROWS][inputs], [ROWS][outputs] */
  double *square, *product;       /* [inputs][inputs], the lower half alone; [inputs][outputs] */
} fit;

static bool read_pair(const fit *f, int32_t i, float *x, float *y) {
  x[f->inputs - 1] = 1;
  return tensor_row(f->from, f->ids ? f->ids[i] : i, x) && tensor_row(f->to, i, y);
}

/* into[k] += the sum over the rows of weights[row] * values[row][k], where a row's columns stand `step`
 * apart. */
static void add_rows(double *into, int32_t count, const float *weights, int32_t weight_step,
                     const float *values, int32_t step) {
  double w[ROWS];
  for (int r = 0; r < ROWS; r++) w[r] = weights[r * weight_step];
  for (int32_t k = 0; k < count; k++) {
    const float *v = values + k;
    into[k] += w[0] * v[0] + w[1] * v[step] + w[2] * v[2 * step] + w[3] * v[3 * step] + w[4] * v[4 * step] +
               w[5] * v[5 * step] + w[6] * v[6 * step] + w[7] * v[7 * step];
  }
}

static void add_pairs(fit *f) {
  for (int32_t i = 0; i < f->inputs; i++) {
    add_rows(f->square + (size_t)i * f->inputs, i + 1, f->x + i, f->inputs, f->x, f->inputs);
    add_rows(f->product + (size_t)i * f->outputs, f->outputs, f->x + i, f->inputs, f->y, f->outputs);
  }
}

static bool add_all(fit *f) {
  int filled = 0;
  for (int32_t i = 0; i < f->pairs; i++) {
    if (i % HELD_OUT == 0) continue;
    if (!read_pair(f, i, f->x + (size_t)filled * f->inputs, f->y + (size_t)filled * f->outputs)) return false;
    if (++filled == ROWS) add_pairs(f), filled = 0;
  }
  return true; /* up to ROWS - 1 pairs are left out */
}

/* ---- solving ---- */

/* square = L L^T in place. The ridge makes every pivot positive. */
static void factor(fit *f) {
  double *a = f->square, mean = 0;
  int32_t n = f->inputs;
  for (int32_t i = 0; i < n; i++) mean += a[(size_t)i * n + i] / n;
  for (int32_t i = 0; i < n; i++) {
    double *row = a + (size_t)i * n;
    row[i] += mean * RIDGE;
    for (int32_t k = 0; k <= i; k++) {
      const double *other = a + (size_t)k * n;
      double sum = row[k];
      for (int32_t j = 0; j < k; j++) sum -= row[j] * other[j];
      row[k] = k < i ? sum / other[k] : sqrt(sum);
    }
  }
}

static void subtract(double *row, const double *other, double weight, int32_t count) {
  for (int32_t k = 0; k < count; k++) row[k] -= weight * other[k];
}

static void divide(double *row, double by, int32_t count) {
  for (int32_t k = 0; k < count; k++) row[k] /= by;
}

/* product becomes the solution, [inputs][outputs]. */
static void solve(fit *f) {
  int32_t n = f->inputs, m = f->outputs;
  for (int32_t i = 0; i < n; i++) {
    double *row = f->product + (size_t)i * m;
    for (int32_t j = 0; j < i; j++)
      subtract(row, f->product + (size_t)j * m, f->square[(size_t)i * n + j], m);
    divide(row, f->square[(size_t)i * n + i], m);
  }
  for (int32_t i = n; i-- > 0;) {
    double *row = f->product + (size_t)i * m;
    for (int32_t j = i + 1; j < n; j++)
      subtract(row, f->product + (size_t)j * m, f->square[(size_t)j * n + i], m);
    divide(row, f->square[(size_t)i * n + i], m);
  }
}

/* The mean cosine between rows of the head that were held out and what the map makes. */
static double mean_cosine(fit *f) {
  double total = 0;
  int32_t count = 0;
  for (int32_t i = 0; i < f->pairs; i += HELD_OUT, count++) {
    double both = 0, own = 0, made = 0;
    read_pair(f, i, f->x, f->y);
    for (int32_t o = 0; o < f->outputs; o++) {
      double v = 0;
      for (int32_t k = 0; k < f->inputs; k++) v += f->x[k] * f->product[(size_t)k * f->outputs + o];
      both += v * f->y[o], own += (double)f->y[o] * f->y[o], made += v * v;
    }
    total += own > 0 && made > 0 ? both / sqrt(own * made) : 0;
  }
  return count ? total / count : 0;
}

/* ---- the map as a tensor ---- */

static int keep_map(head_file *h, const fit *f, err *e) {
  size_t count = (size_t)f->inputs * (size_t)f->outputs;
  uint16_t *values = malloc(count * sizeof *values);
  if (!values) return err_set(e, ERR_NOMEM, "out of memory for the map of rows");
  for (int32_t o = 0; o < f->outputs; o++)
    for (int32_t k = 0; k < f->inputs; k++) {
      float v = (float)f->product[(size_t)k * f->outputs + o];
      if (!isfinite(v) || !quantise(GGUF_BF16, &v, 1, values + (size_t)o * f->inputs + k)) v = NAN;
      if (isnan(v)) {
        free(values);
        return err_set(e, ERR_FORMAT,
                       "the map of rows has a value that is no number: the head cannot be mapped");
      }
    }
  free(h->map_copy);
  h->map_copy = values;
  h->map = (gguf_tensor){.name = HEAD_MAP_NAME,
                         .type = GGUF_BF16,
                         .dims = 2,
                         .shape = {f->inputs, f->outputs, 1, 1},
                         .data = values,
                         .bytes = count * sizeof *values};
  return ERR_OK;
}

static int run(head_file *h, fit *f, double *cosine, err *e) {
  f->x = malloc((size_t)ROWS * f->inputs * sizeof *f->x);
  f->y = malloc((size_t)ROWS * f->outputs * sizeof *f->y);
  f->square = calloc((size_t)f->inputs * f->inputs, sizeof *f->square);
  f->product = calloc((size_t)f->inputs * f->outputs, sizeof *f->product);
  if (!f->x || !f->y || !f->square || !f->product)
    return err_set(e, ERR_NOMEM, "out of memory for the map of rows");
  if (!add_all(f))
    return err_set(e, ERR_UNSUPPORTED,
                   "no map of rows can be made from a tensor of type %s and one of type %s",
                   gguf_type_name(f->from->type), gguf_type_name(f->to->type));
  factor(f);
  solve(f);
  *cosine = mean_cosine(f);
  return keep_map(h, f, e);
}

int head_file_fit_map(head_file *h, const gguf_tensor *rows, double *cosine, err *e) {
  const head_config *c = &h->config;
  fit f = {.from = rows,
           .to = &h->tensors[HEAD_OUTPUT],
           .ids = h->ids,
           .inputs = c->target_embed + 1,
           .outputs = c->layer.embed,
           .pairs = c->draft_vocab < PAIRS_MAX ? c->draft_vocab : PAIRS_MAX};
  if (!f.to->data) return err_set(e, ERR_UNSUPPORTED, "the head has no output matrix to map rows to");
  if (f.pairs / PAIRS_LEAST < f.inputs)
    return err_set(e, ERR_UNSUPPORTED, "a map of rows needs %d tokens with a row in the head, but it has %d",
                   PAIRS_LEAST * f.inputs, f.pairs);
  int rc = run(h, &f, cosine, e);
  free(f.x);
  free(f.y);
  free(f.square);
  free(f.product);
  return rc;
}

/* ---- rows ---- */

enum { LANES = 8 };

static float product_of(const float *a, const float *b, int32_t count) {
  float lanes[LANES] = {0}, sum = 0;
  int32_t whole = count - count % LANES;
  for (int32_t k = 0; k < whole; k += LANES)
    for (int32_t i = 0; i < LANES; i++) lanes[i] += a[k + i] * b[k + i];
  for (int32_t k = whole; k < count; k++) sum += a[k] * b[k];
  for (int32_t i = 0; i < LANES; i++) sum += lanes[i];
  return sum;
}

bool head_file_map_row(const head_file *f, const gguf_tensor *rows, int32_t token, float *scratch,
                       void *out) {
  const gguf_tensor *map = head_file_map(f), *output = head_file_tensor(f, HEAD_OUTPUT);
  if (!map || !output || !quantise_knows(output->type)) return false;
  if (rows->shape[0] + 1 != map->shape[0]) return false;
  size_t inputs = (size_t)map->shape[0], outputs = (size_t)map->shape[1];
  float *x = scratch, *weights = x + inputs, *y = weights + inputs;
  x[inputs - 1] = 1;
  if (!tensor_row(rows, token, x)) return false;
  for (size_t o = 0; o < outputs; o++) {
    tensor_values(map->type, map->data, o * inputs, inputs, weights);
    y[o] = product_of(weights, x, (int32_t)inputs);
    if (!isfinite(y[o])) return false;
  }
  return quantise(output->type, y, outputs, out);
}
