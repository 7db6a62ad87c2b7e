/*
 * A fixed number of copies through the C interface, for `cargo xtask instructions`.
 *
 *     copies LIBRARY to|from|neither SIZE COUNT
 *
 * The library is loaded, so that libgdrapi.so of any checkout can be counted.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <gdrapi.h>

/* Where GDR_BACKEND=sim keeps its buffer. */
#define SIMULATED_BUFFER 0x6000000000000UL

static void *library;

static void find(const char *name, void *function) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

static void check(int answer, const char *call) {
    if (answer != 0) {
        fprintf(stderr, "%s: %s\n", call, strerror(answer));
        exit(1);
    }
}

/*
 * Valgrind unmaps the vDSO, and does not know PR_GET_AUXV, by which the kernel reports where the vDSO
 * would be. Without that call the library reads /proc/self/auxv, which Valgrind emulates.
 */
static void refuse_auxv(void) {
    enum { GET_AUXV = 0x41555856 };
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, GET_AUXV, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        perror("prctl");
        exit(1);
    }
}

int main(int argc, char **argv) {
    static char bytes[1 << 16] __attribute__((aligned(64)));
    gdr_t (*open)(void);
    int (*pin)(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *);
    int (*map)(gdr_t, gdr_mh_t, void **, size_t);
    int (*copy_to)(gdr_mh_t, void *, const void *, size_t);
    int (*copy_from)(gdr_mh_t, void *, const void *, size_t);
    int (*close)(gdr_t);
    gdr_mh_t handle;
    void *mapped = NULL;

    if (argc != 5) {
        fprintf(stderr, "usage: copies LIBRARY to|from|neither SIZE COUNT\n");
        return 64;
    }
    refuse_auxv();
    const size_t size = strtoul(argv[3], NULL, 10);
    const unsigned long count = strtoul(argv[4], NULL, 10);
    if (size > sizeof bytes || (library = dlopen(argv[1], RTLD_NOW)) == NULL) {
        fprintf(stderr, "%s\n", size > sizeof bytes ? "too large" : dlerror());
        return 1;
    }
    find("gdr_open", &open);
    find("gdr_pin_buffer", &pin);
    find("gdr_map", &map);
    find("gdr_copy_to_mapping", &copy_to);
    find("gdr_copy_from_mapping", &copy_from);
    find("gdr_close", &close);
    gdr_t g = open();
    if (g == NULL) {
        perror("gdr_open");
        return 1;
    }
    check(pin(g, SIMULATED_BUFFER, sizeof bytes, 0, 0, &handle), "gdr_pin_buffer");
    check(map(g, handle, &mapped, sizeof bytes), "gdr_map");
    for (unsigned long n = 0; n < count; n++) {
        if (argv[2][0] == 't') {
            check(copy_to(handle, mapped, bytes, size), "gdr_copy_to_mapping");
        } else if (argv[2][0] == 'f') {
            check(copy_from(handle, bytes, mapped, size), "gdr_copy_from_mapping");
        }
    }
    check(close(g), "gdr_close");
    return 0;
}
