/* The header, as C99 with nothing but itself, and the layout of its types. */
#include "gdrapi.h"

#include <stddef.h>

#define SAYS(name, condition) typedef char name[(condition) ? 1 : -1]

SAYS(handle_is_a_word, sizeof(gdr_mh_t) == 8 && offsetof(gdr_mh_t, h) == 0);
SAYS(g_is_a_pointer, sizeof(gdr_t) == sizeof(void *));

SAYS(info_size, sizeof(gdr_info_t) == 48 && sizeof(gdr_info_v2_t) == 48);
SAYS(info_va, offsetof(gdr_info_t, va) == 0);
SAYS(info_mapped_size, offsetof(gdr_info_t, mapped_size) == 8);
SAYS(info_page_size, offsetof(gdr_info_t, page_size) == 16);
SAYS(info_tm_cycles, offsetof(gdr_info_t, tm_cycles) == 24);
SAYS(info_cycles_per_ms, offsetof(gdr_info_t, cycles_per_ms) == 32);
SAYS(info_mapping_type, offsetof(gdr_info_t, mapping_type) == 40);

SAYS(page, GPU_PAGE_SIZE == 65536 && GPU_PAGE_OFFSET == 65535 && GPU_PAGE_MASK == ~65535UL);
SAYS(version, GDR_API_MAJOR_VERSION == 2 && GDR_API_MINOR_VERSION == 6);
SAYS(packed_version, GDR_API_VERSION == 0x20006 && MINIMUM_GDRDRV_VERSION == 0x20000);
SAYS(minor_mask, MINOR_VERSION_MASK == 0xffff);

SAYS(pin_flags, GDR_PIN_FLAG_DEFAULT == 0 && GDR_PIN_FLAG_FORCE_PCIE == 1);
SAYS(map_flags, GDR_MAP_FLAG_DEFAULT == 0 && GDR_MAP_FLAG_REQ_WC_MAPPING == 1 &&
                    GDR_MAP_FLAG_REQ_CACHE_MAPPING == 2 && GDR_MAP_FLAG_REQ_DEVICE_MAPPING == 3);
SAYS(types, GDR_MAPPING_TYPE_NONE == 0 && GDR_MAPPING_TYPE_WC == 1 &&
                GDR_MAPPING_TYPE_CACHING == 2 && GDR_MAPPING_TYPE_DEVICE == 3 &&
                GDR_MAPPING_TYPE_MAX == 4);
SAYS(attributes, GDR_ATTR_USE_PERSISTENT_MAPPING == 1 &&
                     GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE == 2 &&
                     GDR_ATTR_USING_DMA_BUF_MMAP == 3 && GDR_ATTR_MAX == 4);
SAYS(enums_are_ints, sizeof(gdr_mapping_type_t) == 4 && sizeof(gdr_attr_t) == 4);

int main(void) {
    /* The bit-fields are the two lowest bits of the word at 36. */
    union {
        gdr_info_t info;
        unsigned words[12];
    } bits = {{0, 0, 0, 0, 0, 1, 0, GDR_MAPPING_TYPE_NONE}};
    int mapped_is_bit_0 = bits.words[9] == 1;
    bits.info.mapped = 0;
    bits.info.wc_mapping = 1;
    return mapped_is_bit_0 && bits.words[9] == 2 ? 0 : 1;
}
