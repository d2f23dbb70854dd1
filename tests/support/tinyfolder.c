/* tinyfolder.c - see tinyfolder.h. */
#include "support/tinyfolder.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/safetensors_write.h"
#include "support/matrix.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { N_LAYER = 6, D = 256, D_FF = 512, N_VOCAB = 300 };

typedef struct folder_tensor {
    const char *name; /* %d: one for each layer */
    int64_t n, k;     /* as stored; k 0: a vector of n */
} folder_tensor;

static void each(safetensors_writer *w, const folder_tensor *t, int n_tensor, uint64_t *seed) {
    for (int i = 0; i < n_tensor; i++)
        for (int l = 0; l < (strchr(t[i].name, '%') ? N_LAYER : 1); l++) {
            char name[96];
            const int64_t shape[2] = {t[i].n, t[i].k};
            const size_t n = (size_t)(t[i].n * NUM_MAX(t[i].k, 1));
            snprintf(name, sizeof name, t[i].name, l);
            if (!seed) {
                assert_int_equal(safetensors_writer_tensor(w, name, TYPE_F32, t[i].k ? 2 : 1, shape, NULL),
                                 NIB_OK);
                continue;
            }
            float *data = mem_array(n, sizeof *data);
            assert_non_null(data);
            for (size_t j = 0; j < n; j++)
                data[j] = random_float(seed) * 0.1f;
            assert_int_equal(safetensors_writer_data(w, data, n * sizeof *data, NULL), NIB_OK);
            mem_free(data);
        }
}

static const char *write_folder(const char *name, const char *config, const folder_tensor *t, int n_tensor) {
    char inside[128];
    uint64_t seed = 4711;
    safetensors_writer *w = NULL;
    const char *folder = temp_path(name);
    mkdir(folder, 0700);
    snprintf(inside, sizeof inside, "%s/config.json", name);
    temp_file(inside, config, strlen(config));
    snprintf(inside, sizeof inside, "%s/model.safetensors", name);
    assert_int_equal(safetensors_writer_open(temp_path(inside), &w, NULL), NIB_OK);
    each(w, t, n_tensor, NULL);
    each(w, t, n_tensor, &seed);
    assert_int_equal(safetensors_writer_commit(w, NULL), NIB_OK);
    return folder;
}

const char *tiny_folder_gpt2(void) {
    static const char config[] =
        "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"n_embd\":256,"
        "\"n_head\":8,\"n_inner\":512,\"n_layer\":6,\"n_positions\":128,"
        "\"vocab_size\":300,\"activation_function\":\"gelu_new\"}";
    static const folder_tensor tensors[] = {
        {"transformer.wte.weight", N_VOCAB, D},
        {"transformer.wpe.weight", 128, D},
        {"transformer.h.%d.ln_1.weight", D, 0},
        {"transformer.h.%d.ln_1.bias", D, 0},
        {"transformer.h.%d.attn.c_attn.weight", D, 3 * D},
        {"transformer.h.%d.attn.c_attn.bias", 3 * D, 0},
        {"transformer.h.%d.attn.c_proj.weight", D, D},
        {"transformer.h.%d.attn.c_proj.bias", D, 0},
        {"transformer.h.%d.ln_2.weight", D, 0},
        {"transformer.h.%d.ln_2.bias", D, 0},
        {"transformer.h.%d.mlp.c_fc.weight", D, D_FF},
        {"transformer.h.%d.mlp.c_fc.bias", D_FF, 0},
        {"transformer.h.%d.mlp.c_proj.weight", D_FF, D},
        {"transformer.h.%d.mlp.c_proj.bias", D, 0},
        {"transformer.ln_f.weight", D, 0},
        {"transformer.ln_f.bias", D, 0},
    };
    return write_folder("gpt2", config, tensors, NUM_COUNT(tensors));
}

#define LLAMA_TENSORS                                                                                        \
    {"model.embed_tokens.weight", N_VOCAB, D}, {"model.norm.weight", D, 0},                                  \
        {"model.layers.%d.input_layernorm.weight", D, 0},                                                    \
        {"model.layers.%d.post_attention_layernorm.weight", D, 0},                                           \
        {"model.layers.%d.self_attn.q_proj.weight", D, D},                                                   \
        {"model.layers.%d.self_attn.k_proj.weight", D / 2, D},                                               \
        {"model.layers.%d.self_attn.v_proj.weight", D / 2, D},                                               \
        {"model.layers.%d.self_attn.o_proj.weight", D, D},                                                   \
        {"model.layers.%d.mlp.gate_proj.weight", D_FF, D}, {"model.layers.%d.mlp.up_proj.weight", D_FF, D},  \
    {                                                                                                        \
        "model.layers.%d.mlp.down_proj.weight", D, D_FF                                                      \
    }
#define LLAMA_SIZES                                                                                          \
    "\"hidden_size\":256,\"intermediate_size\":512,\"num_attention_heads\":8,\"num_key_value_heads\":4,"     \
    "\"head_dim\":32,\"num_hidden_layers\":6,\"max_position_embeddings\":128,\"vocab_size\":300,"            \
    "\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true,"

const char *tiny_folder_mistral(int window) {
    char config[600], name[40];
    static const folder_tensor tensors[] = {LLAMA_TENSORS};
    snprintf(name, sizeof name, "mistral-%d", window);
    snprintf(config, sizeof config,
             "{\"model_type\":\"mistral\",\"architectures\":[\"MistralForCausalLM\"]," LLAMA_SIZES
             "\"hidden_act\":\"silu\",\"rope_theta\":10000.0,\"sliding_window\":%d}",
             window);
    return write_folder(name, config, tensors, NUM_COUNT(tensors));
}

const char *tiny_folder_gemma3(int window) {
    char config[800], name[40];
    static const folder_tensor tensors[] = {LLAMA_TENSORS,
                                            {"model.layers.%d.pre_feedforward_layernorm.weight", D, 0},
                                            {"model.layers.%d.post_feedforward_layernorm.weight", D, 0},
                                            {"model.layers.%d.self_attn.q_norm.weight", 32, 0},
                                            {"model.layers.%d.self_attn.k_norm.weight", 32, 0}};
    snprintf(name, sizeof name, "gemma3-%d", window);
    snprintf(
        config, sizeof config,
        "{\"model_type\":\"gemma3_text\",\"architectures\":[\"Gemma3ForCausalLM\"]," LLAMA_SIZES
        "\"hidden_activation\":\"gelu_pytorch_tanh\",\"query_pre_attn_scalar\":32,\"rope_theta\":1000000.0,"
        "\"rope_local_base_freq\":10000.0,\"sliding_window_pattern\":2,\"sliding_window\":%d}",
        window);
    return write_folder(name, config, tensors, NUM_COUNT(tensors));
}
