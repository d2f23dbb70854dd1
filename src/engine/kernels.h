/* kernels.h - opens the back end of an engine, and the kernel map that it uses. */
#ifndef NIB_ENGINE_KERNELS_H
#define NIB_ENGINE_KERNELS_H

#include "engine/core.h"

/* Opens the back end with the options' kernel map, this machine's own, or none. *used: the map's path, which
 * the caller frees; NULL: none. Sets the layout's packings from the map. */
nib_status engine_open_backend(engine_core *e, backend **out, char **used, nib_error *err);

#endif
