/*
 * gdrapi.h: GPU memory as CPU memory, through the C interface of GDRCopy 2.6.
 *
 * Pin a range of GPU memory and map it. Then access it by loads and stores, or by the two copy
 * functions, which are optimized for write-combined mappings over PCIe.
 *
 *     gdr_t g = gdr_open();
 *     gdr_mh_t mh;
 *     void *va;
 *     gdr_pin_buffer(g, device_pointer, size, 0, 0, &mh);
 *     gdr_map(g, mh, &va, size);
 *     gdr_copy_to_mapping(mh, va, bytes, n);
 *     gdr_unmap(g, mh, va, size);
 *     gdr_unpin_buffer(g, mh);
 *     gdr_close(g);
 *
 * Functions that return int return 0 or a positive errno value. A handle that is null, closed,
 * unpinned or invalid returns EINVAL. Every function may be called from any thread at any time, the
 * two copies in signal handlers too. A handler may leave a copy by siglongjmp. A child made by
 * fork() inherits neither handles nor mappings: they return EINVAL there, and the child may call
 * gdr_open() itself.
 *
 * Environment:
 *   GDRCOPY_ENABLE_LOGGING    set to anything: log to stderr
 *   GDRCOPY_LOG_LEVEL         1 debug, 2 info, 3 warnings, 4 errors (the default)
 *   GDRCOPY_USE_DMABUF_MMAP   1: use the dmabuf backend and no other
 *   GDR_BACKEND               gdrdrv, dmabuf, rm or sim: use this backend and no other
 *   GDR_COPY                  name of the copy routine to use; cpu: no reads by the copy engine
 *   GDR_COPY_THREADS          2 or more: long copies may use so many threads; these may be neither
 *                             made in signal handlers nor left by siglongjmp
 *   GDR_SIM_BYTES             size of the simulated buffer of GDR_BACKEND=sim (64 MiB)
 */
#ifndef GDR_GDRAPI_H
#define GDR_GDRAPI_H

#include <stddef.h>
#include <stdint.h>

/* Versions are compared as major << 16 | minor. */
#define MAJOR_VERSION_SHIFT 16
#define MINOR_VERSION_MASK (((uint32_t)1 << MAJOR_VERSION_SHIFT) - 1)

/* The interface that this header describes. */
#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 6
#define GDR_API_VERSION ((GDR_API_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | GDR_API_MINOR_VERSION)

/* The oldest gdrdrv kernel module that can be used. */
#define MINIMUM_GDRDRV_MAJOR_VERSION 2
#define MINIMUM_GDRDRV_MINOR_VERSION 0
#define MINIMUM_GDRDRV_VERSION \
    ((MINIMUM_GDRDRV_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | MINIMUM_GDRDRV_MINOR_VERSION)

/* GPU memory is pinned in pages of 64 KiB. */
#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1UL << GPU_PAGE_SHIFT)
#define GPU_PAGE_OFFSET (GPU_PAGE_SIZE - 1)
#define GPU_PAGE_MASK (~GPU_PAGE_OFFSET)

#ifdef __cplusplus
extern "C" {
#endif

/* An open library. */
struct gdr;
typedef struct gdr *gdr_t;

/* The handle of a pinned buffer. h is never 0. */
typedef struct gdr_mh_s {
    unsigned long h;
} gdr_mh_t;

/* Opens the library. NULL and errno when no backend works; the log has the reasons. */
gdr_t gdr_open(void);

/* Unmaps and unpins everything of g, then closes it. */
int gdr_close(gdr_t g);

/*
 * Pins size bytes of GPU memory at addr, widened to whole GPU pages. Any address can be pinned;
 * only one that is a multiple of GPU_PAGE_SIZE can be mapped. The tokens are ignored; with a gdrdrv
 * module before 2.5 both must be 0.
 *
 * EINVAL: not GPU memory, managed or freed memory, a range past its allocation, size 0. ENOMEM: the
 * GPU's BAR1 is full, or too many pins.
 */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token,
                   uint32_t va_space, gdr_mh_t *handle);

typedef enum gdr_pin_flags {
    GDR_PIN_FLAG_DEFAULT = 0,
    GDR_PIN_FLAG_FORCE_PCIE = 1 /* over PCIe, also where a coherent link exists */
} gdr_pin_flags_t;

/* As gdr_pin_buffer without tokens, with flags. */
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags,
                      gdr_mh_t *handle);

