/* What works, works, and the bytes arrive. */
#include <fcntl.h>

#include "check.h"

#undef gdr_get_info
/* The structure before 2.4, with guards behind it. */
struct info_v1 {
    uint64_t va;
    uint64_t mapped_size;
    uint32_t page_size;
    uint64_t tm_cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1;
    unsigned wc_mapping : 1;
};
struct guarded {
    struct info_v1 info;
    unsigned char guard[24];
};
int gdr_get_info(gdr_t g, gdr_mh_t handle, struct info_v1 *info);

static void versions_attributes_and_names(gdr_t g) {
    int major = 0, minor = 0, value = -1;
    gdr_runtime_get_version(&major, &minor);
    CHECK(major == GDR_API_MAJOR_VERSION && minor == GDR_API_MINOR_VERSION);
    major = minor = 0;
    SUCCEEDS(gdr_driver_get_version(g, &major, &minor));
    CHECK(major == 2 && minor == 6);

    SUCCEEDS(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &value));
    CHECK(value == 1);
    SUCCEEDS(gdr_get_attribute(g, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, &value));
    CHECK(value == 0);
    SUCCEEDS(gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &value));
    CHECK(value == 0);

    const char *const names[] = {"None", "Write Combining", "Caching", "Device"};
    for (int type = 0; type < 4; type++) {
        const char *name = NULL;
        SUCCEEDS(gdr_get_mapping_type_string((gdr_mapping_type_t)type, &name));
        CHECK(strcmp(name, names[type]) == 0);
    }
}

static void the_first_field_is_an_open_descriptor_that_exec_closes(gdr_t g) {
    int fd;
    unsigned char copy[128];
    memcpy(copy, g, sizeof copy); /* as programs with the private header do */
    memcpy(&fd, copy, sizeof fd);
    CHECK(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

static void a_handle_can_be_read_like_the_private_structure(gdr_mh_t handle) {
    int ends[2];
    CHECK(handle.h != 0 && pipe(ends) == 0);
    CHECK(write(ends[1], (const void *)handle.h, 112) == 112);
    close(ends[0]);
    close(ends[1]);
}

static void info_follows_the_mapping(gdr_t g) {
    gdr_mh_t handle = {0};
    void *va = NULL;
    gdr_info_v2_t info;
    struct guarded old;
    const size_t size = 3 * GPU_PAGE_SIZE + 5;
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + GPU_PAGE_SIZE, size, 0, 0, &handle));
    a_handle_can_be_read_like_the_private_structure(handle);

    memset(&info, 0xee, sizeof info);
    SUCCEEDS(gdr_get_info_v2(g, handle, &info));
    CHECK(info.va == GPU_BUFFER + GPU_PAGE_SIZE && info.mapped_size == 4 * GPU_PAGE_SIZE);
    CHECK(info.page_size == GPU_PAGE_SIZE && info.tm_cycles == 0);
    CHECK(!info.mapped && !info.wc_mapping && info.mapping_type == GDR_MAPPING_TYPE_NONE);

    SUCCEEDS(gdr_map(g, handle, &va, size));
    SUCCEEDS(gdr_get_info_v2(g, handle, &info));
    CHECK(info.mapped && info.wc_mapping && info.mapping_type == GDR_MAPPING_TYPE_WC);

    memset(&old, 0xee, sizeof old);
    SUCCEEDS(gdr_get_info(g, handle, &old.info));
    CHECK(sizeof old.info == 40 && old.info.va == info.va && old.info.mapped && old.info.wc_mapping);
    CHECK(old.info.mapped_size == info.mapped_size && old.info.page_size == info.page_size);
    for (size_t at = 0; at < sizeof old.guard; at++) CHECK(old.guard[at] == 0xee);

    SUCCEEDS(gdr_unmap(g, handle, va, size));
    SUCCEEDS(gdr_get_info_v2(g, handle, &info));
    CHECK(!info.mapped && !info.wc_mapping && info.mapping_type == GDR_MAPPING_TYPE_NONE);

    int flag = -1;
    SUCCEEDS(gdr_get_callback_flag(g, handle, &flag));
    CHECK(flag == 0);
    SUCCEEDS(gdr_unpin_buffer(g, handle));
}

