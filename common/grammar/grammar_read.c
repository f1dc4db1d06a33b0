/* grammar_read.c - grammar_read: one pass over the text, by recursive descent. Alternatives are collected in
 * a list of pending elements and laid down when their rule is whole, so that each rule's lie together. */
#include "common/grammar/grammar.h"
#include "common/base/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define CHARACTER_MAX 0x10ffffu
#define NAME_SHOWN    40
#define SPANS_MAX     1024 /* ranges of one class as the text has them */

typedef struct name {
  const char *text;
  int32_t size, rule;
  bool defined;
} name;

typedef struct reader {
  const char *at, *end, *begin;
  grammar *g;
  name *names; /* [name_count]; rules that were made here have none */
  int32_t element_room, alternative_room, rule_room, name_room, class_room, range_room, pending_room;
  grammar_element *pending; /* the sequences that are being read, the inner ones behind the outer ones */
  int32_t pending_count;
  int32_t name_count;
  int32_t groups;       /* parentheses that are open */
  int32_t letters[128]; /* the class of a single ASCII character; 0: there is none yet, else 1 + class */
  err *e;
} reader;

/* --- errors --- */

static int32_t line_of(const reader *r) {
  int32_t line = 1;
  for (const char *p = r->begin; p < r->at; p++) line += *p == '\n';
  return line;
}

static int refuse(const reader *r, int code, const char *what) {
  return err_set(r->e, code, "the grammar, line %d: %s", line_of(r), what);
}

static int no_memory(const reader *r) {
  return err_set(r->e, ERR_NOMEM, "out of memory for a grammar");
}

/* --- what grows --- */

static int reserve(const reader *r, void **list, int32_t *room, int32_t count, size_t each) {
  if (count <= *room) return ERR_OK;
  int32_t wanted = *room ? *room : 64;
  while (wanted < count) wanted *= 2;
  void *more = realloc(*list, (size_t)wanted * each);
  if (!more) return no_memory(r);
  *list = more;
  *room = wanted;
  return ERR_OK;
}

static int push(reader *r, grammar_kind kind, int32_t value) {
  if (r->pending_count == GRAMMAR_ELEMENTS_MAX)
    return refuse(r, ERR_LIMIT, "there are too many elements: shorten it, or lower the numbers of {n,m}");
  int rc = reserve(r, (void **)&r->pending, &r->pending_room, r->pending_count + 1, sizeof *r->pending);
  if (rc == ERR_OK) r->pending[r->pending_count++] = (grammar_element){kind, value};
  return rc;
}

static int add_rule(reader *r, int32_t *rule) {
  grammar *g = r->g;
  if (g->rule_count == GRAMMAR_RULES_MAX)
    return refuse(r, ERR_LIMIT, "there are too many rules: shorten it, or lower the numbers of {n,m}");
  int rc = reserve(r, (void **)&g->rules, &r->rule_room, g->rule_count + 1, sizeof *g->rules);
  if (rc) return rc;
  g->rules[g->rule_count] = (grammar_rule){0, 0};
  *rule = g->rule_count++;
  return ERR_OK;
}

static int add_range(reader *r, uint32_t first, uint32_t last) {
  grammar *g = r->g;
  int rc = reserve(r, (void **)&g->ranges, &r->range_room, g->range_count + 1, sizeof *g->ranges);
  if (rc == ERR_OK) g->ranges[g->range_count++] = (grammar_range){first, last};
  return rc;
}

/* The pending sequences from `from` on, each of which ends with GRAMMAR_END, become the alternatives of
 * `rule`. */
