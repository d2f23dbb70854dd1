/* lex.h - a chat template's source as tokens. Whitespace is handled as transformers configures
 * jinja2: trim_blocks and lstrip_blocks on, the source's last newline dropped. */
#ifndef NIB_JINJA_LEX_H
#define NIB_JINJA_LEX_H

#include "jinja/ast.h"

/* X(kind, spelling) */
#define TPL_TOKENS(X)                                                                                        \
    X(END, "end of template")                                                                                \
    X(DATA, "text")                                                                                          \
    X(PRINT_BEGIN, "{{")                                                                                     \
    X(PRINT_END, "}}")                                                                                       \
    X(BLOCK_BEGIN, "{%")                                                                                     \
    X(BLOCK_END, "%}")                                                                                       \
    X(NAME, "name")                                                                                          \
    X(STRING, "string")                                                                                      \
    X(INT, "integer")                                                                                        \
    X(FLOAT, "float")                                                                                        \
    X(POW, "**")                                                                                             \
    X(FLOORDIV, "//")                                                                                        \
    X(EQ, "==")                                                                                              \
    X(NE, "!=")                                                                                              \
    X(GE, ">=")                                                                                              \
    X(LE, "<=")                                                                                              \
    X(ADD, "+")                                                                                              \
    X(SUB, "-")                                                                                              \
    X(MUL, "*")                                                                                              \
    X(DIV, "/")                                                                                              \
    X(MOD, "%")                                                                                              \
    X(TILDE, "~")                                                                                            \
    X(LPAREN, "(")                                                                                           \
    X(RPAREN, ")")                                                                                           \
    X(LBRACKET, "[")                                                                                         \
    X(RBRACKET, "]")                                                                                         \
    X(LBRACE, "{")                                                                                           \
    X(RBRACE, "}")                                                                                           \
    X(GT, ">")                                                                                               \
    X(LT, "<")                                                                                               \
    X(ASSIGN, "=")                                                                                           \
    X(DOT, ".")                                                                                              \
    X(COLON, ":")                                                                                            \
    X(PIPE, "|")                                                                                             \
    X(COMMA, ",")                                                                                            \
    X(SEMICOLON, ";")                                                                                        \
    X(IN, "in")                                                                                              \
    X(NOT_IN, "not in")

typedef enum tpl_token_kind {
#define TPL_X(id, spelling) T_##id,
    TPL_TOKENS(TPL_X)
#undef TPL_X
} tpl_token_kind;

const char *tpl_token_name(int kind);

typedef struct tpl_token {
    tpl_token_kind kind;
    int line;
    tpl_str text; /* DATA, NAME, STRING (escapes resolved) */
    int64_t i;
    double f;
} tpl_token;

/* DESIGN: a pull lexer. Outside tags it returns DATA up to the next tag, then the tag's opening. Inside a tag
 * each call returns one token. White space control at a tag's end is applied at once, by skipping. */
typedef struct tpl_lexer {
    arena *mem;
    const char *src, *end, *p;
    int line;
    bool in_tag, in_print;   /* in_print: {{ }} rather than {% %} */
    char open[TPL_MAX_NEST]; /* open brackets inside the tag */
    int n_open;
    tpl_token ahead; /* the tag's opening, after the text before it was returned */
    bool has_ahead;
} tpl_lexer;

nib_status tpl_lex_init(tpl_lexer *x, arena *mem, const char *source, size_t n, nib_error *err);
nib_status tpl_lex_next(tpl_lexer *x, tpl_token *out, nib_error *err);

/* Reads a float in Python's spelling, independent of the locale. False: it is not a float. */
bool tpl_read_float(const char *s, size_t n, double *out);

#endif
