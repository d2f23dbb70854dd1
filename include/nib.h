/* nib.h - run large language models inside a memory budget.
 *
 * The header for running models; nib_tools.h has what is done with them beside. An *engine* is a loaded model
 * with its tokenizer and its memory ledger; it is read-only after opening and may be shared by threads. A
 * *session* is one sequence of tokens with its KV cache and its scratch memory, all allocated before the
 * first token; one thread uses it at a time, except nib_session_cancel(), which any thread may call. Nothing
 * here prints, exits or aborts: every call that can fail returns a nib_status and fills the nib_error it is
 * given (NULL is allowed). Pointers handed out are owned by the object they came from unless the function
 * says "caller frees" (with nib_free()).
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

/* Filled once, where the fault is seen: what was expected and what was found. */
typedef struct nib_error {
    nib_status status;
    char message[512];
} nib_error;

NIB_API const char *nib_status_text(nib_status status); /* never NULL */
NIB_API int nib_status_exit_code(nib_status status);    /* SURFACE: 0, 1, 2, 3, 4, 5 or 130 */
NIB_API const char *nib_version(void);
NIB_API void nib_free(void *memory); /* for "caller frees" results; NULL is fine */

/* ---- engine: a loaded model --------------------------------------------------------------------- */

typedef struct nib_engine nib_engine;

/* Whether this build has a back end of that name (nib_engine_options.backend); NIB_E_DEVICE says which there
 * are. */
NIB_API nib_status nib_backend_check(const char *name, nib_error *err);

/* what happens (load, prompt), how much is done and of how much, in the same unit; return false to cancel */
typedef bool (*nib_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);
/* Asked every few milliseconds while something takes long, on any of the engine's threads, on several at a
 * time. True, until the call has returned: it ends with NIB_E_CANCELLED. Must be quick. */
typedef bool (*nib_cancel_fn)(void *user);
/* one line without a newline, said once: a slow path, a fallback, something left out */
typedef void (*nib_log_fn)(void *user, const char *line);

#define NIB_AUTO UINT64_MAX
#define NIB_CTX_WHOLE                                                                                        \
    (-1) /* of n_ctx: as long as the model was made for, or as memory holds, which is said */

/* How a plan is chosen among those that fit the caps. */
typedef struct nib_plan_options {
    const char *quality;     /* what may be lost: lossless, high, balanced, small; NULL: the file's formats,
                                and 8-bit activations whatever they cost */
    double speed;            /* tokens a second: the plan that loses least of those as fast, without `quality`
                                at most 1 nat a token; 0: the least time for the workload */
    char mode;               /* 'a': all layers; 'b': layers left out; 'c': left out, and rounded; 0: all, and
                                less where `quality` or `speed` allows what that was measured to cost */
    int64_t n_prompt, n_gen; /* the workload; 0: 512 and 128, within the context */
} nib_plan_options;