static int lay_down(reader *r, int32_t from, int32_t rule) {
  grammar *g = r->g;
  int32_t count = r->pending_count - from;
  if (count > GRAMMAR_ELEMENTS_MAX - g->element_count)
    return refuse(r, ERR_LIMIT, "there are too many elements: shorten it, or lower the numbers of {n,m}");
  int rc = reserve(r, (void **)&g->elements, &r->element_room, g->element_count + count, sizeof *g->elements);
  if (rc == ERR_OK)
    rc = reserve(r, (void **)&g->alternatives, &r->alternative_room, g->alternative_count + count,
                 sizeof *g->alternatives);
  if (rc) return rc;
  g->rules[rule] = (grammar_rule){.first = g->alternative_count};
  for (int32_t i = 0; i < count; i++) {
    bool begins = i == 0 || r->pending[from + i - 1].kind == GRAMMAR_END;
    if (begins) g->alternatives[g->alternative_count++] = g->element_count + i;
    g->elements[g->element_count + i] = r->pending[from + i];
  }
  g->element_count += count;
  g->rules[rule].count = g->alternative_count - g->rules[rule].first;
  r->pending_count = from;
  return ERR_OK;
}

/* --- blanks --- */

static void skip_blanks(reader *r, bool lines) {
  for (; r->at < r->end; r->at++) {
    if (*r->at == '#')
      while (r->at + 1 < r->end && r->at[1] != '\n') r->at++;
    else if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r' && !(lines && *r->at == '\n'))
      return;
  }
}

static bool sees(const reader *r, char c) {
  return r->at < r->end && *r->at == c;
}

static bool take(reader *r, char c) {
  if (!sees(r, c)) return false;
  r->at++;
  return true;
}

/* --- characters --- */

