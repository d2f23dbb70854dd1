/* grammars.h - what a grammar or a schema makes of a text. */
#ifndef NIB_TESTS_GRAMMARS_H
#define NIB_TESTS_GRAMMARS_H

#include "grammar/automaton.h"

typedef enum verdict { NO, BEGINS, WHOLE } verdict;

/* No match begins with the text; a match begins so; the text matches. */
verdict judge(automaton *m, const char *text, size_t n);
/* The automaton of a grammar, of a schema; an invalid one fails the test. n_byte: of its states. */
void with_grammar(const char *gbnf, pda *p, automaton *m);
void with_schema(const char *schema, uint64_t n_byte, pda *p, automaton *m);
void without(pda *p, automaton *m);

#endif
