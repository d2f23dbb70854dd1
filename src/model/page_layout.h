/* page_layout.h - the weights of a layout in pages, the unit of residency, reading and streaming. It is a
 * pure function of the model and its formats, the same for every budget. So a plan can be made before
 * anything is opened, and one packed file serves every cap. Every layout has one (layout_pages).
 *
 * The image is all packed weights one after the other: vectors; the matrices of each block in the order in
 * which its products use them; those of the output head; tables that are only looked up by row; then, in the
 * same order, second slices. So it begins like the image of the model without second slices. Every page
 * begins at a multiple of FILE_ALIGN in the image, and is either several whole matrices of one block or rows
 * of one matrix. Rows of a matrix are cut where its bytes are a multiple of FILE_ALIGN, so in adjacent pages
 * a matrix is contiguous. A stack of experts has one page for each expert, whatever its size, because which
 * experts are read is known only when a router has chosen them; page_layout_expert gives one of them. */
#ifndef NIB_MODEL_PAGE_LAYOUT_H
#define NIB_MODEL_PAGE_LAYOUT_H

#include "base/file.h"
#include "model/layout.h"

typedef struct weight_page {
    int block; /* that owns the weights */
    int w; /* the weight whose rows these are; -1: whole matrices, those whose weight_place names this page */
    int64_t first_row; /* with w >= 0: rows [first_row, first_row + n_row) */
    int64_t n_row;
    uint64_t bytes; /* a multiple of FILE_ALIGN */
    uint64_t image; /* offset in the image */
    bool table;     /* part of a matrix that is only looked up by row */
    bool second;    /* contains second slices */
    bool chosen;    /* an expert's rows: not read in every pass */
} weight_page;

/* Where the bytes of one weight are. A weight that another block owns has no place: page_layout_own finds its
 * owner. */
typedef struct weight_place {
    uint64_t offset;        /* of a vector: in the image; of a matrix: in its first page */
    int first_page, n_page; /* 0 pages: a vector, or another block's */
    int64_t page_rows;      /* rows of each page but the last */
} weight_place;

typedef struct page_layout {
    const layout *of; /* whose weights these are */
    int n_block;
    int *first_weight; /* [n_block + 1]: index of a block's first weight in places */
    weight_place *places;
    weight_page *pages; /* in the image's order */
    int n_page;
    int *uses;         /* pages that the products of a block use, in their order; a page may come twice.
                          The order of the blocks in a pass: schedule/visits.h */
    int *first_use;    /* [n_block + 1]: index of each block's first page in uses */
    bool *head_use;    /* [all weights]: its own block owns it and the last block's products use it */
    uint64_t target;   /* approximate bytes of a page */
    uint64_t max_page; /* bytes of the largest page that products use */
    uint64_t vector_bytes, image_bytes;
    uint64_t first_bytes;   /* of the image's part before second slices */
    int n_first_page;       /* number of pages in that part */
    int n_product_page;     /* pages of matrices that products use (no tables) */
    uint64_t product_bytes; /* of these pages */
    uint64_t heap_bytes;    /* of the arrays */
} page_layout;

/* Replaces block and index of a weight by those of the weight that owns its bytes. */
void page_layout_own(const layout *lay, int *b, int *w);
static inline weight_place *page_layout_place(const page_layout *l, int b, int w) {
    page_layout_own(l->of, &b, &w);
    return &l->places[l->first_weight[b] + w];
}
/* Packed bytes of n_row rows of w, rounded up to 64; of a vector the bytes of all its floats. Cannot
 * overflow: layout_make has checked it. */
uint64_t page_layout_bytes(const weight *w, int64_t n_row);
/* The rows of expert e in a view of a whole stack. In other views (n_expert 1) e is 0. */
view page_layout_expert(const view *stack, int64_t n_expert, int64_t e);

/* The packed file has a checksum for every unit: pieces of PAGE_UNIT of the vectors, then each page. */
enum { PAGE_UNIT = 1 << 20 };
static inline uint64_t page_layout_vector_units(const page_layout *l) {
    return (l->vector_bytes + PAGE_UNIT - 1) / PAGE_UNIT;
}
static inline uint64_t page_layout_n_unit(const page_layout *l) {
    return page_layout_vector_units(l) + (uint64_t)l->n_page;
}

#endif