static void bytes_arrive_in_both_directions_at_every_offset(gdr_t g) {
    static unsigned char data[6000], back[6000];
    gdr_mh_t one = {0}, other = {0};
    unsigned char *va = NULL, *seen = NULL;
    const size_t size = 2 * GPU_PAGE_SIZE;
    for (size_t at = 0; at < sizeof data; at++) data[at] = (unsigned char)(at * 7 + at / 256);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, size, 0, 0, &one));
    SUCCEEDS(gdr_pin_buffer_v2(g, GPU_BUFFER, size, GDR_PIN_FLAG_DEFAULT, &other));
    CHECK(one.h != other.h);
    SUCCEEDS(gdr_map(g, one, (void **)&va, size));
    SUCCEEDS(gdr_map_v2(g, other, (void **)&seen, size, GDR_MAP_FLAG_REQ_WC_MAPPING));
    CHECK(va != seen);

    const size_t offsets[] = {0, 1, 2, 3, 4, 5, 6, 7, 11, 63, 64, 129, 1023, 65530};
    const size_t sizes[] = {0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 65, 127, 1000, 5000};
    for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const size_t offset = offsets[o], n = sizes[s], skew = (o + s) % 13;
            memset(va, 0x11, 80000);
            SUCCEEDS(gdr_copy_to_mapping(one, va + offset, data + skew, n));
            CHECK(memcmp(seen + offset, data + skew, n) == 0);
            CHECK(offset == 0 || seen[offset - 1] == 0x11);
            CHECK(seen[offset + n] == 0x11);

            memset(back, 0x22, sizeof back);
            SUCCEEDS(gdr_copy_from_mapping(other, back + 16 + skew, seen + offset, n));
            CHECK(memcmp(back + 16 + skew, data + skew, n) == 0);
            CHECK(back[15 + skew] == 0x22 && back[16 + skew + n] == 0x22);
        }
    }
    /* The last byte, and nothing after it. */
    SUCCEEDS(gdr_copy_to_mapping(one, va + size - 1, data, 1));
    SUCCEEDS(gdr_copy_to_mapping(one, va + size, data, 0));
    SUCCEEDS(gdr_copy_from_mapping(one, NULL, va, 0));
    SUCCEEDS(gdr_close(g)); /* with both mapped */
}

static void mappings_may_be_shorter_than_the_pin_and_come_again(gdr_t g) {
    gdr_mh_t handle = {0};
    void *va = NULL;
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, 4 * GPU_PAGE_SIZE, 0, 0, &handle));
    const size_t sizes[] = {1, 4096, 4097, GPU_PAGE_SIZE, 4 * GPU_PAGE_SIZE};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char byte = (char)s;
        SUCCEEDS(gdr_map(g, handle, &va, sizes[s]));
        SUCCEEDS(gdr_copy_to_mapping(handle, (char *)va + sizes[s] - 1, &byte, 1));
        SUCCEEDS(gdr_unmap(g, handle, va, sizes[s]));
        REFUSES(gdr_copy_to_mapping(handle, va, &byte, 1));
    }
    SUCCEEDS(gdr_map(g, handle, &va, GPU_PAGE_SIZE));
    SUCCEEDS(gdr_unpin_buffer(g, handle)); /* while mapped */
}

static void many_handles_all_differ(gdr_t g) {
    enum { COUNT = 3000 };
    static gdr_mh_t handles[COUNT];
    for (int i = 0; i < COUNT; i++) {
        SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, 1, 0, 0, &handles[i]));
        CHECK(i == 0 || handles[i].h != handles[i - 1].h);
        if (i >= 100) SUCCEEDS(gdr_unpin_buffer(g, handles[i - 100]));
        if (i >= 101) REFUSES(gdr_unpin_buffer(g, handles[i - 101]));
    }
    for (int i = COUNT - 100; i < COUNT; i++) SUCCEEDS(gdr_unpin_buffer(g, handles[i]));
    for (int i = 0; i < COUNT; i++) REFUSES(gdr_unpin_buffer(g, handles[i]));
}

int main(void) {
    gdr_t g = gdr_open();
    CHECK(g != NULL);
    versions_attributes_and_names(g);
    the_first_field_is_an_open_descriptor_that_exec_closes(g);
    info_follows_the_mapping(g);
    mappings_may_be_shorter_than_the_pin_and_come_again(g);
    many_handles_all_differ(g);
    bytes_arrive_in_both_directions_at_every_offset(g);
    return 0;
}
