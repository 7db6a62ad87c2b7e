/* A child has no handles of its parent, made by fork or by clone, and may open the library. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"

/* Long, where some copies are long. */
enum { MOST = 100001 };

static gdr_t g;
static gdr_mh_t handle;
static void *va;
static atomic_int over;

static void inherits_nothing(void) {
    char bytes[64] = {0};
    static char many[MOST];
    int one = 0, two = 0;
    void *new_va = NULL;
    gdr_mh_t new_handle = {0};
    gdr_info_v2_t info;
    REFUSES(gdr_copy_to_mapping(handle, va, bytes, sizeof bytes));
    REFUSES(gdr_copy_from_mapping(handle, bytes, va, sizeof bytes));
    REFUSES(gdr_copy_to_mapping(handle, va, many, MOST));
    REFUSES(gdr_copy_from_mapping(handle, many, va, MOST));
    REFUSES(gdr_get_info_v2(g, handle, &info));
    REFUSES(gdr_get_callback_flag(g, handle, &one));
    REFUSES(gdr_map(g, handle, &new_va, GPU_PAGE_SIZE));
    REFUSES(gdr_unmap(g, handle, va, GPU_PAGE_SIZE));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, GPU_PAGE_SIZE, 0, 0, &new_handle));
    REFUSES(gdr_driver_get_version(g, &one, &two));
    REFUSES(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &one));
    REFUSES(gdr_unpin_buffer(g, handle));
    REFUSES(gdr_close(g));
}

static void opens_again(void) {
    static char bytes[MOST], back[MOST];
    for (int at = 0; at < MOST; at++) bytes[at] = (char)(at * 7 + at / 251);
    gdr_mh_t own_handle = {0};
    void *own_va = NULL;
    gdr_t own = gdr_open();
    CHECK(own != NULL && own != g);
    SUCCEEDS(gdr_pin_buffer(own, GPU_BUFFER, 2 * GPU_PAGE_SIZE, 0, 0, &own_handle));
    CHECK(own_handle.h != handle.h);
    SUCCEEDS(gdr_map(own, own_handle, &own_va, 2 * GPU_PAGE_SIZE));
    for (size_t size = 8; size <= MOST; size = size == 8 ? 9000 : size * 11) {
        memset(back, 0, sizeof back);
        SUCCEEDS(gdr_copy_to_mapping(own_handle, own_va, bytes, size));
        SUCCEEDS(gdr_copy_from_mapping(own_handle, back, own_va, size));
        CHECK(memcmp(bytes, back, size) == 0);
    }
    inherits_nothing();
    SUCCEEDS(gdr_unmap(own, own_handle, own_va, 2 * GPU_PAGE_SIZE));
    SUCCEEDS(gdr_close(own));
}

static void child(void) {
    alarm(60); /* a hang is a failure */
    inherits_nothing();
    opens_again();
    /* And its own child again. */
    const pid_t grandchild = fork();
    if (grandchild == 0) {
        inherits_nothing();
        opens_again();
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
    _exit(0);
}

static void wait_for(pid_t pid) {
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

static void *busy(void *reads) {
    static char all[2][MOST];
    char *bytes = all[reads != NULL];
    gdr_info_v2_t info;
    while (!atomic_load(&over)) {
        if (reads) {
            SUCCEEDS(gdr_get_info_v2(g, handle, &info));
            SUCCEEDS(gdr_copy_from_mapping(handle, bytes, va, 4096));
            SUCCEEDS(gdr_copy_from_mapping(handle, bytes, va, MOST));
        } else {
            SUCCEEDS(gdr_copy_to_mapping(handle, va, bytes, 4096));
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    char bytes[8] = "parental", back[8] = {0};
    g = gdr_open();
    CHECK(g != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, 2 * GPU_PAGE_SIZE, 0, 0, &handle));
    SUCCEEDS(gdr_map(g, handle, &va, 2 * GPU_PAGE_SIZE));
    SUCCEEDS(gdr_copy_to_mapping(handle, (char *)va + GPU_PAGE_SIZE, bytes, sizeof bytes));

    /* fork(), while other threads are in the midst of copies and calls. */
    CHECK(pthread_create(&threads[0], NULL, busy, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, busy, &over) == 0);
    for (int i = 0; i < 10; i++) {
        const pid_t pid = fork();
        if (pid == 0) child();
        wait_for(pid);
    }
    atomic_store(&over, 1);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);

    /* A bare system call, of which the C library knows nothing. */
    const pid_t bare = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    if (bare == 0) {
        inherits_nothing();
        syscall(SYS_exit_group, 0);
    }
    wait_for(bare);

    /* The parent is as it was. */
    SUCCEEDS(gdr_copy_from_mapping(handle, back, (char *)va + GPU_PAGE_SIZE, sizeof back));
    CHECK(memcmp(bytes, back, sizeof back) == 0);
    SUCCEEDS(gdr_close(g));
    return 0;
}
