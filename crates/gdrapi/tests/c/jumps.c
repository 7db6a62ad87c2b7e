/*
 * Signal handlers leave copies by siglongjmp, again and again and at many depths of the stack.
 * Copies go on working, and gdr_unmap really unmaps. A copy that a handler interrupts without
 * leaving it keeps its mapping, on whatever stack the handler runs.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>

#include "jumping.h"

enum { SIZE = 4 * 65536 };

/* How often copies are left at each turn; GDR_TEST_ROUNDS sets another number. */
static int rounds = 1000;

static gdr_t g;
static gdr_mh_t handle, other;
static char *va, *other_va;
static char bytes[SIZE], back[SIZE];
static char *unreadable;

static void pin_and_map(gdr_mh_t *pin, char **where, unsigned long address, size_t size) {
    SUCCEEDS(gdr_pin_buffer(g, address, size, 0, 0, pin));
    SUCCEEDS(gdr_map(g, *pin, (void **)where, size));
}

__attribute__((noinline)) static void fault(void) {
    if (sigsetjmp(recovery, 1) == 0) {
        (void)gdr_copy_to_mapping(handle, va, unreadable, 4096);
        CHECK(!"the copy did not fault");
    }
}

__attribute__((noinline)) static void fault_reading(void) {
    if (sigsetjmp(recovery, 1) == 0) {
        (void)gdr_copy_from_mapping(handle, unreadable, va, 4096);
        CHECK(!"the copy did not fault");
    }
}

__attribute__((noinline)) static void copy_both_ways(void) {
    SUCCEEDS(gdr_copy_to_mapping(handle, va, bytes, SIZE));
    SUCCEEDS(gdr_copy_from_mapping(handle, back, va, SIZE));
    CHECK(memcmp(bytes, back, SIZE) == 0);
}

/* Calls what it is given, `depth` bytes further down the stack. */
__attribute__((noinline)) static void deeper(size_t depth, void (*call)(void)) {
    volatile char *room = alloca(depth + 1);
    room[0] = 1;
    call();
    CHECK(room[0] == 1);
}

static unsigned random_number(void) {
    static unsigned state = 12345;
    state = state * 1103515245 + 12345;
    return state >> 8;
}

static void faults_from_one_place(void) {
    for (int round = 0; round < rounds; round++) {
        fault();
        fault_reading();
        copy_both_ways();
    }
}

static void faults_at_random_depths(void) {
    for (int round = 0; round < rounds; round++) {
        deeper(random_number() % 30000, round % 2 ? fault : fault_reading);
        deeper(random_number() % 30000, copy_both_ways);
    }
}

/* Each fault deeper than all before it: the earlier ones are not withdrawn until the end. */
static void faults_further_and_further_down(int level) {
    volatile char room[3000];
    room[0] = (char)level;
    fault();
    copy_both_ways();
    if (level > 0) faults_further_and_further_down(level - 1);
    copy_both_ways();
    CHECK(room[0] == (char)level);
}

static void unmap_really_unmaps(void) {
    CHECK(is_mapped(va));
    SUCCEEDS(gdr_unmap(g, handle, va, SIZE));
    CHECK(!is_mapped(va));
    SUCCEEDS(gdr_map(g, handle, (void **)&va, SIZE));
    copy_both_ways();
}

static void unpin_and_close_really_unmap(void) {
    fault();
    SUCCEEDS(gdr_unpin_buffer(g, handle));
    CHECK(!is_mapped(va));
    pin_and_map(&handle, &va, GPU_BUFFER, SIZE);
    fault();
    SUCCEEDS(gdr_close(g));
    CHECK(!is_mapped(va) && !is_mapped(other_va));
}

/* A timer leaves copies at any instruction of them. */
static void timer_leaves_copies(void) {
    handle_signal(SIGALRM, jump, 0);
    for (volatile int round = 0; round < rounds; round++) {
        if (sigsetjmp(recovery, 1) == 0) {
            alarm_after(50 + random_number() % 50);
            for (;;) (void)gdr_copy_to_mapping(handle, va, bytes, random_number() % 64);
        }
        alarm_after(0);
        SUCCEEDS(gdr_copy_from_mapping(handle, back, va, 1));
    }
}

/* The handler copies, faults in that, and recovers within itself: then the copy that it
   interrupted goes on. Another thread must not unmap under that one. */
