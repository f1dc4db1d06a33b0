#include "common/text/pre_tokenizer.h"

#include "common/base/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
  NAME_PRINT_BYTES = 40,
  ESCAPE_BYTES_MAX = 40, /* of what one escape becomes */
  STEPS_MIN = 10000000,  /* of PCRE2 for one match, and for each byte of text: */
  STEPS_PER_BYTE = 8
};

typedef struct stage {
  pcre2_code *code;
  pre_tokenizer_match behaviour;
  bool invert;
} stage;

struct pre_tokenizer {
  stage stages[PRE_TOKENIZER_STAGES_MAX];
  int count;
};

int pre_tokenizer_alloc(pre_tokenizer **out) {
  *out = calloc(1, sizeof **out);
  return *out ? ERR_OK : ERR_NOMEM;
}

void pre_tokenizer_free(pre_tokenizer *s) {
  if (!s) return;
  for (int i = 0; i < s->count; i++) pcre2_code_free(s->stages[i].code);
  free(s);
}

/* ---- patterns ---- */

/* Whitespace is the Unicode property, spelt out because PCRE2's \s has U+180E too; a word's letters are
 * Oniguruma's. */
#define SPACE "\\x{09}-\\x{0d}\\x{85}\\p{Z}"
#define WORD  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

typedef struct escape {
  char letter;
  const char *outside, *inside; /* inside NULL: no such set can be written in brackets */
} escape;

static const escape ESCAPES[] = {
    {'s', "[" SPACE "]", SPACE}, {'S', "[^" SPACE "]", NULL}, {'d', "\\p{Nd}", "\\p{Nd}"},
    {'D', "\\P{Nd}", "\\P{Nd}"}, {'w', "[" WORD "]", WORD},   {'W', "[^" WORD "]", NULL},
};

static const escape *find_escape(char letter) {
  for (size_t i = 0; i < sizeof ESCAPES / sizeof *ESCAPES; i++)
    if (ESCAPES[i].letter == letter) return &ESCAPES[i];
  return NULL;
}

/* Oniguruma's syntax to PCRE2's, into out. Where a set in brackets holds what PCRE2 would read otherwise (a
 * set in a set, an intersection), the pattern is refused: false. */
static bool translate(const char *p, size_t size, char *out, size_t *out_size) {
  size_t n = 0, set_at = 0; /* set_at: after the [ of the set that i is in, or 0 */
  for (size_t i = 0; i < size; i++) {
    const escape *e = p[i] == '\\' && i + 1 < size ? find_escape(p[i + 1]) : NULL;
    if (e && set_at && !e->inside) return false;
    if (e) {
      const char *text = set_at ? e->inside : e->outside;
      memcpy(out + n, text, strlen(text));
      n += strlen(text);
      i++;
      continue;
    }
    if (set_at && (p[i] == '[' || (p[i] == '&' && i + 1 < size && p[i + 1] == '&'))) return false;
    bool first = set_at && (i == set_at || (i == set_at + 1 && p[set_at] == '^'));
    if (p[i] == '[' && !set_at)
      set_at = i + 1;
    else if (p[i] == ']' && !first)
      set_at = 0;
    out[n++] = p[i];
    if (p[i] == '\\' && i + 1 < size) out[n++] = p[++i];
  }
  *out_size = n;
  return true;
}

static int bad_pattern(err *e, const char *pattern, size_t size) {
  int shown = size < NAME_PRINT_BYTES ? (int)size : NAME_PRINT_BYTES;
  char text[NAME_PRINT_BYTES + 1];
  snprintf(text, sizeof text, "%.*s", shown, pattern);
  for (char *c = text; *c; c++)
    if (*c < ' ' || *c > '~') *c = '?';
  return err_set(e, ERR_UNSUPPORTED,
                 "the tokenizer splits text by the pattern '%s', which is not supported: use another model",
                 text);
}

