/*
 * A thread is cancelled while it is in the library. The call ends as if it were not, no lock stays
 * held, and the thread ends at its own next cancellation point.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "check.h"

static gdr_t g;
static int returned;

static void *call_while_cancelled(void *nothing) {
    gdr_mh_t handle = {0};
    void *va = NULL;
    char bytes[64] = "";
    /* Deferred, as by default: takes effect at a cancellation point, write(2) being one. */
    CHECK(pthread_cancel(pthread_self()) == 0);
    gdr_t own = gdr_open();
    CHECK(own != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, GPU_PAGE_SIZE, 0, 0, &handle));
    SUCCEEDS(gdr_map(g, handle, &va, GPU_PAGE_SIZE));
    ANSWERS(EAGAIN, gdr_map(g, handle, &va, GPU_PAGE_SIZE));
    SUCCEEDS(gdr_copy_to_mapping(handle, va, bytes, sizeof bytes));
    REFUSES(gdr_copy_to_mapping(handle, NULL, bytes, sizeof bytes));
    REFUSES(gdr_unmap(g, handle, NULL, 1));
    SUCCEEDS(gdr_unpin_buffer(g, handle));
    REFUSES(gdr_unpin_buffer(g, handle));
    SUCCEEDS(gdr_close(own));
    REFUSES(gdr_close(own));
    returned++;
    pthread_testcancel();
    CHECK(!"the thread was not cancelled");
    return nothing;
}

int main(void) {
    g = gdr_open();
    CHECK(g != NULL);
    for (int round = 1; round <= 20; round++) {
        pthread_t thread;
        void *result = NULL;
        CHECK(pthread_create(&thread, NULL, call_while_cancelled, NULL) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED && returned == round);
    }
    SUCCEEDS(gdr_close(g));
    return 0;
}
