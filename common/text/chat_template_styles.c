#include "common/text/chat_template_styles.h"

#include <string.h>

#define CHATML_TURNS                                                                                         \
  .needs = "<|im_start|>", .turn_end = "<|im_end|>",                                                         \
  .turns = {{"<|im_start|>system\n", "<|im_end|>\n"},                                                        \
            {"<|im_start|>user\n", "<|im_end|>\n"},                                                          \
            {"<|im_start|>assistant\n", "<|im_end|>\n"}}
#define LLAMA3_TURNS(system_text)                                                                            \
  .needs = "<|start_header_id|>", .turn_end = "<|eot_id|>", .begin = CHAT_BOS,                               \
  .open = "<|start_header_id|>assistant<|end_header_id|>\n\n", .trim = {true, true, true},                   \
  .turns = {{"<|start_header_id|>system<|end_header_id|>\n\n" system_text, "<|eot_id|>"},                    \
            {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},                                  \
            {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}}
/* Where Qwen3's template writes an answer's thoughts; its variations differ here, or at the end. */
#define QWEN3_ANSWER                                                                                         \
  "{%if loop.last or(not loop.last and reasoning_content)%}{{'<|im_start|>'+message.role+'\n<think>\n'"      \
  "+reasoning_content.strip('\n')+'\n</think>\n\n'+content.lstrip('\n')}}{%else%}"                           \
  "{{'<|im_start|>'+message.role+'\n'+content}}"
#define QWEN3_END                                                                                            \
  "{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}"                                                \
  "{%if enable_thinking is defined and enable_thinking is "                                                  \
  "false%}{{'<think>\n\n</think>\n\n'}}{%endif%}{%endif%}"
#define QWEN3_THINKING_END "{%if add_generation_prompt%}{{'<|im_start|>assistant\n<think>\n'}}{%endif%}"
#define QWEN3_SYSTEM                                                                                         \
  "{%if messages[0].role=='system'%}{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}{%endif%}"
#define GEMMA_TURNS                                                                                          \
  .needs = "<start_of_turn>", .turn_end = "<end_of_turn>", .begin = CHAT_BOS,                                \
  .open = "<start_of_turn>model\n",                                                                          \
  .turns = {{"", "\n\n"},                                                                                    \
            {"<start_of_turn>user\n", "<end_of_turn>\n"},                                                    \
            {"<start_of_turn>model\n", "<end_of_turn>\n"}},                                                  \
  .system = CHAT_SYSTEM_FIRST, .trim = {false, true, true}, .alternate = true
#define INSTRUCT .begin = CHAT_BOS, .open = "", .alternate = true

/* The first whose marks are there, in the file's text in its normal form (chat_template_source.h), is taken;
 * one without marks is recognised otherwise, or picked by name. */