static int compile(pre_tokenizer *s, const char *pattern, size_t size, stage *made, err *e) {
  char *text = malloc(size * ESCAPE_BYTES_MAX + 1);
  size_t text_size;
  int code;
  PCRE2_SIZE at;
  if (!text) return err_set(e, ERR_NOMEM, "out of memory for the tokenizer's pattern");
  if (translate(pattern, size, text, &text_size))
    made->code =
        pcre2_compile((PCRE2_SPTR)text, text_size,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_MULTILINE, &code, &at, NULL);
  free(text);
  if (!made->code) return bad_pattern(e, pattern, size);
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE); /* without JIT it is slower, not other */
  s->stages[s->count++] = *made;
  return ERR_OK;
}

int pre_tokenizer_add(pre_tokenizer *s, const char *pattern, size_t size, pre_tokenizer_match b, bool invert,
                      err *e) {
  stage made = {.behaviour = b, .invert = invert};
  if (size > PRE_TOKENIZER_PATTERN_MAX || s->count == PRE_TOKENIZER_STAGES_MAX)
    return err_set(e, ERR_LIMIT,
                   "the tokenizer splits text by more than %d patterns, or one of more than %d bytes",
                   PRE_TOKENIZER_STAGES_MAX, PRE_TOKENIZER_PATTERN_MAX);
  return compile(s, pattern, size, &made, e);
}

/* ---- those that have a name ---- */

/* Possessive wherever nothing could come of going back. The alternatives cover every character. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?+\\p{L}++| ?+\\p{N}++| ?+[^\\s\\p{L}\\p{N}]++|\\s+(?!\\S)|\\s++"
/* Llama 3 and Qwen2, which differ in how many digits make a word. */
#define CL100K(digits)                                                                                       \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}" digits                               \
  "| ?+[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s*[\\r\\n]++|\\s+(?!\\S)|\\s++"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                               \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "++|[^\\r\\n\\p{L}\\p{N}]?" UPPER "++" LOWER                      \
  "*+|\\p{N}| ?+[^\\s\\p{L}\\p{N}]++[\\r\\n/]*+|\\s*[\\r\\n]++|\\s+(?!\\S)|\\s++"

typedef struct named {
  const char *names[4]; /* the first is shown */
  const char *patterns[2];
  unsigned options;
} named;

static const named NAMED[] = {
    {{"gpt2", "gpt-2"}, {GPT2}, 0},
    {{"llama-bpe", "llama3", "llama-v3"},
     {CL100K("{1,3}+")},
     PRE_TOKENIZER_IGNORE_MERGES | PRE_TOKENIZER_ADDS_BOS},
    {{"qwen2"}, {CL100K("")}, PRE_TOKENIZER_NFC},
    {{"deepseek-r1-qwen"}, {CL100K("")}, 0},
    {{"smollm"}, {"\\p{N}", GPT2}, 0},
    {{"tekken"}, {TEKKEN}, PRE_TOKENIZER_IGNORE_MERGES | PRE_TOKENIZER_ADDS_BOS},
};
enum { NAMED_COUNT = sizeof NAMED / sizeof *NAMED };

static const named *find_named(const char *name, size_t size) {
  for (int i = 0; i < NAMED_COUNT; i++)
    for (int k = 0; k < 4 && NAMED[i].names[k]; k++)
      if (strlen(NAMED[i].names[k]) == size && memcmp(NAMED[i].names[k], name, size) == 0) return &NAMED[i];
  return NULL;
}

static int unknown_name(const char *name, size_t size, err *e) {
  char known[128] = "";
  int shown = size < NAME_PRINT_BYTES ? (int)size : NAME_PRINT_BYTES;
  for (int i = 0; i < shown; i++)
    if (name[i] < ' ' || name[i] > '~') shown = 0;
  for (int i = 0; i < NAMED_COUNT; i++)
    snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", NAMED[i].names[0]);
  return err_set(
      e, ERR_UNSUPPORTED,
      "the model's pre-tokenizer (tokenizer.ggml.pre) is '%.*s'; those known are %s: use another model",
      shown, name, known);
}

int pre_tokenizer_add_named(pre_tokenizer *s, const char *name, size_t size, unsigned *options, err *e) {
  const named *n = find_named(name, size);
  *options = n ? n->options : 0;
  if (!n) return unknown_name(name, size, e);
  for (int i = 0; i < 2 && n->patterns[i]; i++) {
    int rc = pre_tokenizer_add(s, n->patterns[i], strlen(n->patterns[i]), SPLIT_ISOLATED, false, e);
    if (rc) return rc;
  }
  return ERR_OK;
}

