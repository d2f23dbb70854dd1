/* tinylayout.h - a model and a layout of it, for tests. */
#ifndef NIB_TESTS_TINYLAYOUT_H
#define NIB_TESTS_TINYLAYOUT_H

#include "model/layout.h"

typedef struct tiny_layout {
    model *m;
    layout *l;
} tiny_layout;

/* The model at `path`, as its file has it. Fails the test when it cannot be opened. */
tiny_layout tiny_layout_open(const char *path);
/* The same with other formats; the layout before is freed. */
void tiny_layout_change(tiny_layout *t, const layout_choice *choice);
void tiny_layout_close(tiny_layout *t);

#endif
