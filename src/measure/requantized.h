/* requantized.h - rounds one block's matrices to another format, to measure the cost of that format. */
#ifndef NIB_MEASURE_REQUANTIZED_H
#define NIB_MEASURE_REQUANTIZED_H

#include "measure/measure.h"
#include "engine/imatrix.h"
#include "weights/loader.h"

/* A copy of one block's own matrices in another format. */
typedef struct measure_requantized {
    const engine_parts *e;
    loader *ld;
    load_buffer *buffers; /* [n_thread] */
    uint64_t charged;
    uint8_t *data; /* [n_byte]: the packed copies */
    uint64_t n_byte;
    view *views;           /* [n_weight of all blocks]: the weights for visits of changed blocks */
    const view **by_block; /* [n_block] into views, or NULL */
    int *first;            /* [n_block] in views */
} measure_requantized;

/* Bytes of a block's own matrices in their current formats. */
uint64_t measure_bytes_now(const block *blk);
/* Whether a format has fewer bytes than the file's own; others are not tried. *bytes: its bytes. */
bool measure_is_lower(const block *blk, const char *format, uint64_t *bytes);

/* Bytes that measure_requantized_open charges: the largest block in the largest of the formats. */
uint64_t measure_requantized_bytes(const engine_parts *e, const quality_options *q);
nib_status measure_requantized_open(measure_requantized *c, const engine_parts *e, const quality_options *q,
                                    nib_error *err);
void measure_requantized_close(measure_requantized *c); /* zeroed is fine */
/* Rounds block b to the recipe `format`; a pass with c->by_block then uses the copy. A stack is tried as the
 * sum of its slices, in floats. channels: the imatrix for formats that use one. */
nib_status measure_requantize(measure_requantized *c, const imatrix_watch *channels, int b,
                              const char *format, nib_error *err);

#endif
