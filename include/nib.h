/* nib.h - run large language models inside a memory budget.
 *
 * This header runs models; nib_batch.h computes many answers together, and nib_tools.h describes, converts
 * and measures models. An *engine* is a loaded model with its tokenizer and its memory ledger. It is
 * read-only after opening and may be shared by threads. A *session* is one sequence of tokens with its KV
 * cache and its scratch memory, all allocated before the first token. One thread uses it at a time, except
 * nib_session_cancel(), which any thread may call. Nothing here prints, exits or aborts. Every call that can
 * fail returns a nib_status and fills the nib_error it is given (NULL is allowed). Returned pointers are
 * owned by the object they came from, unless the function says "caller frees" (with nib_free()).
 *
 *     nib_error err;
 *     nib_engine *e;
 *     nib_session *s;
 *     if (nib_engine_open("model.gguf", NULL, &e, &err)) { puts(err.message); return 1; }
 *     if (nib_session_open(e, NULL, &s, &err)) { puts(err.message); return 1; }
 *     ... nib_tokenize(), nib_generate() ...
 *     nib_session_close(s);
 *     nib_engine_close(e);
 */
#ifndef NIB_H
#define NIB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NIB_API __attribute__((visibility("default")))
#else
#define NIB_API
#endif

#define NIB_VERSION "0.1.0"

/* X(name, number, exit code of the command line, text) */
#define NIB_STATUS_MAP(X)                                                                                    \
    X(OK, 0, 0, "ok")                                                                                        \
    X(FAILED, 1, 1, "failed")                                                                                \
    X(USAGE, 2, 2, "wrong usage")                                                                            \
    X(NOFIT, 3, 3, "does not fit the memory budget")                                                         \
    X(MODEL, 4, 4, "model damaged or unsupported")                                                           \
    X(DEVICE, 5, 5, "device unavailable")                                                                    \
    X(NOMEM, 6, 1, "out of memory")                                                                          \
    X(IO, 7, 1, "input/output error")                                                                        \
    X(NOTFOUND, 8, 4, "not found")                                                                           \
    X(CANCELLED, 9, 130, "cancelled")

typedef enum nib_status {
#define NIB_X(name, number, exit_code, text) NIB_E_##name = number,
    NIB_STATUS_MAP(NIB_X)
#undef NIB_X
} nib_status;
#define NIB_OK NIB_E_OK

/* Filled once, at the place of the fault: what was expected and what was found. */
typedef struct nib_error {
    nib_status status;
    char message[512]; /* NUL-terminated, printable; cut at a character's end if it is too long */
} nib_error;

NIB_API const char *nib_status_text(nib_status status); /* never NULL */
NIB_API int nib_status_exit_code(nib_status status);    /* 0, 1, 2, 3, 4, 5 or 130 */
NIB_API const char *nib_version(void);                  /* NIB_VERSION of the library; static */
NIB_API void nib_free(void *memory);                    /* for "caller frees" results; NULL is fine */

/* ---- engine: a loaded model --------------------------------------------------------------------- */

typedef struct nib_engine nib_engine;

/* NIB_OK if this build has a back end of that name (nib_engine_options.backend), else NIB_E_DEVICE, whose
 * message lists the back ends. */
NIB_API nib_status nib_backend_check(const char *name, nib_error *err);

/* Reports progress. what: the activity ("load", "prompt"); done, of total: how much is finished, in the
 * activity's own unit (bytes, rows, steps). Return false to cancel: the call ends with NIB_E_CANCELLED. */
typedef bool (*nib_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);
/* Polled every few milliseconds during a long call, from any of the engine's threads, possibly from several
 * at a time. Once it returns true it must do so until the call returns, with NIB_E_CANCELLED. Must be fast.
 */
typedef bool (*nib_cancel_fn)(void *user);
/* One line without a newline, logged once: a slow path, a fallback, something ignored. */
typedef void (*nib_log_fn)(void *user, const char *line);

/* For a caller that keeps a part of its cap on RAM beside the engine: the smallest cap that leaves the engine
 * `ram` bytes. Errors name caps by it. Must be fast. */
typedef uint64_t (*nib_cap_fn)(void *user, uint64_t ram);

#define NIB_AUTO UINT64_MAX
#define NIB_CTX_WHOLE                                                                                        \
    (-1) /* for n_ctx: the trained context, or as much of it as memory holds, which is logged */

/* Formats of weights: those that make one sequence fastest, the file's own, or the fewest bytes. */
typedef enum nib_weights { NIB_WEIGHTS_FASTEST, NIB_WEIGHTS_FILE, NIB_WEIGHTS_FEWEST } nib_weights;

/* How a plan is chosen among those that fit the caps. */
typedef struct nib_plan_options {
    const char *quality;     /* bound on the loss: lossless, high, balanced, small; NULL: the file's formats
                                and 8-bit activations, without a bound */
    double speed;            /* tokens a second: the plan with the least loss that is as fast, without
                                `quality` at most 1 nat a token; 0: the least time for the workload */
    char mode;               /* 'a': all layers; 'b': layers left out; 'c': left out, and rounded; 0: all
                                layers, fewer where `quality` or `speed` allows the measured cost */
    int weights;             /* with `quality`: a nib_weights */
    double kv_loss;          /* nats of the bound of `quality` that keys and values take */
    int64_t n_prompt, n_gen; /* the workload; 0: 512 and 128, within the context */
    uint64_t ram_beside;     /* nib_plan only: RAM that the program takes itself, besides the cap `ram` of the
                                engine. The plan names the sum as its budget */
} nib_plan_options;

