/* What is wrong is refused, whatever it is, and nothing crashes. */
#include "check.h"

static unsigned char page[4096];

static void every_function_refuses_handle(gdr_t g, gdr_mh_t handle) {
    void *va = NULL;
    int flag = 7;
    gdr_info_v2_t info;
    REFUSES(gdr_map(g, handle, &va, GPU_PAGE_SIZE));
    REFUSES(gdr_map_v2(g, handle, &va, GPU_PAGE_SIZE, GDR_MAP_FLAG_DEFAULT));
    REFUSES(gdr_unmap(g, handle, page, sizeof page));
    REFUSES(gdr_get_info_v2(g, handle, &info));
    REFUSES(gdr_get_callback_flag(g, handle, &flag));
    REFUSES(gdr_copy_to_mapping(handle, page, page, 8));
    REFUSES(gdr_copy_from_mapping(handle, page, page, 8));
    REFUSES(gdr_copy_to_mapping(handle, page, page, 0));
    REFUSES(gdr_unpin_buffer(g, handle));
    CHECK(va == NULL && flag == 7);
}

static void every_function_refuses_library(gdr_t g, gdr_mh_t live) {
    gdr_mh_t handle = {0};
    void *va = NULL;
    int one = 7, two = 7;
    gdr_info_v2_t info;
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, 8, 0, 0, &handle));
    REFUSES(gdr_pin_buffer_v2(g, GPU_BUFFER, 8, 0, &handle));
    REFUSES(gdr_map(g, live, &va, GPU_PAGE_SIZE));
    REFUSES(gdr_unmap(g, live, page, 1));
    REFUSES(gdr_get_info_v2(g, live, &info));
    REFUSES(gdr_get_callback_flag(g, live, &one));
    REFUSES(gdr_driver_get_version(g, &one, &two));
    CHECK(one == 7 && two == 7);
    REFUSES(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &one));
    REFUSES(gdr_unpin_buffer(g, live));
    REFUSES(gdr_close(g));
    CHECK(handle.h == 0 && va == NULL);
}

static uint64_t random_number(void) {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void forged_handles(gdr_t g, gdr_mh_t live) {
    unsigned char stack[128] = {0};
    static unsigned char data[128];
    void *heap = calloc(1, 128);
    const unsigned long forged[] = {
        0, 1, 8, ~0UL, (unsigned long)stack, (unsigned long)data, (unsigned long)heap,
        (unsigned long)g, (unsigned long)&forged_handles, live.h + 1, live.h - 1, live.h + 4,
        live.h + 8, live.h - 8, live.h ^ (1UL << 30), live.h + (2UL << 20), live.h ^ (1UL << 63),
    };
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        gdr_mh_t handle = {forged[i]};
        every_function_refuses_handle(g, handle);
    }
    for (int i = 0; i < 20000; i++) {
        gdr_mh_t anything = {random_number()};
        gdr_mh_t near = {live.h + (random_number() & ~7UL) % (1UL << 32)};
        if (anything.h != live.h) every_function_refuses_handle(g, anything);
        if (near.h != live.h) every_function_refuses_handle(g, near);
    }
    free(heap);
}

static void forged_libraries(gdr_t g, gdr_mh_t live) {
    unsigned char copy[128];
    memcpy(copy, g, sizeof copy);
    every_function_refuses_library(NULL, live);
    every_function_refuses_library((gdr_t)(void *)copy, live);
    every_function_refuses_library((gdr_t)8, live);
    every_function_refuses_library((gdr_t)~0UL, live);
    every_function_refuses_library((gdr_t)((char *)g + 1), live);
    for (int i = 0; i < 1000; i++) every_function_refuses_library((gdr_t)random_number(), live);
}

static void null_outputs(gdr_t g, gdr_mh_t live) {
    int value = 7;
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, 8, 0, 0, NULL));
    REFUSES(gdr_pin_buffer_v2(g, GPU_BUFFER, 8, 0, NULL));
    REFUSES(gdr_map(g, live, NULL, GPU_PAGE_SIZE));
    REFUSES(gdr_map_v2(g, live, NULL, GPU_PAGE_SIZE, 0));
    REFUSES(gdr_get_info_v2(g, live, NULL));
    REFUSES(gdr_get_callback_flag(g, live, NULL));
    REFUSES(gdr_driver_get_version(g, NULL, &value));
    REFUSES(gdr_driver_get_version(g, &value, NULL));
    CHECK(value == 7);
    REFUSES(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, NULL));
    REFUSES(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, NULL));
    gdr_runtime_get_version(NULL, NULL);
}

