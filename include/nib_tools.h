/* nib_tools.h - what is done with a model or a machine beside running it: a model is described, converted or
 * made, a machine and a model are measured.
 *
 * Rules are those of nib.h: nothing prints, exits or aborts, a call that can fail returns a nib_status and
 * fills the nib_error it is given, and what a call allocates for the caller is freed with nib_free(). MODEL
 * is a .gguf file, a folder with config.json, or a name from the models folder. Every call may be made from
 * any thread; it blocks until it is done, and asks options->cancel meanwhile.
 *
 * Documents are JSON in UTF-8 (a byte of a file's text that is no UTF-8 is U+FFFD there). Keys may be added
 * in later versions; those that are listed here stay. */
#ifndef NIB_TOOLS_H
#define NIB_TOOLS_H

#include "nib.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a model ------------------------------------------------------------------------------------ */

/* What a model is, from its headers, as JSON (*json, caller frees): "arch", "name", "container" ("gguf" or
 * "safetensors"), "n_layer", "d_model", "n_head", "n_kv_head", "d_head", "d_ff", "n_vocab", "n_ctx_train",
 * "params" (weights), "bytes" (of all tensors as stored), "kv_bytes" (f16 keys and values of one position),
 * "tensors": [{"name", "shape" (outermost first), "format", "bytes"}]. NIB_E_NOTFOUND, NIB_E_MODEL. */
NIB_API nib_status nib_model_describe(const char *model, char **json, nib_error *err);

/* Computes tokens[0..n_token) in one sequence, as nib_session_forward, and writes the logits of every
 * position to `path`: a safetensors file with `logits`, F32 [n_token, n_vocab]. The file appears when it is
 * whole; an error leaves what was there. */
NIB_API nib_status nib_session_logits_save(nib_session *session, const int32_t *tokens, size_t n_token,
                                           const char *path, nib_error *err);

/* ---- a model in smaller number formats ---------------------------------------------------------- */

/* The file is made tensor by tensor, a few rows at a time: memory does not depend on the model's size. It
 * grows as OUT.part beside OUT.part.log, a checksum for each finished tensor. Whatever ends the work (a
 * signal, a full disk, the power) leaves both, and the same call continues behind the last tensor whose bytes
 * are what the log says. OUT appears when all is written; what it was until then stays. docs/quantize.md has
 * the formats and methods. */
typedef struct nib_quantize_options {
    const char *out;     /* the GGUF file that is made */
    const char *type;    /* a number format ("q4_0") or a mix of some ("q4_k_m"); NULL: q4_k_m */
    double bits;         /* instead of `type`: the average bits of a weight, shared out by block; 0: `type` */
    const char *method;  /* "rtn", "awq", "gptq"; NULL: rtn */
    const char *calib;   /* text whose lines the model is measured with; NULL: nibble's own prompts */
    const char *imatrix; /* importance from this file of llama.cpp instead of measuring; "none": no weights */
    const char *keep_imatrix; /* writes the importance that is used, for llama.cpp; NULL: not */
} nib_quantize_options;

typedef struct nib_quantize_report {
    uint64_t bytes_in, bytes_out; /* of the two files' tensors */
    uint64_t n_weight;            /* values in tensors that were quantised */
    double bits;                  /* of one of them, scales included */
    double error;                 /* sum of their squared errors by sum of their squares, each weighted by its
                                     column; of this call's tensors */
    double kl;                    /* expected of `bits`, in nats: the blocks' costs summed; else 0 */
    int n_tensor;                 /* all */
    int n_quantized, n_resumed;   /* of them: written in another format; found finished */
    int n_fallback; /* whose rows the format does not divide: in the next larger one that fits */
    int n_coarse;   /* that were in a coarse format already */
    double seconds;
    uint64_t rss_peak;    /* of the process, in bytes */
    char importance[256]; /* where it is from, for people */
} nib_quantize_report;

/* options: as nib_engine_open (threads, RAM cap, progress, log, cancel). NIB_E_USAGE: an unknown type or
 * method, or a model that is no GGUF file. NIB_E_CANCELLED and NIB_E_IO leave what was done for the next
 * call. */
NIB_API nib_status nib_quantize(const char *model, const nib_engine_options *options,
                                const nib_quantize_options *how, nib_quantize_report *out, nib_error *err);

/* ---- a model with random weights ----------------------------------------------------------------- */

/* The true shapes of a known model and weights of a pseudo-random sequence, for timing and for testing
 * budgets. The file has no tokenizer. It is written front to back in a megabyte of memory. */
typedef struct nib_synth_options {
    const char *shape;        /* a name of nib_synth_shape, letter case ignored */
    const char *type;         /* of the matrices: "q4_0", "q8_0", "f16"; NULL: q4_0 */
    int64_t n_layer;          /* at most so many layers; 0: all */
    uint64_t seed;            /* the same seed gives the same file */
    bool hollow;              /* the header alone, before zeros that take no room on disk: for planning */
    nib_progress_fn progress; /* NULL: none */
    nib_cancel_fn cancel;     /* NULL: none */
    void *user;               /* for the two above */
} nib_synth_options;

typedef struct nib_synth_report {
    const char *shape, *type; /* the names, as the tables have them; static */
    int64_t n_layer;
    uint64_t bytes; /* of all tensors */
} nib_synth_report;

NIB_API const char *nib_synth_shape(size_t i); /* the shapes' names; NULL after the last */
/* Writes the GGUF file `path`. NIB_E_USAGE: an unknown shape or type, with those that are known. An error
 * leaves what was there. */
NIB_API nib_status nib_synth(const nib_synth_options *options, const char *path, nib_synth_report *out,
                             nib_error *err);

/* ---- a machine ----------------------------------------------------------------------------------- */

/* NIB_E_USAGE where the environment asks for instruction sets that are not here: NIBBLE_ISA, one set of
 * kernels, and NIBBLE_CPU, the features that may be used. Without this check, other kernels are used. */
NIB_API nib_status nib_processor_check(nib_error *err);

#ifdef __cplusplus
}
#endif
#endif
