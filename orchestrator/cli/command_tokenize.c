/* tandem tokenize, tandem detokenize: text to ids and back. */
#include "common/base/program.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/input_file.h"
#include "orchestrator/service/api/tokens_json.h"
#include "orchestrator/service/result_json.h"
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

static int print_json(const text_model *m, const tokenizer_ids *ids) {
  json_t *numbers = json_array(), *spellings = json_array();
  for (size_t i = 0; i < ids->count; i++) {
    json_array_append_new(numbers, json_integer(ids->ids[i]));
    json_array_append_new(spellings, tokens_json_spelling(m->tokens, ids->ids[i]));
  }
  char *line = result_json_line(json_pack("{s:o, s:o}", "token_ids", numbers, "tokens", spellings));
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

static int tokenize(const flags *f, const text_model *m, input_file *in) {
  err e = {0};
  tokenizer_ids ids = {0};
  int code = tokenizer_encode(m->tokens, in->data, in->size, !f->request.no_special, &ids, &e);
  if (code) {
    code = command_error(code == ERR_NOMEM ? STATUS_FAILED : STATUS_INPUT, "%s", e.text);
  } else {
    command_warn_dropped(ids.dropped_bytes);
    code = f->given.json ? print_json(m, &ids) : print_ids(&ids);
  }
  tokenizer_ids_fini(&ids);
  return code;
}

/* ---- detokenize ---- */

typedef struct id_list {
  int32_t *ids; /* [count] */
  size_t count, capacity;
} id_list;

static int add_id(id_list *list, const text_model *m, int64_t id) {
  if (id < 0 || id >= tokenizer_size(m->tokens))
    return command_error(STATUS_INPUT, "id %lld is not in this vocabulary of 0 to %d", (long long)id,
                         tokenizer_size(m->tokens) - 1);
  if (list->count == list->capacity) {
    size_t wanted = list->capacity ? 2 * list->capacity : 1024;
    int32_t *p = realloc(list->ids, wanted * sizeof *p);
    if (!p) return command_error(STATUS_FAILED, "out of memory");
    list->ids = p;
    list->capacity = wanted;
  }
  list->ids[list->count++] = (int32_t)id;
  return STATUS_OK;
}

static int read_array(id_list *list, const text_model *m, const input_file *in) {
  json_error_t why;
  json_t *array = json_loadb(in->data, in->size, 0, &why), *item;
  size_t i;
  int code = STATUS_OK;
  if (!array) return command_error(STATUS_INPUT, "not a JSON array: %s (byte %d)", why.text, why.position);
  json_array_foreach(array, i, item) {
    if (code) break;
    code = json_is_integer(item) ? add_id(list, m, json_integer_value(item))
                                 : command_error(STATUS_INPUT, "item %zu of the array is no whole number", i);
  }
  json_decref(array);
  return code;
}

static int read_words(id_list *list, const text_model *m, char *text) {
  char *rest = text;
  int code = STATUS_OK;
  for (char *word; code == STATUS_OK && (word = strtok_r(rest, BLANKS, &rest));) {
    int64_t id;
    err e = {0};
    if (program_int("an id", word, INT32_MIN, INT32_MAX, &id, &e))
      return command_error(STATUS_INPUT, "%s", e.text);
    code = add_id(list, m, id);
  }
  return code;
}

static int read_ids(id_list *list, const text_model *m, input_file *in) {
  if (in->data[strspn(in->data, BLANKS)] == '[') return read_array(list, m, in);
  size_t size = strlen(in->data);
  if (size == in->size) return read_words(list, m, in->data);
  return command_error(STATUS_INPUT,
                       "byte %zu of stdin is 0: ids are whole numbers, by blanks or as a JSON array", size);
}

static int print_text(const id_list *list, const text_model *m) {
  err e = {0};
  detokenizer *d;
  detokenizer_out out;
  int rc = detokenizer_alloc(&d, m->tokens, NULL, 0, false, true, &e);
  if (rc) return command_error(STATUS_FAILED, "%s", e.text);
  for (size_t i = 0; rc == ERR_OK && i <= list->count; i++) {
    rc = i < list->count ? detokenizer_feed(d, list->ids[i], &out) : detokenizer_end(d, &out);
    fwrite(out.text, 1, out.size, stdout);
  }
  detokenizer_free(d);
  return rc ? command_error(STATUS_FAILED, "out of memory") : written();
}

static int detokenize(const flags *f, const text_model *m, input_file *in) {
  (void)f;
  id_list list = {0};
  int code = read_ids(&list, m, in);
  if (code == STATUS_OK) code = print_text(&list, m);
  free(list.ids);
  return code;
}

/* ---- both ---- */

static int over_stdin(flag_command command, int argc, char **argv, size_t size_max,
                      int (*convert)(const flags *f, const text_model *m, input_file *in)) {
  flags f;
  text_model m;
  input_file in;
  err e = {0};
  flags_parse(&f, command, argc, argv);
  command_clean_stdout();
  int code = command_open_model(&m, f.given.model);
  if (code) return code;
  if (text_model_needs_text(&m, &e)) {
    text_model_close(&m);
    return command_error(STATUS_FILE, "%s", e.text);
  }
  int rc = input_file_read(&in, "-", size_max, &e);
  if (rc)
    code = command_error(rc == ERR_IO ? STATUS_IO : STATUS_INPUT, "%s", e.text);
  else
    code = convert(&f, &m, &in);
  input_file_fini(&in);
  text_model_close(&m);
  return code;
}

int command_tokenize(int argc, char **argv) {
  return over_stdin(COMMAND_TOKENIZE, argc, argv, TOKENIZER_TEXT_MAX, tokenize);
}

int command_detokenize(int argc, char **argv) {
  return over_stdin(COMMAND_DETOKENIZE, argc, argv, IDS_TEXT_MAX, detokenize);
}
