/*
 * Signal handlers make copies that are refused while their thread is in malloc, with logging on.
 * A refusal neither allocates nor changes errno.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#include "check.h"

enum { WANTED = 20000 };

static gdr_mh_t mapped, pinned, stale, never;
static char *va;
static volatile sig_atomic_t refusals;

static void copy_wrongly(int number) {
    char buffer[8] = "";
    (void)number;
    errno = 4711;
    REFUSES(gdr_copy_to_mapping(stale, va, buffer, sizeof buffer));
    REFUSES(gdr_copy_from_mapping(stale, buffer, va, sizeof buffer));
    REFUSES(gdr_copy_to_mapping(never, va, buffer, sizeof buffer));
    REFUSES(gdr_copy_to_mapping(pinned, va, buffer, sizeof buffer));
    REFUSES(gdr_copy_to_mapping(mapped, va - 1, buffer, sizeof buffer));
    REFUSES(gdr_copy_to_mapping(mapped, va, NULL, sizeof buffer));
    CHECK(errno == 4711);
    refusals += 6;
}

static void allocate(void) {
    unsigned state = 1;
    while (refusals < WANTED) {
        state = state * 1103515245 + 12345;
        size_t size = 1 + (state >> 8) % 9000;
        char *one = malloc(size), *two = malloc(size / 3 + 1);
        CHECK(one != NULL && two != NULL);
        one[0] = two[0] = 1;
        free(one);
        free(two);
    }
}

/* This thread has never copied when its first copies are refused in a handler. */
static void *allocate_in_a_thread(void *nothing) {
    sigset_t alarm;
    CHECK(sigemptyset(&alarm) == 0 && sigaddset(&alarm, SIGALRM) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &alarm, NULL) == 0);
    allocate();
    CHECK(pthread_sigmask(SIG_BLOCK, &alarm, NULL) == 0);
    return nothing;
}

int main(void) {
    gdr_t g = gdr_open();
    CHECK(g != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, 65536, 0, 0, &mapped));
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, 65536, 0, 0, &pinned));
    SUCCEEDS(gdr_map(g, mapped, (void **)&va, 65536));
    /* The same slot as the mapped one, of another generation. */
    stale.h = mapped.h + (8UL << 18);
    never.h = mapped.h + 8 * 100;

    sigset_t alarm;
    CHECK(sigemptyset(&alarm) == 0 && sigaddset(&alarm, SIGALRM) == 0);
    CHECK(sigprocmask(SIG_BLOCK, &alarm, NULL) == 0);
    CHECK(signal(SIGALRM, copy_wrongly) != SIG_ERR);
    const struct itimerval often = {{0, 100}, {0, 100}}, never_again = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_in_a_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);

    char byte = 1;
    SUCCEEDS(gdr_copy_to_mapping(mapped, va, &byte, 1));
    refusals = 0;
    CHECK(sigprocmask(SIG_UNBLOCK, &alarm, NULL) == 0);
    allocate();
    CHECK(setitimer(ITIMER_REAL, &never_again, NULL) == 0);
    SUCCEEDS(gdr_close(g));
    return 0;
}
