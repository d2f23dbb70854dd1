/* weights.h - loads the weights of an engine whose sizes are resolved: the tier of each page, and the
 * reading. */
#ifndef NIB_ENGINE_WEIGHTS_H
#define NIB_ENGINE_WEIGHTS_H

#include "engine/core.h"

/* Opens the pager and loads as many pages as fit the cap beside `others`, which will be charged later; the
 * caller closes it. copied [all pages]: pages that a device keeps (device_store_copied), or NULL. lender: as
 * in pager_options. Sets e->cap_is_named. */
nib_status engine_open_weights(engine_core *e, uint64_t others, const bool *copied, const pager *lender,
                               pager **out, nib_error *err);

#endif