typedef struct nib_engine_options {
    uint64_t ram;        /* cap in bytes for the process's peak resident set; NIB_AUTO: no cap */
    uint64_t vram, disk; /* caps in bytes; NIB_AUTO */
    const char *scratch; /* folder for disk-tier pages; NULL: none is written */
    int packed;          /* a nib_packed: whether packed weights are kept in a file */
    int n_thread;        /* 0: one a physical core */
    int64_t n_ctx;       /* the longest context a session will ask for; 0: min(4096, the model's own), and
                            under a RAM cap that does not hold the model beside it less, so that keys and
                            values take at most a quarter of the cap (256 positions at least). Charged when
                            the engine decides what stays resident. NIB_E_USAGE: more than the model has
                            learned positions; NIB_E_NOFIT: more than the machine's memory holds */
    int32_t n_session;   /* sessions with n_ctx positions each that may be open at the same time, of which a
                            batch counts as one for each of its sequences; 0: 1. Under a RAM cap room for so
                            many is kept when the engine opens, and one more is NIB_E_NOFIT */
    int32_t n_sequence;  /* sequences of a batch that share the keys and values of n_session: what each has of
                            its own is kept for so many. Fewer than n_session: n_session */
    int64_t max_n_ctx;   /* with n_ctx 0: positions that are surely enough; 0: not known */
    int64_t n_batch;     /* rows computed together in a prompt; 0: 512 (2,048 on a GPU without a cap), or
                            what the cap allows */
    int64_t n_logits; /* rows of logits that nib_session_forward and nib_batch_step compute together; 0: 16,
                         and 1 under a RAM cap (one session's generation needs none of them; a batch reads
                         the output head once for so many sequences) */
    int32_t n_best;   /* sampling looks at so many of the largest logits at most (greedy: 1, else top_k): the
                         others may be -INFINITY, and the output head computed for those alone where
                         `shortlist` says so; 0: all logits are wanted */
    int shortlist;    /* a nib_shortlist */
    int kv_type;      /* 0: f16 (f32 while the whole cache takes at most 2 MiB); else a nib_kv_type */
    int activation;   /* bits of what packed weights are multiplied with: 4, 8 or 16; 0: 8 */
    const char
        *backend;        /* what computes, by name; NULL: cpu, the processor; "auto": the GPU where there is
                            one, else the processor. NIB_E_DEVICE when this build or machine has no such one */
    int32_t gpu_layers;  /* of the model's, the last ones: at most so many keep their weights on the GPU, and
                            the others are computed by the processor, or copied for a prompt. 0: as many as
                            fit under `vram` */
    const char *kernels; /* file of the kernel map (which strategy computes which product); NULL: this
                            machine's own when there is one; "none": a rule decides */
    const char *plan;    /* the JSON of a plan ('nibble plan --json'), which is followed: formats, activations
                            and    layers of each block, what stays in RAM, sizes. NULL: none. NIB_E_USAGE or
                            NIB_E_MODEL when it does not agree with the model, naming the block */
    const char *plan_name;            /* of its file, for messages about it; NULL: none */
    const nib_plan_options *planning; /* without `plan`: one is made by these, and followed. NULL: the file's
                                         own formats, and as much stays in RAM as fits */
    bool grammar;    /* answers will be held to grammars: under a RAM cap room for one is kept, a 64th of the
                      * cap,    at least 2 MiB, and about 73 bytes for each token of the vocabulary */
    bool vocab_only; /* tokenizer and metadata only: no weights are read */
    bool stream;     /* allow weights beyond the RAM cap to be read block by block while running */
    /* What generating took is kept under $XDG_CACHE_HOME/nibble/learned when the engine is closed, and what
     * was kept corrects predictions and what plans expect; never what is computed. */
    bool learn;
    bool bf16_tiles; /* with AMX, products of many rows with bf16, f16 and f32 weights are sums of bf16
                        products: faster, as exact, but other bits than with few rows (docs/kernels.md) */
    /* QDEC (docs/paper-qdec.md): the original of this quantized model, a file or a name. For each product of
     * a layer, the k_chunk input channels of 1,024 that are largest in a row get back what rounding
     * took. All of that is kept in RAM, as weights, in residual_bits a weight. NULL: none. */
    const char *residual;
    const char *residual_rule; /* of channels: approx (NULL), exact, random, static, weighted */
    int32_t residual_bits;     /* 2, 4, 8 or 16 */
    int32_t k_chunk;           /* 0: none */
    bool no_fuse;              /* every op of the model on its own: slower, the same bits; for comparing */
    nib_progress_fn progress;  /* NULL: none */
    nib_log_fn log;            /* NULL: none */
    nib_cancel_fn cancel;      /* ends opening, planning, and every pass; NULL: none */
    void *user;                /* for the three above */
} nib_engine_options;

