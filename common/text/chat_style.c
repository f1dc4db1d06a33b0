#include "common/text/chat_style.h"

#include <string.h>

#define CHATML_TURNS                                                                                         \
  .needs = "<|im_start|>", .turn_end = "<|im_end|>", .begin = "",                                            \
  .turns = {{"<|im_start|>system\n", "<|im_end|>\n"},                                                        \
            {"<|im_start|>user\n", "<|im_end|>\n"},                                                          \
            {"<|im_start|>assistant\n", "<|im_end|>\n"}}
#define LLAMA3_TURNS(system_text)                                                                            \
  .needs = "<|start_header_id|>", .turn_end = "<|eot_id|>", .begin = BOS,                                    \
  .open = "<|start_header_id|>assistant<|end_header_id|>\n\n", .trim = {true, true, true},                   \
  .turns = {{"<|start_header_id|>system<|end_header_id|>\n\n" system_text, "<|eot_id|>"},                    \
            {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},                                  \
            {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}}
#define INSTRUCT .begin = BOS, .open = "", .alternate = true

/* The first whose marks are there is taken. A template that makes up a date, or one of thoughts that is not
 * Qwen3's, is none of them. */
static const chat_style STYLES[] = {
    {.name = "chatml",
     .marks = {"<|im_start|>", "<|im_end|>"},
     .lacks = {"<think>", "strftime_now", "| trim", "default_system"},
     .open = "<|im_start|>assistant\n",
     CHATML_TURNS},
    {.name = "qwen2",
     .open = "<|im_start|>assistant\n",
     .own_system = "You are a helpful assistant.",
     CHATML_TURNS},
    {.name = "qwen2.5",
     .open = "<|im_start|>assistant\n",
     .own_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     CHATML_TURNS},
    {.name = "qwen3-thinking",
     .marks = {"'<|im_start|>'", "last_query_index", "'<|im_start|>assistant\n<think>\n'"},
     .open = "<|im_start|>assistant\n<think>\n",
     .thinking = true,
     CHATML_TURNS},
    {.name = "qwen3",
     .marks = {"'<|im_start|>'", "last_query_index"},
     .open = "<|im_start|>assistant\n",
     .thinking = true,
     CHATML_TURNS},
    {.name = "llama3.1",
     .marks = {"<|start_header_id|>", "Cutting Knowledge Date: December 2023\n", "26 Jul 2024"},
     .system = SYSTEM_ONCE,
     .always_system = true,
     LLAMA3_TURNS("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n")},
    {.name = "llama3",
     .marks = {"'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'", "<|eot_id|>"},
     .lacks = {"strftime_now", "Cutting Knowledge Date"},
     LLAMA3_TURNS("")},
    {.name = "llama2",
     .marks = {"bos_token + '[INST] ' + content.strip() + ' [/INST]'", "'<<SYS>>\n' + system_message",
               "' ' + content.strip() + ' ' + eos_token"},
     .begin = "",
     .open = "",
     .turns = {{"<<SYS>>\n", "\n<</SYS>>\n\n"}, {BOS "[INST] ", " [/INST]"}, {" ", " " EOS}},
     .system = SYSTEM_FIRST,
     .trim = {false, true, true},
     .alternate = true},
    {.name = "mistral-v7",
     .marks = {"'[SYSTEM_PROMPT] '", "'[INST] '"},
     .needs = "[INST]",
     .begin = BOS,
     .open = "",
     .turns = {{"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"}, {"[INST] ", "[/INST]"}, {" ", EOS}}},
    {.name = "mistral-v7-tekken",
     .marks = {"[SYSTEM_PROMPT]", "[INST]"},
     .lacks = {"strftime_now", "default_system_message", "[SYSTEM_PROMPT] ", "[THINK]"},
     .needs = "[INST]",
     .turns = {{"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}, {"[INST]", "[/INST]"}, {"", EOS}},
     .system = SYSTEM_ONCE,
     INSTRUCT},
    {.name = "mistral-v3-tekken",
     .marks = {"\"[INST]\"", "[AVAILABLE_TOOLS]["},
     .needs = "[INST]",
     .turns = {{"", "\n\n"}, {"[INST]", "[/INST]"}, {"", EOS}},
     .system = SYSTEM_LAST,
     INSTRUCT},
    {.name = "mistral-v3",
     .marks = {"\"[INST] \"", "[AVAILABLE_TOOLS] ["},
     .needs = "[INST]",
     .turns = {{"", "\n\n"}, {"[INST] ", "[/INST]"}, {" ", EOS}},
     .system = SYSTEM_LAST,
     .trim = {false, false, true},
     INSTRUCT},
    {.name = "mistral-v1",
     .marks = {"' [INST] ' + message['content'] + ' [/INST]'", "' ' + message['content'] + eos_token"},
     .turns = {{"", "\n\n"}, {" [INST] ", " [/INST]"}, {" ", EOS}},
     .system = SYSTEM_FIRST,
     INSTRUCT},
    {.name = "mistral-v0.1",
     .marks = {"'[INST] ' + message['content'] + ' [/INST]'", "message['content'] + eos_token + ' '"},
     .turns = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {"", EOS " "}},
     .system = SYSTEM_FIRST,
     INSTRUCT},
    {.name = "mistral-v0.2",
     .marks = {"'[INST] ' + message['content'] + ' [/INST]'", "message['content'] + eos_token"},
     .turns = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {"", EOS}},
     .system = SYSTEM_FIRST,
     INSTRUCT},
    {.name = "zephyr",
     .marks = {"'<|user|>\n' + message['content'] + eos_token",
               "'<|system|>\n' + message['content'] + eos_token"},
     .begin = "",
     .open = "<|assistant|>\n",
     .turns = {{"<|system|>\n", EOS "\n"}, {"<|user|>\n", EOS "\n"}, {"<|assistant|>\n", EOS "\n"}}},
    {.name = "gemma",
     .marks = {"<start_of_turn>", "<end_of_turn>\n", "| trim"},
     .needs = "<start_of_turn>",
     .begin = BOS,
     .open = "<start_of_turn>model\n",
     .turns = {{"", "\n\n"},
               {"<start_of_turn>user\n", "<end_of_turn>\n"},
               {"<start_of_turn>model\n", "<end_of_turn>\n"}},
     .system = SYSTEM_FIRST,
     .trim = {false, true, true},
     .alternate = true,
     .turn_end = "<end_of_turn>"},
};
enum { STYLE_COUNT = sizeof STYLES / sizeof *STYLES };