/* Unmaps and unpins. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/* *flag = 1 when the memory of a pin that is not persistent was freed, else 0. */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);

typedef enum gdr_mapping_type {
    GDR_MAPPING_TYPE_NONE = 0,    /* not mapped */
    GDR_MAPPING_TYPE_WC = 1,      /* write-combined */
    GDR_MAPPING_TYPE_CACHING = 2, /* cached by the CPU */
    GDR_MAPPING_TYPE_DEVICE = 3,  /* aligned accesses only */
    GDR_MAPPING_TYPE_MAX
} gdr_mapping_type_t;

/*
 * What is pinned. va and mapped_size are whole pages, so va may be below the pinned address, which
 * is at offset addr - va of the mapping.
 */
typedef struct gdr_info_v2 {
    uint64_t va;
    uint64_t mapped_size;
    uint32_t page_size;
    uint64_t tm_cycles;     /* deprecated: 0 */
    uint32_t cycles_per_ms; /* deprecated: 0 */
    unsigned mapped : 1;
    unsigned wc_mapping : 1;
    gdr_mapping_type_t mapping_type;
} gdr_info_v2_t;
typedef gdr_info_v2_t gdr_info_t;

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);

/*
 * The symbol gdr_get_info is for programs built before 2.4: it fills in the structure without
 * mapping_type (40 bytes). In source code gdr_get_info is gdr_get_info_v2.
 */
#define gdr_get_info gdr_get_info_v2

/*
 * Maps the first size bytes from info.va on, rounded up to host pages. A handle has one mapping
 * at a time: EAGAIN. EINVAL: the pinned address is not a multiple of GPU_PAGE_SIZE, or size is 0
 * or larger than the pin.
 */
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);

typedef enum gdr_map_flags {
    GDR_MAP_FLAG_DEFAULT = 0,
    GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
    GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
    GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3
} gdr_map_flags_t;

/* As gdr_map, with a requested mapping type. EOPNOTSUPP: not supported for this memory. */
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **ptr_va, size_t size, int flags);

/* Unmaps. va is the address from gdr_map, size its argument. Waits for copies in progress. */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);

/*
 * Copies to GPU memory. map_d_ptr points into the mapping of handle; EINVAL when the range is not
 * inside it. On return the stores have left the CPU in address order; a kernel launched later sees
 * them, a running kernel sees them soon if it polls with volatile loads.
 */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size);

/* Copies from GPU memory: about 1 us for 64 bytes, a PCIe round trip. */
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size);

/* The version of this library: 2, 6. */
void gdr_runtime_get_version(int *major, int *minor);

/* The version of the gdrdrv module; 2, 6 with another backend. */
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

typedef enum gdr_attr {
    GDR_ATTR_USE_PERSISTENT_MAPPING = 1,       /* mappings outlive cudaFree */
    GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,  /* GDR_PIN_FLAG_FORCE_PCIE may be passed */
    GDR_ATTR_USING_DMA_BUF_MMAP = 3,           /* the dmabuf backend is in use */
    GDR_ATTR_MAX
} gdr_attr_t;

/* An attribute of the backend. EINVAL and *v = 0 for an unknown attribute. */
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

/* A name for people: "None", "Write Combining", "Caching", "Device". */
int gdr_get_mapping_type_string(gdr_mapping_type_t mapping_type, const char **pstr);

#ifdef __cplusplus
}
#endif

#endif
