/* container.h - a model file as named tensors and metadata, whatever the format.
 *
 * A container is opened from a .gguf file (of a split one the first shard, which opens the others), a folder
 * with config.json and *.safetensors, or one .safetensors file (tensors without metadata). Only headers are
 * read; tensor bytes are located, never loaded here. Every count, length, extent, type and nesting depth is
 * checked before use; a wrong header is NIB_E_MODEL with the file, what was expected and what was found.
 * Read-only after opening, so any thread may use it. Returned strings and arrays live as long as the
 * container.
 *
 * Metadata is one flat table for both formats. GGUF keys are as in the file ("llama.block_count"). A folder's
 * config.json is flattened with dots ("rope_parameters.rope_theta", "rope_scaling.short_factor"); scalars
 * keep their type, arrays of scalars become arrays, null means absent. If config.json wraps a text model
 * ("text_config": {...}), its members are also found without that prefix. generation_config.json's entries
 * are under "generation.", tokenizer_config.json's under "tokenizer_config." (without added_tokens_decoder,
 * which tokenizer.json repeats; a list of chat templates becomes "tokenizer_config.chat_template" and
 * "tokenizer_config.chat_template.NAME"; chat_template.jinja replaces the former). If config.json and its
 * text_config differ, text_config applies. GGUF arrays of arrays are left out. */
#ifndef NIB_FORMATS_CONTAINER_H
#define NIB_FORMATS_CONTAINER_H

#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "numbers/types.h"

typedef enum container_kind { CONTAINER_GGUF, CONTAINER_SAFETENSORS } container_kind;

typedef struct container_tensor {
    const char *name;
    type_id type;
    int n_dim;        /* 0..8 */
    int64_t shape[8]; /* outermost first, as PyTorch prints it: a matrix is [rows, cols] (GGUF's order
                         reversed) */
    int file;         /* index for container_file */
    uint64_t offset;  /* absolute, in that file; offset + bytes is at most the file's size */
    uint64_t bytes;
    const struct packed_matrix
        *packed; /* not NULL: computed from other tensors, in no file (-1) (packed_matrix.h) */
    bool source; /* a packed tensor is computed from this one */
} container_tensor;

typedef enum meta_type { META_BOOL, META_INT, META_FLOAT, META_STRING, META_ARRAY } meta_type;

typedef struct meta_string {
    const char *data; /* NUL-terminated as well; may contain NULs */
    size_t n_byte;
} meta_string;

typedef struct meta_value {
    meta_type type;
    meta_type elem; /* of META_ARRAY: META_BOOL, META_INT, META_FLOAT or META_STRING */
    size_t n;       /* elements of META_ARRAY */
    union {
        bool b;
        int64_t i;
        double f;
        meta_string s;
        const int64_t *ints;  /* META_ARRAY of META_INT or META_BOOL */
        const double *floats; /* META_ARRAY of META_FLOAT; an array that mixes ints and floats is floats */
        const meta_string *strings;
    } v;
} meta_value;

typedef struct container container;

/* Opens a model and reads its headers (blocks). *out is set only on success. NIB_E_NOTFOUND, NIB_E_MODEL,
 * NIB_E_IO, NIB_E_NOMEM. */
nib_status container_open(const char *path, const logger *log, container **out, nib_error *err);
/* As container_open without the vocabulary: each element of a GGUF file's arrays under "tokenizer." is
 * reported to `vocabulary` and not stored, so that their size is known at little cost in memory. number: a
 * string's length in bytes, an integer's value, 0 for a float. */
typedef struct container_visitor {
    void (*element)(void *user, const char *key, meta_type elem, int64_t number);
    void *user;
} container_visitor;
nib_status container_open_headers(const char *path, const logger *log, const container_visitor *vocabulary,
                                  container **out, nib_error *err);
void container_close(container *c); /* NULL is fine */

container_kind container_get_kind(const container *c);
const char *container_path(const container *c); /* as given */
size_t container_n_tensor(const container *c);
const container_tensor *container_tensor_at(const container *c, size_t i);
const container_tensor *container_find(const container *c, const char *name); /* hashed; NULL: not there */
/* The name of the file in which an index places this tensor, if that file is not there; NULL otherwise. */
const char *container_absent_file(const container *c, const char *tensor);
int container_n_file(const container *c);
file *container_file(const container *c, int i);

const meta_value *container_meta(const container *c, const char *key); /* NULL: not there */
size_t container_n_meta(const container *c);
const meta_value *container_meta_at(const container *c, size_t i, const char **key);
/* Typed look-ups: false if the key is missing or has another type (an int is accepted as float, an integral
 * float as int). */
bool container_meta_i64(const container *c, const char *key, int64_t *out);
bool container_meta_f64(const container *c, const char *key, double *out);
bool container_meta_bool(const container *c, const char *key, bool *out);
const char *container_meta_str(const container *c,
                               const char *key); /* NULL: the key is missing or not a string */
/* Whether the key exists with the value null, which the look-ups above treat as absent. With null a
 * configuration disables an option ("sliding_window": null), while a missing key means the family's
 * default. */
bool container_meta_is_null(const container *c, const char *key);

/* Drops the metadata's large arrays (64 KiB and more: the vocabulary with its scores and merges), once the
 * tokenizer has read them. container_meta then returns NULL for them, and earlier meta_value pointers are
 * invalid. Returns the memory to the system. */
void container_drop_vocab(container *c);

/* A key for measurements of this model: a hash of 128 bits of each tensor's name, type, shape and contents,
 * and of the configuration. It does not depend on the path, the order in the file or the sharding, nor on the
 * vocabulary and the keys "tokenizer...", "generation." and "split.". A tensor's contents are sampled at the
 * beginning, the middle and the end (CONTENT_SAMPLE bytes each; a small tensor is read whole). So hashing
 * takes milliseconds, and changes of other bytes are not noticed. */
enum { CONTENT_SAMPLE = 4096, CONTENT_KEY = 40 };
nib_status container_content_hash(const container *c, uint64_t out[2], nib_error *err);
/* The same as text, for profiles and plans: 32 hexadecimal digits and a NUL. */
nib_status container_content_key(const container *c, char out[CONTENT_KEY], nib_error *err);

uint64_t container_heap_bytes(const container *c); /* for the ledger */
/* Upper bound of the memory for the parts that container_open_headers left out. */
uint64_t container_left_out_bytes(const container *c);

#endif
