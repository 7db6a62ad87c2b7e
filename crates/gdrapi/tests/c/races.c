/*
 * Threads copy while others unmap, unpin and close under them. A copy succeeds or is refused;
 * nothing crashes, and an unpublished mapping is unmapped.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { COPIERS = 4, ROUNDS = 400, BYTES = 512 };

static _Atomic(unsigned long) handle_now;
static _Atomic(void *) va_now;
static atomic_int over;
static atomic_ulong copied, refused;

static void *copier(void *argument) {
    unsigned char bytes[BYTES];
    const int reads = argument != NULL;
    memset(bytes, 0x5a, sizeof bytes);
    while (!atomic_load(&over)) {
        gdr_mh_t handle = {atomic_load(&handle_now)};
        char *va = atomic_load(&va_now);
        const int answer = reads ? gdr_copy_from_mapping(handle, bytes, va + 64, sizeof bytes)
                                 : gdr_copy_to_mapping(handle, va + 64, bytes, sizeof bytes);
        CHECK(answer == 0 || answer == EINVAL);
        atomic_fetch_add(answer == 0 ? &copied : &refused, 1);
    }
    return NULL;
}

/* Waits until some copies have been made, so that the copiers are in the thick of it. */
static void let_them_copy(unsigned long more) {
    const unsigned long until = atomic_load(&copied) + more;
    while (atomic_load(&copied) < until) {
    }
}

/* Calls on handles that may be stale, from a second thread. */
static void *meddler(void *g) {
    gdr_info_v2_t info;
    int flag;
    void *va;
    while (!atomic_load(&over)) {
        gdr_mh_t handle = {atomic_load(&handle_now)};
        int answer = gdr_get_info_v2(g, handle, &info);
        CHECK(answer == 0 || answer == EINVAL);
        answer = gdr_get_callback_flag(g, handle, &flag);
        CHECK(answer == 0 || answer == EINVAL);
        answer = gdr_unmap(g, handle, NULL, 1);
        CHECK(answer == EINVAL);
        answer = gdr_map(g, handle, &va, SIZE_MAX);
        CHECK(answer == EINVAL || answer == EAGAIN);
    }
    return NULL;
}

int main(void) {
    pthread_t copiers[COPIERS], other;
    gdr_t kept = gdr_open(), g = gdr_open();
    alarm(300); /* a hang is a failure */
    CHECK(kept != NULL && g != NULL);

    /* A mapping that stays mapped is never refused while others are unmapped. */
    gdr_mh_t calm = {0}, handle = {0};
    void *calm_va = NULL, *va = NULL;
    char word[8] = "calmness";
    SUCCEEDS(gdr_pin_buffer(kept, GPU_BUFFER, GPU_PAGE_SIZE, 0, 0, &calm));
    SUCCEEDS(gdr_map(kept, calm, &calm_va, GPU_PAGE_SIZE));

    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + GPU_PAGE_SIZE, GPU_PAGE_SIZE, 0, 0, &handle));
    SUCCEEDS(gdr_map(g, handle, &va, GPU_PAGE_SIZE));
    atomic_store(&handle_now, handle.h);
    atomic_store(&va_now, va);
    for (long i = 0; i < COPIERS; i++)
        CHECK(pthread_create(&copiers[i], NULL, copier, i % 2 ? &over : NULL) == 0);
    CHECK(pthread_create(&other, NULL, meddler, g) == 0);

    for (int round = 0; round < ROUNDS; round++) {
        let_them_copy(20);
        switch (round % 4) {
            case 0: /* the same handle, mapped again, perhaps at another address */
            case 1:
                SUCCEEDS(gdr_unmap(g, handle, va, GPU_PAGE_SIZE));
                REFUSES(gdr_copy_to_mapping(handle, va, word, sizeof word));
                break;
            case 2: /* another handle */
                SUCCEEDS(gdr_unpin_buffer(g, handle));
                SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + GPU_PAGE_SIZE, GPU_PAGE_SIZE, 0, 0,
                                        &handle));
                break;
            default: { /* another library; the meddler's becomes stale */
                SUCCEEDS(gdr_close(g));
                g = gdr_open();
                CHECK(g != NULL);
                SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + GPU_PAGE_SIZE, GPU_PAGE_SIZE, 0, 0,
                                        &handle));
            }
        }
        SUCCEEDS(gdr_map(g, handle, &va, GPU_PAGE_SIZE));
        atomic_store(&va_now, va);
        atomic_store(&handle_now, handle.h);
        SUCCEEDS(gdr_copy_to_mapping(calm, calm_va, word, sizeof word));
    }
    atomic_store(&over, 1);
    for (int i = 0; i < COPIERS; i++) CHECK(pthread_join(copiers[i], NULL) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(memcmp(calm_va, word, sizeof word) == 0);
    for (int at = 0; at < BYTES; at++) CHECK(((unsigned char *)va)[64 + at] == 0x5a);
    SUCCEEDS(gdr_close(g));
    SUCCEEDS(gdr_close(kept));
    printf("%lu copied, %lu refused\n", atomic_load(&copied), atomic_load(&refused));
    return 0;
}
