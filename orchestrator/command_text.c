/* tandem tokenize, tandem detokenize: text to ids and back. */
#include "common/base/program.h"
#include "orchestrator/commands.h"
#include "orchestrator/input.h"
#include "orchestrator/result.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS_TEXT_MAX (256u << 20) /* bytes of ids as text */
#define BLANKS       " \t\r\n"

static int written(void) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return STATUS_OK;
  return command_error(STATUS_IO, "cannot write to stdout: %s", strerror(errno));
}

/* ---- tokenize ---- */

static json_t *spelling_of(const tokenizer *t, int32_t id) {
  size_t size;
  const char *spelling = tokenizer_spelling(t, id, &size);
  json_t *s = json_stringn(spelling, size);
  return s ? s : json_string("\xef\xbf\xbd"); /* not UTF-8: U+FFFD */
}

static int print_json(const text_model *m, const tokenizer_ids *ids) {
  json_t *numbers = json_array(), *spellings = json_array();
  for (size_t i = 0; i < ids->count; i++) {
    json_array_append_new(numbers, json_integer(ids->ids[i]));
    json_array_append_new(spellings, spelling_of(m->tokens, ids->ids[i]));
  }
  char *line = result_line(json_pack("{s:o, s:o}", "token_ids", numbers, "tokens", spellings));
  if (!line) return command_error(STATUS_FAILED, "out of memory");
  fputs(line, stdout);
  free(line);
  return written();
}

static int print_ids(const tokenizer_ids *ids) {
  for (size_t i = 0; i < ids->count; i++) printf("%s%d", i ? " " : "", ids->ids[i]);
  putchar('\n');
  return written();
}

static int tokenize(const flags *f, const text_model *m, input *in) {
  err e = {0};
  tokenizer_ids ids = {0};
  int code = tokenizer_encode(m->tokens, in->data, in->size, !f->no_special, &ids, &e);
  if (code) {
    code = command_error(code == ERR_NOMEM ? STATUS_FAILED : STATUS_INPUT, "%s", e.text);
  } else {
    command_warn_dropped(ids.dropped_bytes);
    code = f->json ? print_json(m, &ids) : print_ids(&ids);
  }
  tokenizer_ids_fini(&ids);
  return code;
}

/* ---- detokenize ---- */

static int feed(const text_model *m, detokenizer *d, int64_t id) {
  detokenizer_out out;
  if (id < 0 || id >= tokenizer_size(m->tokens))
    return command_error(STATUS_INPUT, "id %lld is not in this vocabulary of 0 to %d", (long long)id,
                         tokenizer_size(m->tokens) - 1);
  if (detokenizer_feed(d, (int32_t)id, &out)) return command_error(STATUS_FAILED, "out of memory");
  fwrite(out.text, 1, out.size, stdout);
  return STATUS_OK;
}

static int feed_array(const text_model *m, detokenizer *d, const input *in) {
  json_error_t why;
  json_t *array = json_loadb(in->data, in->size, 0, &why), *item;
  size_t i;
  int code = array ? STATUS_OK
                   : command_error(STATUS_INPUT, "not a JSON array: %s (byte %d)", why.text, why.position);
  json_array_foreach(array, i, item) {
    if (code) break;
    code = json_is_integer(item) ? feed(m, d, json_integer_value(item))
                                 : command_error(STATUS_INPUT, "item %zu of the array is no whole number", i);
  }
  json_decref(array);
  return code;
}

static int feed_words(const text_model *m, detokenizer *d, char *text) {
  char *rest = text;
  int code = STATUS_OK;
  for (char *word; code == STATUS_OK && (word = strtok_r(rest, BLANKS, &rest));) {
    int64_t id;
    err e = {0};
    if (program_int("an id", word, INT32_MIN, INT32_MAX, &id, &e))
      return command_error(STATUS_INPUT, "%s", e.text);
    code = feed(m, d, id);
  }
  return code;
}

static int feed_all(const text_model *m, detokenizer *d, input *in) {
  size_t first = strspn(in->data, BLANKS);
  if (in->data[first] == '[') return feed_array(m, d, in);
  if (strlen(in->data) != in->size)
    return command_error(STATUS_INPUT,
                         "byte %zu of stdin is 0: ids are whole numbers, by blanks or as a JSON array",
                         strlen(in->data));
  return feed_words(m, d, in->data);
}

static int detokenize(const flags *f, const text_model *m, input *in) {
  (void)f;
  err e = {0};
  detokenizer *d;
  detokenizer_out out;
  if (detokenizer_alloc(&d, m->tokens, NULL, 0, false, &e)) return command_error(STATUS_FAILED, "%s", e.text);
  int code = feed_all(m, d, in);
  if (code == STATUS_OK && detokenizer_end(d, &out))
    code = command_error(STATUS_FAILED, "out of memory");
  else if (code == STATUS_OK)
    fwrite(out.text, 1, out.size, stdout);
  detokenizer_free(d);
  return code ? code : written();
}

/* ---- both ---- */

static int over_stdin(flags_command command, int argc, char **argv, size_t size_max,
                      int (*work)(const flags *f, const text_model *m, input *in)) {
  flags f;
  text_model m;
  input in;
  err e = {0};
  flags_parse(&f, command, argc, argv);
  int code = command_open_model(&m, f.model);
  if (code) return code;
  int rc = input_read(&in, "-", size_max, &e);
  if (rc)
    code = command_error(rc == ERR_IO ? STATUS_IO : STATUS_INPUT, "%s", e.text);
  else
    code = work(&f, &m, &in);
  input_fini(&in);
  text_model_close(&m);
  return code;
}

int command_tokenize(int argc, char **argv) {
  return over_stdin(FLAGS_TOKENIZE, argc, argv, TOKENIZER_TEXT_MAX, tokenize);
}

int command_detokenize(int argc, char **argv) {
  return over_stdin(FLAGS_DETOKENIZE, argc, argv, IDS_TEXT_MAX, detokenize);
}
