/* grammar.h - a grammar that an answer follows: reads the text of llama.cpp's grammars (GBNF).
 *
 *   root   ::= "[" number ("," number)* "]"   # a comment
 *   number ::= [0-9]{1,5} | "null"
 *
 * A rule is a name, "::=" and alternatives; `root` is the whole answer. Literals and classes ("a\n", [a-z],
 * [^"\\], .) hold characters, with the escapes \n \r \t \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH. ( ) groups,
 * and * + ? {n} {n,} {n,m} repeat what stands before them. Between parentheses, and after | and ::=, a rule
 * goes on in the next line; so it does before |. A rule that calls itself before it takes a character (left
 * recursion) is refused. */
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_TEXT_MAX     65536 /* bytes of a grammar's text */
#define GRAMMAR_ELEMENTS_MAX 65536
#define GRAMMAR_RULES_MAX    16384 /* those that groups and repetitions make, too */
#define GRAMMAR_REPEAT_MAX   2000  /* the largest number of {n,m} */
#define GRAMMAR_GROUPS_MAX   64    /* parentheses in each other */
#define GRAMMAR_CALLS_MAX    256   /* rules that begin with each other */

typedef enum { GRAMMAR_END, GRAMMAR_CLASS, GRAMMAR_RULE } grammar_kind;

typedef struct grammar_element { /* of an alternative, which ends with GRAMMAR_END */
  grammar_kind kind;
  int32_t value; /* a class, or a rule that is called */
} grammar_element;

typedef struct grammar_range { /* of code points, both included */
  uint32_t first, last;
} grammar_range;

typedef struct grammar_class { /* ranges [first, first + count) of the grammar, ascending and apart */
  int32_t first, count;
  uint64_t ascii[2]; /* bit c % 64 of word c / 64: character c */
} grammar_class;

typedef struct grammar_rule {
  int32_t first, count; /* of the alternatives */
} grammar_rule;

typedef struct grammar { /* immutable */
  grammar_element *elements;
  int32_t *alternatives; /* the first element of each */
  grammar_rule *rules;
  grammar_class *classes;
  grammar_range *ranges;
  int32_t element_count, alternative_count, rule_count, class_count, range_count, root;
} grammar;

/* text[size]. ERR_FORMAT with the line and what is wrong there; ERR_LIMIT; ERR_NOMEM. */
int grammar_read(grammar **out, const char *text, size_t size, err *e);
void grammar_free(grammar *g); /* NULL is allowed */

/* Is character c one of the class? Is any of [first, last]? */
bool grammar_class_has(const grammar *g, int32_t class, uint32_t c);
bool grammar_class_meets(const grammar *g, int32_t class, uint32_t first, uint32_t last);
