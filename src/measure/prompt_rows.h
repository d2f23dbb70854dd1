/* prompt_rows.h - calibration prompts as segments of one pass; shared by the files of measure/. */
#ifndef NIB_MEASURE_PROMPT_ROWS_H
#define NIB_MEASURE_PROMPT_ROWS_H

#include "engine/engine.h"
#include "measure/calibrate.h"

typedef struct prompt_rows {
    segment *segments; /* [n_segment], one for each prompt */
    int n_segment;
    int64_t n_row, longest; /* rows of all prompts; of the longest one */
    int64_t n_head;         /* rows with logits */
    kv_pool *pages;
    kv_table kv; /* for one layer of the longest prompt; all layers and prompts use it in turn */
} prompt_rows;

/* Makes segments of the first `max` tokens of each prompt (0: all), with logits of the last n_score of them.
 * NIB_E_USAGE: an id is outside the vocabulary, or there are too many rows. */
nib_status prompt_rows_open(prompt_rows *r, const engine_parts *e, const calibration *c, int64_t max,
                            int64_t n_score, nib_error *err);
/* Replaces the cache by one with these formats. It is empty, for passes that begin at position 0. */
nib_status prompt_rows_cache(prompt_rows *r, const engine_parts *e, kv_formats formats, nib_error *err);
void prompt_rows_close(prompt_rows *r); /* zeroed is fine; call it before closing the engine */

/* Returns the number of rows of all prompts; *longest: of the longest one. Needs no engine. */
int64_t prompt_rows_count(const calibration *c, int64_t max, int64_t *longest);

/* Calls the options' progress; NIB_E_CANCELLED if it returns false. */
nib_status measure_progress(const engine_parts *e, const char *what, uint64_t done, uint64_t all,
                            nib_error *err);

#endif
