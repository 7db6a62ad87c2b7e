/*
 * Writes to GPU memory with the CPU, reads it back, and compares.
 *
 *     cc write_and_read.c $(pkg-config --cflags --libs gdrapi) -ldl -o write_and_read
 *     ./write_and_read                        on the first GPU
 *     GDR_BACKEND=sim ./write_and_read        on a simulated one
 *
 * A program that uses CUDA has its memory from cudaMalloc or cuMemAlloc. This one loads the
 * driver itself, so that it compiles without CUDA's headers.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gdrapi.h>

enum { SIZE = 4096 };

/* Ends the program when a call of the library answers with an errno value. */
static void check(int answer, const char *call) {
    if (answer != 0) {
        fprintf(stderr, "%s: %s (GDRCOPY_ENABLE_LOGGING=1 says more)\n", call, strerror(answer));
        exit(1);
    }
}

/* The driver's function `name`; exits where it does not exist. */
static void find(void *driver, const char *name, void *function) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "libcuda.so.1: %s is missing\n", name);
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

static void check_cuda(int result, const char *call) {
    if (result != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", call, result);
        exit(1);
    }
}

/* Memory of the first GPU. Only an address that is a multiple of 64 KiB can be mapped, so there
   is room to round up. */
static unsigned long allocate_on_gpu(void) {
    int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*use)(void *);
    int (*allocate)(unsigned long long *, size_t);
    unsigned long long address = 0;
    void *context = NULL;
    int device = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "%s; GDR_BACKEND=sim simulates a GPU\n", dlerror());
        exit(1);
    }
    find(driver, "cuInit", &init);
    find(driver, "cuDeviceGet", &get);
    find(driver, "cuDevicePrimaryCtxRetain", &retain);
    find(driver, "cuCtxSetCurrent", &use);
    find(driver, "cuMemAlloc_v2", &allocate);
    check_cuda(init(0), "cuInit");
    check_cuda(get(&device, 0), "cuDeviceGet");
    check_cuda(retain(&context, device), "cuDevicePrimaryCtxRetain");
    check_cuda(use(context), "cuCtxSetCurrent");
    check_cuda(allocate(&address, SIZE + GPU_PAGE_SIZE), "cuMemAlloc");
    return (unsigned long)((address + GPU_PAGE_OFFSET) & GPU_PAGE_MASK);
}

int main(void) {
    const char *backend = getenv("GDR_BACKEND");
    const int simulated = backend != NULL && strcmp(backend, "sim") == 0;
    const unsigned long address = simulated ? 0x6000000000000UL : allocate_on_gpu();
    char sent[SIZE], received[SIZE];
    void *mapped = NULL;
    gdr_mh_t handle;

    gdr_t g = gdr_open();
    if (g == NULL) {
        perror("gdr_open");
        return 1;
    }
    check(gdr_pin_buffer(g, address, SIZE, 0, 0, &handle), "gdr_pin_buffer");
    check(gdr_map(g, handle, &mapped, SIZE), "gdr_map");

    for (int i = 0; i < SIZE; i++) sent[i] = (char)(i * 31);
    check(gdr_copy_to_mapping(handle, mapped, sent, SIZE), "gdr_copy_to_mapping");
    check(gdr_copy_from_mapping(handle, received, mapped, SIZE), "gdr_copy_from_mapping");
    /* One flag for a kernel that polls: an ordinary store. */
    *(volatile int *)mapped = 1;

    check(gdr_unmap(g, handle, mapped, SIZE), "gdr_unmap");
    check(gdr_unpin_buffer(g, handle), "gdr_unpin_buffer");
    check(gdr_close(g), "gdr_close");
    if (memcmp(sent, received, SIZE) != 0) {
        fprintf(stderr, "the bytes that came back are not those that were sent\n");
        return 1;
    }
    printf("%d bytes written to GPU memory at 0x%lx and read back\n", SIZE, address);
    return 0;
}
