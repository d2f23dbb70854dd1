/* idle.h - decides where residuals are kept: they take RAM that is idle and never evict a weight. */
#ifndef NIB_ENGINE_IDLE_H
#define NIB_ENGINE_IDLE_H

#include "engine/core.h"

/* Sets resolved.residuals_on_disk and residuals_in_ram, if residuals were requested. They are in RAM if the
 * cap holds them beside all weights and the usual sessions; else on disk, if they can be. Otherwise they are
 * in RAM and weights may not be streamed (resolved.stream), so that a cap too small for both is refused.
 * plans: the user's plan has the tiers of the weights, and is checked against the cap with the residuals.
 * *bytes: of RAM that residuals will take; NULL: not needed. */
nib_status idle_residuals(engine_core *e, bool plans, uint64_t *bytes, nib_error *err);

#endif
