/* Checks for the C tests: a failed one says where and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdrapi.h"

/* Where the buffer of GDR_BACKEND=sim starts. */
#define GPU_BUFFER 0x6000000000000UL

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);          \
            _exit(1);                                                                          \
        }                                                                                      \
    } while (0)

#define ANSWERS(wanted, call)                                                                  \
    do {                                                                                       \
        int answer_ = (call);                                                                  \
        if (answer_ != (wanted)) {                                                             \
            fprintf(stderr, "%s:%d: %s is %d (%s), wanted %s\n", __FILE__, __LINE__, #call,    \
                    answer_, strerror(answer_), #wanted);                                      \
            _exit(1);                                                                          \
        }                                                                                      \
    } while (0)

#define SUCCEEDS(call) ANSWERS(0, call)
#define REFUSES(call) ANSWERS(EINVAL, call)

#endif
