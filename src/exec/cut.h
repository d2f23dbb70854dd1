/* cut.h - the parts of a block that is cut at its attention (schedule/visits.h), and its experts. */
#ifndef NIB_EXEC_CUT_H
#define NIB_EXEC_CUT_H

#include "model/program.h"
#include "schedule/visits.h"

/* The program's only attention; -1: it has none, or several. */
static inline int cut_at(const program *p) {
    int at = -1;
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_ATTENTION) {
            if (at >= 0)
                return -1;
            at = i;
        }
    return at;
}

/* The products with the program's experts and what is between them: ops [*first, *end), the last of which
 * adds them up. False: there are none, or not together. */
static inline bool cut_experts(const program *p, int *first, int *end) {
    int n = 0, n_inside = 0;
    *first = *end = -1;
    for (int i = 0; i < p->n_op; i++) {
        const op *o = &p->ops[i];
        n += o->kind == OP_EXPERTS;
        *first = *first < 0 && o->kind == OP_EXPERTS ? i : *first;
        *end = *end < 0 && o->kind == OP_EXPERTS && o->u.experts.sum ? i + 1 : *end;
    }
    for (int i = *first; i >= 0 && i < *end; i++) {
        const op *o = &p->ops[i];
        if (o->kind == OP_EXPERTS && o->in2 == p->ops[*first].in2 &&
            (o->u.experts.each || o->in == p->ops[*first].in))
            n_inside++;
        else if (o->kind != OP_ACT && o->kind != OP_GATE && o->kind != OP_CLAMP)
            return false;
    }
    return *first >= 0 && *end > *first + 1 && n_inside == n && p->ops[*first].in != REG_X;
}

/* The first op of a part of the block, and the one after its last. */
static inline int cut_first(const program *p, visit_part part) {
    int first, end;
    if (part == VISIT_EXPERTS)
        return cut_experts(p, &first, &end) ? first : 0;
    return part == VISIT_ATTENTION ? cut_at(p) : part == VISIT_AFTER ? cut_at(p) + 1 : 0;
}
static inline int cut_end(const program *p, visit_part part) {
    int first, end;
    if (part == VISIT_EXPERTS)
        return cut_experts(p, &first, &end) ? end : 0;
    return part == VISIT_BEFORE ? cut_at(p) : part == VISIT_ATTENTION ? cut_at(p) + 1 : p->n_op;
}

#endif
