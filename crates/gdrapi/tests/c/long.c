/* Long copies by the paths that GDR_COPY and GDR_COPY_THREADS allow are as exact as short ones. */
#include <pthread.h>

#include "check.h"

enum { ALL = 16 * GPU_PAGE_SIZE, COPIERS = 4 };

static gdr_mh_t handle;
static char *va;

static unsigned char byte_at(size_t at, unsigned seed) {
    return (unsigned char)(at * 7 + at / 251 + seed);
}

/* Writes and reads ranges of the copier's own quarter. */
static void *copier(void *argument) {
    const size_t quarter = ALL / COPIERS, first = (size_t)argument * quarter;
    const size_t ranges[][2] = {{0, quarter}, {1, quarter - 1}, {4097, 70001}, {3, 5}, {63, 200000}};
    unsigned char *out = malloc(quarter), *in = malloc(quarter);
    CHECK(out != NULL && in != NULL);
    for (unsigned round = 0; round < 5; round++) {
        for (size_t range = 0; range < sizeof ranges / sizeof *ranges; range++) {
            const size_t offset = ranges[range][0], len = ranges[range][1];
            for (size_t at = 0; at < len; at++) {
                out[at] = byte_at(at, round + (unsigned)range);
            }
            memset(in, 0, quarter);
            SUCCEEDS(gdr_copy_to_mapping(handle, va + first + offset, out, len));
            SUCCEEDS(gdr_copy_from_mapping(handle, in, va + first + offset, len));
            CHECK(memcmp(in, out, len) == 0);
        }
    }
    free(out);
    free(in);
    return NULL;
}

int main(void) {
    pthread_t copiers[COPIERS];
    gdr_t g = gdr_open();
    CHECK(g != NULL);
    void *mapped;
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, ALL, 0, 0, &handle));
    SUCCEEDS(gdr_map(g, handle, &mapped, ALL));
    va = mapped;
    for (size_t number = 0; number < COPIERS; number++) {
        CHECK(pthread_create(&copiers[number], NULL, copier, (void *)number) == 0);
    }
    for (size_t number = 0; number < COPIERS; number++) {
        CHECK(pthread_join(copiers[number], NULL) == 0);
    }
    unsigned char *host = malloc(2 * ALL);
    CHECK(host != NULL);
    REFUSES(gdr_copy_to_mapping(handle, va + 1, host, ALL));
    REFUSES(gdr_copy_from_mapping(handle, NULL, va, ALL));
    free(host);
    SUCCEEDS(gdr_unmap(g, handle, va, ALL));
    SUCCEEDS(gdr_unpin_buffer(g, handle));
    SUCCEEDS(gdr_close(g));
    return 0;
}