static const chat_style STYLES[] = {
    {.name = "chatml", .begin = "", .open = "<|im_start|>assistant\n", CHATML_TURNS},
    {.name = "chatml-bos", .begin = CHAT_BOS, .open = "<|im_start|>assistant\n", CHATML_TURNS},
    {.name = "qwen2",
     .begin = "",
     .open = "<|im_start|>assistant\n",
     .own_system = "You are a helpful assistant.",
     CHATML_TURNS},
    {.name = "qwen2.5",
     .marks = {"{%if(message.role=='user')or(message.role=='system'and not "
               "loop.first)or(message.role=='assistant'and "
               "not message.tool_calls)%}{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}",
               "{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}"},
     .lacks = {"<think>", "bos_token"},
     .begin = "",
     .open = "<|im_start|>assistant\n",
     .own_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     CHATML_TURNS},
    {.name = "qwen3-thinking",
     .marks = {QWEN3_ANSWER, QWEN3_THINKING_END},
     .lacks = {"bos_token"},
     .begin = "",
     .open = "<|im_start|>assistant\n<think>\n",
     .thinking = true,
     CHATML_TURNS},
    {.name = "qwen3",
     .marks = {QWEN3_ANSWER, QWEN3_END},
     .lacks = {"bos_token"},
     .begin = "",
     .open = "<|im_start|>assistant\n",
     .thinking = true,
     CHATML_TURNS},
    {.name = "qwen3-instruct",
     .marks = {QWEN3_SYSTEM,
               "{%if(message.role=='user')or(message.role=='system'and not loop.first)%}"
               "{{'<|im_start|>'+message.role+'\n'+content+'<|im_end|>\n'}}{%elif message.role=='assistant'%}"
               "{{'<|im_start|>'+message.role+'\n'+content}}{%if message.tool_calls%}",
               "{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"},
     .lacks = {"<think>", "bos_token"},
     .begin = "",
     .open = "<|im_start|>assistant\n",
     CHATML_TURNS},
    {.name = "llama3.1",
     .marks =
         {"{{'<|start_header_id|>system<|end_header_id|>\n\n'}}",
          "{{'Cutting Knowledge Date: December 2023\n'}}", "26 Jul 2024",
          "{%else%}{%set system_message=''%}{%endif%}",
          "{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}",
          "{{'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim+'<|eot_id|>'}}"},
     .system = CHAT_SYSTEM_ONCE,
     .always_system = true,
     LLAMA3_TURNS("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n")},
    {.name = "llama3",
     .marks = {"{%set loop_messages=messages%}{%for message in loop_messages%}",
               "{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}",
               "{%set content='<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim"
               "+'<|eot_id|>'%}{%if loop.index0==0%}{%set "
               "content=bos_token+content%}{%endif%}{{content}}{%endfor%}"},
     LLAMA3_TURNS("")},
    {.name = "llama2",
     .marks = {"bos_token+'[INST] '+content.strip()+' [/INST]'",
               "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'", "' '+content.strip()+' '+eos_token"},
     .lacks = {"true==true"},
     .begin = "",
     .open = "",
     .turns = {{"<<SYS>>\n", "\n<</SYS>>\n\n"}, {CHAT_BOS "[INST] ", " [/INST]"}, {" ", " " CHAT_EOS}},
     .system = CHAT_SYSTEM_FIRST,
     .trim = {false, true, true},
     .alternate = true},
    {.name = "mistral-v7",
     .marks = {"{{bos_token}}", "'[SYSTEM_PROMPT] '+message.content+'[/SYSTEM_PROMPT]'",
               "'[INST] '+message.content+'[/INST]'", "' '+message.content+eos_token}}"},
     .needs = "[INST]",
     .begin = CHAT_BOS,
     .open = "",
     .turns = {{"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"}, {"[INST] ", "[/INST]"}, {" ", CHAT_EOS}}},
    {.name = "mistral-v7-tekken",
     .needs = "[INST]",
     .turns = {{"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}, {"[INST]", "[/INST]"}, {"", CHAT_EOS}},
     .system = CHAT_SYSTEM_ONCE,
     INSTRUCT},
    {.name = "mistral-v3-tekken",
     .marks = {"{{bos_token}}", "loop.last and system_message is defined",
               "{{'[INST]'+message.content+'[/INST]'}}", "{{message.content+eos_token}}"},
     .needs = "[INST]",
     .turns = {{"", "\n\n"}, {"[INST]", "[/INST]"}, {"", CHAT_EOS}},
     .system = CHAT_SYSTEM_LAST,
     INSTRUCT},
    {.name = "mistral-v3",
     .marks = {"{{bos_token}}", "loop.last and system_message is defined",
               "{{'[INST] '+message.content+'[/INST]'}}", "{{' '+message.content|trim+eos_token}}"},
     .needs = "[INST]",
     .turns = {{"", "\n\n"}, {"[INST] ", "[/INST]"}, {" ", CHAT_EOS}},
     .system = CHAT_SYSTEM_LAST,
     .trim = {false, false, true},
     INSTRUCT},
    {.name = "mistral-v1",
     .marks = {"{{bos_token}}", "loop.first and system_message is defined",
               "{{' [INST] '+message.content+' [/INST]'}}", "{{' '+message.content+eos_token}}"},
     .turns = {{"", "\n\n"}, {" [INST] ", " [/INST]"}, {" ", CHAT_EOS}},
     .system = CHAT_SYSTEM_FIRST,
     INSTRUCT},
    {.name = "mistral-v0.1",
     .marks = {"{{bos_token}}", "{{'[INST] '+message.content+' [/INST]'}}",
               "{{message.content+eos_token+' '}}"},
     .lacks = {"system"},
     .turns = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {"", CHAT_EOS " "}},
     .system = CHAT_SYSTEM_FIRST,
     INSTRUCT},
    {.name = "mistral-v0.2",
     .marks = {"{{bos_token}}", "{{'[INST] '+message.content+' [/INST]'}}", "{{message.content+eos_token}}"},
     .lacks = {"system"},
     .turns = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {"", CHAT_EOS}},
     .system = CHAT_SYSTEM_FIRST,
     INSTRUCT},
    {.name = "zephyr",
     .marks = {"{{'<|user|>\n'+message.content+eos_token}}\n",
               "{{'<|system|>\n'+message.content+eos_token}}\n",
               "{{'<|assistant|>\n'+message.content+eos_token}}\n", "{{'<|assistant|>'}}\n"},
     .lacks = {"bos_token"},
     .begin = "",
     .open = "<|assistant|>\n",
     .turns = {{"<|system|>\n", CHAT_EOS "\n"},
               {"<|user|>\n", CHAT_EOS "\n"},
               {"<|assistant|>\n", CHAT_EOS "\n"}}},
    {.name = "gemma",
     .marks = {"{{bos_token}}", "{%set role='model'%}{%else%}{%set role=message.role%}{%endif%}",
               "{{'<start_of_turn>model\n'}}",
               "'<start_of_turn>'+role+'\n'+message.content|trim+'<end_of_turn>\n'"},
     GEMMA_TURNS},
    {.name = "gemma3",
     .marks = {"{{bos_token}}", "{%set role='model'%}{%else%}{%set role=message.role%}{%endif%}",
               "{{'<start_of_turn>model\n'}}",
               "{{'<start_of_turn>'+role+'\n'+(first_user_prefix if loop.first else'')}}",
               "{{message.content|trim}}", "messages[0].content+'\n\n'"},
     GEMMA_TURNS},
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

/* ---- ChatML, whose short template many files vary: known whole, so that no variation goes unseen ---- */

#define CHATML_MESSAGES                                                                                      \
  "{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}{%endfor%}"                            \
  "{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"
#define CHATML_PROMPT_UNSET                                                                                  \
  "{%if not add_generation_prompt is defined%}{%set add_generation_prompt=false%}{%endif%}"

/* Around the default system message, which the file itself gives. */
typedef struct chatml_form {
  const char *style, *head, *tail; /* tail NULL: no default system message, and head is all */
} chatml_form;

static const chatml_form FORMS[] = {
    {"chatml",
     "{%for message in messages%}{%if loop.first and messages[0].role!='system'%}{{'<|im_start|>system\n",
     "<|im_end|>\n'}}{%endif%}" CHATML_MESSAGES},
    {"chatml", "{%for message in messages%}" CHATML_MESSAGES, NULL},
    {"chatml-bos", "{{bos_token}}{%for message in messages%}" CHATML_MESSAGES, NULL},
};

/* Plain text alone: a quote, a backslash or a brace would mean something to the template language. */
static bool take_plain(const char *text, size_t size, char **own) {
  for (size_t i = 0; i < size; i++)
    if (strchr("'\"\\{", text[i])) return false;
  *own = strndup(text, size);
  return *own != NULL;
}

/* The form's own text, in *own, if it has one. */
static bool has_form(const chatml_form *f, const char *text, char **own) {
  size_t size = strlen(text), head = strlen(f->head), tail = f->tail ? strlen(f->tail) : 0;
  if (!f->tail) return strcmp(text, f->head) == 0;
  return size >= head + tail && memcmp(text, f->head, head) == 0 &&
         strcmp(text + size - tail, f->tail) == 0 && take_plain(text + head, size - head - tail, own);
}

static const char *chatml_of(const char *text, char **own) {
  size_t unset = strlen(CHATML_PROMPT_UNSET);
  if (strncmp(text, CHATML_PROMPT_UNSET, unset) == 0) text += unset;
  for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
    if (has_form(&FORMS[i], text, own)) return FORMS[i].style;
  return NULL;
}

/* Qwen2.5's default system message, which those who train it further change: the first turn in quotes that is
 * a system's and whole. */
static bool find_turn(const chat_style *s, const char *text, char **own) {
  const char *before = s->turns[CHAT_SYSTEM].before;
  for (const char *p = text; (p = strstr(p, before)); p++) {
    const char *begin = p + strlen(before), *end = strstr(begin, s->turn_end);
    if (*begin == '\'' || *begin == '"') continue; /* a message goes on from here */
    return end && take_plain(begin, (size_t)(end - begin), own);
  }
  return false;
}

/* ---- lookup ---- */

const chat_style *chat_style_recognise(const char *text, char **own) {
  *own = NULL;
  const char *chatml = chatml_of(text, own);
  if (chatml) return chat_style_named(chatml);
  for (int i = 0; i < STYLE_COUNT; i++) {
    const chat_style *s = &STYLES[i];
    if (has_marks(s, text)) return !s->own_system || find_turn(s, text, own) ? s : NULL;
  }
  return NULL;
}
