/* tandem convert-head: a draft head of any published layout to a GGUF. */
#include "common/file/head_gguf.h"
#include "common/file/json.h"
#include "common/file/mapped_file.h"
#include "common/file/model_file.h"
#include "orchestrator/cli/commands.h"
#include <stdio.h>
#include <sys/stat.h>

#define MEGA       1e6
#define LLAMA_TAPS 3 /* llama.cpp reads heads of so many states alone */

/* By the words of --type and --head-type; behind them: as the other matrices. */
static const gguf_type types[] = {GGUF_F16, GGUF_BF16, GGUF_Q8_0, GGUF_Q4_1};
enum { TYPES = sizeof types / sizeof *types };

/* The exit status for what could not be read, made smaller or written. */
static int refused(int code, const err *e) {
  exit_status status = code == ERR_NOMEM ? STATUS_FAILED : code == ERR_ARG ? STATUS_USAGE : STATUS_FILE;
  return command_error(status, "%s", e->text);
}

/* llama.cpp reads the file all the same, and drafts poorly or not at all. */
static void warn_of_llama(const head_config *c) {
  if (c->tap_count != LLAMA_TAPS)
    fprintf(stderr, "tandem: the head reads %d states of its target: llama.cpp takes heads of %d alone\n",
            c->tap_count, LLAMA_TAPS);
  if (head_config_window(c) < c->layer.context)
    fprintf(stderr, "tandem: the head sees %d positions: llama.cpp lets it see all\n", head_config_window(c));
  if (c->norm_output)
    fprintf(stderr,
            "tandem: the head hands on normed states (norm_output), of which llama.cpp knows nothing: it "
            "drafts poorly there\n");
}

static int tell(const head_file *h, const char *path) {
  const head_config *c = head_file_config(h);
  const gguf_tensor *output = head_file_tensor(h, HEAD_OUTPUT);
  struct stat s;
  double bytes = stat(path, &s) == 0 ? (double)s.st_size : 0;
  printf("%s: %.1f MB, %d tokens, matrices %s, output matrix %s, states that enter layers", path,
         bytes / MEGA, c->draft_vocab, gguf_type_name(head_file_tensor(h, HEAD_Q)->type),
         output ? gguf_type_name(output->type) : "the target's");
  for (int32_t i = 0; i < c->tap_count; i++) printf(" %d", c->taps[i]);
  putchar('\n');
  warn_of_llama(c);
  return fflush(stdout) == 0 ? STATUS_OK : STATUS_IO;
}

/* From the head as it was trained: all its rows, in the type that they had. */
static int fit_map(head_file *h, const model_file *target, err *e) {
  const gguf_tensor *rows = model_file_tensor(target, MODEL_OUTPUT, 0);
  double cosine;
  int rc = head_file_fit_map(h, rows ? rows : model_file_tensor(target, MODEL_EMBED, 0), &cosine, e);
  if (!rc) printf("map of rows: cosine %.3f with rows that were held out\n", cosine);
  return rc;
}

static int calibrate(head_file *h, const char *path, err *e) {
  mapped_file m;
  json_t *object = NULL;
  head_calibration c;
  int rc = mapped_file_open(&m, path, "the calibration", e);
  if (rc) return rc;
  rc = json_parse_object(&object, "the calibration", m.data, m.size, e);
  mapped_file_close(&m);
  if (!rc) rc = head_calibration_read_json(&c, object, e);
  if (!rc) head_file_calibrate(h, &c);
  json_decref(object);
  return rc;
}

static int write_head(const flags *f, const model_file *target, head_file *h) {
  err e = {0};
  gguf_type type = types[f->given.type];
  gguf_type output = f->given.output_type < TYPES ? types[f->given.output_type] : type;
  int rc = f->given.map ? fit_map(h, target, &e) : ERR_OK;
  if (!rc && f->given.calibration) rc = calibrate(h, f->given.calibration, &e);
  if (!rc && f->given.rows) rc = head_file_keep_rows(h, f->given.rows, &e);
  if (!rc && f->given.window) rc = head_file_narrow(h, f->given.window, &e);
  if (!rc) rc = head_file_quantise(h, type, output, &e);
  if (rc) return refused(rc, &e);
  rc = head_gguf_write(h, model_file_gguf(target), f->given.arguments[1], &e);
  if (rc == ERR_IO) return command_error(STATUS_IO, "%s", e.text);
  return rc ? refused(rc, &e) : tell(h, f->given.arguments[1]);
}

static int convert(const flags *f, const model_file *target) {
  err e = {0};
  head_file *h;
  if (!model_file_gguf(target))
    return command_error(STATUS_FILE, "%s is no GGUF with a tokenizer, which the head's file needs a copy of",
                         f->given.model);
  int rc = head_file_open(&h, f->given.arguments[0], model_file_config(target), &e);
  if (rc) return refused(rc, &e);
  int status = write_head(f, target, h);
  head_file_close(h);
  return status;
}

int command_convert_head(int argc, char **argv) {
  flags f;
  model_file *target;
  err e = {0};
  flags_parse(&f, COMMAND_CONVERT_HEAD, argc, argv);
  int rc = model_file_open(&target, f.given.model, &e);
  if (rc) return refused(rc, &e);
  int status = convert(&f, target);
  model_file_close(target);
  flags_fini(&f);
  return status;
}