/* Weights are packed into the order that the kernels read when they are loaded. That can be kept in a file,
 * SCRATCH/packed/<key>.nibpack or, without a scratch folder, $XDG_CACHE_HOME/nibble/packed/<key>.nibpack: the
 * next time they are only read. All such files together stay within `disk` (the least recently used ones are
 * removed) and leave a tenth of the file system free.
 * NIB_PACKED_AUTO: one that is there is used; one is written only when `scratch` or `disk` is set, because
 * gigabytes on somebody's disk are asked for, not taken. */
typedef enum nib_packed { NIB_PACKED_AUTO, NIB_PACKED_ON, NIB_PACKED_OFF } nib_packed;

/* With n_best, the head may be computed in two steps: all logits from a rounded copy that says how far off it
 * may be, then those that can be among the n_best from the matrix itself, to the bits that all would have
 * (docs/shortlist.md). The copy takes half to three fifths of the head's memory beside it, or lets the head
 * stay on disk. NIB_SHORTLIST_AUTO: under a RAM cap where it helps. */
typedef enum nib_shortlist { NIB_SHORTLIST_AUTO, NIB_SHORTLIST_ON, NIB_SHORTLIST_OFF } nib_shortlist;

/* NIB_KV_8, NIB_KV_4: older positions in 8 or 4 bits (docs/budget.md), never chosen without being asked. */
typedef enum nib_kv_type { NIB_KV_F16 = 1, NIB_KV_F32, NIB_KV_8, NIB_KV_4 } nib_kv_type;

/* Fills the defaults; call it before setting fields. */
NIB_API void nib_engine_options_init(nib_engine_options *options);

/* Opens MODEL (a .gguf file, a folder with config.json, or a name from the models folder). Blocks while it
 * reads the weights. NIB_E_NOFIT says the smallest cap that works. *out is set only on success. */
NIB_API nib_status nib_engine_open(const char *model, const nib_engine_options *options, nib_engine **out,
                                   nib_error *err);
NIB_API void nib_engine_close(nib_engine *engine); /* NULL is fine; close its sessions first */

/* What nibble would do with a model under these options, as JSON (docs/budget.md; caller frees with
 * nib_free): formats and places of each block, the expected speed and peak, which limit binds, what more
 * memory would buy, what else was looked at. Reads headers and the profiles of this machine and model; no
 * weights. `how` NULL: the defaults. NIB_E_NOFIT says the smallest cap that works. */
NIB_API nib_status nib_plan(const char *model, const nib_engine_options *options, const nib_plan_options *how,
                            char **json, nib_error *err);

/* What is expected of an open engine with this prompt and so many generated tokens, by the cost model that
 * plans are made with. */
typedef struct nib_prediction {
    double ttft_s, tok_s;           /* time to the first token; tokens a second of generation */
    uint64_t ram_peak;              /* of the process, in bytes */
    uint64_t ram_bytes, disk_bytes; /* moved for one generated token */
    double disk_s, compute_s;       /* what each alone takes for it */
    bool guessed;                   /* this machine's rates were never measured */
    int n_run;                      /* earlier runs that corrected tok_s and ttft_s (options.learn) */
    char binds[64];                 /* "disk read", "packing", "memory read" or "compute" */
} nib_prediction;
NIB_API nib_status nib_engine_predict(const nib_engine *engine, int64_t n_prompt, int64_t n_gen,
                                      nib_prediction *out, nib_error *err);

typedef struct nib_model_info {
    const char *arch; /* "llama", "gemma3", ... */
    const char *name; /* from the metadata, or the file's name */
    int64_t n_layer, d_model, n_head, n_kv_head, d_head, d_ff, n_vocab, n_ctx_train;
    int64_t n_ctx;     /* the engine's context: of a session that asks for none; 0 with vocab_only */
    int32_t n_session; /* sessions of n_ctx positions that have room, as its options said */
    uint64_t params;   /* number of weights */
    uint64_t bytes;    /* of all tensors as stored */
    uint64_t
        token_bytes; /* weight bytes that one generated token reads, in the resident formats (ops' costs) */
    uint64_t token_macs; /* multiply-adds of one generated token, without attention over the cache */
    int32_t bos, eos;    /* -1: none */
    bool add_bos;
    bool has_tokenizer, has_chat_template;
    int64_t d_embed; /* numbers of an embedding (nib_session_embed): the width of what the output head reads;
                        0 with vocab_only */
    int pooling;     /* a nib_pooling: what the model's files say of how its embeddings are made;
                        NIB_POOLING_MODEL: nothing, or a way that is not among them */
} nib_model_info;

