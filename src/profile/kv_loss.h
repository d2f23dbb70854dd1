/* kv_loss.h - the loss of each format of keys and values by layer: measured once for a model's weights
 * (measure/measure.h), stored beside the layers' importance, read for `--kv auto`.
 *
 * A loss is the mean Kullback-Leibler divergence at the logits, over the last tokens of calibration texts,
 * from the model with all keys and values as floats to the model with this layer's in the format. */
#ifndef NIB_PROFILE_KV_LOSS_H
#define NIB_PROFILE_KV_LOSS_H

#include "base/status.h"

enum { KV_LOSS_FORMATS = 2 };
extern const char *const kv_loss_formats[KV_LOSS_FORMATS]; /* from more bits to fewer: "kv8", "kv4" */

typedef struct kv_loss {
    char content[40], prompts[40];
    int n_layer;
    int64_t n_token;             /* tokens whose logits were compared */
    double *kl;                  /* [n_layer, KV_LOSS_FORMATS], nats a token; 0: no keys and values */
    double all[KV_LOSS_FORMATS]; /* with all layers in the format */
} kv_loss;

void kv_loss_clear(kv_loss *k); /* zeroed is fine */
nib_status kv_loss_begin(kv_loss *k, int n_layer, nib_error *err);

/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts>-kv.json; caller frees. NULL: no memory. */
char *kv_loss_path(const char *content, const char *prompts);
char *kv_loss_find(const char *content);                                 /* as importance_find */
nib_status kv_loss_print(const kv_loss *k, char **text, nib_error *err); /* caller frees with mem_free */
/* As importance_load. */
nib_status kv_loss_load(const char *path, const char *content, kv_loss *out, nib_error *err);
nib_status kv_loss_save(const char *path, const kv_loss *k, nib_error *err);

#endif
