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

enum {
    GRAMMAR_MAX_TEXT = 1 << 20,  /* bytes of a grammar; a schema of 64 KiB makes about 500 KiB */
    GRAMMAR_MAX_RULES = 1 << 15, /* two for each member of an object */
    GRAMMAR_MAX_OPS = 1 << 18,   /* 3 MiB; JSON itself takes about 200 */
    GRAMMAR_MAX_NESTING = 128    /* groups within groups */
};

typedef enum pda_kind {
    PDA_BYTE,  /* reads a byte from lo to hi, then next */
    PDA_SPLIT, /* continues at next or at other */
    PDA_CALL,  /* calls rule `other` (at ops[entry[other]]), then next */
    PDA_RETURN /* end of a rule */
} pda_kind;

typedef struct pda_op {
    uint8_t kind, lo, hi;
    uint32_t next, other;
} pda_op;

typedef struct pda {
    pda_op *ops; /* [n_op] */
    uint32_t n_op;
    uint32_t *entry; /* [n_rule]: first instruction of each rule */
    uint32_t n_rule, root;
    uint8_t class_of[256]; /* class of each byte; bytes that no instruction distinguishes share a class */
    uint8_t byte_of[256];  /* [n_class]: one of its bytes */
    uint32_t n_class;
} pda;

/* Parses GBNF, as llama.cpp defines it: rules `name ::= ...`, "text", [a-z], [^...], ., (groups), |, *, +, ?,
 * {m,n}, and # comments. NIB_E_USAGE with the line: a syntax error, an undefined rule, no `root`, left
 * recursion, or a grammar that is too large. */
nib_status pda_parse(const char *text, size_t n_byte, pda *out, nib_error *err);
void pda_clear(pda *p);           /* zeroed is fine */
uint64_t pda_bytes(const pda *p); /* memory in use */

#endif