/* How one vector is made of the rows of a text: their mean, or the last one. NIB_POOLING_MODEL: as the
 * model's files say (`ARCH.pooling_type` of a GGUF, `1_Pooling/config.json` of a folder), else the mean. */
typedef enum nib_pooling { NIB_POOLING_MODEL, NIB_POOLING_MEAN, NIB_POOLING_LAST } nib_pooling;

NIB_API const nib_model_info *nib_engine_info(const nib_engine *engine);

/* The file of the kernel map in use; NULL: there is none, and a rule decides. */
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
        uint64_t planned; /* what the engine said it would use */
        uint64_t peak;    /* the most that was charged */
    } tier[NIB_N_TIER];
    uint64_t owner[NIB_N_OWNER]; /* RAM charged now, by owner */
    uint64_t rss_peak;           /* VmHWM of the process, as the system says it */
} nib_memory;

NIB_API void nib_engine_memory(const nib_engine *engine, nib_memory *out);

/* What went between disk and memory, all sessions of the engine together. */
typedef struct nib_traffic {
    uint64_t loaded;   /* bytes read while the engine was opened */
    uint64_t streamed; /* bytes read since then: weights that are not resident, rows of an embedding */
    uint64_t pass;   /* bytes that one pass (a token, or a batch of rows that go through a block together) has
                        to   read when nothing comes twice: what streamed / n_pass is compared with */
    uint64_t n_pass; /* passes so far */
    double wait_s;   /* computing waited for reads */
    double head_share; /* of the output head's rows, those that were computed, in the mean; below 1 where it
                          is computed for the best tokens only (n_best) */
} nib_traffic;

/* Waits for a pass that is being computed. */
NIB_API void nib_engine_traffic(nib_engine *engine, nib_traffic *out);

/* Where the weights are: for each block, in the order in which a token passes them, one slice for each pair
 * of format and tier that it has. A matrix that two blocks use (a tied head) is listed with the first. The
 * sketch of an output head that is computed for the best tokens only is a slice of the head. */
typedef struct nib_slice {
    const char *block; /* "embed", "layer.0", ..., "head" */
    const char *also;  /* the block that uses a matrix of it as well; NULL: none */
    int32_t layer;     /* -1: none */
    const char
        *format;    /* computed with: the file's ("q4_1", "f32", ...), or what it is rounded to ("u4g64") */
    uint64_t bytes; /* in the packed form that is computed with, wherever they are */
    int tier;       /* NIB_TIER_RAM: kept; NIB_TIER_DISK: read from a file when needed */
} nib_slice;

/* The number of slices; *slices (owned by the engine, unchanging) gets the first. 0 with vocab_only. */
NIB_API size_t nib_engine_placement(const nib_engine *engine, const nib_slice **slices);

/* ---- where the time goes ------------------------------------------------------------------------ */

/* One kind of op, with one kind of weight, over all layers and since the trace began. */
typedef struct nib_trace_row {
    char what[48];  /* "linear gate", "attention", ... */
    uint64_t calls; /* times it was executed */
    double busy_s;  /* working: processor time, all threads added up */
    double wait_s;  /* waiting for other threads before or inside it: wall clock, all threads added up */
    double weight_bytes, macs;
} nib_trace_row;

/* From now on every op is timed (a few clock readings each); again: from zero. Without it nothing is timed.
 */
