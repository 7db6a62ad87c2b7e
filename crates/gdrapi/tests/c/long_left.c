/*
 * Long copies may be interrupted by handlers that copy, and be left by siglongjmp at any instruction,
 * any number of times: later copies are right, nothing is written to host memory afterwards, nothing
 * grows, and gdr_unmap really unmaps.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "jumping.h"

enum { SIZE = 15 * GPU_PAGE_SIZE, ROUNDS = 100 };

static gdr_t g;
static gdr_mh_t handle;
static char *va;
static char *bytes, *back;
static char *half;

static void copy_both_ways(void) {
    memset(back, 0, SIZE);
    SUCCEEDS(gdr_copy_to_mapping(handle, va, bytes, SIZE));
    SUCCEEDS(gdr_copy_from_mapping(handle, back, va, SIZE));
    CHECK(memcmp(bytes, back, SIZE) == 0);
}

/* The second half of the host memory cannot be written: the read faults in the middle. */
__attribute__((noinline)) static void fault(void) {
    if (sigsetjmp(recovery, 1) == 0) {
        (void)gdr_copy_from_mapping(handle, half, va, SIZE);
        CHECK(!"the copy did not fault");
    }
}

static void faults(void) {
    for (int round = 0; round < ROUNDS; round++) {
        fault();
        /* Nothing is written there any more, whatever was under way. */
        memset(half, 0x77, SIZE / 2);
        SUCCEEDS(gdr_copy_from_mapping(handle, back, va, 70001));
        for (int at = 0; at < SIZE / 2; at++) CHECK(half[at] == 0x77);
    }
}

static void timer_leaves_copies(void) {
    handle_signal(SIGALRM, jump, 0);
    for (volatile int round = 0; round < ROUNDS; round++) {
        if (sigsetjmp(recovery, 1) == 0) {
            alarm_after(50 + round * 100);
            for (;;) (void)gdr_copy_from_mapping(handle, back, va, SIZE);
        }
        alarm_after(0);
    }
}

/* A handler that interrupts a copy, or malloc of the program, copies as much. */
static volatile sig_atomic_t interruptions;
static char *in_handler;

/* One signal: a handler that takes longer than a timer's interval would never return to the program. */
static void interrupt_soon(void) {
    alarm_after(1500);
}

static void copy_in_handler(int number) {
    (void)number;
    SUCCEEDS(gdr_copy_from_mapping(handle, in_handler, va, SIZE));
    CHECK(memcmp(bytes, in_handler, SIZE) == 0);
    interruptions++;
    interrupt_soon();
}

static void handlers_copy(int flags) {
    enum { WANTED = 50 };
    interruptions = 0;
    handle_signal(SIGALRM, copy_in_handler, flags);
    interrupt_soon();
    while (interruptions < WANTED) copy_both_ways();
    interruptions = 0;
    while (interruptions < WANTED) {
        for (size_t size = 16; size < 100000; size += 997) free(malloc(size));
    }
    alarm_after(0);
}

/* A handler waits for a copy of another thread, while its own thread is in a call of the library. */
static atomic_int wanted, made, over;

static void *copier(void *nothing) {
    char *to = malloc(SIZE);
    CHECK(to != NULL);
    while (!atomic_load(&over)) {
        if (atomic_load(&made) == atomic_load(&wanted)) continue;
        SUCCEEDS(gdr_copy_from_mapping(handle, to, va, SIZE));
        atomic_store(&made, atomic_load(&wanted));
    }
    free(to);
    return nothing;
}

static void wait_for_copier(int number) {
    (void)number;
    const int mine = atomic_fetch_add(&wanted, 1) + 1;
    while (atomic_load(&made) < mine) {}
    interruptions++;
    interrupt_soon();
}

static void handlers_wait_for_copies_of_others(void) {
    pthread_t thread;
    take_alarms(SIG_BLOCK);
    CHECK(pthread_create(&thread, NULL, copier, NULL) == 0);
    take_alarms(SIG_UNBLOCK);
    interruptions = 0;
    handle_signal(SIGALRM, wait_for_copier, SA_RESTART);
    interrupt_soon();
    while (interruptions < 50) {
        gdr_mh_t other;
        void *other_va;
        SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + SIZE, GPU_PAGE_SIZE, 0, 0, &other));
        SUCCEEDS(gdr_map(g, other, &other_va, GPU_PAGE_SIZE));
        SUCCEEDS(gdr_unmap(g, other, other_va, GPU_PAGE_SIZE));
        SUCCEEDS(gdr_unpin_buffer(g, other));
    }
    alarm_after(0);
    atomic_store(&over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void unmap_really_unmaps(void) {
    CHECK(is_mapped(va));
    SUCCEEDS(gdr_unmap(g, handle, va, SIZE));
    CHECK(!is_mapped(va));
    SUCCEEDS(gdr_map(g, handle, (void **)&va, SIZE));
    copy_both_ways();
}

/* As many copies as the thread of the copy engine serves at one time, each left, and of a thread that
   does not end: what the others use must be free again. */
static atomic_int has_left;

static void *leaves_copies_and_stays(void *nothing) {
    enum { SERVED = 8 };
    for (int round = 0; round < SERVED; round++) fault();
    /* A short copy withdraws the last one, too. */
    SUCCEEDS(gdr_copy_from_mapping(handle, back, va, 1));
    atomic_store(&has_left, 1);
    for (;;) (void)pause();
    return nothing;
}

static void leave_copies_in_a_thread_that_stays(void) {
    pthread_t thread;
    take_alarms(SIG_BLOCK);
    CHECK(pthread_create(&thread, NULL, leaves_copies_and_stays, NULL) == 0);
    take_alarms(SIG_UNBLOCK);
    CHECK(pthread_detach(thread) == 0);
    while (!atomic_load(&has_left)) (void)usleep(100);
}

static void *faults_in_a_thread(void *nothing) {
    for (int round = 0; round < 3; round++) fault();
    return nothing;
}

static long resident_pages(void) {
    long size = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm != NULL && fscanf(statm, "%ld %ld", &size, &resident) == 2);
    CHECK(fclose(statm) == 0);
    return resident;
}

int main(void) {
    bytes = malloc(SIZE);
    back = malloc(SIZE);
    in_handler = malloc(SIZE);
    CHECK(bytes != NULL && back != NULL && in_handler != NULL);
    for (int at = 0; at < SIZE; at++) bytes[at] = (char)(at * 31 + at / 997);
    half = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(half != MAP_FAILED);
    CHECK(mprotect(half + SIZE / 2 / 4096 * 4096, SIZE / 2, PROT_NONE) == 0);

    g = gdr_open();
    CHECK(g != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, SIZE, 0, 0, &handle));
    SUCCEEDS(gdr_map(g, handle, (void **)&va, SIZE));
    copy_both_ways();

    handle_signal(SIGSEGV, jump, 0);
    leave_copies_in_a_thread_that_stays();
    faults();
    unmap_really_unmaps();
    const long before = resident_pages();
    faults();
    timer_leaves_copies();
    unmap_really_unmaps();
    CHECK(resident_pages() - before < 100 * 256);
    handlers_copy(SA_RESTART);
    handlers_copy(SA_RESTART | SA_NODEFER);
    handlers_wait_for_copies_of_others();

    /* Threads that end after they left copies leave nothing behind. */
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, faults_in_a_thread, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    unmap_really_unmaps();
    /* The last line of the log says whether the copy engine was of use after all of this. */
    for (int round = 0; round < 100; round++) copy_both_ways();
    SUCCEEDS(gdr_close(g));
    return 0;
}
