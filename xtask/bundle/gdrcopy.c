/* GDRCopy's copy functions, for mappings of any library. Compiled with GDRCopy's source, which this
 * repository does not contain. */

#include "gdrapi.c"

__attribute__((constructor)) static void choose_routines(void)
{
    gdr_init_cpu_flags();
}

int copy_to_mapping(void *mapping, const void *host, size_t bytes)
{
    return gdr_copy_to_mapping_internal(mapping, host, bytes, GDR_MAPPING_TYPE_WC);
}

int copy_from_mapping(void *host, const void *mapping, size_t bytes)
{
    return gdr_copy_from_mapping_internal(host, mapping, bytes, GDR_MAPPING_TYPE_WC);
}
