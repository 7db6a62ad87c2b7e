/* The buffer has 100000 bytes: a range may end anywhere in its last GPU page, as with gdrdrv. */
#include "check.h"

int main(void) {
    gdr_mh_t handle = {0};
    void *va = NULL;
    gdr_info_t info;
    gdr_t g = gdr_open();
    CHECK(g != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, 2 * GPU_PAGE_SIZE, 0, 0, &handle));
    SUCCEEDS(gdr_get_info(g, handle, &info));
    CHECK(info.va == GPU_BUFFER && info.mapped_size == 2 * GPU_PAGE_SIZE);
    SUCCEEDS(gdr_map(g, handle, &va, 2 * GPU_PAGE_SIZE));
    SUCCEEDS(gdr_copy_to_mapping(handle, (char *)va + 99999, "x", 1));
    SUCCEEDS(gdr_unpin_buffer(g, handle));
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + GPU_PAGE_SIZE, GPU_PAGE_SIZE, 0, 0, &handle));
    SUCCEEDS(gdr_unpin_buffer(g, handle));

    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, 2 * GPU_PAGE_SIZE + 1, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER + 100000, 1, 0, 0, &handle));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER + 2 * GPU_PAGE_SIZE, 1, 0, 0, &handle));
    SUCCEEDS(gdr_close(g));
    return 0;
}
