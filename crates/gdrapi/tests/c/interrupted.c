/*
 * A timer's signal handler copies while its thread is in copies: both are right. And a handler
 * that leaves a copy by siglongjmp does not hang the unmapping.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "check.h"

static gdr_mh_t outer, inner;
static char *outer_va, *inner_va;
static volatile sig_atomic_t interruptions;
static sigjmp_buf before_the_copy;

static void on_timer(int number) {
    const char bytes[32] = "in the handler";
    char back[32] = "";
    (void)number;
    SUCCEEDS(gdr_copy_to_mapping(inner, inner_va, bytes, sizeof bytes));
    SUCCEEDS(gdr_copy_from_mapping(inner, back, inner_va, sizeof back));
    CHECK(memcmp(bytes, back, sizeof back) == 0);
    interruptions++;
}

static void on_fault(int number) {
    (void)number;
    siglongjmp(before_the_copy, 1);
}

int main(void) {
    enum { SIZE = 1 << 18, WANTED = 200 };
    static char bytes[SIZE], back[SIZE];
    gdr_t g = gdr_open();
    CHECK(g != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, SIZE, 0, 0, &outer));
    SUCCEEDS(gdr_map(g, outer, (void **)&outer_va, SIZE));
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + SIZE, GPU_PAGE_SIZE, 0, 0, &inner));
    SUCCEEDS(gdr_map(g, inner, (void **)&inner_va, GPU_PAGE_SIZE));

    for (int at = 0; at < SIZE; at++) bytes[at] = (char)(at * 31);
    SUCCEEDS(gdr_copy_to_mapping(outer, outer_va, bytes, 1));
    CHECK(signal(SIGALRM, on_timer) != SIG_ERR);
    const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    while (interruptions < WANTED) {
        SUCCEEDS(gdr_copy_to_mapping(outer, outer_va, bytes, SIZE));
        SUCCEEDS(gdr_copy_from_mapping(outer, back, outer_va, SIZE));
        CHECK(memcmp(bytes, back, SIZE) == 0);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);

    /* A host page that cannot be read: the copy faults half-way. */
    char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED && mprotect(hole + 4096, 4096, PROT_NONE) == 0);
    CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
    for (int times = 0; times < 3; times++) {
        if (sigsetjmp(before_the_copy, 1) == 0) {
            (void)gdr_copy_to_mapping(outer, outer_va, hole, 8192);
            CHECK(!"the copy did not fault");
        }
        SUCCEEDS(gdr_copy_to_mapping(outer, outer_va, bytes, SIZE));
    }
    alarm(60);
    CHECK(signal(SIGALRM, SIG_DFL) != SIG_ERR);
    SUCCEEDS(gdr_unmap(g, outer, outer_va, SIZE));
    SUCCEEDS(gdr_map(g, outer, (void **)&outer_va, SIZE));
    SUCCEEDS(gdr_copy_from_mapping(outer, back, outer_va, SIZE));
    CHECK(memcmp(bytes, back, SIZE) == 0);
    SUCCEEDS(gdr_close(g));
    return 0;
}
