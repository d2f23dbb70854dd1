/* kv_formats.h - the formats of the keys and values of all layers. Layers are numbered from 0. */
#ifndef NIB_STATE_KV_FORMATS_H
#define NIB_STATE_KV_FORMATS_H

#include "base/status.h"
#include "numbers/types.h"

#include <stddef.h>

/* Passed by value; the list is borrowed. */
typedef struct kv_formats {
    type_id type;          /* of all layers that `layers` does not list */
    const uint8_t *layers; /* [n_layer]: the type_id of each; NULL: all have `type` */
    int n_layer;
    bool newest; /* the f16 copies of the newest positions: of layers with codes only */
    bool slides; /* layers with a window keep only the positions that rows still read (kv_slide.h) */
    int kept;    /* and memory for so many before them, for sequences that go back or begin alike */
    int rows; /* and for so many rows of a pass of all sequences together: for all of any pass, if several ops
                 read the keys and values of a layer with a window */
    int on_disk; /* so many layers have their home on the disk: those whose passes read all positions, evenly
                    spread (kv_paging.h) */
} kv_formats;

enum { KV_KEPT = 1024 }; /* kv_formats.kept where memory has no cap */

static inline kv_formats kv_formats_all(type_id type) {
    return (kv_formats){.type = type};
}
/* The same of windows, with one format for all layers. */
static inline kv_formats kv_formats_like(kv_formats f, type_id type) {
    f.type = type;
    f.layers = NULL;
    f.n_layer = 0;
    return f;
}
/* The formats of the copies of the newest positions, which are never on a disk. */
static inline kv_formats kv_formats_newest(kv_formats f) {
    f.newest = true;
    f.on_disk = 0;
    return f;
}
/* A layer's format; TYPE_COUNT: these pages do not have it. */
type_id kv_format_of(kv_formats f, int layer);

/* Some layers have codes: then the newest positions have copies in f16. */
bool kv_formats_any_coded(kv_formats f);
/* Some layers have codes or are on a disk: then only whole pages are shared, and a sequence cannot go back
 * into an earlier one (kv_table.h). */
bool kv_formats_only_whole(kv_formats f);
/* All layers have codes: then an incomplete block of positions has no page. */
bool kv_formats_all_coded(kv_formats f);
bool kv_formats_any_hosted(kv_formats f); /* kv_is_hosted */

/* Writes the formats of the layers that `text` names to layers [n_layer], as in "0-3=f16,7=kv8": a number or
 * a range, "=", a name of a format. The other entries stay. NIB_E_USAGE names the part that is wrong. */
nib_status kv_formats_parse(const char *text, uint8_t *layers, int n_layer, nib_error *err);
/* Writes all layers of formats by layer, as kv_formats_parse reads them; "" if all have one. False: `size`
 * bytes are too few; *out is then cut. */
bool kv_formats_print(kv_formats f, char *out, size_t size);

#endif
