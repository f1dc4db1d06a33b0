/* far_require.h - the rules of device.h, checked. */
#pragma once

#include <stdbool.h>

/* Ends the program with the rule's sentence unless it is kept. */
void far_require(bool kept, const char *rule);