NIB_API nib_status nib_engine_trace_begin(nib_engine *engine, nib_error *err);
/* Fills at most `max` rows and returns how many there are; 0 before nib_engine_trace_begin. *pass_s (NULL is
 * fine): the seconds of all passes; what n_thread times as much has beyond the rows went into starting
 * threads, rotary tables, reading rows from disk, and other processes. */
NIB_API size_t nib_engine_trace_read(nib_engine *engine, nib_trace_row *rows, size_t max, double *pass_s);

/* What a GPU does in some passes: a span for each launch and each copy. */
typedef enum nib_lane {
    NIB_LANE_COMPUTE, /* the stream of the kernels, and copies in it */
    NIB_LANE_COPY,    /* weights that come meanwhile */
    NIB_LANE_SIDE,    /* kernels beside the first lane's: residuals, and weights that are put in order */
    NIB_LANE_HOST,    /* layers that the processor computes */
    NIB_N_LANE
} nib_lane;
typedef struct nib_span {
    char what[48]; /* "linear gate+up", "copy weights", ... */
    int lane;
    int link;              /* its bytes cross the link to the host */
    double start_s, end_s; /* since nib_engine_spans_start, by the device's clock (_HOST: the host's) */
    double bytes; /* operands, results and what a kernel keeps between, each counted once, in a cache or not;
                   * 0: not counted */
    int at_least; /* some of it is moved more often than once, or not counted */
    double macs;  /* of products and attention */
} nib_span;

/* What the figures of spans stand beside, measured by nib_engine_spans_start. */
typedef struct nib_span_scale {
    double
        read_rate;  /* bytes a second that plain reading of the weights on the GPU gives; 0: there are none */
    double empty_s; /* a span of nothing, the median of some: it is part of every span */
} nib_span_scale;

/* From now on up to `max` launches and copies are timed, each by two events. Launches go one by one instead
 * of as a graph, and none starts before the one ahead of it has ended, so a pass takes longer. NIB_E_USAGE:
 * the back end has no such clock. */
NIB_API nib_status nib_engine_spans_start(nib_engine *engine, size_t max, nib_span_scale *scale,
                                          nib_error *err);
/* Until here: *n of them, in the order in which they were queued. *n_dropped: how many more there were, which
 * had no room. spans: [max]. */
NIB_API nib_status nib_engine_spans_stop(nib_engine *engine, nib_span *spans, size_t *n, size_t *n_dropped,
                                         nib_error *err);

/* ---- text --------------------------------------------------------------------------------------- */

enum { NIB_TOKENIZE_BOS = 1 /* add BOS/EOS where the model asks for them */, NIB_TOKENIZE_SPECIAL = 2 };

/* text[0..n_byte) -> *tokens (caller frees). Invalid UTF-8 is tokenised byte by byte. NIB_TOKENIZE_SPECIAL
 * parses special tokens written in the text; without it they are plain text. */
NIB_API nib_status nib_tokenize(const nib_engine *engine, const char *text, size_t n_byte, unsigned flags,
                                int32_t **tokens, size_t *n_token, nib_error *err);
/* Ids back to text; *text is NUL-terminated, may hold NULs of its own, caller frees. */
NIB_API nib_status nib_detokenize(const nib_engine *engine, const int32_t *tokens, size_t n_token,
                                  char **text, size_t *n_byte, nib_error *err);
/* The piece of one token as it stands in the vocabulary; NULL for an id that is not there. */
NIB_API const char *nib_token_piece(const nib_engine *engine, int32_t token, size_t *n_byte);
NIB_API bool nib_token_is_end(const nib_engine *engine, int32_t token); /* end of text or of a turn */

/* Renders the model's chat template. `messages` is a JSON array as in the OpenAI chat API (what the model
 * thought may be in "reasoning_content" or in "thinking": the template finds it under both; a NUL in a text
 * is NIB_E_USAGE), `tools` a JSON array or NULL; *text (caller frees) is to be tokenised with
 * NIB_TOKENIZE_SPECIAL, without NIB_TOKENIZE_BOS when the rendered text begins with BOS (nib_tokenize looks).
 */
