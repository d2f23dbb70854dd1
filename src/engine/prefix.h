/* prefix.h - KV pages on disk (state/kv_disk.h): the key of everything that they depend on except their
 * tokens. */
#ifndef NIB_ENGINE_PREFIX_H
#define NIB_ENGINE_PREFIX_H

#include "engine/core.h"

/* A hash of 128 bits of this version, the model's contents and the times of its files, the format and product
 * of every weight, the back end and its kernels (as in nib_engine_kernels), the formats of the cache, and the
 * widths of each layer's keys and values and their homes (backend.homes; NULL: all on the device). Two
 * engines with the same key compute the same keys and values for the same tokens. */
nib_status prefix_key(const engine_core *e, const char *kernels, const kv_home *homes, kv_formats kv,
                      uint64_t out[2], nib_error *err);

#endif