/* Activations of 4 bits, and of 8 in the leading blocks of 128 channels that the model's file names for each
 * input of a product ('nibble quantize --permute'). */
enum { NIB_ACT_AX = 48 };

typedef struct nib_engine_options {
    uint64_t ram;        /* cap in bytes for the process's peak resident set; NIB_AUTO: no cap */
    uint64_t vram, disk; /* caps in bytes; NIB_AUTO */
    const char *scratch; /* folder for files of the disk tier; NULL: none is written */
    int packed;          /* a nib_packed: whether packed weights are stored in a file */
    int n_thread;        /* 0: one for each physical core */
    int64_t n_ctx;       /* the longest context of a session; 0: min(4096, trained context), and less under a
                            RAM cap that does not hold the model beside it, such that keys and values take
                            at most a quarter of the cap (but at least 256 positions). Charged before the
                            resident pages are chosen. NIB_E_USAGE: more than the learned positions;
                            NIB_E_NOFIT: more than the machine's memory holds */
    int32_t n_session;   /* maximum number of open sessions with n_ctx positions each; a batch counts as one
                            for each of its sequences; 0: 1. Under a RAM cap their memory is reserved when
                            the engine opens, and one more is NIB_E_NOFIT */
    int32_t n_sequence;  /* sequences of a batch that share the KV pages of n_session; each needs some memory
                            of its own, which is reserved. Fewer than n_session: n_session */
    int64_t max_n_ctx;   /* with n_ctx 0: an upper bound of the positions needed; 0: unknown */
    int64_t n_batch;  /* rows of a prompt in one pass; 0: 512 (2,048 on a GPU with room for them), or what the
                         cap allows */
    int64_t n_logits; /* rows of logits that nib_session_forward and nib_batch_step compute together; 0: 16,
                         or 1 under a RAM cap (generation in one session needs one; a batch reads the output
                         head once for this many sequences) */
    int32_t n_draft;  /* speculation: nib_generate proposes up to so many tokens that followed the same tokens
                         earlier in the text, or a draft model's (nib_session_options.draft), and verifies them
                         in one pass; the number adapts to the measured
                         time of passes, and the tokens stay the same. Memory for their logits is reserved,
                         also for the batches of this engine. Negative: -n_draft, only while weights are
                         streamed from disk. 0: none; at most 32 */
    int32_t n_best;   /* sampling reads at most this many of the largest logits (greedy: 1, else top_k). The
                         others may be -INFINITY, and the output head may be computed for candidates only
                         (`shortlist`). 0: all logits are computed */
    int shortlist;    /* a nib_shortlist */
    int kv_type;      /* 0: f16 (f32 while the whole cache takes at most 2 MiB); else a nib_kv_type */
    const char *kv_layers; /* formats of some layers, as in "0-3=f16,29=kv8" (layers from 0); the others have
                              kv_type. NIB_E_USAGE names the part that is wrong. NULL: none */
    int activation; /* bits of activations in products with packed weights: 4, 8, 16 or NIB_ACT_AX; 0: 8 */
    const char *backend; /* name of the back end; NULL: cpu; "auto": the GPU if there is one, else cpu.
                            NIB_E_DEVICE: this build or machine has no such back end */
    /* Ranks of a pipeline (docs/cluster.md): each computes consecutive blocks of the model, in a process of
     * its own with these caps, and the caller's process is the first. `devices` has a place for each rank, as
     * in "cpu,cpu" or "0,1" (numbers of GPUs), and may have a cap of its own ("0:16G,1:8G"). Or `hosts` is
     * the path of a file with a line for each host, this machine first. NULL or one place: the caller's
     * process computes all. `program` is nibble's, which is started for each further rank; NULL: "nibble",
     * found by PATH. `launcher` has the words that start a program on another host, before its name; NULL:
     * "ssh". NIB_E_USAGE names what ranks lack. */
    const char *devices, *hosts, *program, *launcher;
    int split; /* a nib_split: what each of the devices has of the model */
    /* On the processor, with `scratch` or `disk`: the keys and values of so many layers are on the disk. 0:
     * of as few as the contexts then fit with, none if they fit in RAM. */
    int32_t kv_on_disk;
    int32_t gpu_layers;  /* at most this many of the last layers keep their weights on the GPU. The processor
                            computes the others, or they are copied for a prompt. 0: as many as fit under
                            `vram` */
    int32_t cpu_experts; /* with a GPU, for generated rows: the processor computes the experts of so many
                            first layers with experts, and all else is resident. 0: the fastest that fits */
    const char *kernels; /* file of the kernel map (which strategy computes which product); NULL: this
                            machine's own, if it exists; "none": the rule decides */
    const char *plan;    /* JSON of a plan to follow ('nibble plan --json'): formats, activations and layers
                            of each block, what stays in RAM, sizes. NULL: none. NIB_E_USAGE or NIB_E_MODEL
                            name the block that does not agree with the model */
    const char *plan_name;            /* the plan's file name, for messages; NULL: none */
    const nib_plan_options *planning; /* without `plan`: make a plan by these options and follow it. NULL:
                                         the file's own formats, and as many pages in RAM as fit */
    bool grammar;    /* answers will use grammars: under a RAM cap memory for one is reserved, a 64th of the
                      * cap, at least 2 MiB, and about 73 bytes for each token of the vocabulary */
    bool vocab_only; /* tokenizer and metadata only: no weights are read */
    bool ahead; /* opens the model's head that predicts later tokens (multi-token prediction) instead of the
                   model: a draft model for it (nib_session_options.draft), and for nothing else.
                   NIB_E_USAGE: it has none, or several devices are requested */
    const nib_engine *lender; /* an engine of that head, open until this one is closed: on the processor, and
                                 without packed files (`packed`), an embedding and an output head that both
                                 have are in memory once, the other engine's. NULL: none */
    bool stream;              /* weights that do not fit the RAM cap may be streamed from disk */
    /* The time of generated tokens is stored under $XDG_CACHE_HOME/nibble/learned when the engine closes.
     * Stored times correct predictions only, never what is computed. Which experts of a mixture rows have
     * chosen is stored beside the calibration results: they are in memory first when it is opened again. */
    bool learn;
    bool bf16_tiles; /* with AMX, products of many rows with bf16, f16 and f32 weights are computed as sums of
                        bf16 products: faster and as exact, but the bits differ from those of few rows
                        (docs/kernels.md) */
    /* QDEC (docs/paper-qdec.md): the original of this quantized model, a file or a name. In each product of a
     * layer, the rounding residuals of k_chunk input channels in every 1,024 are added back (those with the
     * largest inputs, or as residual_rule says). With residual_bits a weight, they are in RAM if
     * the cap holds them beside all weights, else on disk. A file of residuals that nib_quantize has written
     * for this model works too. NULL: none. */
    const char *residual;
    const char *residual_rule; /* how channels are chosen: approx (NULL), exact, random, static, weighted */
    int32_t residual_bits;     /* 2, 4, 8 or 16 */
    int32_t k_chunk;           /* 0: none */
    /* For comparisons (docs/paper-flexgen.md): attention reads the values of the newest position and of those
     * with the largest weights only, this share of all. 0: of all. Their weights add up to 1, or keep their
     * share of the sum over all (raw). NIB_E_USAGE: not the processor, or values that are the keys. */
    float sparse_v;
    bool sparse_v_raw;
    bool no_fuse;             /* execute every op on its own: slower, the same bits; for comparisons */
    nib_progress_fn progress; /* NULL: none */
    nib_log_fn log;           /* NULL: none */
    bool log_details;         /* logs also what is as it should be: what was chosen, and what it takes */
    nib_cancel_fn cancel;     /* ends opening, planning, and every pass; NULL: none */
    nib_cap_fn cap_of;        /* NULL: `ram` is the caller's whole cap */
    void *user;               /* for the four above */
} nib_engine_options;

