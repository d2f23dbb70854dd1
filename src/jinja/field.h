/* field.h - formats one value as Python does: a number or a text with a fill, an alignment, a width
 * and a precision. Used for both kinds of formatting: percent.c and brace.c. */
#ifndef NIB_JINJA_FIELD_H
#define NIB_JINJA_FIELD_H

#include "jinja/run.h"

typedef struct tpl_field {
    tpl_str fill; /* with its mark */
    char align;   /* '<' '>' '=' '^', 0: by type */
    char sign;    /* '+', ' ' or 0 */
    bool alternate, comma;
    int64_t width, precision; /* -1: none */
    char type;                /* 0: by value */
} tpl_field;

extern const tpl_str tpl_blank, tpl_zero; /* fills: " " and "0" */

/* Reads a decimal number and moves *at past it; 0 without digits. Digits after the ninth are ignored. */
int64_t tpl_field_number(const char **at, const char *end);
void tpl_field_int(tpl_builder *b, const tpl_field *f, int64_t value);
/* False: the precision is too large. */
bool tpl_field_float(tpl_builder *b, const tpl_field *f, double value);
void tpl_field_text(tpl_builder *b, const tpl_field *f, const tpl_str *s);

#endif
