/* cut.h - the parts of a block that is cut at its attention (schedule/visits.h). */
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

/* The first op of a part of the block, and the one after its last. */
static inline int cut_first(const program *p, visit_part part) {
    return part == VISIT_ATTENTION ? cut_at(p) : part == VISIT_AFTER ? cut_at(p) + 1 : 0;
}
static inline int cut_end(const program *p, visit_part part) {
    return part == VISIT_BEFORE ? cut_at(p) : part == VISIT_ATTENTION ? cut_at(p) + 1 : p->n_op;
}

#endif
