/* tinylayout.c - see tinylayout.h. */
#include "tinylayout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

tiny_layout tiny_layout_open(const char *path) {
    const logger silent = {0};
    nib_error err = {0};
    tiny_layout t = {NULL, NULL};
    if (model_open(path, &silent, &t.m, &err))
        fail_msg("%s", err.message);
    tiny_layout_change(&t, &(layout_choice){0});
    return t;
}

void tiny_layout_change(tiny_layout *t, const layout_choice *choice) {
    nib_error err = {0};
    layout *made = NULL;
    if (layout_make(t->m, choice, &made, &err))
        fail_msg("%s", err.message);
    layout_free(t->l);
    t->l = made;
}

void tiny_layout_close(tiny_layout *t) {
    layout_free(t->l);
    model_close(t->m);
}
