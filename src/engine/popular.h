/* popular.h - the experts that get memory first: the most popular ones of each layer, if `profile --experts`
 * has counted the choices of the routers, otherwise those with the lowest numbers. */
#ifndef NIB_ENGINE_POPULAR_H
#define NIB_ENGINE_POPULAR_H

#include "engine/core.h"
#include "profile/popularity.h"

/* Loads what was counted for the model. Zeroed: nothing was, or for other layers or experts. A problem with
 * the file is logged. The caller clears it (popularity_clear). */
nib_status popular_load(const engine_core *e, popularity *out, nib_error *err);
/* The counted shares of a block's experts, [n_expert]; NULL: there are none. */
const double *popular_shares(const engine_core *e, const popularity *p, int b);
/* The place of an expert among n, the most popular one first; share NULL: its number. */
int popular_rank(const double *share, int n, int which);
/* hits [n_expert + 1]: the share of all choices that the first so many experts of every layer have. False: it
 * is not known. */
bool popular_hits(const popularity *p, double *hits);

#endif
