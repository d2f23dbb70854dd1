/* logits.c - see logits.h. */
#include "support/logits.h"

#include <string.h>

void logits_keep(void *rows, int64_t position, const float *row) {
    logits_rows *l = rows;
    if (position == l->next)
        memcpy(l->data + position * l->n_vocab, row, (size_t)l->n_vocab * sizeof *row);
    l->next = position == l->next ? position + 1 : INT64_MIN;
}
