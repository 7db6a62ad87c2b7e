/* Handlers that leave copies by siglongjmp, for the tests of that. */
#ifndef JUMPING_H
#define JUMPING_H

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "check.h"

static sigjmp_buf recovery;

static void jump(int number) {
    (void)number;
    siglongjmp(recovery, 1);
}

static void handle_signal(int number, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    CHECK(sigaction(number, &action, NULL) == 0);
}

/* Sends SIGALRM once, after so many microseconds; 0 is never. */
static void alarm_after(long microseconds) {
    const struct itimerval timer = {{0, 0}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* The timer's signal is for the whole process: one thread at a time takes it. */
static void take_alarms(int how) {
    sigset_t alarm_only;
    CHECK(sigemptyset(&alarm_only) == 0 && sigaddset(&alarm_only, SIGALRM) == 0);
    CHECK(pthread_sigmask(how, &alarm_only, NULL) == 0);
}

static int is_mapped(const char *page) {
    unsigned char answer;
    return mincore((void *)page, 4096, &answer) == 0;
}

#endif