/* ---- use ---- */

void pre_tokenizer_scratch_fini(pre_tokenizer_scratch *x) {
  for (int i = 0; i < PRE_TOKENIZER_STAGES_MAX; i++) pcre2_match_data_free(x->matches[i]);
  pcre2_match_context_free(x->limits);
  *x = (pre_tokenizer_scratch){0};
}

typedef struct run {
  const pre_tokenizer *s;
  pre_tokenizer_scratch *x;
  pre_tokenizer_each *each;
  void *context;
} run;

typedef struct join { /* words of one stage, as matches and what lies between come in */
  const run *r;
  int stage;
  const char *begin; /* of the word that is not given out yet, or NULL */
  const char *end;
  bool was_match;
} join;

static int split(const run *r, int at, const char *text, size_t size);

static int give(join *j) {
  int rc = j->begin ? split(j->r, j->stage + 1, j->begin, (size_t)(j->end - j->begin)) : ERR_OK;
  j->begin = NULL;
  return rc;
}

static int take(join *j, const char *begin, const char *end, bool match) {
  const stage *st = &j->r->s->stages[j->stage];
  if (begin == end) return ERR_OK;
  match = match != st->invert;
  bool joins = st->behaviour == SPLIT_WITH_PREVIOUS ? match && !j->was_match
               : st->behaviour == SPLIT_WITH_NEXT   ? !match && j->was_match
                                                    : false;
  int rc = joins ? ERR_OK : give(j);
  if (!j->begin) j->begin = begin;
  j->end = end;
  j->was_match = match;
  return rc;
}

static int match(const run *r, int at, const char *text, size_t size, size_t from, PCRE2_SIZE ends[2]) {
  if (!r->x->matches[at]) r->x->matches[at] = pcre2_match_data_create(1, NULL);
  if (!r->x->matches[at]) return ERR_NOMEM;
  int rc = pcre2_match(r->s->stages[at].code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK,
                       r->x->matches[at], r->x->limits);
  if (rc == PCRE2_ERROR_NOMATCH) {
    ends[0] = ends[1] = size;
    return ERR_OK;
  }
  if (rc < 0) return rc == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT;
  memcpy(ends, pcre2_get_ovector_pointer(r->x->matches[at]), 2 * sizeof *ends);
  return ends[0] < from || ends[1] < ends[0] ? ERR_LIMIT : ERR_OK; /* \K in a lookaround */
}

/* A match of nothing only parts what is before it from what is after. */
static int split_stage(const run *r, int at, const char *text, size_t size) {
  join j = {.r = r, .stage = at};
  PCRE2_SIZE ends[2];
  size_t done = 0;
  for (size_t from = 0; from < size;) {
    int rc = match(r, at, text, size, from, ends);
    if (!rc) rc = take(&j, text + done, text + ends[0], false);
    if (!rc) rc = take(&j, text + ends[0], text + ends[1], true);
    if (rc) return rc;
    done = from = ends[1];
    size_t length = 0;
    uint32_t code;
    if (ends[0] == ends[1] && from < size)
      utf8_next((const uint8_t *)text + from, size - from, &length, &code);
    from += length;
  }
  int rc = take(&j, text + done, text + size, false);
  return rc ? rc : give(&j);
}

static int split(const run *r, int at, const char *text, size_t size) {
  if (at < r->s->count) return split_stage(r, at, text, size);
  return r->each(r->context, text, size);
}

int pre_tokenizer_run(const pre_tokenizer *s, pre_tokenizer_scratch *x, const char *text, size_t size,
                      pre_tokenizer_each *each, void *context) {
  run r = {s, x, each, context};
  if (size == 0) return ERR_OK;
  if (!x->limits) x->limits = pcre2_match_context_create(NULL);
  if (!x->limits) return ERR_NOMEM;
  size_t steps =
      size < (UINT32_MAX - STEPS_MIN) / STEPS_PER_BYTE ? STEPS_MIN + STEPS_PER_BYTE * size : UINT32_MAX;
  pcre2_set_match_limit(x->limits, (uint32_t)steps);
  return split(&r, 0, text, size);
}
