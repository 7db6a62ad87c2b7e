/*
 * A client of libgdrapi in C, on memory of a real GPU: what GDRCopy's clients do, each byte
 * checked through CUDA. Exit status 0 when all of it is right.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gdrapi.h"

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);          \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define ANSWERS(wanted, call)                                                                  \
    do {                                                                                       \
        const int answer_ = (int)(call);                                                       \
        if (answer_ != (wanted)) {                                                             \
            fprintf(stderr, "%s:%d: %s is %d, wanted %s\n", __FILE__, __LINE__, #call,         \
                    answer_, #wanted);                                                         \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define SUCCEEDS(call) ANSWERS(0, call)

enum { SIZE = 1 << 20, LONGEST = 5000 };

/* The CUDA driver's functions, loaded as a program without CUDA's headers would. */
static int (*cu_init)(unsigned);
static int (*cu_device_get)(int *, int);
static int (*cu_primary_context)(void **, int);
static int (*cu_set_current)(void *);
static int (*cu_alloc)(unsigned long long *, size_t);
static int (*cu_free)(unsigned long long);
static int (*cu_to_device)(unsigned long long, const void *, size_t);
static int (*cu_from_device)(void *, unsigned long long, size_t);
static int (*cu_synchronize)(void);

static void load(void *library, void *function, const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

static void load_cuda(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *context = NULL;
    int device = 0;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    load(library, &cu_init, "cuInit");
    load(library, &cu_device_get, "cuDeviceGet");
    load(library, &cu_primary_context, "cuDevicePrimaryCtxRetain");
    load(library, &cu_set_current, "cuCtxSetCurrent");
    load(library, &cu_alloc, "cuMemAlloc_v2");
    load(library, &cu_free, "cuMemFree_v2");
    load(library, &cu_to_device, "cuMemcpyHtoD_v2");
    load(library, &cu_from_device, "cuMemcpyDtoH_v2");
    load(library, &cu_synchronize, "cuCtxSynchronize");
    SUCCEEDS(cu_init(0));
    SUCCEEDS(cu_device_get(&device, 0));
    SUCCEEDS(cu_primary_context(&context, device));
    SUCCEEDS(cu_set_current(context));
}

/* Bytes that say where and when they were written. */
static void pattern(unsigned char *bytes, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)((i * 31 + seed * 101 + (i >> 8)) & 0xff);
}

/* Writes through the mapping, reads by CUDA; then the other way round. Neighbours stay. */
static void copies_arrive(gdr_mh_t handle, unsigned char *va, unsigned long long gpu, size_t offset,
                          size_t size, unsigned seed) {
    static unsigned char bytes[LONGEST], back[LONGEST + 2];
    pattern(bytes, size, seed);
    unsigned char before = 0, after = 0;
    SUCCEEDS(cu_from_device(&before, gpu + offset - 1, 1));
    SUCCEEDS(cu_from_device(&after, gpu + offset + size, 1));
    SUCCEEDS(gdr_copy_to_mapping(handle, va + offset, bytes, size));
    SUCCEEDS(cu_from_device(back, gpu + offset - 1, size + 2));
    CHECK(memcmp(back + 1, bytes, size) == 0);
    CHECK(back[0] == before && back[size + 1] == after);

    pattern(bytes, size, seed + 1);
    SUCCEEDS(cu_to_device(gpu + offset, bytes, size));
    SUCCEEDS(cu_synchronize());
    memset(back, 0, sizeof back);
    SUCCEEDS(gdr_copy_from_mapping(handle, back, va + offset, size));
    CHECK(memcmp(back, bytes, size) == 0);
}

/* Plain loads and stores, as NCCL makes them. */
static void the_pointer_is_memory(unsigned char *va, unsigned long long gpu) {
    volatile uint64_t *const words = (volatile uint64_t *)va;
    uint64_t back = 0;
    for (size_t i = 0; i < SIZE / 8; i += 511) {
        words[i] = i * 0x9e3779b97f4a7c15u;
        __sync_synchronize();
        CHECK(words[i] == i * 0x9e3779b97f4a7c15u);
        SUCCEEDS(cu_from_device(&back, gpu + i * 8, sizeof back));
        CHECK(back == i * 0x9e3779b97f4a7c15u);
    }
}

int main(void) {
    const size_t sizes[] = {1, 2, 3, 4, 7, 8, 15, 16, 31, 63, 64, 65, 127, 128, 1000, 4096, LONGEST};
    unsigned long long allocation = 0, gpu = 0;
    gdr_mh_t handle = {0}, unaligned = {0};
    gdr_info_t info;
    void *mapped = NULL, *none = NULL;
    unsigned char first = 0;
    unsigned seed = 0;
    int persistent = 0, flag = 7;

    load_cuda();
    SUCCEEDS(cu_alloc(&allocation, SIZE + GPU_PAGE_SIZE));
    gpu = (allocation + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;

    gdr_t g = gdr_open();
    if (g == NULL) {
        fprintf(stderr, "gdr_open: %s\n", strerror(errno));
        return 1;
    }
    SUCCEEDS(gdr_pin_buffer(g, gpu, SIZE, 0, 0, &handle));
    SUCCEEDS(gdr_map(g, handle, &mapped, SIZE));
    ANSWERS(EAGAIN, gdr_map(g, handle, &none, SIZE));
    SUCCEEDS(gdr_get_info(g, handle, &info));
    CHECK(info.mapped && info.va <= gpu && info.va + info.mapped_size >= gpu + SIZE);
    const char *type = NULL;
    SUCCEEDS(gdr_get_mapping_type_string(info.mapping_type, &type));
    unsigned char *const va = (unsigned char *)mapped + (gpu - info.va);

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t offset = 1; offset < 70; offset++)
            copies_arrive(handle, va, gpu, offset, sizes[s], seed++);
    copies_arrive(handle, va, gpu, SIZE - LONGEST - 1, LONGEST, seed);
    the_pointer_is_memory(va, gpu);

    /* GDRCopy's rule: only an address of whole GPU pages can be mapped. */
    SUCCEEDS(gdr_pin_buffer(g, gpu + 4, 8, 0, 0, &unaligned));
    ANSWERS(EINVAL, gdr_map(g, unaligned, &none, 8));
    SUCCEEDS(gdr_unpin_buffer(g, unaligned));
    ANSWERS(EINVAL, gdr_unpin_buffer(g, unaligned));
    ANSWERS(EINVAL, gdr_pin_buffer(g, (unsigned long)&first, 1, 0, 0, &unaligned));

    /* Freed memory stays what it is while it is pinned, unless the module is not persistent. */
    SUCCEEDS(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &persistent));
    if (persistent) {
        va[SIZE - 1] = 0x5a;
        SUCCEEDS(cu_free(allocation));
        allocation = 0;
        SUCCEEDS(gdr_get_callback_flag(g, handle, &flag));
        CHECK(flag == 0);
        SUCCEEDS(gdr_copy_from_mapping(handle, &first, va + SIZE - 1, 1));
        CHECK(first == 0x5a);
    }
    SUCCEEDS(gdr_unmap(g, handle, mapped, SIZE));
    ANSWERS(EINVAL, gdr_copy_to_mapping(handle, va, &first, 1));
    SUCCEEDS(gdr_unpin_buffer(g, handle));
    SUCCEEDS(gdr_close(g));
    ANSWERS(EINVAL, gdr_close(g));
    if (allocation != 0)
        SUCCEEDS(cu_free(allocation));
    printf("%u copies of 1 to %d bytes arrived, mapping type: %s\n", 2 * (seed + 1), LONGEST, type);
    return 0;
}