/* Weights are packed into the order that the kernels read when they are loaded. The packed weights can be
 * stored in a file, SCRATCH/packed/<key>.nibpack or, without a scratch folder,
 * $XDG_CACHE_HOME/nibble/packed/<key>.nibpack, so that the next time they are only read. All such files
 * together stay within `disk` (the least recently used are removed) and leave a tenth of the file system
 * free. NIB_PACKED_AUTO: an existing file is used; one is written only when `scratch` or `disk` is set,
 * because gigabytes of disk need permission. */
typedef enum nib_packed { NIB_PACKED_AUTO, NIB_PACKED_ON, NIB_PACKED_OFF } nib_packed;

/* With n_best, the head may be computed in two steps: estimates and bounds of all logits from a rounded copy
 * (the sketch), then the exact logits that can be among the n_best from the matrix itself, with the bits of
 * the whole head (docs/shortlist.md). The sketch takes half to three fifths of the head's memory in addition,
 * or lets the head stay on disk. NIB_SHORTLIST_AUTO: under a RAM cap where it helps, for one sequence
 * (n_sequence); the head of several is multiplied with all their rows at once. On a GPU the whole head stays
 * beside the sketch, so that nothing is refused: a pass uses the sketch if its answers read only the 64
 * largest logits at most, and NIB_SHORTLIST_AUTO makes one for a large head, n_best up to 8, and VRAM that is
 * left. */
typedef enum nib_shortlist { NIB_SHORTLIST_AUTO, NIB_SHORTLIST_ON, NIB_SHORTLIST_OFF } nib_shortlist;

/* What each of several devices has. LAYER: consecutive blocks, which rows pass one after the other. TENSOR: a
 * share of the heads and neurons of every layer, all at the same time, so that one answer is faster.
 * NIB_E_USAGE names what cannot be shared. */
typedef enum nib_split { NIB_SPLIT_LAYER, NIB_SPLIT_TENSOR } nib_split;

/* The formats of keys and values (docs/budget.md). Those with codes are used on request only.
 *
 *   F16, F32   as they are
 *   8, 4       older positions in 8 or 4 bits
 *   8H, 4H     the same with values that are rotated before they are rounded: as many bytes, and less loss
 *              where a few channels are far from the others
 *   4S         as 4, with the first position of all in f16: as many bytes, and less loss
 *
 * A GPU has F16, 8 and 4. The processor has all of them. */
