/* tensors.h - the tensor table behind container_find: hashed by name, every extent checked against its file.
 * Not thread-safe while it is filled; read-only afterwards. */
#ifndef NIB_FORMATS_TENSORS_H
#define NIB_FORMATS_TENSORS_H

#include "base/arena.h"
#include "formats/container.h"

enum {
    MAX_TENSORS = 1 << 19,  /* the largest published mixture of experts has about 0.2 million */
    TENSOR_MAX_NAME = 4096, /* bytes */
    TENSOR_MAX_DIM = 8
};

typedef struct tensor_table {
    container_tensor *all;
    size_t n, cap;
    uint32_t *index; /* hash index, as in meta_table */
    size_t n_slot;
    uint64_t seed;
    arena names;
} tensor_table;

void tensor_table_init(tensor_table *t);
void tensor_table_deinit(tensor_table *t);

/* Adds one tensor: copies the name and computes its bytes (name and bytes of *tensor are not read). The
 * offset is still relative, as in the format. NIB_E_MODEL: an unusable shape, or a name that is empty, has a
 * NUL or is a duplicate. */
nib_status tensor_table_add(tensor_table *t, const char *name, size_t n_name, const container_tensor *tensor,
                            nib_error *err);
/* Replaces everything of the tensor with this name but its name. False: there is none. */
bool tensor_table_replace(tensor_table *t, const char *name, const container_tensor *tensor);
/* Makes the offsets of the tensors from `first` on absolute: adds data_begin. An extent beyond data_end is
 * NIB_E_MODEL. */
nib_status tensor_table_place(tensor_table *t, size_t first, uint64_t data_begin, uint64_t data_end,
                              nib_error *err);
const container_tensor *tensor_table_find(const tensor_table *t, const char *name); /* NULL: not there */

/* Checks, after the last add, that no two tensors share bytes of a file. NIB_E_MODEL names both. */
nib_status tensor_table_check_overlap(const tensor_table *t, nib_error *err);

/* "[2, 3]"; out holds at least 200 bytes; returns out. */
const char *tensor_shape_text(const container_tensor *t, char *out);

uint64_t tensor_table_bytes(const tensor_table *t); /* memory in use */

#endif
