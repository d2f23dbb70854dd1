/* template.h - the checkpoint's own chat template: a small, bounded Jinja interpreter without side effects.
 *
 * A template can loop and allocate, so steps, output bytes, nesting and memory are capped. An unsupported
 * construct is NIB_E_MODEL with its name and line. raise_exception() in the template is NIB_E_USAGE with its
 * message. */
#ifndef NIB_JINJA_TEMPLATE_H
#define NIB_JINJA_TEMPLATE_H

#include "base/status.h"

#include <jansson.h>

typedef struct template template;

/* Parses a template of n_byte bytes. *out is freed by template_free. NIB_E_MODEL: see above. */
nib_status template_parse(const char *source, size_t n_byte, template **out, nib_error *err);
void template_free(template *t); /* NULL is fine */

/* A rendered text and where each byte comes from. */
typedef struct template_text {
    char *text; /* [n_byte + 1], NUL-terminated */
    size_t n_byte;
    uint8_t *mark; /* [n_byte] 1: the byte comes from `variables`; 0: from the template or from `own` */
} template_text;
void template_text_clear(template_text *t);

/* Renders with the members of two JSON objects as global variables: `own` (NULL: none) has the texts that
 * belong to the model (bos_token, eos_token), `variables` all others (messages, tools, ...). A byte keeps its
 * mark through every operation of the template; a byte made from several (a replaced text, a format's fill)
 * has the mark of what it was copied from. A message's role is the template's text if it is a plain word,
 * because templates build special tokens from it: '<|' + message.role + '|>'. strftime_now uses `now`
 * (seconds since 1970, UTC) so that a test is repeatable. The caller clears *out. Whitespace as chat
 * templates are rendered by transformers: trim_blocks and lstrip_blocks on, the trailing newline of the
 * source dropped; tojson as Python's json.dumps(ensure_ascii=False). */
nib_status template_render(const template *t, const json_t *own, const json_t *variables, int64_t now,
                           template_text *out, nib_error *err);

#endif