typedef enum nib_kv_type {
    NIB_KV_F16 = 1,
    NIB_KV_F32,
    NIB_KV_8,
    NIB_KV_4,
    NIB_KV_8H,
    NIB_KV_4H,
    NIB_KV_4S
} nib_kv_type;

/* Fills in the defaults; call it before setting fields. Never fails. */
NIB_API void nib_engine_options_init(nib_engine_options *options);

/* Opens MODEL (a .gguf file, a folder with config.json, or a name from the models folder). Blocks while it
 * reads the weights. NIB_E_NOFIT names the smallest cap that works. *out is set only on success. */
NIB_API nib_status nib_engine_open(const char *model, const nib_engine_options *options, nib_engine **out,
                                   nib_error *err);
NIB_API void nib_engine_close(nib_engine *engine); /* NULL is fine; close its sessions first */

/* The plan for a model under these options, as JSON (docs/budget.md; caller frees with nib_free): formats and
 * tiers of each block, the expected speed and peak, the bottleneck, the gain from more memory, alternatives.
 * Reads headers and the profiles of this machine and model, no weights. `how` NULL: the defaults. NIB_E_NOFIT
 * names the smallest cap that works. */
NIB_API nib_status nib_plan(const char *model, const nib_engine_options *options, const nib_plan_options *how,
                            char **json, nib_error *err);

/* The planner's prediction for an open engine, and a prompt of n_prompt and an answer of n_gen tokens. */
typedef struct nib_prediction {
    double ttft_s, tok_s;           /* time to the first token; tokens a second of generation */
    uint64_t ram_peak;              /* of the process, in bytes */
    uint64_t ram_bytes, disk_bytes; /* moved for one generated token */
    double disk_s, compute_s; /* seconds that the disk, and the processor, need for that token on their own */
    uint64_t vram_bytes, link_bytes; /* with a GPU: read from its memory, and sent to it, for that token */
    double gpu_s, link_s; /* seconds that the GPU, and the link, need for that token on their own */
    uint64_t vram_peak;   /* of the device, in bytes; 0: no GPU computes */
    bool guessed;         /* this machine's rates were never measured */
    int n_run;            /* earlier runs that corrected tok_s and ttft_s (options.learn) */
    char binds[64]; /* the bottleneck of a token: "disk read", "packing", "memory read" or "compute"; with a
                       GPU also "link", "the GPU" and "the processor's layers" */
} nib_prediction;
/* NIB_E_USAGE: the engine was opened with vocab_only. Waits for no pass. */
NIB_API nib_status nib_engine_predict(const nib_engine *engine, int64_t n_prompt, int64_t n_gen,
                                      nib_prediction *out, nib_error *err);

typedef struct nib_model_info {
    const char *arch; /* "llama", "gemma3", ... */
    const char *name; /* from the metadata, or the file's name */
    int64_t n_layer, d_model, n_head, n_kv_head, d_head, d_ff, n_vocab, n_ctx_train;
    int64_t n_ctx;        /* the engine's context, the default of its sessions; 0 with vocab_only */
    int32_t n_session;    /* sessions of n_ctx positions that fit, from the engine's options */
    uint64_t params;      /* number of weights */
    uint64_t bytes;       /* of all tensors as stored */
    uint64_t token_bytes; /* weight bytes that one generated token reads, in the packed formats */
    uint64_t token_macs;  /* multiply-adds of one generated token, without attention over the cache */
    int32_t bos, eos;     /* -1: none */
    bool add_bos;
    bool has_tokenizer, has_chat_template;
    int64_t d_embed; /* numbers of an embedding (nib_session_embed): the width of what the output head reads;
                        0 with vocab_only */
    int pooling;     /* a nib_pooling: the pooling in the model's files; NIB_POOLING_MODEL: none, or one that
                        is not supported */
} nib_model_info;

/* How the rows of a text become one vector: their mean, or the last one. NIB_POOLING_MODEL: from the model's
 * files (`ARCH.pooling_type` of a GGUF, `1_Pooling/config.json` of a folder), else the mean. */
typedef enum nib_pooling { NIB_POOLING_MODEL, NIB_POOLING_MEAN, NIB_POOLING_LAST } nib_pooling;

/* Owned by the engine; constant until it is closed. Never NULL. */
NIB_API const nib_model_info *nib_engine_info(const nib_engine *engine);

/* The path of the kernel map in use (owned by the engine); NULL: none is used, and the rule decides. */
NIB_API const char *nib_engine_kernels(const nib_engine *engine);

/* ---- memory: the ledger's view, in bytes -------------------------------------------------------- */

enum { NIB_TIER_RAM, NIB_TIER_VRAM, NIB_TIER_DISK, NIB_N_TIER };
enum {
    NIB_OWNER_WEIGHTS,
    NIB_OWNER_KV,
    NIB_OWNER_ACTIVATIONS,
    NIB_OWNER_STAGING,
    NIB_OWNER_TABLES,
    NIB_OWNER_RUNTIME,
    NIB_N_OWNER
};