NIB_API nib_status nib_chat_render(const nib_engine *engine, const char *messages, const char *tools,
                                   bool add_generation_prompt, char **text, nib_error *err);

/* ---- session: one sequence ---------------------------------------------------------------------- */

typedef struct nib_session nib_session;

typedef struct nib_session_options {
    int64_t n_ctx; /* 0: the engine's */
    int kv_type;   /* 0: the engine's */
} nib_session_options;

NIB_API void nib_session_options_init(nib_session_options *options);
NIB_API nib_status nib_session_open(nib_engine *engine, const nib_session_options *options, nib_session **out,
                                    nib_error *err);
NIB_API void nib_session_close(nib_session *session);

/* "Here is the whole prefix": afterwards the session holds exactly tokens[0..n), n >= 1, and the logits of
 * the last one. What it already holds of them is reused; the rest is computed in batches of n_batch. A prefix
 * longer than n_ctx, or an id outside the vocabulary, is NIB_E_USAGE and changes nothing. After
 * NIB_E_CANCELLED the session holds the part that was finished. */
NIB_API nib_status nib_session_sync(nib_session *session, const int32_t *tokens, size_t n_token,
                                    nib_error *err);

/* Logits after the last synced token: [n_vocab] f32, valid until the next call on this session. With the
 * engine's n_best some of those that are not among the n_best largest are -INFINITY. NULL: there are none, as
 * before the first sync, and after nib_generate on a back end that gives it the largest ones alone. */
NIB_API const float *nib_session_logits(const nib_session *session);

/* As nib_session_sync, and the logits of every position from first_row on: row_fn is called once for each of
 * them, in order, with logits [n_vocab]. What the session holds of tokens[0..first_row) is reused, the rest
 * is computed. For evaluation. */
typedef void (*nib_row_fn)(void *user, int64_t position, const float *logits);
NIB_API nib_status nib_session_forward(nib_session *session, const int32_t *tokens, size_t n_token,
                                       int64_t first_row, nib_row_fn row_fn, void *user, nib_error *err);

/* The embedding of tokens[0..n): what the model makes of them before the output head, the final norm included
 * ("last hidden state" elsewhere), pooled to out [d_embed] f32; it is not normalised. Sums are taken in f64,
 * in the order of the positions. Afterwards the session holds the tokens, and no logits. on_pass (NULL: none)
 * is told "prompt" after each pass, while nothing of the engine is locked. NIB_E_USAGE as nib_session_sync.
 */
NIB_API nib_status nib_session_embed(nib_session *session, const int32_t *tokens, size_t n_token, int pooling,
                                     float *out, nib_progress_fn on_pass, void *user, nib_error *err);

/* Any thread, at any time: the call that computes for this session now, or else the next one, returns
 * NIB_E_CANCELLED, even when it had nothing to compute. Until one has, the cancel is kept: it is not lost
 * between two calls, and one that came too late for a call ends the one after it. Calls are nib_session_sync,
 * nib_session_forward, nib_session_embed and nib_generate; one that fails otherwise keeps it too. */
NIB_API void nib_session_cancel(nib_session *session);
/* Forgets a cancel that no call has answered to. */
NIB_API void nib_session_cancel_clear(nib_session *session);
NIB_API size_t nib_session_length(const nib_session *session); /* tokens held */

/* ---- sampling and generation -------------------------------------------------------------------- */

typedef struct nib_sampling {
    float temperature;       /* 0: greedy */
    int32_t top_k;           /* 0: off */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* 1: off */
    float frequency_penalty; /* 0: off */
    float presence_penalty;  /* 0: off */
    int32_t penalty_window;  /* the last tokens that the penalties look at; -1: all */
    uint64_t seed;
} nib_sampling;

/* How many of the largest logits sampling looks at, at most (nib_engine_options.n_best); 0: all of them. */
NIB_API int32_t nib_sampling_n_best(const nib_sampling *sampling);
NIB_API void
nib_sampling_init(nib_sampling *sampling); /* temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 */

