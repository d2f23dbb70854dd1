/* kv_paging.h - the layout of a KV page: where each layer's keys and values are, and their bytes. A function
 * of the model's layout and of the formats of the cache.
 *
 * A page has up to two pieces of memory on its device. With kv_formats.slides, layers with a window are in
 * its part, which is taken and returned apart from the page (kv_slide.h); all other layers are in the page
 * itself, and so are the entries of compressed attention, which outlive their window. */
#ifndef NIB_STATE_KV_PAGING_H
#define NIB_STATE_KV_PAGING_H

#include "model/layout.h"
#include "state/kv_formats.h"

/* Where a layer's keys and values live. The order of bytes in a page is that of the kernels that attend to it
 * for generated rows. */
typedef enum kv_home {
    KV_HOME_DEVICE, /* in the pool's own memory */
    KV_HOME_HOST,   /* in host memory, in the order of the host's kernels */
    KV_HOME_STAGED  /* in host memory or on a disk, in the device's order; copied there for each use
                       (kv_stage.h) */
} kv_home;

/* Where the layers' keys and values are in a page; n_kv_head 0: the page has no such layer. */
typedef struct kv_layer {
    int64_t key_at, value_at; /* bytes from the page's beginning */
    int64_t n_kv_head, d_head;
    type_id type;
    kv_home home;               /* not KV_HOME_DEVICE: in the host's part of the page, or on the disk */
    bool slides;                /* keys and values are in the page's part for layers with a window */
    int64_t entry_at, index_at; /* compressed attention: entries and their index keys (kernels/entries.h), in
                                   the page itself */
    int64_t every, d_index;
    bool shared;     /* values are the keys, at key_at */
    int64_t tail_at; /* on the disk, without codes: in the memory for an incomplete page */
} kv_layer;

typedef struct kv_paging {
    kv_formats formats;
    int n_layer;
    kv_layer *layers;     /* [n_layer] */
    const kv_home *homes; /* [n_layer], borrowed; NULL: all are on the device */
    int64_t window;       /* the longest of the layers that slide; 0: none slides */
    bool read_again;      /* several ops attend to a layer that slides */
    uint64_t page_bytes;  /* of all layers in neither part; a multiple of the system's page */
    uint64_t part_bytes;  /* of the part for layers with a window, likewise; 0: none */
    uint64_t host_bytes;  /* of the host's part, or of that on the disk, likewise; 0: none */
    uint64_t tail_bytes; /* of a sequence's incomplete page in RAM, of the layers on the disk without codes */
} kv_paging;

/* overlaid: all layers share one place, for passes that begin at position 0 and no longer need a layer's keys
 * and values after its visit; not if a later one reads them again. NIB_E_NOFIT: a page overflows. */
nib_status kv_paging_open(kv_paging *p, const layout *lay, kv_formats formats, bool overlaid, nib_error *err);
void kv_paging_close(kv_paging *p);                   /* zeroed is fine */
bool kv_paging_has(const kv_paging *p, kv_home home); /* some layer has that home */
/* As kv_paging_open, without the layers' places; allocates nothing. */
nib_status kv_paging_size(kv_paging *p, const layout *lay, kv_formats formats, bool overlaid, nib_error *err);
/* Bytes of the keys of an attention's layer in a page, which are those of its values. false: they overflow.
 */
bool kv_paging_half(const op *attention, type_id type, uint64_t *bytes);
/* Whether the layer is in the pages' parts for windows. */
bool kv_paging_slides(const layout *lay, kv_formats formats, int layer);
/* Whether several ops read the layer's keys and values. Those that do not store them find only the f16 copies
 * of a pass's newest positions, so the layer cannot have codes. */
bool kv_paging_reads_again(const layout *lay, int layer);
/* Bytes that the first n positions of a page, or of its part, make resident. */
uint64_t kv_page_resident(const layout *lay, kv_formats formats, bool part, int64_t n);
uint64_t kv_paging_touched(const kv_paging *p, bool part, int64_t n);
/* Moves the layers whose home [n_layer] is host memory to the host's part of the page. The device's part then
 * has at least one page of the system. homes is borrowed. NIB_E_NOFIT: a page overflows. */
nib_status kv_paging_split(kv_paging *p, const layout *lay, const kv_home *homes, nib_error *err);
/* With kv_formats.on_disk: the largest number of layers that may be on the disk. They begin at multiples of
 * the system's page there. */
int kv_paging_max_on_disk(const layout *lay, kv_formats formats);
/* The most bytes of such a layer in a page, a multiple of the system's page; 0: none is on the disk. */
uint64_t kv_paging_stride(const layout *lay, kv_formats formats);
/* Bytes of a layer's keys and values that a copy of a page has. */
uint64_t kv_layer_bytes(const kv_paging *p, const kv_layer *l);

#endif