typedef struct nib_memory {
    struct {
        uint64_t cap;     /* NIB_AUTO: none */
        uint64_t planned; /* the planned peak */
        uint64_t peak;    /* the highest charge so far */
    } tier[NIB_N_TIER];
    uint64_t owner[NIB_N_OWNER]; /* RAM charged now, by owner */
    uint64_t rss_peak;           /* VmHWM of the process, from the system */
} nib_memory;

/* Any thread may call it at any time; it does not wait. */
NIB_API void nib_engine_memory(const nib_engine *engine, nib_memory *out);

/* The formats of keys and values of an engine, as JSON (*json, caller frees): [{"layers", "format"}], with
 * the layers "all", or numbers and ranges from 0 on ("7", "0-3"). NIB_E_USAGE: the engine has no weights. */
NIB_API nib_status nib_engine_kv(const nib_engine *engine, char **json, nib_error *err);

/* Traffic between disk and memory, of all sessions of the engine. */
typedef struct nib_traffic {
    uint64_t loaded;   /* bytes read while the engine was opened */
    uint64_t streamed; /* bytes read afterwards: weights that are not resident, rows of an embedding */
    uint64_t pass;   /* bytes that one pass (a token, or a batch of rows) must read if it reads nothing twice;
                        to compare with streamed / n_pass */
    uint64_t n_pass; /* passes so far */
    double wait_s;   /* seconds that computing waited for reads */
    double head_share; /* mean share of the output head's rows that were computed exactly; below 1 with the
                          shortlist (n_best), and for many greedy sequences together */
    uint64_t residual_reads, residual_bytes; /* of residuals that are on disk */
    double residual_wait_s;                  /* seconds that all threads together waited for them */
    uint64_t expert_uses, expert_hits; /* uses of a mixture's experts, and those that found them in memory; 0
                                          and 0: all are resident, or there are none */
} nib_traffic;

/* Any thread may call it. It blocks until a running pass ends. */
NIB_API void nib_engine_traffic(nib_engine *engine, nib_traffic *out);

/* Checks what every pass needs beside memory. NIB_E_IO: weights are streamed from a file that has changed or
 * is gone; passes succeed again when it is back. Or a rank of `devices` has ended; then the engine must be
 * opened again. Any thread may call it at any time; it does not wait. */
NIB_API nib_status nib_engine_check(const nib_engine *engine, nib_error *err);

/* Where the weights are: for each block, in the order of a pass, one entry for each pair of format and tier.
 * A matrix that two blocks use (a tied head) is listed with the first. The sketch of the shortlist is an
 * entry of the head. */
typedef struct nib_slice {
    const char *block; /* "embed", "layer.0", ..., "head" */
    const char *also;  /* a second block that uses one of its matrices; NULL: none */
    int32_t layer;     /* -1: none */
    const char
        *format;    /* of the computation: the file's ("q4_1", "f32", ...), or the rounded one ("u4g64") */
    uint64_t bytes; /* packed, on any tier */
    int tier;       /* NIB_TIER_RAM: resident; NIB_TIER_VRAM: on the GPU; NIB_TIER_DISK: streamed */
} nib_slice;

/* Returns the number of entries. *slices gets the first (owned by the engine, constant). 0 with vocab_only.
 */
NIB_API size_t nib_engine_placement(const nib_engine *engine, const nib_slice **slices);

/* ---- where the time goes ------------------------------------------------------------------------ */

/* One kind of op, with one kind of weight, over all layers, since the trace began. */
typedef struct nib_trace_row {
    char what[48];             /* "linear gate", "attention", ... */
    uint64_t calls;            /* times it was executed */
    double busy_s;             /* working: processor time, all threads added up */
    double wait_s;             /* waiting at barriers before or inside it: wall clock, all threads added up */
    double weight_bytes, macs; /* bytes of weights read, and multiply-adds, of all calls together */
} nib_trace_row;

/* Starts timing every op (a few clock readings each); a second call starts again from zero. */
NIB_API nib_status nib_engine_trace_begin(nib_engine *engine, nib_error *err);
/* Fills at most `max` rows and returns their total number; 0 before nib_engine_trace_begin. *pass_s (NULL is
 * fine): the seconds of all passes. n_thread * *pass_s less the rows' sum is the time of starting threads,
 * rotary tables, reading rows from disk, and other processes. */
NIB_API size_t nib_engine_trace_read(nib_engine *engine, nib_trace_row *rows, size_t max, double *pass_s);

/* A GPU's timeline: a span for each launch and each copy. */
typedef enum nib_lane {
    NIB_LANE_COMPUTE, /* the stream of the kernels, and copies in it */
    NIB_LANE_COPY,    /* weights, keys and values that cross the link meanwhile */
    NIB_LANE_SIDE,    /* kernels that run beside the first lane's: residuals, reordering of weights */
    NIB_LANE_HOST,    /* layers that the processor computes */
    NIB_N_LANE
} nib_lane;
typedef struct nib_span {
    char what[48]; /* "linear gate+up", "copy weights", ... */
    int lane;
    int link;              /* its bytes cross the link to the host */
    double start_s, end_s; /* since nib_engine_spans_start, by the device's clock (_HOST: the host's) */
    double bytes; /* operands, results and intermediate results, each counted once, cached or not; 0: not
                   * counted */
    int at_least; /* `bytes` is a lower bound: some bytes move more than once, or are not counted */
    double macs;  /* of products and attention */
} nib_span;