typedef enum nib_finish { NIB_FINISH_STOP, NIB_FINISH_LENGTH, NIB_FINISH_CANCELLED } nib_finish;

/* Called with text that is final: whole UTF-8 characters, nothing that could still become a stop string.
 * Return false to stop generating (finish is then NIB_FINISH_STOP). */
typedef bool (*nib_text_fn)(void *user, const char *text, size_t n_byte);
typedef bool (*nib_token_fn)(void *user, int32_t token);

typedef struct nib_logit_bias {
    int32_t token;
    float bias; /* added to its logit before anything else; finite, or -INFINITY: never drawn */
} nib_logit_bias;

typedef struct nib_candidate {
    int32_t token;
    float logprob; /* the logarithm of its probability by the model's logits alone */
} nib_candidate;

enum { NIB_MAX_TOP = 20 };
/* A token of the answer and the n_top likeliest in its place, the likeliest first. Before on_token. */
typedef void (*nib_candidates_fn)(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top);

typedef struct nib_generate_options {
    const int32_t *prompt; /* the whole prefix; the session reuses what it holds */
    size_t n_prompt;
    int64_t n_predict; /* the most tokens; -1: until the context is full */
    bool ignore_eos;
    uint64_t client;         /* in a batch: whose request it is. Those of clients who had less come first */
    bool special;            /* control tokens are a part of the text, but those that end it */
    const char *const *stop; /* stop strings, not part of the answer */
    size_t n_stop;
    nib_sampling sampling;
    const nib_logit_bias
        *bias;           /* of some tokens; with it, and with on_candidates, all logits must be there: */
    size_t n_bias;       /* NIB_E_USAGE where the engine was opened for the best ones (n_best) */
    const char *grammar; /* the answer is a text of this grammar (GBNF, docs/grammar.md): tokens that no text
                            of it has next are never drawn, and the answer ends when it is complete, unless
                            n_predict cuts it. NULL: any text. As a bias it needs all logits */
    int32_t n_top;       /* candidates for on_candidates, 0 to NIB_MAX_TOP */
    nib_candidates_fn on_candidates; /* NULL: none */
    nib_text_fn on_text;             /* NULL: none */
    nib_token_fn on_token;           /* NULL: none */
    nib_progress_fn on_prompt;       /* NULL: none */
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
    /* Tokens after the first, and what sampling and computing them took, without callbacks: token_n / token_s
     * are the tokens a second that plans and predictions are about. */
    int64_t token_n;
    double token_s;
    int64_t draft_n, draft_right; /* tokens that were proposed to follow, and those that were drawn as well */
} nib_result;

NIB_API void nib_generate_options_init(nib_generate_options *options);
/* With NIB_E_CANCELLED the result has what was made until then (finish: NIB_FINISH_CANCELLED), its text also
 * what was held back from on_text. *result is to be cleared in any case. */
NIB_API nib_status nib_generate(nib_session *session, const nib_generate_options *options, nib_result *result,
                                nib_error *err);
NIB_API void nib_result_clear(nib_result *result);

/* A JSON schema (the subset of docs/grammar.md) as a grammar for nib_generate_options: rules `root` and
 * `root-...`, so that several may stand in one grammar. *gbnf: caller frees. NIB_E_USAGE names the place in
 * the schema and the keyword that is not supported. */
NIB_API nib_status nib_schema_grammar(const char *schema, size_t n_byte, const char *root, char **gbnf,
                                      nib_error *err);

/* ---- batches: many answers computed together ----------------------------------------------------- */

/* Answers of many requests from one engine. Each step is one pass through the model: a row for every sequence
 * that decodes, and as many rows of prompts as fit beside them, so that the weights are read once for all.
 * Requests wait in the order in which they were added until a place and room for their keys and values are
 * free. An answer does not depend on what else is computed: the same tokens as by nib_generate.
 *
 * nib_batch_add, nib_batch_cancel and nib_batch_take may be called from any thread at any time;
 * nib_batch_step by one thread at a time, from which all callbacks come. */
