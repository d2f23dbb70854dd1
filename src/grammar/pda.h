/* pda.h - a grammar as a program over bytes: a nondeterministic automaton with calls, one for each rule.
 *
 * Characters are UTF-8: a class of code points is compiled to ranges of bytes, so every accepted text is
 * valid UTF-8. The parser (gbnf.c) makes expressions, compile.c makes the program, and check.c refuses
 * programs that would never end. A program is read-only.
 *
 * Hostile grammars: text, rules, instructions and nesting are bounded. Left recursion is refused, because its
 * automaton would call for ever without reading a byte. A grammar that no finite text can complete is refused
 * too. */
#ifndef NIB_GRAMMAR_PDA_H
#define NIB_GRAMMAR_PDA_H

#include "base/status.h"

#include <stdbool.h>

enum {
    GRAMMAR_MAX_TEXT = 1 << 22,  /* bytes of a grammar; an object with 10,000 optional members takes 2.5 MB */
    GRAMMAR_MAX_NODES = 1 << 20, /* expressions: 32 MiB while the grammar is compiled */
    GRAMMAR_MAX_RULES = 1 << 17, /* one for each member of an object, one for its value */
    GRAMMAR_MAX_OPS = 1 << 20,   /* 12 MiB; JSON itself takes about 200 */
    GRAMMAR_MAX_NESTING = 128    /* groups within groups */
};
#define PDA_FOREVER        UINT32_MAX       /* max of a repetition: without limit */
#define GRAMMAR_MAX_REPEAT (UINT32_MAX - 1) /* times */

typedef enum pda_kind {
    PDA_BYTE,   /* reads a byte from lo to hi, then next */
    PDA_SPLIT,  /* continues at next or at other */
    PDA_CALL,   /* calls rule `other` (at ops[entry[other]]), then next */
    PDA_REPEAT, /* calls a rule several times (loops[other]), then next */
    PDA_BOTH,   /* reads a text that two rules match (boths[other]), then next. The instruction after it is a
                 * call of the second rule, which only check.c follows */
    PDA_RETURN  /* end of a rule */
} pda_kind;

typedef struct pda_op {
    uint8_t kind, lo, hi;
    uint32_t next, other;
} pda_op;

typedef struct pda_loop { /* the rule matches no empty text */
    uint32_t rule, min, max;
} pda_loop;

typedef struct pda_both {
    uint32_t rule[2];
    bool without; /* the second rule must not match */
} pda_both;

typedef struct pda {
    pda_op *ops; /* [n_op] */
    uint32_t n_op;
    uint32_t *entry; /* [n_rule]: first instruction of each rule */
    uint32_t n_rule, root;
    pda_loop *loops; /* [n_loop] */
    pda_both *boths; /* [n_both] */
    uint32_t n_loop, n_both;
    uint8_t class_of[256]; /* class of each byte; bytes that no instruction distinguishes share a class */
    uint8_t byte_of[256];  /* [n_class]: one of its bytes */
    uint32_t n_class;
} pda;

/* Parses GBNF, as llama.cpp defines it: rules `name ::= ...`, "text", [a-z], [^...], ., (groups), |, *, +, ?,
 * {m,n}, and # comments; and two operators of our own: `a & b` (texts that both match) and `a & ! b` (that
 * only the first one matches), which bind less than a sequence and more than |. NIB_E_USAGE with the line: a
 * syntax error, an undefined rule, no `root`, left recursion, or a grammar that is too large. */
nib_status pda_parse(const char *text, size_t n_byte, pda *out, nib_error *err);
void pda_clear(pda *p);           /* zeroed is fine */
uint64_t pda_bytes(const pda *p); /* memory in use */

#endif