static sigjmp_buf within_handler;
static char *beyond_the_file, *readable_later;
static volatile sig_atomic_t handled;
static int unmapped;

static void recover_within(int number) {
    (void)number;
    siglongjmp(within_handler, 1);
}

static void *unmap_elsewhere(void *nothing) {
    SUCCEEDS(gdr_unmap(g, handle, va, SIZE));
    CHECK(!is_mapped(va));
    __atomic_store_n(&unmapped, 1, __ATOMIC_SEQ_CST);
    return nothing;
}

static void copy_fault_and_return(int number) {
    static pthread_t thread;
    (void)number;
    CHECK(!handled);
    handled = 1;
    for (int round = 0; round < rounds; round++) {
        if (sigsetjmp(within_handler, 1) == 0) {
            (void)gdr_copy_to_mapping(other, other_va, beyond_the_file, 4096);
            CHECK(!"the copy did not fault");
        }
        SUCCEEDS(gdr_copy_to_mapping(other, other_va, bytes, 4096));
    }
    CHECK(pthread_create(&thread, NULL, unmap_elsewhere, NULL) == 0);
    CHECK(pthread_detach(thread) == 0);
    /* Once the handle has no mapping, that thread waits for the interrupted copy. */
    while (gdr_copy_to_mapping(handle, va, bytes, 1) == 0) {}
    CHECK(is_mapped(va) && !__atomic_load_n(&unmapped, __ATOMIC_SEQ_CST));
    CHECK(mprotect(readable_later, 4096, PROT_READ) == 0);
}

static void handlers_keep_the_copy_they_interrupt(int flags) {
    handled = 0;
    unmapped = 0;
    CHECK(mprotect(readable_later, 4096, PROT_NONE) == 0);
    handle_signal(SIGBUS, recover_within, flags);
    handle_signal(SIGSEGV, copy_fault_and_return, flags);
    SUCCEEDS(gdr_copy_to_mapping(handle, va, readable_later, 4096));
    CHECK(handled);
    while (!__atomic_load_n(&unmapped, __ATOMIC_SEQ_CST)) usleep(100);
    SUCCEEDS(gdr_map(g, handle, (void **)&va, SIZE));
    copy_both_ways();
}

static void use_alternate_stack(void *memory, size_t size) {
    stack_t stack;
    memset(&stack, 0, sizeof stack);
    stack.ss_sp = memory;
    stack.ss_size = size;
    CHECK(sigaltstack(&stack, NULL) == 0);
}

static char *page_of(int protection) {
    char *page = mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    return page;
}

static void everything(int flags) {
    handle_signal(SIGSEGV, jump, flags);
    fault();
    unmap_really_unmaps();
    faults_from_one_place();
    unmap_really_unmaps();
    faults_at_random_depths();
    unmap_really_unmaps();
    faults_further_and_further_down(200);
    unmap_really_unmaps();
    timer_leaves_copies();
    unmap_really_unmaps();
    handlers_keep_the_copy_they_interrupt(flags);
}

static void *everything_in_a_thread(void *nothing) {
    take_alarms(SIG_UNBLOCK);
    everything(0);
    return nothing;
}

int main(void) {
    enum { STACK = 1 << 17 };
    char in_this_frame[STACK];
    const char *fewer = getenv("GDR_TEST_ROUNDS");
    if (fewer != NULL) rounds = atoi(fewer);
    for (int at = 0; at < SIZE; at++) bytes[at] = (char)(at * 31);
    unreadable = page_of(PROT_NONE);
    readable_later = page_of(PROT_NONE);
    FILE *empty = tmpfile();
    CHECK(empty != NULL);
    beyond_the_file = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(empty), 0);
    CHECK(beyond_the_file != MAP_FAILED);

    g = gdr_open();
    CHECK(g != NULL);
    pin_and_map(&handle, &va, GPU_BUFFER, SIZE);
    pin_and_map(&other, &other_va, GPU_BUFFER + SIZE, 65536);
    everything(0);
    void *elsewhere = malloc(STACK);
    CHECK(elsewhere != NULL);
    use_alternate_stack(elsewhere, STACK);
    everything(SA_ONSTACK);
    use_alternate_stack(in_this_frame, STACK);
    everything(SA_ONSTACK);
    take_alarms(SIG_BLOCK);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, everything_in_a_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);

    handle_signal(SIGSEGV, jump, 0);
    unpin_and_close_really_unmap();
    return 0;
}
