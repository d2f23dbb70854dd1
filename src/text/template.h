/* template.h - the checkpoint's own chat template: a small, bounded Jinja interpreter without side effects.
 *
 * A template can loop and allocate, so steps, output bytes, nesting and memory are capped. An unsupported
 * construct is NIB_E_MODEL with its name and line. raise_exception() in the template is NIB_E_USAGE with its
 * message. */
#ifndef NIB_TEXT_TEMPLATE_H
#define NIB_TEXT_TEMPLATE_H

#include "base/status.h"

#include <jansson.h>

typedef struct template template;

/* Parses a template of n_byte bytes. *out is freed by template_free. NIB_E_MODEL: see above. */
nib_status template_parse(const char *source, size_t n_byte, template **out, nib_error *err);
void template_free(template *t); /* NULL is fine */

/* Renders with the members of `variables` (a JSON object: messages, tools, bos_token, eos_token,
 * add_generation_prompt, ...) as global variables. strftime_now uses `now` (seconds since 1970, UTC) so that
 * a test is repeatable. *text is NUL-terminated; caller frees with mem_free. Whitespace as chat templates are
 * rendered by transformers: trim_blocks and lstrip_blocks on, the trailing newline of the source dropped;
 * tojson as Python's json.dumps(ensure_ascii=False). */
nib_status template_render(const template *t, const json_t *variables, int64_t now, char **text,
                           size_t *n_byte, nib_error *err);

#endif