static void numbers_that_mean_nothing(gdr_t g, gdr_mh_t live) {
    int value = 7;
    void *va = NULL;
    gdr_mh_t handle = {0};
    const char *name = NULL;
    REFUSES(gdr_get_attribute(g, (gdr_attr_t)0, &value));
    CHECK(value == 0);
    value = 7;
    REFUSES(gdr_get_attribute(g, (gdr_attr_t)99, &value));
    CHECK(value == 0);
    REFUSES(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &name));
    REFUSES(gdr_get_mapping_type_string((gdr_mapping_type_t)-1, &name));
    CHECK(name == NULL);
    REFUSES(gdr_pin_buffer_v2(g, GPU_BUFFER, 8, 2, &handle));
    REFUSES(gdr_pin_buffer_v2(g, GPU_BUFFER, 8, ~0u, &handle));
    REFUSES(gdr_pin_buffer_v2(g, GPU_BUFFER, 8, GDR_PIN_FLAG_FORCE_PCIE, &handle));
    REFUSES(gdr_map_v2(g, live, &va, GPU_PAGE_SIZE, 4));
    REFUSES(gdr_map_v2(g, live, &va, GPU_PAGE_SIZE, -1));
    ANSWERS(EOPNOTSUPP, gdr_map_v2(g, live, &va, GPU_PAGE_SIZE, GDR_MAP_FLAG_REQ_CACHE_MAPPING));
    ANSWERS(EOPNOTSUPP, gdr_map_v2(g, live, &va, GPU_PAGE_SIZE, GDR_MAP_FLAG_REQ_DEVICE_MAPPING));
    CHECK(va == NULL && handle.h == 0);
}

static void ranges_that_cannot_be_pinned(gdr_t g) {
    gdr_mh_t handle = {0};
    const size_t buffer = 1 << 20; /* GDR_SIM_BYTES */
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, 0, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, SIZE_MAX, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, buffer + 1, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER + buffer, 1, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER - 1, 1, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, 0, 1, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, ~0UL, 1, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, ~0UL, SIZE_MAX, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, (unsigned long)page, sizeof page, 0, 0, &handle));
    CHECK(handle.h == 0);
}

static void mappings_by_the_rules(gdr_t g) {
    gdr_mh_t handle = {0};
    void *va = NULL, *second = NULL;
    const size_t size = 2 * GPU_PAGE_SIZE;
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, size - 5, 0, 0, &handle));
    REFUSES(gdr_map(g, handle, &va, 0));
    REFUSES(gdr_map(g, handle, &va, size + 1));
    REFUSES(gdr_map(g, handle, &va, SIZE_MAX));
    REFUSES(gdr_map(g, handle, &va, SIZE_MAX - 4095));
    REFUSES(gdr_unmap(g, handle, page, size));
    REFUSES(gdr_copy_to_mapping(handle, page, page, 1));
    CHECK(va == NULL);

    SUCCEEDS(gdr_map(g, handle, &va, size));
    ANSWERS(EAGAIN, gdr_map(g, handle, &second, size));
    CHECK(second == NULL);
    unsigned char *const start = va;
    REFUSES(gdr_copy_to_mapping(handle, start - 1, page, 1));
    REFUSES(gdr_copy_to_mapping(handle, start - 1, page, 2));
    REFUSES(gdr_copy_to_mapping(handle, start + size, page, 1));
    REFUSES(gdr_copy_to_mapping(handle, start + size - 1, page, 2));
    REFUSES(gdr_copy_to_mapping(handle, start, page, SIZE_MAX));
    REFUSES(gdr_copy_to_mapping(handle, start + 8, page, SIZE_MAX - 4));
    REFUSES(gdr_copy_to_mapping(handle, NULL, page, 1));
    REFUSES(gdr_copy_to_mapping(handle, page, page, 1));
    REFUSES(gdr_copy_to_mapping(handle, start, NULL, 1));
    REFUSES(gdr_copy_from_mapping(handle, page, start + size - 1, 2));
    REFUSES(gdr_copy_from_mapping(handle, page, start, SIZE_MAX));
    REFUSES(gdr_copy_from_mapping(handle, NULL, start, 1));
    REFUSES(gdr_copy_from_mapping(handle, page, NULL, 1));

    REFUSES(gdr_unmap(g, handle, NULL, size));
    REFUSES(gdr_unmap(g, handle, start + 4096, 4096));
    REFUSES(gdr_unmap(g, handle, start, 0));
    REFUSES(gdr_unmap(g, handle, start, size + 1));
    REFUSES(gdr_unmap(g, handle, start, SIZE_MAX));
    SUCCEEDS(gdr_unmap(g, handle, start, size));
    REFUSES(gdr_unmap(g, handle, start, size));
    SUCCEEDS(gdr_unpin_buffer(g, handle));
    every_function_refuses_handle(g, handle);
}

