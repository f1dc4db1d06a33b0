#include "common/command_line/draft_methods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* replay's FILE may hold a comma, so it is the last one. */
#define REPLAY_PREFIX "replay:"

static const char *const names[DRAFT_METHODS_MAX] = {"ngram", "suffix", "model", "eagle3", "replay"};

static int refuse(const char *text, err *e) {
  return err_set(
      e, ERR_ARG,
      "--draft is '%s', but must be ngram, suffix, eagle3, model, none or replay:FILE:RATE[:S], or several "
      "of them, each once, as in eagle3,ngram, with replay as the last; how many tokens they draft "
      "is --budget N",
      text);
}

/* The method of name[0..length), or DRAFT_METHODS_MAX. */
static draft_method find(const char *name, size_t length) {
  for (int i = 0; i < DRAFT_METHODS_MAX; i++)
    if (i != DRAFT_REPLAY && strlen(names[i]) == length && memcmp(name, names[i], length) == 0)
      return (draft_method)i;
  return DRAFT_METHODS_MAX;
}

int draft_methods_parse(draft_methods *out, const char *text, err *e) {
  const char *at = text;
  *out = (draft_methods){.count = 0};
  for (bool more = true; more;) {
    size_t length = strcspn(at, ",");
    bool replay = strncmp(at, REPLAY_PREFIX, strlen(REPLAY_PREFIX)) == 0;
    draft_method method = replay ? DRAFT_REPLAY : find(at, length);
    if (method == DRAFT_METHODS_MAX || draft_methods_have(out, method)) return refuse(text, e);
    out->list[out->count++] = method;
    if (replay) out->replay = at + strlen(REPLAY_PREFIX);
    more = !replay && at[length] == ',';
    at += length + 1;
  }
  bool own_text = draft_methods_have(out, DRAFT_NGRAM);
  if (draft_methods_have(out, DRAFT_SUFFIX) && !own_text) out->list[out->count++] = DRAFT_NGRAM;
  if (draft_methods_have(out, DRAFT_MODEL) && draft_methods_have(out, DRAFT_EAGLE3))
    return err_set(e, ERR_ARG, "--draft is '%s', but a draft computes with a model or with a head", text);
  return ERR_OK;
}

int draft_methods_check_corpus(const draft_methods *m, bool corpus, bool learns, bool typed, err *e) {
  bool suffix = draft_methods_have(m, DRAFT_SUFFIX);
  if (!suffix && typed)
    return err_set(
        e, ERR_ARG,
        "--corpus and --corpus-learn are of --draft suffix: give that too, alone or as in eagle3,suffix");
  if (!suffix || corpus || learns) return ERR_OK;
  return err_set(
      e, ERR_ARG,
      "--draft suffix has nothing to look into: give --corpus FILE or, to a server or a draft whose "
      "requests are all one user's, --corpus-learn");
}

bool draft_methods_have(const draft_methods *m, draft_method method) {
  for (int32_t i = 0; i < m->count; i++)
    if (m->list[i] == method) return true;
  return false;
}

bool draft_methods_name(const char *text, draft_method method) {
  draft_methods m;
  err e;
  return draft_methods_parse(&m, text, &e) == ERR_OK && draft_methods_have(&m, method);
}

bool draft_methods_compute(const char *text) {
  return draft_methods_name(text, DRAFT_MODEL) || draft_methods_name(text, DRAFT_EAGLE3);
}

static bool is_probability(const char *text, const char *end) {
  char *stop;
  double value = strtod(text, &stop);
  return stop == end && end > text && value >= 0 && value <= 1;
}

/* The last ':' of text[0, end), or NULL. */
static const char *last_colon(const char *text, const char *end) {
  while (end > text)
    if (*--end == ':') return end;
  return NULL;
}

bool draft_methods_replay_file(const char *argument, char out[PATH_MAX]) {
  const char *end = argument + strlen(argument), *second = last_colon(argument, end);
  if (!second || !is_probability(second + 1, end)) return false;
  const char *first = last_colon(argument, second);
  end = first && is_probability(first + 1, second) ? first : second;
  return end > argument && snprintf(out, PATH_MAX, "%.*s", (int)(end - argument), argument) < PATH_MAX;
}
