/* plan_slices.c - the recipe, the formats and the bytes of a block's slices. */
#include "plan/plan.h"

#include "base/num.h"
#include "numbers/recipe.h"

#include <stdio.h>
#include <string.h>

/* The first entry of the block that is a first or (second) a second slice; NULL: none. */
static const plan_slice *first_of(const plan_block *b, bool second) {
    for (int i = 0; i < b->n_slice; i++)
        if (recipe_is_second(b->slices[i].format) == second)
            return &b->slices[i];
    return NULL;
}

bool plan_block_recipe(const plan_block *b, char out[PACK_NAME]) {
    for (int i = 0; i < b->n_slice; i++) {
        const plan_slice *s = &b->slices[i];
        if (strnlen(s->format, PACK_NAME) == PACK_NAME)
            return false;
        const bool is_second = recipe_is_second(s->format);
        const plan_slice *alike = first_of(b, is_second);
        if (!alike || strcmp(s->format, alike->format) != 0 ||
            (alike->tier == PLAN_LEFT_OUT) != (s->tier == PLAN_LEFT_OUT) ||
            (s->tier == PLAN_LEFT_OUT && !is_second))
            return false;
    }
    const plan_slice *first = first_of(b, false), *second = first_of(b, true);
    if (!first && b->n_slice > 0)
        return false;
    const bool there = second && second->tier != PLAN_LEFT_OUT;
    return recipe_join(first ? first->format : "file", there ? second->format : "", out);
}

bool plan_is_of_gpu(const plan *p) {
    bool any = false;
    for (int b = 0; p->blocks && b < p->n_block; b++)
        any = any || p->blocks[b].on_gpu;
    return any;
}

void plan_block_formats(const plan_block *b, char *out, size_t size) {
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < b->n_slice; i++) {
        int before = 0;
        while (before < i && strncmp(b->slices[before].format, b->slices[i].format, PACK_NAME) != 0)
            before++;
        if (before == i && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%.*s", n ? ", " : "", PACK_NAME - 1,
                                  b->slices[i].format);
    }
}

bool plan_block_bytes(const plan_block *b, bool second, int tier, uint64_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < b->n_slice; i++) {
        const plan_slice *s = &b->slices[i];
        if (recipe_is_second(s->format) == second && (s->tier == tier || tier < 0) &&
            s->tier != PLAN_LEFT_OUT && !num_add_u64(*bytes, s->bytes, bytes))
            return false;
    }
    return true;
}
