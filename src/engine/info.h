/* info.h - fills the result of nib_engine_info. */
#ifndef NIB_ENGINE_INFO_H
#define NIB_ENGINE_INFO_H

#include "engine/core.h"

/* *info must be zeroed. The core owns its texts. */
void engine_fill_info(const engine_core *e, nib_model_info *info);

#endif