/* Reference values for spans, measured by nib_engine_spans_start. */
typedef struct nib_span_scale {
    double read_rate; /* bytes a second of plain reading of the weights on the GPU; 0: no weights there */
    double empty_s;   /* median length of an empty span; every span includes it */
} nib_span_scale;

/* Starts timing up to `max` launches and copies, each by two events. Launches are issued one by one instead
 * of as a graph, and each waits for the one before, so a pass takes longer. NIB_E_USAGE: the back end has no
 * such clock. */
NIB_API nib_status nib_engine_spans_start(nib_engine *engine, size_t max, nib_span_scale *scale,
                                          nib_error *err);
/* Stops timing. *n spans, in the order in which they were queued. *n_dropped: spans beyond `max`. spans:
 * [max].
 */
NIB_API nib_status nib_engine_spans_stop(nib_engine *engine, nib_span *spans, size_t *n, size_t *n_dropped,
                                         nib_error *err);

/* ---- text --------------------------------------------------------------------------------------- */

enum { NIB_TOKENIZE_BOS = 1 /* add BOS/EOS where the model asks for them */, NIB_TOKENIZE_SPECIAL = 2 };

/* text[0..n_byte) -> *tokens (caller frees). Invalid UTF-8 is tokenised byte by byte. NIB_TOKENIZE_SPECIAL
 * parses special tokens written in the text; without it they are plain text. */
NIB_API nib_status nib_tokenize(const nib_engine *engine, const char *text, size_t n_byte, unsigned flags,
                                int32_t **tokens, size_t *n_token, nib_error *err);
/* The same, but with NIB_TOKENIZE_SPECIAL only special tokens whose bytes all have the mark 0 are parsed.
 * marks: [n_byte], as from nib_chat_render_marked; NULL: all are 0. */
NIB_API nib_status nib_tokenize_marked(const nib_engine *engine, const char *text, const uint8_t *marks,
                                       size_t n_byte, unsigned flags, int32_t **tokens, size_t *n_token,
                                       nib_error *err);
/* Ids to text. *text is NUL-terminated and may contain NULs; caller frees. */
NIB_API nib_status nib_detokenize(const nib_engine *engine, const int32_t *tokens, size_t n_token,
                                  char **text, size_t *n_byte, nib_error *err);
/* The piece of one token in the vocabulary: *n_byte bytes, owned by the engine; NULL for an unknown id. */
NIB_API const char *nib_token_piece(const nib_engine *engine, int32_t token, size_t *n_byte);
NIB_API bool nib_token_is_end(const nib_engine *engine, int32_t token); /* end of text or of a turn */

/* Renders the model's chat template. `messages` is a JSON array as in the OpenAI chat API. Reasoning may be
 * in "reasoning_content" or in "thinking"; the template gets it under both names. A NUL in a text is
 * NIB_E_USAGE. `tools` is a JSON array or NULL. *text (caller frees) is to be tokenised with
 * NIB_TOKENIZE_SPECIAL; nib_tokenize adds no second BOS if the text begins with one. Use
 * nib_chat_render_marked for messages that others wrote. */
NIB_API nib_status nib_chat_render(const nib_engine *engine, const char *messages, const char *tools,
                                   bool add_generation_prompt, char **text, nib_error *err);
/* The same with more variables for the template (NULL: none): a JSON object, none of whose names the template
 * has already (NIB_E_USAGE); and with the origin of each byte: *marks (caller frees) has strlen(*text) bytes,
 * 1 for a byte that comes from the messages or the tools and 0 for the template's own. With
 * nib_tokenize_marked the name of a special token in a message stays text; with nib_tokenize it becomes that
 * token. */
NIB_API nib_status nib_chat_render_marked(const nib_engine *engine, const char *messages, const char *tools,
                                          const char *variables, bool add_generation_prompt, char **text,
                                          uint8_t **marks, nib_error *err);
/* The source of the template; caller frees. NIB_E_NOTFOUND: the model has none. */
NIB_API nib_status nib_chat_template(const nib_engine *engine, char **source, nib_error *err);

/* ---- session: one sequence ---------------------------------------------------------------------- */

typedef struct nib_session nib_session;

typedef struct nib_session_options {
    int64_t n_ctx;       /* 0: the engine's */
    int kv_type;         /* 0: the engine's */
    int32_t n_draft_min; /* as in nib_batch_options; the engine's n_draft is the maximum */
    nib_engine *draft;   /* likewise: a smaller model, or the engine's own head (nib_engine_options.ahead);
                            opened with n_session 1, and borrowed until the session is closed */
} nib_session_options;

/* Fills in the defaults. */
NIB_API void nib_session_options_init(nib_session_options *options);
/* Allocates the session's KV pages and scratch memory. *out is set only on success; closed with
 * nib_session_close, before its engine. NIB_E_NOFIT: the caps leave no memory for it (the message names
 * n_session); NIB_E_USAGE: an option is out of range, or the engine was opened with vocab_only
 * or ahead. */
NIB_API nib_status nib_session_open(nib_engine *engine, const nib_session_options *options, nib_session **out,
                                    nib_error *err);
