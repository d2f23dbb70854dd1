/* as_gguf_list.c - see as_gguf.h: questions about a list of tensors, and parts of it that are left out. */
#include "model/as_gguf.h"
#include "model/internal.h"

bool gguf_tensor_is_of(const gguf_tensor *t, const weight *of) {
    for (int i = 0; i < t->n_piece; i++)
        for (int k = 0; k < of->n_piece && of->shared_block < 0; k++)
            if (t->pieces[i].tensor == of->pieces[k].tensor)
                return true;
    return false;
}

bool gguf_tensors_drop_ahead(gguf_tensors *t, model *m) {
    size_t n = 0;
    if (m->next == NULL)
        return false;
    for (size_t i = 0; i < t->n; i++)
        if (t->all[i].ahead == NULL)
            t->all[n++] = t->all[i];
    t->n = n;
    model_drop_ahead(m);
    return true;
}