const chat_style *chat_style_at(int i) {
  return i < STYLE_COUNT ? &STYLES[i] : NULL;
}

const chat_style *chat_style_named(const char *name) {
  for (int i = 0; i < STYLE_COUNT; i++)
    if (strcmp(STYLES[i].name, name) == 0) return &STYLES[i];
  return NULL;
}

static bool has_marks(const chat_style *s, const char *text) {
  for (int i = 0; i < CHAT_MARKS_MAX && s->marks[i]; i++)
    if (!strstr(text, s->marks[i])) return false;
  for (int i = 0; i < CHAT_MARKS_MAX && s->lacks[i]; i++)
    if (strstr(text, s->lacks[i])) return false;
  return s->marks[0] != NULL;
}

/* Plain text alone: a quote or a backslash would mean something to the template language. */
bool chat_style_own_system(const chat_style *s, const char *text, char **own) {
  const char *before = s->turns[SYSTEM].before, *turn_end = s->turn_end;
  for (const char *p = text; (p = strstr(p, before)); p++) {
    const char *begin = p + strlen(before), *end = strstr(begin, turn_end);
    size_t size = end ? (size_t)(end - begin) : 0;
    if (*begin == '\'' || *begin == '"') continue; /* the message's own, or a tool's */
    if (!end || memchr(begin, '\'', size) || memchr(begin, '"', size) || memchr(begin, '\\', size) ||
        memchr(begin, '{', size))
      return false;
    *own = strndup(begin, size);
    return *own != NULL;
  }
  return true;
}

const chat_style *chat_style_recognise(const char *text) {
  for (int i = 0; i < STYLE_COUNT; i++)
    if (has_marks(&STYLES[i], text)) return &STYLES[i];
  return NULL;
}
