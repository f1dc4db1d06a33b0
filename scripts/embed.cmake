# Writes the bytes of the file IN as a C array NAME into the header OUT.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "#pragma once\nstatic const unsigned char ${NAME}[] = {\n${bytes}};\n")
