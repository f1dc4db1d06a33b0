#include "wire/message.h"

const char *msg_name(msg_type type) {
  switch (type) {
#define MSG_CASE(name, number)                                                                               \
  case number:                                                                                               \
    return #name;
    MSG_LIST(MSG_CASE)
#undef MSG_CASE
  }
  return "?";
}
