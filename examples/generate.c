/* generate.c - the smallest program around the library: a model, a prompt, the answer as it comes.
 *
 *     cc generate.c $(pkg-config --cflags --libs nibble) -o generate
 *     ./generate model.gguf "Once upon a time"
 */
#include <nib.h>
#include <stdio.h>
#include <string.h>

static bool print_text(void *user, const char *text, size_t n_byte) {
    (void)user;
    return fwrite(text, 1, n_byte, stdout) == n_byte && fflush(stdout) == 0;
}

int main(int argc, char **argv) {
    nib_error err = {NIB_OK, ""};
    nib_engine *engine = NULL;
    nib_session *session = NULL;
    nib_generate_options options;
    nib_result result = {0};
    int32_t *tokens = NULL;
    size_t n_token = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    nib_status status = nib_engine_open(argv[1], NULL, &engine, &err);
    if (status == NIB_OK)
        status = nib_session_open(engine, NULL, &session, &err);
    if (status == NIB_OK)
        status = nib_tokenize(engine, argv[2], strlen(argv[2]), NIB_TOKENIZE_BOS, &tokens, &n_token, &err);
    if (status == NIB_OK) {
        nib_generate_options_init(&options);
        options.prompt = tokens;
        options.n_prompt = n_token;
        options.n_predict = 32;
        options.on_text = print_text;
        status = nib_generate(session, &options, &result, &err);
        printf("\n");
    }
    if (status != NIB_OK)
        fprintf(stderr, "%s\n", err.message);
    nib_result_clear(&result);
    nib_free(tokens);
    nib_session_close(session);
    nib_engine_close(engine);
    return nib_status_exit_code(status);
}
