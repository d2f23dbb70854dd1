/* kv_auto.h - the formats of keys and values by measured loss (NIB_KV_AUTO). */
#ifndef NIB_ENGINE_KV_AUTO_H
#define NIB_ENGINE_KV_AUTO_H

#include "engine/core.h"
#include "profile/kv_loss.h"

/* The chosen layers lose more on other text than on the calibration's: 1.7 times as much with SmolLM2 on
 * WikiText-2 in contexts of 1,024, in 16-bit activations. So the measured losses may add up to half. */
#define KV_AUTO_MARGIN 2

/* Loads the model's losses; without a measurement out->n_layer is 0. kv_loss_clear(out) in any case. */
nib_status kv_auto_load(const engine_core *e, kv_loss *out, nib_error *err);

/* Sets types [model_n_kv_layer] to the formats with the fewest bytes whose losses add up to at most
 * e->resolved.max_kv_loss / KV_AUTO_MARGIN. Without a measurement of the model, or with a back end that has
 * one format for all layers, they stay, which is logged once. */
nib_status kv_auto(engine_core *e, uint8_t *types, nib_error *err);

#endif
