/* states.h - the states that a head which predicts later tokens reads (model/ahead.c): rows of the residual
 * stream after the final norm of their model. Any back end gives the stream (exec/step.h); the norm is
 * computed here, by the calling thread. */
#ifndef NIB_SESSION_STATES_H
#define NIB_SESSION_STATES_H

#include "engine/parts.h"

typedef struct state_norm {
    const op *how; /* of the model's head; NULL: there is none */
    float *w, *b;  /* [width]; NULL: none */
    int64_t width; /* d_model */
} state_norm;

/* Reads the final norm's weights from the model's files. The errors of loader_vector. */
nib_status state_norm_open(state_norm *n, const engine_parts *of, nib_error *err);
void state_norm_close(state_norm *n); /* zeroed is fine */
/* x, out: [n_row, width] */
void state_norm_rows(const state_norm *n, const float *x, int64_t n_row, float *out);

#endif
