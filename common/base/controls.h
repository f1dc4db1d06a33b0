/* controls.h - characters that are not shown, but do something to a terminal or to the text around them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Nothing that others say may hold it: a control character but for the newline and the tab, or one that
 * reverses the order in which the text behind it is shown (embeddings, overrides and isolates). */
bool control_in_text(uint32_t code);
/* Or one that a name or a message does not need, and that makes it look like another: a mark of direction or
 * a separator of lines. Text of languages that are written from the right may have these. */
bool control_in_name(uint32_t code);

/* Puts "?" for each of these in a name or a message, and for bytes that are no UTF-8. */
void controls_hide(char *text);
