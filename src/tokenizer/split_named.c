/* split_named.c - the pre-tokenizers that GGUF files name in tokenizer.ggml.pre, as the regular expressions
 * that their vocabularies were published with. A vocabulary that cuts digits first has several, which are
 * applied in turn. */
#include "tokenizer/split.h"

#include "base/num.h"

#include <string.h>

#define ANY_CASE    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define SPACES_LAST "|\\s+(?!\\S)|\\s+"
#define GPT2                                                                                                 \
    ("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" SPACES_LAST) /* one string in a     \
                                                                                         list of them */
#define NEWLINES " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" SPACES_LAST
#define LLAMA3   ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" NEWLINES
#define QWEN2    ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" NEWLINES
#define QWEN35                                                                                               \
    ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                                               \
             "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" SPACES_LAST
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER                      \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" SPACES_LAST
#define GPT4O                                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ANY_CASE "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER         \
    "*" ANY_CASE "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" SPACES_LAST
#define PUNCT_WORD "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
#define DEEPSEEK3                                                                                            \
    PUNCT_WORD                                                                                               \
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+" SPACES_LAST
#define DEEPSEEK_LETTERS                                                                                     \
    "\\s?[A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                      \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}"           \
    "\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}"                   \
    "\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}"            \
    "\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}"        \
    "\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}"        \
    "\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}"          \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}"        \
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"                   \
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}"          \
    "\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}"                   \
    "\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}"         \
    "\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"        \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"                         \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"                   \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}]+"
#define DEEPSEEK_HAN "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define DEEPSEEK_PUNCT                                                                                       \
    "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+"
#define DEEPSEEK3_HAN "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"

#define NAMED_STEPS 6
static const struct {
    const char *names; /* separated by spaces */
    const char *pattern[NAMED_STEPS];
} named[] = {
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2 gpt2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat "
     "a.x-4.0 "
     "mellum modern-bert mpt olmo jais trillion exaone4 granite-docling",
     {GPT2}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 smaug-bpe smaug dbrx chatglm-bpe "
     "glm4 glm5 jina-v5-nano minicpm5 talkie",
     {LLAMA3}},
    {"qwen2 deepseek-r1-qwen kormo stablelm2 hunyuan megrez grok-2 laguna solar-open f2llmv2", {QWEN2}},
    {"qwen35", {QWEN35}},
    {"smollm smolvlm starcoder refact command-r codeshell exaone minerva-7b mellum2", {"\\p{N}", GPT2}},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"deepseek-llm", {"[\\r\\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCT, "\\s+$", DEEPSEEK_HAN, "\\p{N}+"}},
    {"deepseek-coder", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_HAN, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", {"\\p{N}{1,3}", DEEPSEEK3_HAN, DEEPSEEK3}},
    {"bloom poro-chat gpt3-finnish", {BLOOM}},
    {"viking", {BLOOM, "\\p{N}"}},
    {"tekken", {TEKKEN}},
    {"gpt-4o llama4 kanana2", {GPT4O}},
    {"superbpe", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {"bailingmoe bailingmoe2 llada-moe",
     {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]" SPACES_LAST}},
    {"seed-coder",
     {ANY_CASE
      "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+" SPACES_LAST}},
    {"chameleon",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
};

static bool is_listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; *p;) {
        size_t length = strcspn(p, " ");
        if (length == n && memcmp(p, name, n) == 0)
            return true;
        p += length + (p[length] == ' ');
    }
    return false;
}

nib_status splitter_add_named(splitter *z, const char *name, bool *known, nib_error *err) {
    *known = false;
    for (size_t i = 0; i < NUM_COUNT(named) && !*known; i++) {
        if (!is_listed(named[i].names, name))
            continue;
        *known = true;
        for (size_t k = 0; k < NAMED_STEPS && named[i].pattern[k]; k++) {
            const char *pattern = named[i].pattern[k];
            NIB_TRY(splitter_add_regex(z, pattern, strlen(pattern), SPLIT_ISOLATED, false, err));
        }
    }
    return NIB_OK;
}
