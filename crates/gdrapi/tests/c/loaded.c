/*
 * Loaded with dlopen, as NCCL and NVSHMEM do, and closed while threads live that have copied:
 * their thread-local state must survive the dlclose.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include "check.h"

typedef gdr_t (*open_fn)(void);
typedef int (*close_fn)(gdr_t);
typedef int (*pin_fn)(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *);
typedef int (*map_fn)(gdr_t, gdr_mh_t, void **, size_t);
typedef int (*copy_fn)(gdr_mh_t, void *, const void *, size_t);

static copy_fn copy_to;
static gdr_mh_t handle;
static char *va;
static pthread_barrier_t copied, closed;

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

static void *thread(void *unused) {
    const char bytes[100] = "from a thread";
    SUCCEEDS(copy_to(handle, va, bytes, sizeof bytes));
    pthread_barrier_wait(&copied);
    pthread_barrier_wait(&closed);
    return unused; /* its destructors run now, after dlclose */
}

static void in_a_signal_handler(int number) {
    const char bytes[16] = "from a handler";
    (void)number;
    SUCCEEDS(copy_to(handle, va, bytes, sizeof bytes));
}

int main(void) {
    enum { THREADS = 4, CYCLES = 50 };
    for (int cycle = 0; cycle < CYCLES; cycle++) {
        /* By turns the name that NCCL asks for and the one that NVSHMEM does. */
        void *library =
            dlopen(cycle % 2 ? "libgdrapi.so" : "libgdrapi.so.2", cycle % 4 < 2 ? RTLD_NOW : RTLD_LAZY);
        if (library == NULL) fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
        open_fn open_it;
        close_fn close_it;
        pin_fn pin;
        map_fn map;
        *(void **)&open_it = symbol(library, "gdr_open");
        *(void **)&close_it = symbol(library, "gdr_close");
        *(void **)&pin = symbol(library, "gdr_pin_buffer");
        *(void **)&map = symbol(library, "gdr_map");
        *(void **)&copy_to = symbol(library, "gdr_copy_to_mapping");

        gdr_t g = open_it();
        CHECK(g != NULL);
        SUCCEEDS(pin(g, GPU_BUFFER, GPU_PAGE_SIZE, 0, 0, &handle));
        SUCCEEDS(map(g, handle, (void **)&va, GPU_PAGE_SIZE));

        pthread_t threads[THREADS];
        CHECK(pthread_barrier_init(&copied, NULL, THREADS + 1) == 0);
        CHECK(pthread_barrier_init(&closed, NULL, THREADS + 1) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, thread, NULL) == 0);
        pthread_barrier_wait(&copied);
        CHECK(strcmp(va, "from a thread") == 0);
        CHECK(signal(SIGUSR1, in_a_signal_handler) != SIG_ERR);
        SUCCEEDS(copy_to(handle, va, "", 1));
        CHECK(raise(SIGUSR1) == 0);
        CHECK(strcmp(va, "from a handler") == 0);
        SUCCEEDS(close_it(g));
        CHECK(dlclose(library) == 0);
        pthread_barrier_wait(&closed);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    return 0;
}
