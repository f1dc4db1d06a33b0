#include "draft_worker/draft_corpus.h"

#include "common/base/token_file.h"
#include "common/file/model_file.h"
#include "common/file/printable.h"
#include "common/text/tokenizer.h"
#include <sys/stat.h>

#define TEXT_MAX (16 * (size_t)CORPUS_TOKENS_MAX) /* bytes of a text that are read, from its end */

_Static_assert(TEXT_MAX <= TOKENIZER_TEXT_MAX, "the tokenizer takes a text as long as that");

/* --- tokens --- */

/* An id that the vocabulary has not, as after a change of the model, ends a text. */
static void add_ids(corpus *c, const int32_t *ids, size_t count, int32_t vocabulary) {
  size_t begin = count > CORPUS_TOKENS_MAX ? count - CORPUS_TOKENS_MAX : 0;
  for (size_t i = begin; i <= count; i++) {
    if (i < count && ids[i] >= 0 && ids[i] < vocabulary) continue;
    if (i > begin) corpus_add(c, ids + begin, (int32_t)(i - begin));
    begin = i + 1;
  }
}

static int read_ids(corpus *c, const mapped_file *m, const char *path, int32_t vocabulary, err *e) {
  const int32_t *ids;
  size_t count;
  int rc = token_file_ids(m->data, m->size, path, &ids, &count, e);
  if (rc == ERR_OK) add_ids(c, ids, count, vocabulary);
  return rc;
}

/* --- text --- */

static int open_tokenizer(tokenizer **out, const model_file *f, err *e) {
  const gguf *g = model_file_gguf(f);
  const char *json = model_file_tokenizer(f);
  *out = NULL;
  if (g) return tokenizer_open(out, g, e);
  if (json) return tokenizer_open_json(out, json, model_file_config(f)->vocab, e);
  return err_set(e, ERR_UNSUPPORTED,
                 "--corpus: this model has no vocabulary, so that no text can be read with it");
}

static bool continues_character(char byte) {
  return ((unsigned char)byte & 0xc0) == 0x80;
}

/* Of a longer text the end is read, from a character's first byte on. */
static int read_text(corpus *c, const mapped_file *m, const char *path, const model_file *f, err *e) {
  char shown[PRINTABLE_PATH_MAX];
  size_t begin = m->size > TEXT_MAX ? m->size - TEXT_MAX : 0;
  const char *text = m->data;
  tokenizer *t;
  tokenizer_ids ids = {0};
  err why = {0};
  while (begin > 0 && begin < m->size && continues_character(text[begin])) begin++;
  int rc = open_tokenizer(&t, f, e);
  if (rc != ERR_OK) return rc;
  rc = tokenizer_encode(t, text + begin, m->size - begin, 0, &ids, &why);
  printable_path(shown, path);
  if (rc == ERR_OK)
    add_ids(c, ids.ids, ids.count, tokenizer_size(t));
  else
    err_set(e, rc, "--corpus: %s: %s", shown, why.text);
  tokenizer_ids_fini(&ids);
  tokenizer_close(t);
  return rc;
}

/* --- the drafter --- */

static int read_file(corpus *c, const char *path, const model_file *f, err *e) {
  mapped_file m;
  struct stat s;
  char shown[PRINTABLE_PATH_MAX];
  printable_path(shown, path);
  bool known = stat(path, &s) == 0;
  if (known && !S_ISREG(s.st_mode)) return err_set(e, ERR_IO, "--corpus: %s is no file", shown);
  if (known && s.st_size == 0) return ERR_OK;
  int rc = mapped_file_open(&m, path, "the corpus", e);
  if (rc != ERR_OK) return rc;
  rc = token_file_is(m.data, m.size) ? read_ids(c, &m, path, model_file_config(f)->vocab, e)
                                     : read_text(c, &m, path, f, e);
  mapped_file_close(&m);
  return rc;
}

static int read_with(draft_corpus *c, const flag_values *a, const logger *log, draft_options *o, err *e) {
  model_file *f;
  err why = {0};
  int rc = model_file_open_text(&f, a->model, e);
  if (rc != ERR_OK) return rc;
  o->vocabulary_size = model_file_config(f)->vocab;
  rc = model_file_vocabulary(f, &o->vocabulary_hash, e);
  if (rc == ERR_OK && a->corpus) {
    if (read_file(c->corpus, a->corpus, f, &why) == ERR_OK)
      log_line(log, LOG_INFO, "the corpus has %d tokens", corpus_size(c->corpus));
    else
      log_line(log, LOG_ERROR, "%s; the draft goes on without it", why.text);
  }
  model_file_close(f);
  return rc;
}

int draft_corpus_open(draft_corpus *c, const flag_values *a, const logger *log, draft_options *o, drafter *to,
                      err *e) {
  if (a->corpus && !a->model)
    return err_set(e, ERR_ARG,
                   "--corpus needs -m FILE, the target's model, whose vocabulary it is read with");
  int rc = corpus_open(&c->corpus, CORPUS_TOKENS_MAX, e);
  if (rc == ERR_OK && a->model) rc = read_with(c, a, log, o, e);
  if (rc != ERR_OK) return rc;
  c->source = (suffix_source){c->corpus, a->corpus_learn};
  return immediate_open(to, &suffix_kind, &c->source, e);
}

void draft_corpus_close(draft_corpus *c) {
  corpus_close(c->corpus);
}
