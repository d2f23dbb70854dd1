/* quantize.h - a model's matrices in smaller number formats, as a GGUF file that other programs load too.
 *
 * The file is made tensor by tensor, a few rows at a time: memory does not depend on the model's size. It
 * grows as OUT.part beside OUT.part.log, a checksum for each finished tensor; whatever ends the work (a
 * signal, a full disk, the power) leaves both, and the same command goes on behind the last tensor whose
 * bytes are what the log says. OUT appears when all is written, and what it was until then stays. */
#ifndef NIB_QUANTIZE_QUANTIZE_H
#define NIB_QUANTIZE_QUANTIZE_H

#include "base/status.h"

typedef struct quantize_options {
    const char *out;     /* the file */
    const char *type;    /* a number format ("q4_0") or a mix of some ("q4_k_m"); NULL: q4_k_m */
    double bits;         /* instead of type: this average, shared out (share.h); 0: type */
    const char *method;  /* "rtn", "awq", "gptq"; NULL: rtn */
    const char *calib;   /* text whose lines the model is measured with; NULL: nibble's own prompts */
    const char *imatrix; /* importance from this file of llama.cpp instead of measuring; "none": no weights */
    const char *keep_imatrix; /* writes the importance that is used, for llama.cpp; NULL: not */
} quantize_options;

typedef struct quantize_report {
    uint64_t bytes_in, bytes_out;
    uint64_t n_weight; /* values in tensors that were quantised */
    double bits;       /* of one of them, scales included */
    double error;      /* sum of their squared errors by sum of their squares, each weighted by its column;
                          of this run's tensors */
    double kl;         /* expected of --bits: the blocks' costs summed; else 0 */
    int n_tensor;      /* all */
    int n_quantized, n_resumed; /* of them: written in another format; found finished */
    int n_fallback;             /* whose rows the format does not divide: in the next larger one that fits */
    int n_coarse;               /* that were in a coarse format already */
    double seconds;
    uint64_t rss_peak;
    char importance[256]; /* where it is from, for people */
} quantize_report;

/* name, o: as nib_engine_open (threads, RAM cap, progress, log, cancel). NIB_E_CANCELLED and errors of the
 * disk leave what was done for the next time. */
nib_status quantize(const char *name, const nib_engine_options *o, const quantize_options *q,
                    quantize_report *out, nib_error *err);

#endif
