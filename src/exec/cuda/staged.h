/* staged.h - layers whose keys and values are in host memory (state/kv_stage.h). */
#ifndef NIB_EXEC_CUDA_STAGED_H
#define NIB_EXEC_CUDA_STAGED_H

#include "exec/backend.h"
#include "state/kv_stage.h"

typedef struct cuda cuda;

typedef struct staged {
    kv_home *homes;  /* [layers with keys and values] */
    kv_stage *stage; /* NULL: the keys and values of all layers are on the GPU */
    bool now;        /* the pass has attention in such a layer */
} staged;

nib_status staged_open(cuda *c, nib_error *err);
void staged_close(cuda *c);
/* Sets the homes that the split says, and takes the memory. */
nib_status staged_reserve(cuda *c, nib_error *err);
/* Begin and end a pass; the latter also after an error. */
nib_status staged_begin(cuda *c, nib_error *err);
nib_status staged_end(cuda *c, nib_error *err);

#endif
