/* container_impl.h - the inside of a container, for the readers of this folder only. */
#ifndef NIB_FORMATS_CONTAINER_IMPL_H
#define NIB_FORMATS_CONTAINER_IMPL_H

#include "base/jsonx.h"
#include "formats/meta.h"
#include "formats/tensors.h"

struct container {
    container_kind kind;
    char *path;
    const logger *log; /* valid while the container is opened */
    file **files;
    size_t n_file, cap_file;
    uint64_t header_bytes; /* of the files read so far */
    meta_table meta;
    meta_table nulls;  /* keys of a configuration that are null; values unused */
    meta_table absent; /* tensors that an index places in files that are not there, with the files' names */
    tensor_table tensors;
    arena packed; /* packed_matrix of each packed tensor */
    bool has_packed;
    bool has_gap; /* a part of a packed tensor is absent */
};

/* The headers of all files together: the largest published vocabulary makes a header of about 16 MB, 150,000
 * tensors in many shards 20 MB. With META_MAX_ELEMENTS and MAX_TENSORS this bounds time and memory for a
 * hostile container. */
#define CONTAINER_MAX_HEADER (UINT64_C(64) << 20)

/* Opens one more file of the container; *index is its number. */
nib_status container_add_file(container *c, const char *path, int *index, nib_error *err);

/* Reads the GGUF file that is file 0 of an otherwise empty container; opens the other parts of a split model.
 */
nib_status gguf_read(container *c, nib_error *err);

/* Reads a folder with config.json and safetensors files. */
nib_status folder_read(container *c, nib_error *err);

/* Adds the tensors of one safetensors file of the container. */
nib_status safetensors_read(container *c, int file_index, nib_error *err);

/* Lists the matrices that are packed in a form of their own (packed_matrix.h). */
nib_status packed_bind(container *c, nib_error *err);

/* Flattens the members of a JSON object into the metadata under prefix ("", "generation."), as container.h
 * says. `wrapped`: the members of a member "text_config" are added without that prefix too. */
nib_status config_flatten(container *c, const json_t *object, const char *prefix, bool wrapped,
                          nib_error *err);

#endif
