/* template.c - see template.h. A template is an arena with its tree. Each render has its own arena, so that
 * several threads may render one template, and all memory of a render is freed at once. */
#include "text/template.h"

#include "base/mem.h"
#include "text/template_run.h"

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

static bool bind_variables(tpl_run *r, tpl_scope *scope, const json_t *variables) {
    tpl_value all;
    if (!json_is_object(variables))
        return tpl_fail(r, "expected an object of variables");
    if (!tpl_from_json(r, variables, 0, &all))
        return false;
    for (size_t i = 0; i < all.u.dict->n; i++) {
        if (!tpl_bind(r, scope, all.u.dict->key[i].u.s, &all.u.dict->val[i]))
            return false;
    }
    return true;
}

nib_status tpl_render_limited(const template *t, const json_t *variables, int64_t now, tpl_limits limits,
                              char **text, size_t *n_byte, nib_error *err) {
    nib_error local = {NIB_OK, ""};
    tpl_run r = {.limits = limits, .now = now, .err = err ? err : &local};
    tpl_scope scope = {0};
    arena_init(&r.mem);
    r.scope = &scope;
    r.captured = tpl_undef(NULL);
    bool ok = bind_variables(&r, &scope, variables) && tpl_exec(&r, t->root) == TPL_NEXT;
    if (ok)
        ok = tpl_emit(&r, "", 1); /* the final NUL */
    arena_deinit(&r.mem);
    if (!ok) {
        mem_free(r.out);
        return r.err->status;
    }
    *text = r.out;
    *n_byte = r.n_out - 1;
    return NIB_OK;
}

nib_status template_render(const template *t, const json_t *variables, int64_t now, char **text,
                           size_t *n_byte, nib_error *err) {
    return tpl_render_limited(t, variables, now, TPL_LIMITS, text, n_byte, err);
}