NIB_API void nib_session_close(nib_session *session); /* NULL is fine */

/* Sets the whole prefix: afterwards the session holds exactly tokens[0..n), n >= 1, and the logits of the
 * last one. The longest common prefix with its previous tokens is reused; the others are computed in passes
 * of n_batch rows. A prefix longer than n_ctx, or an id outside the vocabulary, is NIB_E_USAGE and changes
 * nothing. After NIB_E_CANCELLED the session holds the finished part. */
NIB_API nib_status nib_session_sync(nib_session *session, const int32_t *tokens, size_t n_token,
                                    nib_error *err);

/* Appends one token and returns the one with the largest logit, the first of equals: a step of greedy
 * generation. The session is not empty. A back end that finds the largest logit itself returns no others, as
 * in nib_generate. A full context, or an id outside the vocabulary, is NIB_E_USAGE and changes nothing. */
NIB_API nib_status nib_session_next(nib_session *session, int32_t token, int32_t *next, nib_error *err);

/* Logits after the last synced token: [n_vocab] f32, valid until the next call on this session. With the
 * engine's n_best some logits outside the n_best largest are -INFINITY. NULL: none, as before the first sync,
 * and after nib_session_next and nib_generate on a back end that returns only the largest ones. */
NIB_API const float *nib_session_logits(const nib_session *session);

/* As nib_session_sync, with the logits of every position from first_row on: row_fn is called once for each,
 * in order, with logits [n_vocab]. Only tokens[0..first_row) can be reused. For evaluation. */
typedef void (*nib_row_fn)(void *user, int64_t position, const float *logits);
NIB_API nib_status nib_session_forward(nib_session *session, const int32_t *tokens, size_t n_token,
                                       int64_t first_row, nib_row_fn row_fn, void *user, nib_error *err);

/* The embedding of tokens[0..n): the last hidden states (after the final norm), pooled to out [d_embed] f32,
 * not normalised. Sums are in f64, in the order of the positions. Afterwards the session holds the tokens,
 * and no logits. on_pass (NULL: none) is called with "prompt" after each pass, without any lock of the
 * engine. NIB_E_USAGE as nib_session_sync. */
NIB_API nib_status nib_session_embed(nib_session *session, const int32_t *tokens, size_t n_token, int pooling,
                                     float *out, nib_progress_fn on_pass, void *user, nib_error *err);

/* Any thread may call it at any time. The running call of this session, or else the next one, returns
 * NIB_E_CANCELLED, even if it has nothing to compute. The cancel stays pending until a call has returned it,
 * so it is not lost between two calls; a call that fails for another reason leaves it pending too. Calls are
 * nib_session_sync, nib_session_forward, nib_session_next, nib_session_embed and nib_generate. */
NIB_API void nib_session_cancel(nib_session *session);
/* Removes a pending cancel. */
NIB_API void nib_session_cancel_clear(nib_session *session);
NIB_API size_t nib_session_length(const nib_session *session); /* tokens held */

/* ---- sampling and generation -------------------------------------------------------------------- */

enum { NIB_MAX_SAMPLERS = 15 };
typedef struct nib_sampling {
    float temperature;       /* 0: greedy */
    int32_t top_k;           /* 0: off */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* 1: off */
    float frequency_penalty; /* 0: off */
    float presence_penalty;  /* 0: off */
    int32_t penalty_window;  /* number of recent tokens that the penalties consider; -1: all */
    uint64_t seed;
    float typical_p;         /* the most typical tokens up to this probability; 0 or 1: off */
    float top_n_sigma;       /* logits within so many standard deviations of the largest; 0 or less: off */
    float xtc_probability;   /* 0: off; else the probability with which, of the tokens that are at least */
    float xtc_threshold;     /* as likely as this, only the least likely stays; above 0.5: off */
    float dynatemp_range;    /* the temperature varies by so much, with the entropy; 0: off */
    float dynatemp_exponent; /* of the normalized entropy */
    int32_t mirostat;        /* 1, 2: its version, with the temperature alone; 0: off */
    float mirostat_tau;      /* wanted surprise, in bits */
    float mirostat_eta;      /* learning rate */
    float dry_multiplier;    /* 0: off; else what would continue a repetition of n tokens is lowered by */
    float dry_base;          /* dry_multiplier * dry_base^(n - dry_allowed_length); below 1: off */
    int32_t dry_allowed_length;
    int32_t dry_window; /* number of recent tokens that DRY considers; -1: all; 0: off */
    /* Texts that end a repetition, at most 64 of at most 40 bytes; borrowed. NULL: line end, : " and * */
    const char *const *dry_breakers; /* [n_dry_breaker] */
    size_t n_dry_breaker;
    /* The samplers that run, in their order, by llama.cpp's letters: penalties e, DRY d, top-n-sigma s, top-k
     * k, typical y, top-p p, min-p m, XTC x, temperature t. "": edskypmxt. Not for mirostat */
    char samplers[NIB_MAX_SAMPLERS + 1];
} nib_sampling;

/* Maximum number of the largest logits that sampling reads (nib_engine_options.n_best); 0: all. */
NIB_API int32_t nib_sampling_n_best(const nib_sampling *sampling);
/* llama.cpp's defaults: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, all else off; XTC's threshold 0.1,
 * mirostat's tau 5 and eta 0.1, DRY's base 1.75, allowed length 2 and window 64. The samplers run in its
 * default order: penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature. */
