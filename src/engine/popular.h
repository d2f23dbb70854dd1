/* popular.h - the experts that get memory first: the most popular ones of each layer, if `profile --experts`
 * or earlier runs have counted the choices of the routers, otherwise those with the lowest numbers. */
#ifndef NIB_ENGINE_POPULAR_H
#define NIB_ENGINE_POPULAR_H

#include "engine/core.h"
#include "weights/pager.h"

/* What was measured for the model, or with nib_engine_options.learn what earlier runs have counted; borrowed
 * until popular_forget. Zeroed: nothing was, or for other layers or experts. The files are looked for once; a
 * problem with one is logged. */
nib_status popular_read(const engine_core *e, const popularity **out, nib_error *err);
void popular_forget(engine_core *e); /* frees it, once weights are in memory */
/* With nib_engine_options.learn, adds the choices that the pager has counted in this run to those of earlier
 * runs. A file that cannot be written is logged. */
void popular_keep(const engine_core *e, const pager *p);
/* The counted shares of a block's experts, [n_expert]; NULL: there are none. */
const double *popular_shares(const engine_core *e, const popularity *p, int b);
/* The place of an expert among n, the most popular one first; share NULL: its number. */
int popular_rank(const double *share, int n, int which);
/* hits [n_expert + 1]: the share of all choices that the first so many experts of every layer have. False: it
 * is not known. */
bool popular_hits(const popularity *p, double *hits);

#endif