typedef struct nib_batch nib_batch;

typedef struct nib_batch_options {
    int32_t n_sequence; /* computed together, at most; 0: 8 */
    int64_t n_ctx;      /* positions of one of them; 0: the engine's */
    int64_t n_position; /* of all together: so many keys and values are reserved when the batch opens; 0:
                           n_sequence times n_ctx */
    int kv_type;        /* 0: the engine's */
    int64_t n_prompt;   /* rows of prompts in one step, at most; 0: as many as a pass has */
    const char *prefix_cache; /* folder for keys and values of prompts and answers, which later requests that
                                 begin alike read instead of computing them, after a restart too
                                 (docs/batch.md). Copied. NULL: none is used */
    bool optimistic;  /* requests are admitted when there is room for their prompts, not for all that they may
                         need: when there is none left an answer pauses, the one that was added last, and what
                         it had is computed again later, with the same tokens */
    double latency_s; /* seconds that a step is to take in which some answers go on and prompts of others are
                         computed: by what steps took so far prompts have so many rows in it, and at least
                         some, so that it takes up to twice as long as without. 0: as many as fit */
    int32_t n_draft; /* tokens that are proposed to follow an answer and computed with it, at most 32: as many
                        as their measured cost says. The tokens of answers are the same. 0: none */
    int32_t n_draft_min; /* of those at least so many, whatever they cost */
    nib_engine
        *draft; /* with n_draft: a smaller model with the same tokens, which proposes them where the text
                   itself has no long match. Borrowed until the batch is closed; opened with n_session
                   and n_ctx as the batch has them, and used by nothing else meanwhile. NULL: none */
    uint64_t prefix_bytes; /* of all files in it, at most: the least recently used ones go; 0: 4 GiB */
} nib_batch_options;

NIB_API void nib_batch_options_init(nib_batch_options *options);
NIB_API nib_status nib_batch_open(nib_engine *engine, const nib_batch_options *options, nib_batch **out,
                                  nib_error *err);
/* Requests that are not done are dropped. Before the engine. NULL is fine. */
NIB_API void nib_batch_close(nib_batch *batch);

/* A request; everything in `options` but callbacks and `user` is copied. *id is its number. NIB_E_USAGE: it
 * means nothing, or would never fit (prompt and answer together are longer than n_ctx or n_position). */
NIB_API nib_status nib_batch_add(nib_batch *batch, const nib_generate_options *options, int64_t *id,
                                 nib_error *err);
/* The request ends with NIB_E_CANCELLED before the next step; nothing happens when it is done already. */
NIB_API void nib_batch_cancel(nib_batch *batch, int64_t id);
/* One pass. *n_left: requests that are not done, before it 0 when there was nothing to do. When it fails, for
 * example because weights cannot be read, no answer is lost: it may be called again. */
NIB_API nib_status nib_batch_step(nib_batch *batch, int32_t *n_left, nib_error *err);
/* A request that is done, in the order in which they ended: its number, its result (the caller clears it) and
 * how it ended (*err, NULL is fine). False: there is none. */
NIB_API bool nib_batch_take(nib_batch *batch, int64_t *id, nib_result *result, nib_error *err);

/* Since the batch was opened. */
typedef struct nib_batch_counts {
    uint64_t disk_bytes;                /* that all files of prefix_cache take */
    uint64_t disk_read, disk_written;   /* pages of 64 positions */
    uint64_t paused;                    /* answers that had to pause (optimistic) */
    uint64_t draft_n, draft_right;      /* tokens proposed, and drawn as well */
    uint64_t disk_damaged, disk_missed; /* files that were not believed; pages that were not written */
} nib_batch_counts;
NIB_API void nib_batch_count(nib_batch *batch, nib_batch_counts *out); /* any thread */

#ifdef __cplusplus
}
#endif
#endif
