/* template.c - see template.h. A template is an arena with its tree. Each render has its own arena, so that
 * several threads may render one template, and all memory of a render is freed at once. */
#include "jinja/template.h"

#include "base/mem.h"
#include "jinja/run.h"

#include <string.h>

struct template {
    arena mem;
    tpl_node *root;
};

nib_status template_parse(const char *source, size_t n_byte, template **out, nib_error *err) {
    template *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "the chat template");
    arena_init(&t->mem);
    nib_status status = tpl_parse(&t->mem, source, n_byte, &t->root, err);
    if (status != NIB_OK) {
        template_free(t);
        return status;
    }
    *out = t;
    return NIB_OK;
}

void template_free(template *t) {
    if (!t)
        return;
    arena_deinit(&t->mem);
    mem_free(t);
}

void template_text_clear(template_text *t) {
    mem_free(t->text);
    mem_free(t->mark);
    *t = (template_text){0};
}

static bool bind_variables(tpl_run *r, tpl_scope *scope, const json_t *variables, bool own) {
    tpl_value all;
    if (!json_is_object(variables))
        return tpl_fail(r, "expected an object of variables");
    if (!tpl_from_json(r, variables, own, 0, &all))
        return false;
    for (size_t i = 0; i < all.u.dict->n; i++) {
        if (!tpl_bind(r, scope, all.u.dict->key[i].u.s, &all.u.dict->val[i]))
            return false;
    }
    return true;
}

nib_status tpl_render_limited(const template *t, const json_t *own, const json_t *variables, int64_t now,
                              tpl_limits limits, template_text *out, nib_error *err) {
    static const tpl_str end = {.data = "", .n = 1, .n_char = 1};
    nib_error local = {NIB_OK, ""};
    tpl_run r = {.limits = limits, .now = now, .err = err ? err : &local};
    tpl_scope scope = {0};
    arena_init(&r.mem);
    r.scope = &scope;
    r.captured = tpl_undef(NULL);
    bool ok = bind_variables(&r, &scope, variables, false) &&
              (!own || bind_variables(&r, &scope, own, true)) && tpl_exec(&r, t->root) == TPL_NEXT &&
              tpl_emit(&r, &end);
    arena_deinit(&r.mem);
    *out = (template_text){.text = r.out, .n_byte = ok ? r.n_out - 1 : 0, .mark = r.out_mark};
    if (!ok)
        template_text_clear(out);
    return ok ? NIB_OK : r.err->status;
}

nib_status template_render(const template *t, const json_t *own, const json_t *variables, int64_t now,
                           template_text *out, nib_error *err) {
    return tpl_render_limited(t, own, variables, now, TPL_LIMITS, out, err);
}
