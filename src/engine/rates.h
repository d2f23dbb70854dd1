/* rates.h - the rates of this machine, as the planner uses them. */
#ifndef NIB_ENGINE_RATES_H
#define NIB_ENGINE_RATES_H

#include "engine/core.h"
#include "plan/planner.h"

/* From the machine's hardware profile, else default values. page, part: bytes of a read from a packed file,
 * and from the model's. */
void rates_here(const logger *log, int n_thread, uint64_t page, uint64_t part, plan_rates *out);
/* The same with the engine's threads. */
void engine_rates(const engine_core *e, uint64_t page, uint64_t part, plan_rates *out);

#endif