NIB_API void nib_sampling_init(nib_sampling *sampling);
/* Sets `samplers` from llama.cpp's names or letters, separated by semicolons: "penalties;top_k;p;t". */
NIB_API nib_status nib_sampling_order(nib_sampling *sampling, const char *names, nib_error *err);

typedef enum nib_finish { NIB_FINISH_STOP, NIB_FINISH_LENGTH, NIB_FINISH_CANCELLED } nib_finish;

/* Receives text that is final: whole UTF-8 characters, without any end that could still become a stop string.
 * Return false to stop generating (finish is then NIB_FINISH_STOP). */
typedef bool (*nib_text_fn)(void *user, const char *text, size_t n_byte);
/* Receives each token of the answer. Return false to stop generating (finish is then NIB_FINISH_STOP). */
typedef bool (*nib_token_fn)(void *user, int32_t token);

typedef struct nib_logit_bias {
    int32_t token;
    float bias; /* added to its logit before anything else; finite, or -INFINITY: never sampled */
} nib_logit_bias;

typedef struct nib_candidate {
    int32_t token;
    float logprob; /* the logarithm of its probability by the model's logits alone */
} nib_candidate;

enum { NIB_MAX_TOP = 20 };
/* Receives a token of the answer (drawn) and the n_top most likely tokens at its position, most likely first.
 * Called before on_token. */
typedef void (*nib_candidates_fn)(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top);

typedef struct nib_generate_options {
    const int32_t *prompt; /* the whole prefix; the session reuses what it holds */
    size_t n_prompt;
    int64_t n_predict; /* maximum number of tokens; -1: until the context is full */
    int64_t n_min;     /* before so many tokens no token ends the text, and stop strings are part of it */
    bool ignore_eos;
    uint64_t client;         /* in a batch: the client of the request, for fairness among clients */
    bool special;            /* control tokens are part of the text, except those that end it */
    const char *const *stop; /* stop strings, not part of the answer */
    size_t n_stop;
    nib_sampling sampling;
    const nib_logit_bias *bias; /* [n_bias]; a bias, and candidates, need all logits: */
    size_t n_bias;              /* NIB_E_USAGE if the engine was opened for the best ones (n_best) */
    const char *grammar; /* the answer matches this grammar (GBNF, docs/grammar.md): tokens that cannot come
                            next are never sampled, and the answer ends when it is complete, unless n_predict
                            cuts it off. NULL: any text. Needs all logits, like a bias */
    int32_t n_top;       /* candidates for both functions below, 0 to NIB_MAX_TOP */
    nib_candidates_fn on_candidates; /* NULL: none */
    bool end_candidates; /* on_candidates also receives the token that ends the text, which is not part of it
                          */
    /* Receives the tokens of the prompt from the second one on, in order and before the answer, each with the
     * most likely tokens at its position. The whole prompt is computed for it: nothing is reused or shared.
     * NULL: none. */
    nib_candidates_fn on_prompt_candidates;
    nib_text_fn on_text;       /* NULL: none */
    nib_token_fn on_token;     /* NULL: none */
    nib_progress_fn on_prompt; /* after each pass of the prompt; NULL: none */
    void *user;
} nib_generate_options;

typedef struct nib_result {
    int32_t *tokens; /* the answer's ids; caller frees */
    size_t n_token;
    char *text; /* the answer, NUL-terminated; caller frees; NULL when the model has no tokenizer */
    size_t n_byte;
    nib_finish finish;
    int64_t prompt_n;    /* tokens computed (not those reused) */
    double prompt_s;     /* seconds until the first logits */
    int64_t predicted_n; /* tokens decoded after the first logits */
    double predicted_s;
    /* Tokens after the first, and the seconds of sampling and computing them, without callbacks. Plans and
     * predictions are about token_n / token_s. */
    int64_t token_n;
    double token_s;
    int64_t draft_n, draft_right; /* proposed tokens, and those of them that were accepted */
} nib_result;

/* Fills in the defaults. */
NIB_API void nib_generate_options_init(nib_generate_options *options);
/* Generates an answer; blocks until it is complete. Callbacks run on the calling thread. NIB_E_USAGE: invalid
 * options, or a prompt that does not fit the context. With NIB_E_CANCELLED the result has the partial answer
 * (finish: NIB_FINISH_CANCELLED), including text that was held back from on_text. The caller clears *result
 * in any case. */
NIB_API nib_status nib_generate(nib_session *session, const nib_generate_options *options, nib_result *result,
                                nib_error *err);
/* Frees what the result owns and zeroes it; a zeroed result is fine. */
NIB_API void nib_result_clear(nib_result *result);

/* Converts a JSON schema (the subset of docs/grammar.md) to a grammar for nib_generate_options. Its rules are
 * named `root` and `root-...`, so several can be in one grammar. *gbnf: caller frees. NIB_E_USAGE names the
 * place in the schema and the unsupported keyword. */
NIB_API nib_status nib_schema_grammar(const char *schema, size_t n_byte, const char *root, char **gbnf,
                                      nib_error *err);

#ifdef __cplusplus
}
#endif
#endif
