/* Three buffers of 40000 bytes in one block, then one of 131072 bytes in a block of its own: a pin may go on
 * from one buffer into the next one of its block, and no farther than the block. */
#include "check.h"

#define BLOCK 0x200000UL
/* Buffers start at multiples of 512. */
#define SECOND 40448UL
#define THIRD (2 * SECOND)

int main(void) {
    gdr_mh_t both = {0}, second = {0};
    void *va = NULL, *of_second = NULL;
    char read[4] = {0};
    gdr_info_t info;
    gdr_t g = gdr_open();
    CHECK(g != NULL);
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, THIRD + 40000, 0, 0, &both));
    SUCCEEDS(gdr_get_info(g, both, &info));
    CHECK(info.va == GPU_BUFFER && info.mapped_size == 2 * GPU_PAGE_SIZE);
    SUCCEEDS(gdr_map(g, both, &va, 2 * GPU_PAGE_SIZE));
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + GPU_PAGE_SIZE, GPU_PAGE_SIZE, 0, 0, &second));
    SUCCEEDS(gdr_map(g, second, &of_second, GPU_PAGE_SIZE));

    /* Bytes that are written over the end of the second buffer are found in the third. */
    SUCCEEDS(gdr_copy_to_mapping(both, (char *)va + THIRD - 2, "abcd", 4));
    SUCCEEDS(gdr_copy_from_mapping(second, read, (char *)of_second + THIRD - GPU_PAGE_SIZE - 2, 4));
    CHECK(memcmp(read, "abcd", 4) == 0);
    SUCCEEDS(gdr_unpin_buffer(g, second));
    SUCCEEDS(gdr_unpin_buffer(g, both));

    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, BLOCK, 0, 0, &both));
    SUCCEEDS(gdr_unpin_buffer(g, both));
    SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER + BLOCK, 2 * GPU_PAGE_SIZE, 0, 0, &both));
    SUCCEEDS(gdr_unpin_buffer(g, both));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, BLOCK + 1, 0, 0, &both));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, BLOCK + 2 * GPU_PAGE_SIZE, 0, 0, &both));
    SUCCEEDS(gdr_close(g));
    return 0;
}