static void an_unaligned_address_is_pinned_but_not_mapped(gdr_t g) {
    const unsigned long offsets[] = {1, 256, 512, 4096, GPU_PAGE_SIZE - 1};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        gdr_mh_t handle = {0};
        gdr_info_v2_t info;
        void *va = NULL;
        SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + offsets[i], GPU_PAGE_SIZE, 0, 0, &handle));
        SUCCEEDS(gdr_get_info_v2(g, handle, &info));
        CHECK(info.va == GPU_BUFFER && info.mapped_size == 2 * GPU_PAGE_SIZE);
        REFUSES(gdr_map(g, handle, &va, 4096));
        CHECK(va == NULL);
        SUCCEEDS(gdr_unpin_buffer(g, handle));
    }
}

static void handles_belong_to_one_library(gdr_t g, gdr_mh_t live) {
    gdr_t other = gdr_open();
    void *va = NULL;
    gdr_info_v2_t info;
    CHECK(other != NULL && other != g);
    REFUSES(gdr_map(other, live, &va, GPU_PAGE_SIZE));
    REFUSES(gdr_get_info_v2(other, live, &info));
    REFUSES(gdr_unpin_buffer(other, live));
    SUCCEEDS(gdr_map(g, live, &va, GPU_PAGE_SIZE));
    REFUSES(gdr_unmap(other, live, va, GPU_PAGE_SIZE));
    SUCCEEDS(gdr_unmap(g, live, va, GPU_PAGE_SIZE));
    SUCCEEDS(gdr_close(other));
}

static void closed_libraries_stay_closed(void) {
    gdr_t closed[300];
    gdr_mh_t handle = {0};
    for (int i = 0; i < 300; i++) {
        closed[i] = gdr_open();
        CHECK(closed[i] != NULL);
        SUCCEEDS(gdr_pin_buffer(closed[i], GPU_BUFFER, 1, 0, 0, &handle));
        SUCCEEDS(gdr_close(closed[i]));
        for (int j = 0; j <= i; j++) REFUSES(gdr_close(closed[j]));
    }
    every_function_refuses_library(closed[0], handle);
}

int main(void) {
    gdr_mh_t live = {0};
    gdr_mh_t nothing = {0};
    /* Before the first gdr_open there is nothing at all. */
    every_function_refuses_library(NULL, nothing);
    every_function_refuses_library((gdr_t)(void *)page, nothing);
    every_function_refuses_handle(NULL, nothing);

    gdr_t g = gdr_open();
    CHECK(g != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, GPU_PAGE_SIZE, 0, 0, &live));
    null_outputs(g, live);
    numbers_that_mean_nothing(g, live);
    ranges_that_cannot_be_pinned(g);
    mappings_by_the_rules(g);
    an_unaligned_address_is_pinned_but_not_mapped(g);
    handles_belong_to_one_library(g, live);
    forged_handles(g, live);
    forged_libraries(g, live);
    closed_libraries_stay_closed();

    /* After all that the live ones are alive. */
    void *va = NULL;
    SUCCEEDS(gdr_map(g, live, &va, GPU_PAGE_SIZE));
    SUCCEEDS(gdr_copy_to_mapping(live, va, page, sizeof page));
    SUCCEEDS(gdr_close(g));
    every_function_refuses_library(g, live);
    every_function_refuses_handle(g, live);
    return 0;
}
