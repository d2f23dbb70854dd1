/* entries.h - one row's attention to its window and to entries (kernels/entries.h); for back ends in host
 * memory. */
#ifndef NIB_EXEC_ENTRIES_H
#define NIB_EXEC_ENTRIES_H

#include "kernels/kernels.h"
#include "model/program.h"

/* Bytes of attend_args.scratch. o: an OP_ATTENTION with u.attn.every. */
size_t entries_attend_bytes(const op *o);
/* Attends heads [h0, h1) of a row to the positions of its window, then to the entries that `chosen` lists
 * (OP_SELECT); NULL: to all that it sees. The entries are one more part of what the row attends to, so its
 * bits do not depend on the other rows. */
void entries_attend(const kernel_table *k, const attend_args *a, const float *chosen, int64_t h0, int64_t h1,
                    int64_t row);

#endif
