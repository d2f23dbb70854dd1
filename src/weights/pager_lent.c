/* pager_lent.c - matrices that are in the memory of another pager (pager_options.lender): the embedding and
 * the output head, which a model has in common with its head that predicts later tokens. */
#include "weights/pager_parts.h"

#include <string.h>

/* Whether two weights, of containers that have read the same files, are the same rows in the same form. */
static bool is_same(const weight *a, const weight *b) {
    if (b->vector || a->n != b->n || a->k != b->k || a->k_file != b->k_file || a->first_col != b->first_col ||
        a->type != b->type || memcmp(&a->format, &b->format, sizeof a->format) != 0 ||
        a->transposed != b->transposed || a->uses_imatrix || b->uses_imatrix || a->plain != b->plain ||
        a->n_piece != b->n_piece)
        return false;
    for (int i = 0; i < a->n_piece; i++) {
        const weight_piece *x = &a->pieces[i], *y = &b->pieces[i];
        if (strcmp(x->tensor->name, y->tensor->name) != 0 || x->first_row != y->first_row ||
            x->n_row != y->n_row)
            return false;
    }
    return true;
}

/* The lender's copy; NULL: it has none that is resident as a whole. */
static const uint8_t *find(const pager *from, const weight *w) {
    for (int b = 0; b < from->layout.n_block; b++)
        for (int i = 0; i < layout_block(from->layout.of, b)->n_weight; i++)
            if (is_same(w, pager_weight(from, b, i)))
                return pager_views(from, b)[i].data;
    return NULL;
}

/* Whether the weight's pages have no other weight. */
static bool is_alone(const page_layout *l, int b, int w) {
    const weight_place *at = &l->places[l->first_weight[b] + w];
    if (at->n_page == 0 || l->pages[at->first_page].chosen || l->pages[at->first_page].second)
        return false;
    for (int i = 0; i < layout_block(l->of, b)->n_weight; i++) {
        const weight_place *other = &l->places[l->first_weight[b] + i];
        if (i != w && other->n_page > 0 && other->first_page == at->first_page)
            return false;
    }
    return true;
}

void pager_borrow(pager *p, const pager *from) {
    const page_layout *l = &p->layout;
    for (int b = 0; b < l->n_block; b++)
        for (int w = 0; w < layout_block(l->of, b)->n_weight; w++) {
            const weight_place *at = &l->places[l->first_weight[b] + w];
            const uint8_t *data = is_alone(l, b, w) ? find(from, pager_weight(p, b, w)) : NULL;
            for (int i = at->first_page; data && i < at->first_page + at->n_page; i++) {
                const uint64_t offset = l->pages[i].image - l->pages[at->first_page].image;
                p->state[i].resident = (uint8_t *)(uintptr_t)(data + offset);
                p->state[i].lent = true;
            }
        }
}

uint8_t *pager_own(const pager *p, int page) {
    return p->state[page].lent ? NULL : p->state[page].resident;
}