static int read_hex(reader *r, int digits, uint32_t *c) {
  *c = 0;
  for (int i = 0; i < digits; i++, r->at++) {
    if (r->at == r->end || !isxdigit((unsigned char)*r->at))
      return refuse(r, ERR_FORMAT, "\\x, \\u and \\U are followed by 2, 4 and 8 hexadecimal digits");
    char digit = (char)tolower((unsigned char)*r->at);
    *c = *c * 16 + (uint32_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return *c <= CHARACTER_MAX ? ERR_OK : refuse(r, ERR_FORMAT, "no character is above 10FFFF");
}

static int read_escape(reader *r, uint32_t *c) {
  static const char letters[] = "nrt\\\"[]-^", stand_for[] = "\n\r\t\\\"[]-^";
  if (r->at == r->end) return refuse(r, ERR_FORMAT, "it ends after \\");
  char letter = *r->at++;
  if (letter == 'x') return read_hex(r, 2, c);
  if (letter == 'u') return read_hex(r, 4, c);
  if (letter == 'U') return read_hex(r, 8, c);
  const char *p = letter ? strchr(letters, letter) : NULL;
  if (!p) return refuse(r, ERR_FORMAT, "\\ is followed by one of n r t x u U \\ \" [ ] - ^");
  *c = (uint32_t)(unsigned char)stand_for[p - letters];
  return ERR_OK;
}

/* One of a literal or a class; the text is UTF-8, as grammar_read has seen. */
static int read_character(reader *r, uint32_t *c) {
  unsigned char lead = (unsigned char)*r->at++;
  if (lead == '\\') return read_escape(r, c);
  int more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
  *c = more ? lead & (0x3fu >> more) : lead;
  while (more-- > 0 && r->at < r->end) *c = *c << 6 | ((unsigned char)*r->at++ & 0x3f);
  return ERR_OK;
}

/* --- classes --- */

static int compare_ranges(const void *a, const void *b) {
  const grammar_range *x = a, *y = b;
  return (x->first > y->first) - (x->first < y->first);
}

/* Sorts spans[count] and joins those that touch; returns how many are left. */
static int32_t join(grammar_range *spans, int32_t count) {
  int32_t n = 0;
  qsort(spans, (size_t)count, sizeof *spans, compare_ranges);
  for (int32_t i = 0; i < count; i++) {
    if (n > 0 && spans[i].first <= spans[n - 1].last + 1) {
      if (spans[i].last > spans[n - 1].last) spans[n - 1].last = spans[i].last;
    } else {
      spans[n++] = spans[i];
    }
  }
  return n;
}

static int add_spans(reader *r, const grammar_range *spans, int32_t count, bool others) {
  uint32_t next = 0; /* the first character behind the spans so far */
  int rc = ERR_OK;
  for (int32_t i = 0; i < count && rc == ERR_OK; i++) {
    if (!others)
      rc = add_range(r, spans[i].first, spans[i].last);
    else if (spans[i].first > next)
      rc = add_range(r, next, spans[i].first - 1);
    next = spans[i].last + 1;
  }
  return rc == ERR_OK && others && next <= CHARACTER_MAX ? add_range(r, next, CHARACTER_MAX) : rc;
}

/* The class of the characters of spans[count] (which are changed), or of all others. */
static int push_class(reader *r, grammar_range *spans, int32_t count, bool others) {
  grammar *g = r->g;
  bool letter = count == 1 && !others && spans[0].first == spans[0].last && spans[0].first < 128;
  int32_t *known = letter ? &r->letters[spans[0].first] : NULL;
  if (known && *known) return push(r, GRAMMAR_CLASS, *known - 1);
  int rc = reserve(r, (void **)&g->classes, &r->class_room, g->class_count + 1, sizeof *g->classes);
  grammar_class k = {.first = g->range_count};
  if (rc == ERR_OK) rc = add_spans(r, spans, join(spans, count), others);
  if (rc) return rc;
  k.count = g->range_count - k.first;
  g->classes[g->class_count] = k;
  for (uint32_t c = 0; c < 128; c++)
    if (grammar_class_meets(g, g->class_count, c, c)) k.ascii[c / 64] |= (uint64_t)1 << c % 64;
  g->classes[g->class_count++] = k;
  if (known) *known = g->class_count;
  return push(r, GRAMMAR_CLASS, g->class_count - 1);
}

static int read_span(reader *r, grammar_range *span) {
  int rc = read_character(r, &span->first);
  span->last = span->first;
  if (rc || r->end - r->at < 2 || *r->at != '-' || r->at[1] == ']') return rc;
  r->at++;
  rc = read_character(r, &span->last);
  if (rc == ERR_OK && span->last < span->first)
    rc = refuse(r, ERR_FORMAT, "a range of characters ends before it begins");
  return rc;
}

static int read_class(reader *r) {
  grammar_range spans[SPANS_MAX];
  int32_t count = 0;
  bool others = take(r, '^');
  while (!sees(r, ']')) {
    if (r->at == r->end) return refuse(r, ERR_FORMAT, "a [ is not closed");
    if (count == SPANS_MAX) return refuse(r, ERR_LIMIT, "a class has too many ranges of characters");
    int rc = read_span(r, &spans[count++]);
    if (rc) return rc;
  }
  r->at++;
  return push_class(r, spans, count, others);
}

static int read_literal(reader *r) {
  int rc = ERR_OK;
  while (rc == ERR_OK && !sees(r, '"')) {
    grammar_range one;
    if (r->at == r->end || *r->at == '\n') return refuse(r, ERR_FORMAT, "a \" is not closed");
    rc = read_character(r, &one.first);
    one.last = one.first;
    if (rc == ERR_OK) rc = push_class(r, &one, 1, false);
  }
  r->at++;
  return rc;
}

/* --- rules --- */

static bool in_name(char c) {
  return isalnum((unsigned char)c) || c == '-' || c == '_';
}

/* The name that stands here, as an index of r->names; its rule may be defined later. Names are found by
 * looking at all of them: a text has few. */
static int read_name(reader *r, int32_t *index) {
  name n = {.text = r->at};
  while (r->at < r->end && in_name(*r->at)) r->at++;
  n.size = (int32_t)(r->at - n.text);
  if (n.size == 0) return refuse(r, ERR_FORMAT, "expected the name of a rule");
  for (*index = 0; *index < r->name_count; ++*index) {
    const name *other = &r->names[*index];
    if (other->size == n.size && memcmp(other->text, n.text, (size_t)n.size) == 0) return ERR_OK;
  }
  int rc = reserve(r, (void **)&r->names, &r->name_room, r->name_count + 1, sizeof *r->names);
  if (rc == ERR_OK) rc = add_rule(r, &n.rule);
  if (rc == ERR_OK) r->names[r->name_count++] = n;
  return rc;
}

static int read_alternatives(reader *r, int32_t rule);

static int read_group(reader *r) {
  int32_t rule;
  if (r->groups == GRAMMAR_GROUPS_MAX) return refuse(r, ERR_LIMIT, "there are too many ( in each other");
  int rc = add_rule(r, &rule);
  r->groups++;
  if (rc == ERR_OK) rc = read_alternatives(r, rule);
  r->groups--;
  if (rc == ERR_OK && !take(r, ')')) rc = refuse(r, ERR_FORMAT, "a ( is not closed");
  return rc ? rc : push(r, GRAMMAR_RULE, rule);
}

/* --- repetitions --- */

static int read_number(reader *r, int32_t *n) {
  int32_t digits = 0;
  *n = 0;
  for (; r->at < r->end && isdigit((unsigned char)*r->at) && *n <= GRAMMAR_REPEAT_MAX; r->at++, digits++)
    *n = *n * 10 + (*r->at - '0');
  if (digits == 0) return refuse(r, ERR_FORMAT, "{n}, {n,} and {n,m} need numbers");
  return *n <= GRAMMAR_REPEAT_MAX ? ERR_OK : refuse(r, ERR_LIMIT, "a number of {n,m} is above 2000");
}

/* *most -1: any number. */
static int read_counts(reader *r, int32_t *least, int32_t *most) {
  int rc = ERR_OK;
  *least = 0;
  if (!sees(r, ',')) rc = read_number(r, least);
  *most = *least;
  if (rc == ERR_OK && take(r, ',')) {
    *most = -1;
    if (!sees(r, '}')) rc = read_number(r, most);
  }
  if (rc == ERR_OK && !take(r, '}')) return refuse(r, ERR_FORMAT, "a { is not closed");
  if (rc == ERR_OK && *most >= 0 && *most < *least) return refuse(r, ERR_FORMAT, "{n,m} has an m below n");
  return rc;
}

/* A rule of its own for x[count]: x, then what `next` stands for if it is none of this file's (-1: nothing;
 * the rule itself: any number of x), or nothing at all. */
static int add_optional(reader *r, grammar_element x, int32_t rule, int32_t next) {
  int32_t from = r->pending_count;
  int rc = push(r, x.kind, x.value);
  if (rc == ERR_OK && next >= 0) rc = push(r, GRAMMAR_RULE, next);
  if (rc == ERR_OK) rc = push(r, GRAMMAR_END, 0);
  if (rc == ERR_OK) rc = push(r, GRAMMAR_END, 0);
  return rc ? rc : lay_down(r, from, rule);
}

/* x, least times and then up to most times. */
static int push_repeated(reader *r, grammar_element x, int32_t least, int32_t most) {
  int32_t rule = -1, next = -1;
  int rc = ERR_OK;
  for (int32_t i = 0; i < least && rc == ERR_OK; i++) rc = push(r, x.kind, x.value);
  for (int32_t i = least; i < most && rc == ERR_OK; i++, next = rule) {
    rc = add_rule(r, &rule);
    if (rc == ERR_OK) rc = add_optional(r, x, rule, next);
  }
  if (most < 0 && rc == ERR_OK) {
    rc = add_rule(r, &rule);
    if (rc == ERR_OK) rc = add_optional(r, x, rule, rule);
  }
  return rc || rule < 0 ? rc : push(r, GRAMMAR_RULE, rule);
}

/* The pending elements from `from` on as one: as they are, or a rule of their own. */
static int as_one(reader *r, int32_t from, grammar_element *x) {
  int32_t rule = -1;
  if (r->pending_count == from + 1) {
    *x = r->pending[--r->pending_count];
    return ERR_OK;
  }
  int rc = add_rule(r, &rule);
  if (rc == ERR_OK) rc = push(r, GRAMMAR_END, 0);
  *x = (grammar_element){GRAMMAR_RULE, rule};
  return rc ? rc : lay_down(r, from, rule);
}

static int read_repetition(reader *r, int32_t from) {
  int32_t least = 0, most = -1;
  grammar_element x;
  char c = *r->at++;
  int rc = ERR_OK;
  if (c == '+') least = 1;
  if (c == '?') most = 1;
  if (c == '{') rc = read_counts(r, &least, &most);
  if (rc == ERR_OK) rc = as_one(r, from, &x);
  return rc ? rc : push_repeated(r, x, least, most);
}

/* --- sequences --- */

static bool begins_element(const reader *r) {
  return r->at < r->end && (strchr("\"[.(", *r->at) || in_name(*r->at));
}

static int read_element(reader *r) {
  grammar_range all = {0, CHARACTER_MAX};
  int32_t index;
  if (take(r, '"')) return read_literal(r);
  if (take(r, '[')) return read_class(r);
  if (take(r, '.')) return push_class(r, &all, 1, false);
  if (take(r, '(')) return read_group(r);
  int rc = read_name(r, &index);
  return rc ? rc : push(r, GRAMMAR_RULE, r->names[index].rule);
}

static int read_sequence(reader *r) {
  int rc = ERR_OK;
  skip_blanks(r, r->groups > 0);
  while (rc == ERR_OK && begins_element(r)) {
    int32_t from = r->pending_count;
    rc = read_element(r);
    skip_blanks(r, r->groups > 0);
    while (rc == ERR_OK && r->at < r->end && *r->at && strchr("*+?{", *r->at)) {
      rc = read_repetition(r, from);
      skip_blanks(r, r->groups > 0);
    }
  }
  return rc ? rc : push(r, GRAMMAR_END, 0);
}

/* A rule goes on in the next line if that begins with |. */
static bool goes_on(reader *r) {
  const char *before = r->at;
  skip_blanks(r, true);
  if (take(r, '|')) return true;
  if (r->groups == 0) r->at = before;
  return false;
}

static int read_alternatives(reader *r, int32_t rule) {
  int32_t from = r->pending_count;
  int rc;
  do {
    skip_blanks(r, true);
    rc = read_sequence(r);
  } while (rc == ERR_OK && goes_on(r));
  return rc ? rc : lay_down(r, from, rule);
}

static int read_rule(reader *r) {
  int32_t index;
  int rc = read_name(r, &index);
  skip_blanks(r, false);
  if (rc) return rc;
  if (r->end - r->at < 3 || memcmp(r->at, "::=", 3) != 0)
    return refuse(r, ERR_FORMAT, "expected ::= after the name of a rule");
  if (r->names[index].defined) return refuse(r, ERR_FORMAT, "this rule is there already");
  r->names[index].defined = true;
  r->at += 3;
  rc = read_alternatives(r, r->names[index].rule);
  skip_blanks(r, false);
  if (rc == ERR_OK && r->at < r->end && *r->at != '\n')
    rc = refuse(r, ERR_FORMAT, "expected a literal, a class, a group, a rule's name or the end of the line");
  skip_blanks(r, true);
  return rc;
}

/* --- the whole --- */

static int find_root(reader *r) {
  r->g->root = -1;
  for (int32_t i = 0; i < r->name_count; i++) {
    const name *n = &r->names[i];
    if (!n->defined)
      return err_set(r->e, ERR_FORMAT, "the grammar has no rule %.*s, which another one names",
                     n->size < NAME_SHOWN ? (int)n->size : NAME_SHOWN, n->text);
    if (n->size == 4 && memcmp(n->text, "root", 4) == 0) r->g->root = n->rule;
  }
  return r->g->root >= 0 ? ERR_OK
                         : err_set(r->e, ERR_FORMAT, "the grammar has no rule root, which is the answer");
}

static bool is_empty(const grammar *g, int32_t alternative, const bool *empty) {
  const grammar_element *x = &g->elements[g->alternatives[alternative]];
  while (x->kind == GRAMMAR_RULE && empty[x->value]) x++;
  return x->kind == GRAMMAR_END;
}

/* Which rules may take no character at all. */
static void find_empty(const grammar *g, bool *empty) {
  bool more = true;
  while (more) {
    more = false;
    for (int32_t i = g->rule_count - 1; i >= 0; i--)
      for (int32_t a = 0; a < g->rules[i].count && !empty[i]; a++)
        if (is_empty(g, g->rules[i].first + a, empty)) empty[i] = more = true;
  }
}

/* How many calls, each with more behind it, a rule may begin with; more than `deepest` so far? */
static bool deepen(const grammar *g, int32_t rule, const bool *empty, int32_t *depth) {
  int32_t before = depth[rule];
  for (int32_t a = 0; a < g->rules[rule].count; a++) {
    const grammar_element *x = &g->elements[g->alternatives[g->rules[rule].first + a]];
    for (; x->kind == GRAMMAR_RULE; x++) {
      int32_t through = depth[x->value] + (x[1].kind != GRAMMAR_END);
      if (through > depth[rule]) depth[rule] = through;
      if (!empty[x->value]) break;
    }
  }
  return depth[rule] > before;
}

/* Of a rule, or of the one before it that has a name: the one that made it stands there or behind. */
static name name_of(const reader *r, int32_t rule) {
  name n = {.text = ""};
  for (int32_t i = 0; i < r->name_count; i++)
    if (r->names[i].rule <= rule) n = r->names[i];
  return n;
}

/* Left recursion begins with more and more calls. */
static int check_depth(const reader *r, const bool *empty, int32_t *depth) {
  const grammar *g = r->g;
  bool more = true;
  while (more) {
    more = false;
    for (int32_t i = g->rule_count - 1; i >= 0; i--) {
      more |= deepen(g, i, empty, depth);
      if (depth[i] <= GRAMMAR_CALLS_MAX) continue;
      const name n = name_of(r, i);
      return err_set(
          r->e, ERR_FORMAT,
          "the grammar's rule %.*s calls itself before it takes a character (or begins with more than "
          "%d calls): put what repeats at its end",
          n.size < NAME_SHOWN ? (int)n.size : NAME_SHOWN, n.text, GRAMMAR_CALLS_MAX);
    }
  }
  return ERR_OK;
}

static int check_rules(const reader *r) {
  bool *empty = calloc((size_t)r->g->rule_count, sizeof *empty);
  int32_t *depth = calloc((size_t)r->g->rule_count, sizeof *depth);
  int rc = empty && depth ? ERR_OK : no_memory(r);
  if (rc == ERR_OK) find_empty(r->g, empty);
  if (rc == ERR_OK) rc = check_depth(r, empty, depth);
  free(empty);
  free(depth);
  return rc;
}

static int read_all(reader *r) {
  int rc = ERR_OK;
  skip_blanks(r, true);
  while (rc == ERR_OK && r->at < r->end) rc = read_rule(r);
  if (rc == ERR_OK) rc = find_root(r);
  return rc ? rc : check_rules(r);
}

int grammar_read(grammar **out, const char *text, size_t size, err *e) {
  *out = NULL;
  if (size > GRAMMAR_TEXT_MAX)
    return err_set(e, ERR_LIMIT, "a grammar has at most %d bytes, not %zu", GRAMMAR_TEXT_MAX, size);
  if (utf8_valid(text, size) != size) return err_set(e, ERR_FORMAT, "the grammar is not UTF-8: convert it");
  if (size > 0 && memchr(text, 0, size))
    return err_set(e, ERR_FORMAT, "the grammar holds a NUL: leave it out");
  reader *r = calloc(1, sizeof *r);
  grammar *g = calloc(1, sizeof *g);
  if (!r || !g) {
    free(r);
    free(g);
    return err_set(e, ERR_NOMEM, "out of memory for a grammar");
  }
  *r = (reader){.at = text, .begin = text, .end = text + size, .g = g, .e = e};
  int rc = read_all(r);
  free(r->names);
  free(r->pending);
  free(r);
  if (rc)
    grammar_free(g);
  else
    *out = g;
  return rc;
}
