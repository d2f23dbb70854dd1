/* workspace.h - the memory of a pass, on the GPU and on the host, and what it is filled with before a pass.
 */
#ifndef NIB_EXEC_CUDA_WORKSPACE_H
#define NIB_EXEC_CUDA_WORKSPACE_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"
#include "memory/region.h"

typedef struct cuda cuda;

/* Memory of a pass, laid out when the back end opens. */
typedef struct gpu_workspace {
    /* device memory */
    memory_region rows;
    float *reg[REG_MAX]; /* REG_X has n_pass rows, REG_LOGITS n_head, every other register max_rows */
    int64_t ld[REG_MAX]; /* distance of two rows in floats */
    int64_t max_rows;    /* maximum rows that go through a block together */
    /* Data of a pass for the kernels, sent in one copy; contains the next five and page_table. */
    uint8_t *tables;
    int32_t *position, *first_page, *token; /* [rows of the pass] */
    int32_t *first_part;   /* as first_page, of the pages' parts for windows; unused if there are none */
    int32_t *state, *save; /* cuda_recurrent; unused without recurrent layers */
    float **cos_sin;       /* [n_rope][rows of the pass, n_rot] */
    int32_t *page_table;   /* page numbers of all segments; in `tables`, or in `pages` if there are many */
    void *codes[REG_MAX];  /* activation codes of few rows (cuda_codes); NULL: the register has none */
    void *linear_scratch, *wide_scratch /* `wide`, `batch`, `mixed` */, *attend_scratch;
    void *expert_few, *expert_wide, *expert_rows, *expert_codes,
        *expert_scratch; /* cuda_route, cuda_experts; NULL: no experts */
    void *recurrent_scratch;
    float
        *embed_there; /* rows that the host has looked up, and that are added to a register; NULL: none are */
    float *wider[4];  /* q, k, v and output of attention whose heads are no multiple of 8 wide; NULL: there is
                         none */
    unsigned *routes_ended; /* cuda_route.ended */
    uint32_t *mail;         /* cuda_mail.here, then cuda_hand_down.ended */
    void *fetch_scratch;    /* the selected channels of few rows; NULL: no residuals */
    int32_t *best;          /* [2, rows, n_best]: tokens, then logits */
    uint8_t *changes;       /* changes of the pass's logits; contains the next two */
    logit_row *change_rows; /* [rows with logits]; NULL: no changes */
    logit_change *change_list;
    void *best_scratch, *short_scratch;
    float *part;         /* contributions of residuals to a step's products, for few rows */
    memory_region pages; /* of page_table, if there are many pages */

    /* host memory */
    memory_region host;
    float *stream_copy;       /* [n_pass, the larger of d_model and the width of the head's input] */
    float *logits;            /* [n_head, n_vocab] */
    int32_t *found;           /* copy of `best` */
    uint8_t *tables_host;     /* source of `tables` */
    uint8_t *changes_host;    /* source of `changes` */
    bool pinned;              /* all of it is page-locked, so copies are asynchronous */
    float *embed, *looked_up; /* [n_pass, d_model], one row of a table */
    int32_t *page_list;
    size_t max_page_list;
} gpu_workspace;

enum { CUDA_MAX_CHANGES = 16384 /* logits of a pass that penalties and biases change */ };

/* Bytes of a workspace for these rows: in host memory, and in VRAM (lists of KV pages included). */
uint64_t gpu_workspace_host_bytes(const layout *l, const backend_rows *rows);
uint64_t gpu_workspace_device_bytes(cuda *c, const backend_rows *rows);
nib_status gpu_workspace_open(cuda *c, const backend_rows *rows, nib_error *err);
void gpu_workspace_close(cuda *c);
/* The memory from which the pass's pages and recurrent states are numbered. */
uint8_t *gpu_workspace_origin(const cuda *c);
/* Sends positions, tokens, pages and angles of the pass's rows to the GPU. */
nib_status gpu_workspace_send_tables(cuda *c, nib_error *err);
/* Sends the changes of the pass's logits. */
nib_status gpu_workspace_send_changes(cuda *c, nib_error *err);

#endif
