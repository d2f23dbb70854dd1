/* tinymodel.h - a llama checkpoint with random weights, in one number format, for tests of the engine. */
#ifndef NIB_TESTS_TINYMODEL_H
#define NIB_TESTS_TINYMODEL_H

#include "nib.h"
#include "numbers/types.h"

#include <stdint.h>

/* Dense shapes omit the experts. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

typedef struct tiny_shape {
    type_id type; /* type of the matrices; must have a quantizer */
    int64_t n_layer, d_model, d_ff, n_head, n_kv_head, n_vocab, n_ctx;
    bool tied;
    int64_t n_expert, n_used; /* of every layer, each of width d_ff; 0: dense */
} tiny_shape;

/* Writes it into the test's temporary folder and returns its path; fails the test on an error. */
const char *tiny_model(const char *name, const tiny_shape *shape);

/* The same model without the layers whose bits are set; the remaining weights are unchanged. */
const char *tiny_model_without(const char *name, const tiny_shape *shape, unsigned layers);

/* The same model with a vocabulary: n_vocab tokens, half as many merges. n_vocab is odd. */
const char *tiny_model_with_words(const char *name, const tiny_shape *shape);

/* The same model in n_file files, NAME-0000i-of-0000n.gguf, with its tensors distributed in turn. Returns the
 * path of the first file. */
const char *tiny_model_split(const char *name, const tiny_shape *shape, int n_file);

/* The bytes that a RAM cap must have beyond the process's own memory (process_bytes), so that an
 * engine with two threads keeps about half of the weights and streams the rest. Opens and closes an engine.
 */
uint64_t tiny_model_half_bytes(const char *path);

/* The same for an engine with other options that memory depends on, such as n_batch. The memory of a fake GPU
 * is RAM, too. */
uint64_t tiny_model_half_bytes_with(const char *path, const nib_engine_options *o);

#endif
